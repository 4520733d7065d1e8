"""Fetches the attestations of an image: from the referrers API, the referrers tag, and cosign's tags."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO

from pinwarden.artifacts.artifact import ArtifactAttestation
from pinwarden.artifacts.oci_manifest import (
    IMAGE_LIMITS,
    MANIFESTS,
    OCI_INDEX,
    ImageIndex,
    ImageManifest,
    OciDescriptor,
    parse_document,
)
from pinwarden.artifacts.oci_registry import NEXT_PAGE, OciRegistry, parse_next_query
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.net.network_errors import fetch_error

BUNDLE = "application/vnd.dev.sigstore.bundle"
"""The prefix of the media types of Sigstore bundles."""
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"
_PREDICATE_TYPE_KEY = "dev.sigstore.bundle.predicateType"
_COSIGN_TAG_SUFFIXES = (".sig", ".att")


def fetch_attestations(registry: OciRegistry, subject: Digest) -> ReferrerAttestations:
    """Return all Sigstore bundles and cosign signatures about one index or manifest, hashed but not verified.

    Bundles are returned as the registry sent them; their kind is the predicate type or the media type. Cosign's older
    formats keep the signature and certificate in annotations. These are returned as ``{"annotations", "mediaType",
    "payload"}`` with the blob in base64, and their kind is the blob's media type.
    """
    search = _AttestationSearch(registry, subject)
    collected: list[ArtifactAttestation] = []
    for referrer in _list_referrers(search):
        if referrer.media_type in MANIFESTS and _may_be_bundle(referrer):
            collected += _read_manifest(search, referrer.digest, referrer)
    for suffix in _COSIGN_TAG_SUFFIXES:
        collected += _read_manifest(search, f"{_build_referrers_tag(subject)}{suffix}", None)
    return ReferrerAttestations(attestations=tuple(dict.fromkeys(collected)), mismatches=tuple(search.mismatches))


class ReferrerAttestations(Record):
    """The attestations of an image, and the digests whose bytes did not match."""

    attestations: tuple[ArtifactAttestation, ...]
    mismatches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _AttestationSearch:
    registry: OciRegistry
    subject: Digest
    mismatches: dict[str, None] = field(default_factory=dict)

    def fetch_document(self, tag_or_digest: str | Digest) -> tuple[bytes, str] | None:
        """Return the bytes and content type of a document; None if it is missing or its digest does not match."""
        document = self.registry.fetch_document(tag_or_digest)
        if document is None:
            return None
        self.mismatches.update(dict.fromkeys(document.mismatches))
        return (document.body, document.content_type) if document.is_verified else None

    def fetch_blob(self, descriptor: OciDescriptor) -> bytes | None:
        """Return a blob; None if its bytes do not match its digest."""
        stream = BytesIO()
        try:
            result = self.registry.fetch_blob(descriptor, stream, IMAGE_LIMITS.attestation_bytes)
        except PinwardenError as err:
            if err.code != "FETCH_LIMIT" or descriptor.size > IMAGE_LIMITS.attestation_bytes:
                raise
            self.mismatches[str(descriptor.digest)] = None
            return None
        if result is None:
            raise fetch_error("protocol", f"the registry lists the blob {descriptor.digest} but does not have it")
        if result.size != descriptor.size or descriptor.digest not in result.digests:
            self.mismatches[str(descriptor.digest)] = None
            return None
        return stream.getvalue()


def _list_referrers(search: _AttestationSearch) -> Iterator[OciDescriptor]:
    """Yield the subject's referrers, from the referrers API or from the fallback tag."""
    page, count = "", 0
    for _ in range(IMAGE_LIMITS.referrer_pages):
        response = search.registry.fetch_referrers(search.subject, page)
        if response is None:
            break
        listed = _parse_index(response.body, response.headers.get("content-type", "")).manifests
        count += len(listed)
        if count > IMAGE_LIMITS.referrers:
            break
        yield from listed
        next_page = NEXT_PAGE.search(response.headers.get("link", ""))
        if next_page is None:
            return
        url = f"{search.registry.url}{search.registry.reference.name}/referrers/{search.subject}"
        page = parse_next_query(url, next_page[1])
    if count:
        raise PinwardenError("FETCH_LIMIT", f"{search.subject} has more than {IMAGE_LIMITS.referrers} referrers")
    if document := search.fetch_document(_build_referrers_tag(search.subject)):
        listed = _parse_index(*document).manifests
        if len(listed) > IMAGE_LIMITS.referrers:
            raise PinwardenError("FETCH_LIMIT", f"{search.subject} has more than {IMAGE_LIMITS.referrers} referrers")
        yield from listed


def _parse_index(body: bytes, content_type: str) -> ImageIndex:
    parsed = parse_document(body, content_type)
    if not isinstance(parsed, ImageIndex) or parsed.media_type != OCI_INDEX:
        raise PinwardenError("IMAGE_INVALID", "the referrers list is not an image index")
    return parsed


def _may_be_bundle(listed: OciDescriptor) -> bool:
    """Whether a referrer may be a Sigstore bundle. Old clients do not state the artifact type in the index."""
    return not listed.artifact_type or listed.artifact_type.startswith(BUNDLE)


def _read_manifest(
    search: _AttestationSearch, tag_or_digest: str | Digest, listed: OciDescriptor | None
) -> Iterator[ArtifactAttestation]:
    document = search.fetch_document(tag_or_digest)
    if document is None:
        if listed is not None and str(listed.digest) not in search.mismatches:
            raise fetch_error("protocol", f"the registry lists the referrer {listed.digest} but does not have it")
        return
    body, content_type = document
    manifest = parse_document(body, content_type)
    if not isinstance(manifest, ImageManifest):
        raise PinwardenError("IMAGE_INVALID", "an attestation is an image index")
    if listed is not None and (manifest.subject is None or manifest.subject.digest != search.subject):
        return  # the manifest names a different subject
    for layer in manifest.layers:
        yield from _read_layer(search, manifest, layer, by_tag=listed is None)


def _read_layer(
    search: _AttestationSearch, manifest: ImageManifest, layer: OciDescriptor, *, by_tag: bool
) -> Iterator[ArtifactAttestation]:
    is_bundle = layer.media_type.startswith(BUNDLE)
    if not is_bundle and not (by_tag and layer.media_type in (SIMPLE_SIGNING, DSSE)):
        return
    data = search.fetch_blob(layer)
    if data is None:
        return
    if is_bundle:
        kind = manifest.annotations.get(_PREDICATE_TYPE_KEY) or layer.media_type
        yield ArtifactAttestation(kind=kind, bundle=data, file=str(search.subject))
    else:
        wrapper = {
            "annotations": dict(layer.annotations),
            "mediaType": layer.media_type,
            "payload": b64encode(data).decode(),
        }
        yield ArtifactAttestation(kind=layer.media_type, bundle=canonicalize(wrapper, "jcs"), file=str(search.subject))


def _build_referrers_tag(subject: Digest) -> str:
    return f"{subject.algorithm}-{subject.hex[:64]}"  # the tag scheme truncates longer digests
