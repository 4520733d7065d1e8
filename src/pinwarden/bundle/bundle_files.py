"""Bundles on disk (archive, descriptor and manifest): open, unpack, inspect, verify and accept them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pinwarden.artifacts.archives.rules import check_all_portable
from pinwarden.bundle.acceptance import AcceptanceResult, accept, check_documents, result_to_json
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.bundle_archive import FileContents, check_archive
from pinwarden.bundle.bundle_documents import (
    BUNDLE_LIMITS,
    CAR_MEDIA_TYPE,
    TAR_ZSTD_MEDIA_TYPE,
    BundleDescriptor,
    BundleDocuments,
    ManifestEntry,
)
from pinwarden.bundle.document import DOCUMENT_LIMITS
from pinwarden.bundle.trust import parse_installer_policy, parse_trust
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report, Row
from pinwarden.core.text import parse_timestamp, plural
from pinwarden.system.files import open_regular, read_file

SUFFIXES = {CAR_MEDIA_TYPE: ".car", TAR_ZSTD_MEDIA_TYPE: ".tar.zst"}


class BundleFiles(Record):
    """The paths of a bundle's three files."""

    archive: Path
    descriptor: Path
    manifest: Path


class OpenedBundle(Record):
    """A bundle in memory, with every byte verified against its documents."""

    documents: BundleDocuments
    contents: FileContents = field(repr=False)
    archive: bytes = field(repr=False)

    @property
    def content_hash(self) -> Digest:
        """The digest of the archive."""
        return Digest.of_bytes(self.archive)


def find_bundle_files(archive: Path, descriptor: str | None = None, manifest: str | None = None) -> BundleFiles:
    """Return the paths of a bundle's files. By default, descriptor and manifest are next to the archive."""
    return BundleFiles(
        archive=archive,
        descriptor=Path(descriptor) if descriptor else _find_next_to_archive(archive, ".descriptor.json"),
        manifest=Path(manifest) if manifest else _find_next_to_archive(archive, ".manifest.json"),
    )


def _find_next_to_archive(archive: Path, suffix: str) -> Path:
    """Return ``x.car.manifest.json``, the name that `pack` uses, or ``x.manifest.json`` if only that file exists."""
    ours = archive.with_name(f"{archive.name}{suffix}")
    kind = next((end for end in SUFFIXES.values() if archive.name.endswith(end)), "")
    foreign = archive.with_name(f"{archive.name.removesuffix(kind)}{suffix}")
    return foreign if foreign.is_file() and not ours.exists() else ours


def read_documents(files: BundleFiles) -> BundleDocuments:
    """Read descriptor and manifest, and check them against each other. The archive is not read."""
    for path, option in ((files.descriptor, "--descriptor"), (files.manifest, "--manifest")):
        if not path.exists():
            raise PinwardenError(
                "FILE_UNREADABLE",
                f"{path} does not exist",
                hint=f"pinwarden bundle pack writes it next to the archive. If it is elsewhere, pass {option} FILE.",
            )
    return check_documents(
        read_file(files.descriptor, DOCUMENT_LIMITS.max_bytes), read_file(files.manifest, DOCUMENT_LIMITS.max_bytes)
    )


def open_files(files: BundleFiles) -> OpenedBundle:
    """Read and verify a whole bundle."""
    with open_regular(files.archive):  # if the archive is missing, report it before its documents
        pass
    return open_bundle(read_documents(files), read_file(files.archive, BUNDLE_LIMITS.archive_bytes))


def open_bundle(documents: BundleDocuments, archive: bytes) -> OpenedBundle:
    """Verify an archive against its documents. `unpack` writes its files."""
    contents = check_archive(documents.descriptor, documents.manifest, archive)
    return OpenedBundle(documents=documents, contents=contents, archive=archive)


def unpack(entries: Iterable[ManifestEntry], contents: FileContents, destination: Path) -> None:
    """Write verified files into a new folder, all or none: they appear under `destination` in one rename.

    ``contents`` comes from `check_archive`. The paths are checked again here, where they reach the file system.
    """
    from tempfile import mkdtemp

    from pinwarden.artifacts.environments.store import remove_tree

    files = list(entries)
    check_all_portable([entry.path for entry in files])
    if destination.exists() or destination.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{destination} already exists")
    try:
        # A private folder, so that no other user can plant a symlink in it.
        fresh = Path(mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    except OSError as err:
        raise PinwardenError(
            "FILE_UNWRITABLE", f"{destination.parent} cannot be written: {err.strerror or err}"
        ) from err
    try:
        created: set[str] = set()
        for entry in files:
            _write_file(fresh, entry, contents[entry.path], created)
        fresh.chmod(0o755)
        fresh.rename(destination)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{destination} cannot be written: {err.strerror or err}") from err
    finally:
        remove_tree(fresh)


def _write_file(folder: Path, entry: ManifestEntry, data: memoryview | bytes, created: set[str]) -> None:
    path = folder / entry.path
    parent = entry.path.rpartition("/")[0]
    if parent and parent not in created:
        path.parent.mkdir(parents=True, exist_ok=True)
        created.add(parent)
    mode = 0o755 if entry.executable else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # the umask must not change the mode
        stream.write(data)


# Commands


def inspect_bundle(files: BundleFiles) -> Report:
    """Run ``pinwarden bundle inspect``, which reads only the documents and does not open the archive."""
    documents = read_documents(files)
    rows = [
        {
            "path": entry.path,
            "size_bytes": entry.size_bytes,
            "executable": entry.executable,
            "blob_cid": entry.blob_cid,
        }
        for entry in documents.manifest.entries
    ]
    descriptor = documents.descriptor
    requested = ", ".join(f"{name} {value}" for name, value in _policy_to_json(descriptor).items())
    return Report(
        command="bundle inspect",
        subject=files.archive.name,
        summary=f"{descriptor.name} {descriptor.version}: {plural(len(rows), 'file')}, {documents.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"starts with {descriptor.runtime}: {descriptor.target}; requests {requested}",
            *_describe_supported(descriptor),
            *(f"{row['path']}  {row['size_bytes']} bytes" for row in rows[:_MAX_LISTED_FILES]),
            *(
                [f"and {len(rows) - _MAX_LISTED_FILES} more; --format json lists all"]
                if len(rows) > _MAX_LISTED_FILES
                else []
            ),
        ),
        facts={**_identity_to_json(documents), "entries": rows},
    )


