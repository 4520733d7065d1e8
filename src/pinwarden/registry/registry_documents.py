"""The documents of a registry: published versions, its identity, and the signed requests (statements) of publishers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.document import BLOB_CID, DocumentReader, build_document_error, read_json, read_signatures
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, is_document_signature_valid, signing_preimage
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import NoteKey

_SCHEMAS = "pinwarden.registry"
VERSION_SCHEMA = f"{_SCHEMAS}.version.v1"
VERSION_SIGNED_FIELDS = (
    *("/schema_version", "/tool", "/version", "/namespace", "/root_cid", "/descriptor_cid", "/archive", "/surface"),
    *("/published_at_utc", "/published_by", "/log_index"),
)
"""The members of a version document that the registry signs, so that a mirror cannot alter them."""
IDENTITY_SCHEMA = f"{_SCHEMAS}.identity.v1"


class PublishedVersion(Record):
    """One published version. Only ``yanked``, ``taken_down`` and ``attestations`` can change."""

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
    """The digest of the archive, computed by the registry."""
    api_surface: str | None
    """The API surface hash from the registry's own probe; None if the server could not be probed."""
    surface_cid: str | None
    surface_problem: str | None
    """Why the registry did not record the surface of this version; None if it did."""
    published_at: str
    published_by: str
    seq: int
    """The log index of the event that published the version."""
    yanked: str | None = None
    """The reason for the yank; None if the version is not yanked."""
    taken_down: str | None = None
    """Why the operator took down the version or its bundle; None if neither was taken down."""
    attestations: tuple[str, ...] = ()

    @property
    def is_available(self) -> bool:
        """Whether the version is neither yanked nor taken down."""
        return self.yanked is None and self.taken_down is None


def version_to_json(version: PublishedVersion) -> dict[str, Any]:
    """Convert a published version to its JSON document."""
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
        "taken_down": version.taken_down,
        "attestations": list(version.attestations),
    }


def parse_signed_version(data: bytes, key: PublicKey) -> PublishedVersion:
    """Parse a version document and verify that the registry's key signed it."""
    document = read_json(data)
    reader = DocumentReader.for_schema(document, VERSION_SCHEMA)
    for signature, raw_signature in zip(read_signatures(reader), document["signatures"], strict=True):
        covered = set(VERSION_SIGNED_FIELDS) <= set(signature.signed_fields)
        if covered and is_document_signature_valid(document, raw_signature, [key]):
            return _parse_version(reader)
    raise PinwardenError("SIGNATURE_INVALID", f"the version document is not signed by {key.did}")


def version_from_json(document: Any) -> PublishedVersion:
    """Build a version from a parsed value, without verifying signatures."""
    return _parse_version(DocumentReader.for_schema(document, VERSION_SCHEMA))


def _parse_version(reader: DocumentReader) -> PublishedVersion:
    archive, surface = reader.object("archive"), reader.object("surface")
    return PublishedVersion(
        tool=reader.text("tool"),
        version=reader.text("version"),
        namespace=reader.text("namespace"),
        description=reader.optional_string("description") or "",
        root_cid=reader.cid("root_cid"),
        descriptor_cid=reader.cid("descriptor_cid"),
        archive_cid=archive.cid("cid", BLOB_CID),
        archive_size=archive.integer("size_bytes"),
        media_type=archive.text("media_type"),
        content_hash=archive.text("content_hash"),
        api_surface=surface.optional_string("api_surface"),
        surface_cid=surface.optional_string("cid"),
        surface_problem=surface.optional_string("problem"),
        published_at=reader.timestamp("published_at_utc"),
        published_by=reader.text("published_by"),
        seq=reader.integer("log_index"),
        yanked=reader.optional_string("yanked"),
        taken_down=reader.optional_string("taken_down"),
        attestations=reader.strings("attestations", default=[]),
    )


class RegistryIdentity(Record):
    """A registry's name, log and key, as the registry states them. Callers must compare the key with a trusted key."""

    name: str
    log_id: str
    """The origin of the registry's log, as in its checkpoints."""
    key: PublicKey

    @property
    def note_key(self) -> NoteKey:
        """The verifier key for checkpoints: the log's name with the registry's key."""
        return NoteKey(name=self.log_id, key=self.key)


