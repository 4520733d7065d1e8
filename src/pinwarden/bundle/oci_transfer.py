"""Push bundles to OCI registries and pull them, with the credentials of docker or podman.

A bundle is one OCI artifact; its layers are the archive, the documents, the attestations and a pointer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import NoReturn

from pinwarden.artifacts.endpoints.docker import find_registry_endpoint
from pinwarden.artifacts.oci_manifest import ImageManifest, parse_document
from pinwarden.artifacts.oci_manifest import OciDescriptor as Layer
from pinwarden.artifacts.oci_reference import DEFAULT_TAG, ImageReference, parse_reference
from pinwarden.artifacts.oci_registry import OciPushRegistry, OciRegistry
from pinwarden.bundle.acceptance import Provenance, accept, check_documents, provenance_to_json, rejection_from_error
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.attestation import MAX_ATTESTATION_BYTES, parse_attestation
from pinwarden.bundle.bundle_documents import BUNDLE_LIMITS, MEDIA_TYPES, BundleDescriptor
from pinwarden.bundle.bundle_files import SUFFIXES, BundleFiles, OpenedBundle, open_bundle, open_files, unpack
from pinwarden.bundle.document import DOCUMENT_LIMITS, encode_document
from pinwarden.bundle.log_documents import parse_pointers
from pinwarden.bundle.trust import InstallerPolicy, Trust
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.system.files import read_file, write_atomically
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher

SCHEME = "oci://"
ARTIFACT_TYPE = "application/vnd.mcp.toolbundle.v0.1"
DESCRIPTOR = "application/vnd.mcp.tool.descriptor.v0.1+json"
MANIFEST = "application/vnd.mcp.toolbundle.manifest.v0.1+json"
ATTESTATION = "application/vnd.mcp.attestation.envelope.v0.1+json"
POINTER = "application/vnd.mcp.registry.pointer.v0.1+json"
_MAX_ATTESTATIONS = 64


class OciNetwork:
    """Network access with the settings and credentials of the user's container clients."""

    def __init__(self, fetcher: Fetcher, settings: SettingsSources) -> None:
        self.fetcher = fetcher
        self._settings = settings

    def get_endpoint(self, reference: ImageReference) -> ServiceEndpoint:
        """Return the registry endpoint of a reference."""
        return find_registry_endpoint(reference, self._settings, configured_by="argument")


class BundleParts(Record):
    """The layers of a bundle's OCI artifact."""

    media_type: str
    """The media type of the archive."""
    archive: bytes = field(repr=False)
    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(default=(), repr=False)
    pointer: bytes | None = field(default=None, repr=False)
    """The signed pointer document of a bundle registry; None if the bundle was pushed without it."""


class PulledBundle(Record):
    """A downloaded bundle and the digest of its OCI artifact."""

    digest: Digest
    parts: BundleParts


# Push


