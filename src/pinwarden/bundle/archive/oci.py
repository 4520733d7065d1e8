"""A bundle in any OCI registry: one artifact whose layers are the archive, its documents, and who vouches for it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import NoReturn

from pinwarden.artifacts.oci_manifest import Descriptor, ImageManifest, parse_document
from pinwarden.artifacts.oci_reference import DEFAULT_TAG
from pinwarden.artifacts.oci_registry import OciPushRegistry, OciRegistry
from pinwarden.bundle.archive.limits import DEFAULT_LIMITS
from pinwarden.bundle.attestation import MOST_BYTES
from pinwarden.bundle.descriptor import MEDIA_TYPES
from pinwarden.bundle.shape import LIMITS
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

ARTIFACT_TYPE = "application/vnd.mcp.toolbundle.v0.1"
DESCRIPTOR = "application/vnd.mcp.tool.descriptor.v0.1+json"
MANIFEST = "application/vnd.mcp.toolbundle.manifest.v0.1+json"
ATTESTATION = "application/vnd.mcp.attestation.envelope.v0.1+json"
POINTER = "application/vnd.mcp.registry.pointer.v0.1+json"
_MAX_ATTESTATIONS = 64


class BundleParts(Record):
    """Everything of a bundle that a registry keeps, as bytes."""

    media_type: str
    """Of the archive."""
    archive: bytes = field(repr=False)
    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(default=(), repr=False)
    pointer: bytes | None = field(default=None, repr=False)
    """What a bundle registry signed for it, if one did."""


class PulledBundle(Record):
    """What a registry gave out, and by which digest it will always be found again."""

    digest: Digest
    parts: BundleParts


def push(registry: OciPushRegistry, parts: BundleParts, annotations: dict[str, str]) -> Digest:
    """Put a bundle into a registry under the tag of its reference."""
    layers = [(parts.media_type, parts.archive), (DESCRIPTOR, parts.descriptor), (MANIFEST, parts.manifest)]
    layers += [(ATTESTATION, each) for each in parts.attestations]
    if parts.pointer is not None:
        layers.append((POINTER, parts.pointer))
    return registry.put_artifact(registry.reference.tag or DEFAULT_TAG, ARTIFACT_TYPE, layers, annotations)


def pull(registry: OciRegistry) -> PulledBundle:
    """The bundle that a reference names. Every byte is what the digest names; what it is worth is not decided here."""
    reference = registry.reference
    document = registry.document(reference.digest if reference.digest is not None else reference.asked)
    if document is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry has no {reference}")
    if not document.proven:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry gives out something else for {reference} than its digest names",
            data={"found": str(document.digest), "wanted": list(document.false_digests)},
        )
    manifest = parse_document(document.body, document.content_type)
    if not isinstance(manifest, ImageManifest) or manifest.artifact_type != ARTIFACT_TYPE:
        _refuse(f"{reference} is no bundle")
    return PulledBundle(digest=document.digest, parts=_parts(registry, manifest))


def _parts(registry: OciRegistry, manifest: ImageManifest) -> BundleParts:
    """Sorted by media type, each once but for attestations; a layer that is none of them is refused."""
    known = {*MEDIA_TYPES, DESCRIPTOR, MANIFEST, ATTESTATION, POINTER}
    stranger = next((each.media_type for each in manifest.layers if each.media_type not in known), None)
    if stranger is not None:
        _refuse(f"it has a layer that no bundle has: {stranger[:80]!a}")
    archive = _only([each for each in manifest.layers if each.media_type in MEDIA_TYPES], "archive")
    pointers = list(_of(manifest, POINTER))
    attestations = list(_of(manifest, ATTESTATION))
    if len(attestations) > _MAX_ATTESTATIONS:
        _refuse(f"it has more than {_MAX_ATTESTATIONS} attestations")
    documents = [_only(list(_of(manifest, kind)), kind) for kind in (DESCRIPTOR, MANIFEST)]
    descriptor, listed = (_blob(registry, each, LIMITS.max_bytes) for each in documents)
    return BundleParts(
        media_type=archive.media_type,
        archive=_blob(registry, archive, DEFAULT_LIMITS.archive_bytes),
        descriptor=descriptor,
        manifest=listed,
        attestations=tuple(_blob(registry, each, MOST_BYTES) for each in attestations),
        pointer=_blob(registry, _only(pointers, "pointer"), LIMITS.max_bytes) if pointers else None,
    )


def _of(manifest: ImageManifest, media_type: str) -> Iterator[Descriptor]:
    return (each for each in manifest.layers if each.media_type == media_type)


def _only(layers: list[Descriptor], what: str) -> Descriptor:
    if len(layers) != 1:
        _refuse(f"it has {len(layers)} layers of the kind {what}, where a bundle has one")
    return layers[0]


def _blob(registry: OciRegistry, layer: Descriptor, most: int) -> bytes:
    to = BytesIO()
    received = registry.blob(layer, to, most)
    if received is None:
        raise PinwardenError("ARTIFACT_MISSING", f"the registry has no layer {layer.digest}")
    if layer.digest not in received.digests or received.size != layer.size:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry gives out other bytes than the digest {layer.digest} names",
            data={"wanted": str(layer.digest), "found": [str(each) for each in received.digests]},
        )
    return to.getvalue()


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("IMAGE_INVALID", why)
