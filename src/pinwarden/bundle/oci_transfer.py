"""Bundles to and from OCI registries, with the credentials that docker or podman has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pinwarden.artifacts.endpoints.docker import registry_endpoint
from pinwarden.artifacts.oci_reference import ImageReference, parse_reference
from pinwarden.artifacts.oci_registry import OciPushRegistry, OciRegistry
from pinwarden.bundle import attestation, pointer
from pinwarden.bundle.acceptance.bundle import check_documents
from pinwarden.bundle.acceptance.plan import accept
from pinwarden.bundle.acceptance.verdict import Submission, refusal_of
from pinwarden.bundle.archive import oci
from pinwarden.bundle.archive.oci import BundleParts, PulledBundle
from pinwarden.bundle.archive.unpack import unpack
from pinwarden.bundle.bundle_files import SUFFIXES, BundleFiles, OpenedBundle, open_bundle, open_files
from pinwarden.bundle.descriptor import Descriptor
from pinwarden.bundle.installer_policy import InstallerPolicy
from pinwarden.bundle.provenance import Provenance
from pinwarden.bundle.provenance import to_value as provenance_value
from pinwarden.bundle.shape import LIMITS
from pinwarden.bundle.signatures import to_bytes
from pinwarden.bundle.trust import Trust
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, plural
from pinwarden.system.files import read_file, write_atomically
from pinwarden.system.net.endpoint import Endpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher

SCHEME = "oci://"


class OciNetwork:
    """The network as this user's container clients are set to use it."""

    def __init__(self, fetcher: Fetcher, settings: SettingsSources) -> None:
        self.fetcher = fetcher
        self._settings = settings

    def endpoint(self, reference: ImageReference) -> Endpoint:
        """The registry of a reference."""
        return registry_endpoint(reference, self._settings, said_by="argument")


def push_bundle(
    files: BundleFiles, attestations: Sequence[Path], signed_pointer: Path | None, place: str, net: OciNetwork
) -> Report:
    """The report of ``pinwarden bundle push``. What is not whole is not pushed."""
    opened = open_files(files)
    documents = opened.documents
    parts = BundleParts(
        media_type=documents.descriptor.media_type,
        archive=opened.archive,
        descriptor=read_file(files.descriptor, LIMITS.max_bytes),
        manifest=read_file(files.manifest, LIMITS.max_bytes),
        attestations=tuple(read_file(path, LIMITS.max_bytes) for path in attestations),
        pointer=read_file(signed_pointer, LIMITS.max_bytes) if signed_pointer else None,
    )
    _check_companions(parts, opened)
    annotations = {
        "org.opencontainers.image.title": documents.descriptor.name,
        "org.opencontainers.image.version": documents.descriptor.version,
        "io.pinwarden.root_cid": documents.root_cid,
        "io.pinwarden.descriptor_cid": documents.descriptor_cid,
    }
    reference = reference_of(place)
    if reference.digest is not None:
        raise PinwardenError("USAGE", "a bundle is pushed under a tag; its digest comes out of that")
    digest = oci.push(OciPushRegistry(reference, net.fetcher, net.endpoint(reference)), parts, annotations)
    return Report(
        command="bundle push",
        subject=documents.descriptor.name,
        summary=f"{reference} is {reference.at(digest)}",
        exit_code=EXIT_CLEAN,
        facts={
            "reference": str(reference),
            "digest": str(digest),
            "tool": documents.descriptor.name,
            "version": documents.descriptor.version,
            "root_cid": documents.root_cid,
            "descriptor_cid": documents.descriptor_cid,
            "attestations": len(parts.attestations),
            "pointer": parts.pointer is not None,
        },
    )


def _check_companions(parts: BundleParts, opened: OpenedBundle) -> None:
    """Attestations and a pointer that are about this bundle, whoever signed them."""
    for each in map(attestation.parse, parts.attestations):
        if (each.root_cid, each.descriptor_cid) != (opened.documents.root_cid, opened.documents.descriptor_cid):
            raise PinwardenError("USAGE", "an attestation is about another bundle", data={"root_cid": each.root_cid})
    if parts.pointer is not None:
        rows = pointer.parse(parts.pointer).pointers
        if all(row.descriptor_cid != opened.documents.descriptor_cid for row in rows):
            raise PinwardenError("USAGE", "the pointer does not point to this bundle")


class Judging(Record):
    """Whom the installer trusts and what it allows, where a bundle is to be accepted and not only fetched."""

    policy: InstallerPolicy
    trust: Trust
    now: str
    tool: str | None = None
    channel: str | None = None


class Pulling(Record):
    """What is fetched, and where it goes."""

    place: str
    output: Path
    judging: Judging | None = None
    unpack_to: Path | None = None
    """A new folder for the bundle's files; only for a bundle that is accepted."""


