"""Bundles to and from OCI registries, with the credentials that docker or podman has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.adapters.artifacts.oci_push import PushRegistry
from pinwarden.adapters.artifacts.oci_registry import Registry
from pinwarden.adapters.bundles import oci
from pinwarden.adapters.bundles.oci import BundleParts, PulledBundle
from pinwarden.adapters.endpoints.docker import registry_endpoint
from pinwarden.adapters.endpoints.endpoint import Endpoint, Settings
from pinwarden.adapters.files import read_file, write_atomically
from pinwarden.adapters.net.fetch import Fetcher
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.documents.bundle import attestation, pointer
from pinwarden.documents.bundle.shape import LIMITS
from pinwarden.documents.oci.reference import Reference, parse_reference
from pinwarden.flows.bundle.files import SUFFIXES, BundleFiles, OpenedBundle, open_bundle, open_files
from pinwarden.flows.report import Report, counted
from pinwarden.rules.acceptance.bundle import check_documents

SCHEME = "oci://"


class OciNetwork:
    """The network as this user's container clients are set to use it."""

    def __init__(self, fetcher: Fetcher, settings: Settings) -> None:
        self.fetcher = fetcher
        self._settings = settings

    def endpoint(self, reference: Reference) -> Endpoint:
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
    digest = oci.push(PushRegistry(reference, net.fetcher, net.endpoint(reference)), parts, annotations)
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


def pull_bundle(place: str, output: Path, net: OciNetwork) -> Report:
    """The report of ``pinwarden bundle pull``. What is not whole is not written."""
    reference = reference_of(place)
    pulled, opened = pulled_bundle(reference, net)
    descriptor = opened.documents.descriptor
    archive = output / f"{descriptor.name}-{descriptor.version}{SUFFIXES[descriptor.media_type]}"
    parts = pulled.parts
    written = {archive: parts.archive}
    written[archive.with_name(f"{archive.name}.descriptor.json")] = parts.descriptor
    written[archive.with_name(f"{archive.name}.manifest.json")] = parts.manifest
    for number, each in enumerate(parts.attestations, 1):
        written[archive.with_name(f"{archive.name}.{number}.attestation.json")] = each
    if parts.pointer is not None:
        written[archive.with_name(f"{archive.name}.pointer.json")] = parts.pointer
    for path, data in written.items():
        write_atomically(path, data)
    return Report(
        command="bundle pull",
        subject=descriptor.name,
        summary=f"{archive} is whole: {counted(len(opened.contents), 'file')}, {opened.documents.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=("whole does not mean trusted: pinwarden bundle accept tells who vouches for it",),
        facts={
            "reference": str(reference.at(pulled.digest)),
            "digest": str(pulled.digest),
            "tool": descriptor.name,
            "version": descriptor.version,
            "root_cid": opened.documents.root_cid,
            "descriptor_cid": opened.documents.descriptor_cid,
            "attestations": len(parts.attestations),
            "pointer": parts.pointer is not None,
            "files": [str(path) for path in written],
        },
    )


def pulled_bundle(reference: Reference, net: OciNetwork) -> tuple[PulledBundle, OpenedBundle]:
    """A bundle from a registry, every byte of it checked against its documents. Nothing is written."""
    pulled = oci.pull(Registry(reference, net.fetcher, net.endpoint(reference)))
    documents = check_documents(pulled.parts.descriptor, pulled.parts.manifest)
    if documents.descriptor.media_type != pulled.parts.media_type:
        raise PinwardenError("IMAGE_INVALID", f"{reference} has another kind of archive than its descriptor says")
    return pulled, open_bundle(documents, pulled.parts.archive)


def reference_of(place: str) -> Reference:
    """``host/name:tag``, with or without ``oci://`` before it."""
    return parse_reference(place.removeprefix(SCHEME))