_MAX_LISTED_FILES = 20


def _describe_supported(descriptor: BundleDescriptor) -> Iterator[str]:
    """Yield what a bundle with code or packages for certain platforms runs on."""
    supported = descriptor.supported
    if supported.platforms or supported.python:
        python = f" with Python {', '.join(supported.python)}" if supported.python else ""
        yield f"is for {', '.join(supported.platforms) or 'every platform'}{python}"


def verify_bundle(files: BundleFiles) -> Report:
    """Run ``pinwarden bundle verify``, which verifies the hash of every file and ignores attestations."""
    opened = open_files(files)
    documents = opened.documents
    descriptor = documents.descriptor
    size = sum(entry.size_bytes for entry in documents.manifest.entries)
    file_count = plural(len(opened.contents), "file")
    return Report(
        command="bundle verify",
        subject=files.archive.name,
        summary=f"{descriptor.name} {descriptor.version} is intact: {file_count}, {size} bytes",
        exit_code=EXIT_CLEAN,
        notes=("intact does not mean trusted: check its attestations with pinwarden bundle accept",),
        facts={
            **_identity_to_json(documents),
            "content_hash": str(opened.content_hash),
            "files": len(opened.contents),
            "unpacked_bytes": size,
        },
    )


def _identity_to_json(documents: BundleDocuments) -> dict[str, Any]:
    descriptor = documents.descriptor
    return {
        "tool": descriptor.name,
        "version": descriptor.version,
        "root_cid": documents.root_cid,
        "descriptor_cid": documents.descriptor_cid,
        "media_type": descriptor.media_type,
        "size_bytes": descriptor.size_bytes,
        "runtime": descriptor.runtime,
        "target": descriptor.target,
        "policy": _policy_to_json(descriptor),
    }


def _policy_to_json(descriptor: BundleDescriptor) -> dict[str, str]:
    policy = descriptor.policy
    return {"network": policy.network, "filesystem": policy.filesystem, "exec": policy.exec}


class AcceptanceFiles(Record):
    """The input files of ``pinwarden bundle accept``."""

    pointer: Path
    descriptor: Path
    manifest: Path
    attestations: Sequence[Path]
    policy: Path
    trust: Path


def accept_files(files: AcceptanceFiles, now: str, *, tool: str | None, channel: str | None, literal: bool) -> Report:
    """Run ``pinwarden bundle accept``, which decides from files alone, without a registry or an install."""
    if parse_timestamp(now) is None:
        raise PinwardenError("USAGE", f"{now[:80]!a} is not a timestamp with a time zone, such as 2026-01-31T00:00:00Z")
    request = AcceptanceRequest(
        pointer=_read_document(files.pointer),
        descriptor=_read_document(files.descriptor),
        manifest=_read_document(files.manifest),
        attestations=tuple(_read_document(path) for path in files.attestations),
        policy=parse_installer_policy(_read_document(files.policy)),
        trust=parse_trust(_read_document(files.trust)),
        now=now,
        tool=tool,
        channel=channel,
        literal=literal,
    )
    return build_acceptance_report("bundle accept", files.pointer.name, accept(request), literal=literal)


def build_acceptance_report(command: str, subject: str, result: AcceptanceResult, *, literal: bool = False) -> Report:
    """Build the report of an acceptance result: the rulebook's JSON and a summary."""
    notes = ("decided in literal mode, which has known gaps; do not base an install on it",) if literal else ()
    rejection, provenance = result.rejection, result.provenance
    if rejection is not None:
        row = Row(
            code=rejection.code, severity="critical", entity="bundle", name=subject, path="", message=rejection.what
        )
        return Report(
            command=command,
            subject=subject,
            summary=f"REJECT {rejection.code}: {rejection.fix}",
            exit_code=EXIT_REFUSED,
            rows=(row,),
            notes=notes,
            facts=result_to_json(result),
            rule_texts={rejection.code: rejection.fix},
        )
    accepted = "" if provenance is None else f" {provenance.tool} on {provenance.channel}: {provenance.root_cid}"
    return Report(
        command=command,
        subject=subject,
        summary=f"ACCEPT{accepted}",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts=result_to_json(result),
    )


def _read_document(path: Path) -> bytes:
    return read_file(path, DOCUMENT_LIMITS.max_bytes)