def pull_bundle(pulling: Pulling, net: OciNetwork) -> Report:
    """The report of ``pinwarden bundle pull``.

    1. Fetch, and check every byte.
    2. Accept it in nine steps, if the installer says whom it trusts.
    3. Write its files, and unpack it if that is asked for: all of it, or nothing.
    """
    if pulling.unpack_to is not None and pulling.judging is None:
        raise PinwardenError("USAGE", "only an accepted bundle is unpacked: name --policy and --trust")
    if pulling.unpack_to is not None and (pulling.unpack_to.exists() or pulling.unpack_to.is_symlink()):
        raise PinwardenError("FILE_EXISTS", f"{pulling.unpack_to} exists already")
    reference = reference_of(pulling.place)
    pulled, opened = pulled_bundle(reference, net)
    provenance = accepted_from_oci(pulled, pulling.judging) if pulling.judging is not None else None
    with _all_or_nothing(_files_of(pulled.parts, opened.documents.descriptor, pulling.output, provenance)) as written:
        if pulling.unpack_to is not None:
            unpack(opened.documents.manifest.entries, opened.contents, pulling.unpack_to)
    return _pulled_report(pulling, reference.at(pulled.digest), opened, pulled, provenance, written)


def accepted_from_oci(pulled: PulledBundle, judging: Judging) -> Provenance:
    """What the acceptance of a pulled bundle rests on; a refusal is an error with the refusal's code."""
    parts = pulled.parts
    if parts.pointer is None:
        raise PinwardenError("POINTER_NOT_FOUND", "no bundle registry signed a pointer that came with the bundle")
    submission = Submission(
        pointer=parts.pointer,
        descriptor=parts.descriptor,
        manifest=parts.manifest,
        attestations=parts.attestations,
        policy=judging.policy,
        trust=judging.trust,
        now=judging.now,
        tool=judging.tool,
        channel=judging.channel,
    )
    verdict = accept(submission)
    if verdict.provenance is not None:
        return verdict.provenance
    refusal = verdict.refusal or refusal_of(PinwardenError("INTERNAL", "no verdict"))
    raise PinwardenError(refusal.code, refusal.what, hint=refusal.fix, data=refusal.why)


def _files_of(
    parts: BundleParts, descriptor: Descriptor, output: Path, provenance: Provenance | None
) -> dict[Path, bytes]:
    archive = output / f"{descriptor.name}-{descriptor.version}{SUFFIXES[descriptor.media_type]}"
    written = {"": parts.archive, ".descriptor.json": parts.descriptor, ".manifest.json": parts.manifest}
    for number, each in enumerate(parts.attestations, 1):
        written[f".{number}.attestation.json"] = each
    if parts.pointer is not None:
        written[".pointer.json"] = parts.pointer
    if provenance is not None:
        written[".provenance.json"] = to_bytes(provenance_value(provenance))
    return {archive.with_name(f"{archive.name}{suffix}"): data for suffix, data in written.items()}


@contextmanager
def _all_or_nothing(files: Mapping[Path, bytes]) -> Iterator[list[Path]]:
    """Write files, into a folder that is made if it is absent. If the block fails, what was made is taken away."""
    made: list[Path] = []
    try:
        for path, data in files.items():
            _make_folder(path.parent, made)
            if not path.exists():
                made.append(path)
            write_atomically(path, data)
        yield list(files)
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise


def _make_folder(folder: Path, made: list[Path]) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir()
            made.append(each)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err


def _pulled_report(  # noqa: PLR0913, PLR0917  # one line of the report each
    pulling: Pulling,
    found: ImageReference,
    opened: OpenedBundle,
    pulled: PulledBundle,
    provenance: Provenance | None,
    written: list[Path],
) -> Report:
    descriptor, parts = opened.documents.descriptor, pulled.parts
    state = "accepted" if provenance else "whole"
    doubt = () if provenance else ("whole does not mean trusted: --policy and --trust tell whether it is accepted",)
    return Report(
        command="bundle pull",
        subject=descriptor.name,
        summary=f"{written[0]} is {state}: {plural(len(opened.contents), 'file')}, {opened.documents.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=doubt,
        facts={
            "reference": str(found),
            "digest": str(pulled.digest),
            "tool": descriptor.name,
            "version": descriptor.version,
            "root_cid": opened.documents.root_cid,
            "descriptor_cid": opened.documents.descriptor_cid,
            "attestations": len(parts.attestations),
            "pointer": parts.pointer is not None,
            "files": [str(path) for path in written],
            "provenance": provenance_value(provenance) if provenance else None,
            "unpacked": str(pulling.unpack_to) if pulling.unpack_to else None,
        },
    )


def pulled_bundle(reference: ImageReference, net: OciNetwork) -> tuple[PulledBundle, OpenedBundle]:
    """A bundle from a registry, every byte of it checked against its documents. Nothing is written."""
    pulled = oci.pull(OciRegistry(reference, net.fetcher, net.endpoint(reference)))
    documents = check_documents(pulled.parts.descriptor, pulled.parts.manifest)
    if documents.descriptor.media_type != pulled.parts.media_type:
        raise PinwardenError("IMAGE_INVALID", f"{reference} has another kind of archive than its descriptor says")
    return pulled, open_bundle(documents, pulled.parts.archive)


def reference_of(place: str) -> ImageReference:
    """``host/name:tag``, with or without ``oci://`` before it."""
    return parse_reference(place.removeprefix(SCHEME))
