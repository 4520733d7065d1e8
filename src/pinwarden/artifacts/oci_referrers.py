"""Statements that lie beside a container image: by the referrers API, by its tag scheme, and where cosign puts them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO

from pinwarden.artifacts.artifact import Attestation
from pinwarden.artifacts.oci_manifest import (
    IMAGE_LIMITS,
    MANIFESTS,
    OCI_INDEX,
    Descriptor,
    ImageIndex,
    ImageManifest,
    parse_document,
)
from pinwarden.artifacts.oci_registry import NEXT_PAGE, Registry, next_query
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.net.fetch_failures import unfetched

BUNDLE = "application/vnd.dev.sigstore.bundle"
"""How the media types of sigstore bundles of all versions begin."""
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"
_PREDICATE = "dev.sigstore.bundle.predicateType"
_COSIGN_TAGS = (".sig", ".att")


class Found(Record):
    """The statements, and what was not as its digest says."""

    attestations: tuple[Attestation, ...]
    mismatches: tuple[str, ...]


def attestations(registry: Registry, subject: Digest) -> Found:
    """All sigstore bundles and cosign signatures about one index or manifest, unverified, every byte hashed.

    A bundle is passed on as it was sent, and its kind is its predicate type or media type. Cosign's older formats keep
    signature and certificate outside the blob; they are passed on as ``{"annotations", "mediaType", "payload"}`` with
    the blob in base64, and their kind is the blob's media type.
    """
    search = _Search(registry, subject)
    found: list[Attestation] = []
    for listed in _referrers(search):
        if listed.media_type in MANIFESTS and _may_be_bundle(listed):
            found += _statements(search, listed.digest, listed)
    for suffix in _COSIGN_TAGS:
        found += _statements(search, f"{_tag(subject)}{suffix}", None)
    return Found(attestations=tuple(dict.fromkeys(found)), mismatches=tuple(search.mismatches))


@dataclass(frozen=True, slots=True)
class _Search:
    registry: Registry
    subject: Digest
    mismatches: dict[str, None] = field(default_factory=dict)

    def document(self, asked: str | Digest) -> tuple[bytes, str] | None:
        """A document whose bytes are what they are said to be."""
        document = self.registry.document(asked)
        if document is None:
            return None
        self.mismatches.update(dict.fromkeys(document.false_digests))
        return (document.body, document.content_type) if document.proven else None

    def blob(self, descriptor: Descriptor) -> bytes | None:
        """A blob whose bytes are what they are said to be."""
        stream = BytesIO()
        try:
            received = self.registry.blob(descriptor, stream, IMAGE_LIMITS.attestation_bytes)
        except PinwardenError as err:
            if err.code != "FETCH_LIMIT" or descriptor.size > IMAGE_LIMITS.attestation_bytes:
                raise
            self.mismatches[str(descriptor.digest)] = None
            return None
        if received is None:
            raise unfetched("protocol", f"the registry lists the blob {descriptor.digest}, and does not have it")
        if received.size != descriptor.size or descriptor.digest not in received.digests:
            self.mismatches[str(descriptor.digest)] = None
            return None
        return stream.getvalue()


def _referrers(search: _Search) -> Iterator[Descriptor]:
    """What the registry lists as referring to the subject, by its API or else by the tag that stands in for it."""
    page, count = "", 0
    for _ in range(IMAGE_LIMITS.referrer_pages):
        answer = search.registry.referrers(search.subject, page)
        if answer is None:
            break
        listed = _index(answer.body, answer.headers.get("content-type", "")).manifests
        count += len(listed)
        if count > IMAGE_LIMITS.referrers:
            break
        yield from listed
        following = NEXT_PAGE.search(answer.headers.get("link", ""))
        if following is None:
            return
        here = f"{search.registry.url}{search.registry.reference.name}/referrers/{search.subject}"
        page = next_query(here, following[1])
    if count:
        raise PinwardenError("FETCH_LIMIT", f"more refers to {search.subject} than is looked at")
    if found := search.document(_tag(search.subject)):
        listed = _index(*found).manifests
        if len(listed) > IMAGE_LIMITS.referrers:
            raise PinwardenError("FETCH_LIMIT", f"more refers to {search.subject} than is looked at")
        yield from listed


def _index(body: bytes, content_type: str) -> ImageIndex:
    parsed = parse_document(body, content_type)
    if not isinstance(parsed, ImageIndex) or parsed.media_type != OCI_INDEX:
        raise PinwardenError("IMAGE_INVALID", "a list of referrers is not an image index")
    return parsed


def _may_be_bundle(listed: Descriptor) -> bool:
    """Lists made by old clients name no kind; then the manifest tells."""
    return not listed.artifact_type or listed.artifact_type.startswith(BUNDLE)


def _statements(search: _Search, asked: str | Digest, listed: Descriptor | None) -> Iterator[Attestation]:
    found = search.document(asked)
    if found is None:
        if listed is not None and str(listed.digest) not in search.mismatches:
            raise unfetched("protocol", f"the registry lists {listed.digest} as a referrer, and does not have it")
        return
    body, content_type = found
    manifest = parse_document(body, content_type)
    if not isinstance(manifest, ImageManifest):
        raise PinwardenError("IMAGE_INVALID", "an attestation is an image index")
    if listed is not None and (manifest.subject is None or manifest.subject.digest != search.subject):
        return  # the list says so, the manifest does not: it is about something else
    for layer in manifest.layers:
        yield from _statement(search, manifest, layer, by_tag=listed is None)


def _statement(search: _Search, manifest: ImageManifest, layer: Descriptor, *, by_tag: bool) -> Iterator[Attestation]:
    is_bundle = layer.media_type.startswith(BUNDLE)
    if not is_bundle and not (by_tag and layer.media_type in (SIMPLE_SIGNING, DSSE)):
        return
    data = search.blob(layer)
    if data is None:
        return
    if is_bundle:
        kind = manifest.annotations.get(_PREDICATE) or layer.media_type
        yield Attestation(kind=kind, bundle=data, file=str(search.subject))
    else:
        wrapped = {
            "annotations": dict(layer.annotations),
            "mediaType": layer.media_type,
            "payload": b64encode(data).decode(),
        }
        yield Attestation(kind=layer.media_type, bundle=canonicalize(wrapped, "jcs"), file=str(search.subject))


def _tag(subject: Digest) -> str:
    return f"{subject.algorithm}-{subject.hex[:64]}"  # the scheme cuts longer digests off, to fit into a tag
