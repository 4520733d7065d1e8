"""What a registry knows of one version of a tool, and who the registry is."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.shape import BLOB_CID, Shape, read, refuse
from pinwarden.bundle.signatures import signatures_in
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record
from pinwarden.core.signed_note import NoteKey
from pinwarden.core.signing import document_signature_valid

VERSION_SCHEMA = "pinwarden.registry.version.v1"
SIGNED_FIELDS = (
    *("/schema_version", "/tool", "/version", "/namespace", "/root_cid", "/descriptor_cid", "/archive", "/surface"),
    *("/published_at_utc", "/published_by", "/log_index"),
)
"""What never changes. The registry signs it: a mirror must not say what a server tells the model."""
IDENTITY_SCHEMA = "pinwarden.registry.identity.v1"


class PublishedVersion(Record):
    """One version as it was published. Only ``yanked`` and the attestations can change."""

    tool: str
    version: str
    namespace: str
    description: str
    root_cid: str
    descriptor_cid: str
    archive_cid: str
    archive_size: int
    media_type: str
    content_hash: str
    """Of the archive's bytes, computed by the registry."""
    api_surface: str | None
    """The API surface hash that the registry computed by asking the server; None if that could not be done."""
    surface_cid: str | None
    surface_problem: str | None
    """Why the registry does not know the surface."""
    published_at: str
    published_by: str
    seq: int
    """The index of its event in the log."""
    yanked: str | None = None
    """Why it was taken back."""
    attestations: tuple[str, ...] = ()


def version_value(version: PublishedVersion) -> dict[str, Any]:
    """The document."""
    return {
        "schema_version": VERSION_SCHEMA,
        "tool": version.tool,
        "version": version.version,
        "namespace": version.namespace,
        "description": version.description,
        "root_cid": version.root_cid,
        "descriptor_cid": version.descriptor_cid,
        "archive": {
            "cid": version.archive_cid,
            "size_bytes": version.archive_size,
            "media_type": version.media_type,
            "content_hash": version.content_hash,
        },
        "surface": {
            "api_surface": version.api_surface,
            "cid": version.surface_cid,
            "problem": version.surface_problem,
        },
        "published_at_utc": version.published_at,
        "published_by": version.published_by,
        "log_index": version.seq,
        "yanked": version.yanked,
        "attestations": list(version.attestations),
    }


def parse_signed_version(data: bytes, key: PublicKey) -> PublishedVersion:
    """What a registry says of a version, if it is the registry of this key that says so."""
    document = read(data)
    shape = Shape.of(document, VERSION_SCHEMA)
    for signature, given in zip(signatures_in(shape), document["signatures"], strict=True):
        covered = set(SIGNED_FIELDS) <= set(signature.signed_fields)
        if covered and document_signature_valid(document, given, [key]):
            return _version(shape)
    raise PinwardenError("SIGNATURE_INVALID", f"{key.did} did not sign what is said of this version")


def published_version(document: Any) -> PublishedVersion:
    """The same, of a value that was read strictly."""
    return _version(Shape.of(document, VERSION_SCHEMA))


def _version(shape: Shape) -> PublishedVersion:
    archive, surface = shape.inside("archive"), shape.inside("surface")
    return PublishedVersion(
        tool=shape.text("tool"),
        version=shape.text("version"),
        namespace=shape.text("namespace"),
        description=_text_or_none(shape, "description") or "",
        root_cid=shape.cid("root_cid"),
        descriptor_cid=shape.cid("descriptor_cid"),
        archive_cid=archive.cid("cid", BLOB_CID),
        archive_size=archive.number("size_bytes"),
        media_type=archive.text("media_type"),
        content_hash=archive.text("content_hash"),
        api_surface=_text_or_none(surface, "api_surface"),
        surface_cid=_text_or_none(surface, "cid"),
        surface_problem=_text_or_none(surface, "problem"),
        published_at=shape.moment("published_at_utc"),
        published_by=shape.text("published_by"),
        seq=shape.number("log_index"),
        yanked=_text_or_none(shape, "yanked"),
        attestations=shape.texts("attestations"),
    )


def _text_or_none(shape: Shape, member: str) -> str | None:
    value = shape.value.get(member)
    if value is not None and type(value) is not str:
        refuse(f"{shape.path}/{member}", "is neither text nor null")
    return value


class Identity(Record):
    """Who a registry is. Whoever installs from it pins the key; what the registry says of itself proves nothing."""

    name: str
    log_id: str
    """The origin of its log."""
    key: PublicKey

    @property
    def note_key(self) -> NoteKey:
        """The key under its name in checkpoints."""
        return NoteKey(name=self.log_id, key=self.key)


def identity_value(identity: Identity) -> dict[str, Any]:
    """The document."""
    return {
        "schema_version": IDENTITY_SCHEMA,
        "name": identity.name,
        "log_id": identity.log_id,
        "key_id": identity.key.did,
        "public_key": identity.key.base64url,
        "checkpoint_key": str(identity.note_key),
    }


def parse_identity(data: bytes) -> Identity:
    """What a registry says of itself."""
    shape = Shape.of(read(data), IDENTITY_SCHEMA)
    identity = Identity(
        name=shape.text("name"), log_id=shape.text("log_id"), key=PublicKey.from_did(shape.text("key_id"))
    )
    if shape.text("checkpoint_key") != str(identity.note_key):
        refuse(f"{shape.path}/checkpoint_key", "is not the key of key_id")
    return identity