def push_bundle(
    files: BundleFiles, attestations: Sequence[Path], signed_pointer: Path | None, address: str, net: OciNetwork
) -> Report:
    """Run ``pinwarden bundle push``, which verifies the bundle before it pushes it."""
    opened = open_files(files)
    documents = opened.documents
    parts = BundleParts(
        media_type=documents.descriptor.media_type,
        archive=opened.archive,
        descriptor=read_file(files.descriptor, DOCUMENT_LIMITS.max_bytes),
        manifest=read_file(files.manifest, DOCUMENT_LIMITS.max_bytes),
        attestations=tuple(read_file(path, DOCUMENT_LIMITS.max_bytes) for path in attestations),
        pointer=read_file(signed_pointer, DOCUMENT_LIMITS.max_bytes) if signed_pointer else None,
    )
    _check_attached_documents(parts, opened)
    annotations = {
        "org.opencontainers.image.title": documents.descriptor.name,
        "org.opencontainers.image.version": documents.descriptor.version,
        "io.pinwarden.root_cid": documents.root_cid,
        "io.pinwarden.descriptor_cid": documents.descriptor_cid,
    }
    reference = parse_bundle_reference(address)
    if reference.digest is not None:
        raise PinwardenError("USAGE", "push a bundle under a tag, not a digest; the registry computes the digest")
    digest = push_parts(OciPushRegistry(reference, net.fetcher, net.get_endpoint(reference)), parts, annotations)
    return Report(
        command="bundle push",
        subject=documents.descriptor.name,
        summary=f"pushed {reference} as {reference.with_digest(digest)}",
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


def _check_attached_documents(parts: BundleParts, opened: OpenedBundle) -> None:
    """Check that attestations and pointer are about this bundle, without verifying their signatures."""
    documents = opened.documents
    for attestation in map(parse_attestation, parts.attestations):
        if (attestation.root_cid, attestation.descriptor_cid) != (documents.root_cid, documents.descriptor_cid):
            raise PinwardenError(
                "USAGE", "an attestation is about another bundle", data={"root_cid": attestation.root_cid}
            )
    if parts.pointer is not None:
        rows = parse_pointers(parts.pointer).pointers
        if all(row.descriptor_cid != documents.descriptor_cid for row in rows):
            raise PinwardenError("USAGE", "the pointer does not point to this bundle")


def push_parts(registry: OciPushRegistry, parts: BundleParts, annotations: dict[str, str]) -> Digest:
    """Push a bundle under the tag of the registry's reference. Returns the digest of the artifact."""
    layers = [(parts.media_type, parts.archive), (DESCRIPTOR, parts.descriptor), (MANIFEST, parts.manifest)]
    layers += [(ATTESTATION, attestation) for attestation in parts.attestations]
    if parts.pointer is not None:
        layers.append((POINTER, parts.pointer))
    return registry.put_artifact(registry.reference.tag or DEFAULT_TAG, ARTIFACT_TYPE, layers, annotations)


def parse_bundle_reference(address: str) -> ImageReference:
    """Parse ``host/name:tag``, with or without ``oci://``."""
    return parse_reference(address.removeprefix(SCHEME))


# Pull


class AcceptanceOptions(Record):
    """The installer's trust and policy, for a pull that also accepts the bundle."""

    policy: InstallerPolicy
    trust: Trust
    now: str
    tool: str | None = None
    channel: str | None = None


class PullOptions(Record):
    """The bundle to pull, and the folders for its files."""

    reference: str
    output: Path
    acceptance: AcceptanceOptions | None = None
    unpack_to: Path | None = None
    """A new folder for the bundle's files. Requires ``acceptance``."""


def pull_bundle(options: PullOptions, net: OciNetwork) -> Report:
    """Run ``pinwarden bundle pull`` in these steps:

    1. Download the bundle and verify every byte.
    2. Decide whether to accept it, if the options contain trust and policy.
    3. Write its files, and unpack it if requested. If this fails, the new files and folders are removed.
    """
    if options.unpack_to is not None and options.acceptance is None:
        raise PinwardenError("USAGE", "only an accepted bundle is unpacked: add --policy and --trust")
    if options.unpack_to is not None and (options.unpack_to.exists() or options.unpack_to.is_symlink()):
        raise PinwardenError("FILE_EXISTS", f"{options.unpack_to} already exists")
    reference = parse_bundle_reference(options.reference)
    pulled, opened = fetch_bundle(reference, net)
    provenance = accept_pulled(pulled, options.acceptance) if options.acceptance is not None else None
    with _write_all_or_nothing(
        _plan_output_files(pulled.parts, opened.documents.descriptor, options.output, provenance)
    ) as written:
        if options.unpack_to is not None:
            unpack(opened.documents.manifest.entries, opened.contents, options.unpack_to)
    return _build_pull_report(options, reference.with_digest(pulled.digest), opened, pulled, provenance, written)


def fetch_bundle(reference: ImageReference, net: OciNetwork) -> tuple[PulledBundle, OpenedBundle]:
    """Download a bundle and verify every byte against its documents. Nothing is written."""
    pulled = pull_parts(OciRegistry(reference, net.fetcher, net.get_endpoint(reference)))
    documents = check_documents(pulled.parts.descriptor, pulled.parts.manifest)
    if documents.descriptor.media_type != pulled.parts.media_type:
        raise PinwardenError("IMAGE_INVALID", f"the media type of {reference}'s archive differs from its descriptor")
    return pulled, open_bundle(documents, pulled.parts.archive)


def accept_pulled(pulled: PulledBundle, options: AcceptanceOptions) -> Provenance:
    """Return the provenance of an accepted bundle. Raises an error with the rejection's code for a rejected one."""
    parts = pulled.parts
    if parts.pointer is None:
        raise PinwardenError("POINTER_NOT_FOUND", "the OCI artifact contains no pointer signed by a bundle registry")
    request = AcceptanceRequest(
        pointer=parts.pointer,
        descriptor=parts.descriptor,
        manifest=parts.manifest,
        attestations=parts.attestations,
        policy=options.policy,
        trust=options.trust,
        now=options.now,
        tool=options.tool,
        channel=options.channel,
    )
    result = accept(request)
    if result.provenance is not None:
        return result.provenance
    rejection = result.rejection or rejection_from_error(PinwardenError("INTERNAL", "no result"))
    raise PinwardenError(rejection.code, rejection.what, hint=rejection.fix, data=rejection.why)


def _plan_output_files(
    parts: BundleParts, descriptor: BundleDescriptor, output: Path, provenance: Provenance | None
) -> dict[Path, bytes]:
    archive = output / f"{descriptor.name}-{descriptor.version}{SUFFIXES[descriptor.media_type]}"
    written = {"": parts.archive, ".descriptor.json": parts.descriptor, ".manifest.json": parts.manifest}
    for index, attestation in enumerate(parts.attestations, 1):
        written[f".{index}.attestation.json"] = attestation
    if parts.pointer is not None:
        written[".pointer.json"] = parts.pointer
    if provenance is not None:
        written[".provenance.json"] = encode_document(provenance_to_json(provenance))
    return {archive.with_name(f"{archive.name}{suffix}"): data for suffix, data in written.items()}


@contextmanager
def _write_all_or_nothing(files: Mapping[Path, bytes]) -> Iterator[list[Path]]:
    """Write files and create missing folders.

    If a file cannot be written or the block raises, the new files and folders are removed, and replaced files get their
    earlier content back.
    """
    created: list[Path] = []
    earlier: dict[Path, Path] = {}
    try:
        for path, data in files.items():
            _make_folder(path.parent, created)
            if path.exists() or path.is_symlink():
                earlier[path] = _keep_earlier(path)
            else:
                created.append(path)
            write_atomically(path, data)
        yield list(files)
    except BaseException:
        for path, kept in earlier.items():
            kept.replace(path)
        for path in reversed(created):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
    for kept in earlier.values():
        kept.unlink()


def _keep_earlier(path: Path) -> Path:
    """Keep the content of a file under another name next to it, and return that name."""
    kept = path.with_name(f".{path.name}.{token_hex(8)}.earlier")
    try:
        kept.hardlink_to(path)
    except OSError:  # a file system without hard links
        try:
            shutil.copy2(path, kept, follow_symlinks=False)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be replaced: {err.strerror or err}") from err
    return kept


def _make_folder(folder: Path, created: list[Path]) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        for parent in reversed(missing):
            parent.mkdir()
            created.append(parent)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder} cannot be written: {err.strerror or err}") from err


