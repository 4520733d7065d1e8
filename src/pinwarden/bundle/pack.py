"""A folder becomes a bundle: an archive, a manifest and a descriptor, the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.bundle import descriptor as descriptor_document
from pinwarden.bundle import manifest as manifest_document
from pinwarden.bundle import server_manifest
from pinwarden.bundle.archive.bundle_archive import entry_of, make_archive
from pinwarden.bundle.archive.limits import DEFAULT_LIMITS
from pinwarden.bundle.archive.tree import Tree, read_tree
from pinwarden.bundle.bundle_files import SUFFIXES
from pinwarden.bundle.descriptor_packing import describe, descriptor_extras
from pinwarden.bundle.server_manifest import MANIFEST_NAME, ServerManifest
from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.cid import document_cid, manifest_root_cid
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report, plural
from pinwarden.system.files import write_atomically


class Packing(Record):
    """What is to be packed, and how."""

    folder: Path
    output: Path
    """The folder that the three files go to."""
    media_type: str = descriptor_document.CAR
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Network, filesystem and exec, where they are not as the server's own file says."""
    compress: bool = False


class Packed(Record):
    """A bundle in memory."""

    descriptor: Mapping[str, Any]
    manifest: Mapping[str, Any]
    descriptor_cid: str
    root_cid: str
    archive: bytes = field(repr=False)
    left_out: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """What its files are called."""
        return f"{self.descriptor['tool']['name']}-{self.descriptor['tool']['version']}"


def pack(packing: Packing) -> Report:
    """The report of ``pinwarden bundle pack``."""
    if packing.output.resolve().is_relative_to(packing.folder.resolve()):
        raise PinwardenError(
            "USAGE",
            f"{packing.output} is inside the folder that is packed, so the next bundle would hold this one",
            hint="Name another folder with --output.",
        )
    try:
        packed = pack_folder(packing)
        packing.output.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{packing.output}: {err.strerror or err}") from err
    except PinwardenError as err:
        if err.code not in ("SERVER_ENTRY_INVALID", "DOCUMENT_INVALID") or "Write one" in err.hint:
            raise
        raise PinwardenError(err.code, err.message, hint="Correct server.json in the folder.", data=err.data) from err
    documents = {".descriptor.json": packed.descriptor, ".manifest.json": packed.manifest}
    archive = packing.output / f"{packed.stem}{SUFFIXES[packing.media_type]}"
    write_atomically(archive, packed.archive)
    for suffix, document in documents.items():
        write_atomically(archive.with_name(f"{archive.name}{suffix}"), to_bytes(document))
    return _report(packing, packed, archive)


def pack_folder(packing: Packing) -> Packed:
    """The bundle of a folder.

    1. Read the server's own description, and every file.
    2. List the files by the CIDs of their bytes: that list has the root CID.
    3. Put the files into an archive.
    4. Describe it; that has the descriptor CID, which the manifest links to.
    """
    tree = read_tree(packing.folder)
    server = _server(tree)
    unlinked = manifest_document.unlinked_value(entry_of(file) for file in tree.files)
    root = manifest_root_cid(unlinked)
    archive = make_archive(packing.media_type, unlinked, root, tree.files, compress=packing.compress)
    if len(archive) > DEFAULT_LIMITS.archive_bytes:
        most = DEFAULT_LIMITS.archive_bytes
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the archive has {len(archive)} bytes; at most {most} are read",
            hint="Remove files that the server does not need from the folder; then pack it again.",
        )
    described = describe(server, packing.permissions, str(root), packing.media_type, len(archive))
    descriptor = descriptor_document.to_value(described)
    for member, more in descriptor_extras(server).items():
        descriptor[member].update(more)
    descriptor_document.of(descriptor)  # what nobody could read is not packed
    descriptor_cid = str(document_cid(descriptor))
    return Packed(
        descriptor=descriptor,
        manifest=manifest_document.linked_value(unlinked, descriptor_cid),
        descriptor_cid=descriptor_cid,
        root_cid=str(root),
        archive=archive,
        left_out=tree.left_out,
    )


def _server(tree: Tree) -> ServerManifest:
    files = {file.path: file.data for file in tree.files}
    if MANIFEST_NAME not in files:
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"the folder has no {MANIFEST_NAME}",
            hint='Write one: {"name": "acme.notes", "version": "1.0.0", "runtime": "python", "entry": "main.py"}',
        )
    server = server_manifest.parse(files[MANIFEST_NAME])
    if server.entry not in files:
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: entry is no file of the folder: {server.entry[:120]!a}",
            data={"member": "entry"},
        )
    return server


def _report(packing: Packing, packed: Packed, archive: Path) -> Report:
    notes = [f"left out: {', '.join(packed.left_out)}"] if packed.left_out else []
    if packing.compress:
        notes.append("compressed: another version of the zstd library may give other bytes, and another descriptor CID")
    return Report(
        command="bundle pack",
        subject=packed.stem,
        summary=f"{archive} holds {plural(len(packed.manifest['entries']), 'file')}: {packed.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            "tool": packed.descriptor["tool"]["name"],
            "version": packed.descriptor["tool"]["version"],
            "root_cid": packed.root_cid,
            "descriptor_cid": packed.descriptor_cid,
            "media_type": packing.media_type,
            "content_hash": str(Digest.of_bytes(packed.archive)),
            "size_bytes": len(packed.archive),
            "files": len(packed.manifest["entries"]),
            "archive": str(archive),
            "descriptor": str(archive.with_name(f"{archive.name}.descriptor.json")),
            "manifest": str(archive.with_name(f"{archive.name}.manifest.json")),
            "left_out": list(packed.left_out),
        },
    )