def identity_to_json(identity: RegistryIdentity) -> dict[str, Any]:
    """Convert the identity of a registry to its JSON document."""
    return {
        "schema_version": IDENTITY_SCHEMA,
        "name": identity.name,
        "log_id": identity.log_id,
        "key_id": identity.key.did,
        "public_key": identity.key.base64url,
        "checkpoint_key": str(identity.note_key),
    }


def parse_identity(data: bytes) -> RegistryIdentity:
    """Parse a registry's identity document."""
    reader = DocumentReader.for_schema(read_json(data), IDENTITY_SCHEMA)
    identity = RegistryIdentity(
        name=reader.text("name"), log_id=reader.text("log_id"), key=PublicKey.from_did(reader.text("key_id"))
    )
    if reader.text("checkpoint_key") != str(identity.note_key):
        reader.fail("checkpoint_key", "does not match key_id")
    return identity


STATEMENT_SCHEMA = f"{_SCHEMAS}.statement.v1"
STATEMENT_SIGNED_FIELDS = ("/schema_version", "/log_id", "/action", "/body", "/issued_at_utc", "/nonce")
_MEMBERS = {field[1:] for field in STATEMENT_SIGNED_FIELDS} | {"signatures"}
PUBLISH = "publish"
POINT = "point"
YANK = "yank"
UNYANK = "unyank"
KEYS = "keys"
OBJECT = "object"
ACTIONS = (PUBLISH, POINT, YANK, UNYANK, KEYS, OBJECT)


class PublisherStatement(Record):
    """A publisher's signed request to a registry, valid once, for one action, one registry and a short time.

    The signature covers every member, including the registry's log id and the time, so a request cannot be sent to
    another registry, repeated later, or mistaken for another kind of document.
    """

    log_id: str
    action: str
    body: Mapping[str, Any]
    issued_at_utc: str
    key_id: str
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def digest(self) -> Digest:
        """The digest of the signer and the signed members. The registry stores it to refuse repeated requests."""
        return Digest.of_bytes(
            self.key_id.encode() + b"\0" + signing_preimage(dict(self.document), STATEMENT_SIGNED_FIELDS)
        )

    @property
    def reader(self) -> DocumentReader:
        """A reader of the request's body."""
        return DocumentReader(self.body, "statement/body")


def statement_from_json(document: Any) -> PublisherStatement:
    """Build a statement (a signed request) from a parsed value, and verify its signature."""
    reader = DocumentReader.for_schema(document, STATEMENT_SCHEMA)
    reader.text("nonce")
    signatures = read_signatures(reader)
    if document.keys() - _MEMBERS:
        raise build_document_error(reader.path, "has an unsigned member")
    if len(signatures) != 1 or signatures[0].signed_fields != STATEMENT_SIGNED_FIELDS:
        raise PinwardenError("SIGNATURE_INVALID", "a request needs exactly one signature, over all of its members")
    key_id = signatures[0].key_id
    if not is_document_signature_valid(document, document["signatures"][0], [PublicKey.from_did(key_id)]):
        raise PinwardenError("SIGNATURE_INVALID", "the request's signature does not verify")
    return PublisherStatement(
        log_id=reader.text("log_id"),
        action=reader.one_of("action", ACTIONS),
        body=reader.object("body").value,
        issued_at_utc=reader.timestamp("issued_at_utc"),
        key_id=key_id,
        document=document,
    )


def build_unsigned_statement(
    log_id: str, action: str, body: Mapping[str, Any], issued_at_utc: str, nonce: str
) -> dict[str, Any]:
    """Build a statement to be signed with ``add_signature(..., STATEMENT_SIGNED_FIELDS, signer)``."""
    return {
        "schema_version": STATEMENT_SCHEMA,
        "log_id": log_id,
        "action": action,
        "body": dict(body),
        "issued_at_utc": issued_at_utc,
        "nonce": nonce,
    }