def _build_pull_report(  # noqa: PLR0913, PLR0917  # each is part of the report
    options: PullOptions,
    resolved: ImageReference,
    opened: OpenedBundle,
    pulled: PulledBundle,
    provenance: Provenance | None,
    written: list[Path],
) -> Report:
    descriptor, parts = opened.documents.descriptor, pulled.parts
    state = "accepted" if provenance else "intact"
    notes = () if provenance else ("intact does not mean trusted: add --policy and --trust to accept it",)
    return Report(
        command="bundle pull",
        subject=descriptor.name,
        summary=f"{written[0]} is {state}: {plural(len(opened.contents), 'file')}, {opened.documents.root_cid}",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts={
            "reference": str(resolved),
            "digest": str(pulled.digest),
            "tool": descriptor.name,
            "version": descriptor.version,
            "root_cid": opened.documents.root_cid,
            "descriptor_cid": opened.documents.descriptor_cid,
            "attestations": len(parts.attestations),
            "pointer": parts.pointer is not None,
            "files": [str(path) for path in written],
            "provenance": provenance_to_json(provenance) if provenance else None,
            "unpacked": str(options.unpack_to) if options.unpack_to else None,
        },
    )


def pull_parts(registry: OciRegistry) -> PulledBundle:
    """Pull the bundle that a reference names, and verify its digests. The caller decides whether to accept it."""
    reference = registry.reference
    document = registry.fetch_document(reference.digest if reference.digest is not None else reference.tag_or_digest)
    if document is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry does not have {reference}")
    if not document.is_verified:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry's response for {reference} does not match its digest",
            data={"found": str(document.digest), "wanted": list(document.mismatches)},
        )
    manifest = parse_document(document.body, document.content_type)
    if not isinstance(manifest, ImageManifest) or manifest.artifact_type != ARTIFACT_TYPE:
        _refuse(f"{reference} is not a bundle")
    return PulledBundle(digest=document.digest, parts=_download_parts(registry, manifest))


def _download_parts(registry: OciRegistry, manifest: ImageManifest) -> BundleParts:
    """Download the layers by media type: each once, except attestations. Unknown layers are refused."""
    known = {*MEDIA_TYPES, DESCRIPTOR, MANIFEST, ATTESTATION, POINTER}
    unknown = next((layer.media_type for layer in manifest.layers if layer.media_type not in known), None)
    if unknown is not None:
        _refuse(f"the bundle has a layer of unknown type {unknown[:80]!a}")
    archive = _require_one_layer([layer for layer in manifest.layers if layer.media_type in MEDIA_TYPES], "archive")
    pointers = list(_select_layers(manifest, POINTER))
    attestations = list(_select_layers(manifest, ATTESTATION))
    if len(attestations) > _MAX_ATTESTATIONS:
        _refuse(f"the bundle has more than {_MAX_ATTESTATIONS} attestations")
    documents = [_require_one_layer(list(_select_layers(manifest, kind)), kind) for kind in (DESCRIPTOR, MANIFEST)]
    descriptor, bundle_manifest = (_fetch_blob(registry, layer, DOCUMENT_LIMITS.max_bytes) for layer in documents)
    return BundleParts(
        media_type=archive.media_type,
        archive=_fetch_blob(registry, archive, BUNDLE_LIMITS.archive_bytes),
        descriptor=descriptor,
        manifest=bundle_manifest,
        attestations=tuple(_fetch_blob(registry, layer, MAX_ATTESTATION_BYTES) for layer in attestations),
        pointer=_fetch_blob(registry, _require_one_layer(pointers, "pointer"), DOCUMENT_LIMITS.max_bytes)
        if pointers
        else None,
    )


def _select_layers(manifest: ImageManifest, media_type: str) -> Iterator[Layer]:
    return (layer for layer in manifest.layers if layer.media_type == media_type)


def _require_one_layer(layers: list[Layer], kind: str) -> Layer:
    if len(layers) != 1:
        _refuse(f"the bundle has {len(layers)} layers of type {kind}; expected one")
    return layers[0]


def _fetch_blob(registry: OciRegistry, layer: Layer, max_bytes: int) -> bytes:
    buffer = BytesIO()
    received = registry.fetch_blob(layer, buffer, max_bytes)
    if received is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry has no layer {layer.digest}")
    if layer.digest not in received.digests or received.size != layer.size:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry's response does not match the digest {layer.digest}",
            data={"wanted": str(layer.digest), "found": [str(digest) for digest in received.digests]},
        )
    return buffer.getvalue()


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("IMAGE_INVALID", problem)
