"""The documents that a registry signs: pointers, and the transparency log of their changes.

- ``registry.pointer``: the bundle that the registry serves for a tool and channel.
- ``registry.pointerlog.event``: one change of a pointer, a leaf of the log.
- ``registry.pointerlog.checkpoint``: the head of the log as signed JSON.
- ``pinwarden.registry.key-change``: the leaf that replaces the registry's key, signed by the old and the new key. A
  client that trusts the old key follows these leaves to the new key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.document import (
    DocumentReader,
    Signature,
    add_signature,
    read_json,
    read_profile,
    read_signatures,
)
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer, decode_base64url, encode_base64url, is_document_signature_valid
from pinwarden.core.record import Record, field

# Pointers

POINTER_SCHEMA = "registry.pointer.v0.1"
POINTER_SIGNED_FIELDS = ("/pointers", "/registry")
LEGACY_PREFIX = "legacy-"


class Constraints(Record):
    """The registry's requirements on a bundle's attestations."""

    require_signers: tuple[str, ...] = ()
    """Key ids, compared as text. If there are any, one of them must be the issuer of a valid attestation."""
    require_verifier_attestation: bool = False
    min_attestations: int = 1


class Pointer(Record):
    """Names the version of a bundle that a registry serves on one channel."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    cid_profile: Mapping[str, Any]
    updated_at_utc: str
    constraints: Constraints = Constraints()


class PointerDocument(Record):
    """Pointers that a registry signed together."""

    registry: str
    generated_at_utc: str
    issuer: str
    pointers: tuple[Pointer, ...]
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_pointers(data: bytes) -> PointerDocument:
    """Parse a pointer document, without verifying its signatures."""
    return pointers_from_json(read_json(data))


def pointers_from_json(document: Any) -> PointerDocument:
    """Build a pointer document from a strictly parsed value, without verifying its signatures."""
    reader = DocumentReader.for_schema(document, POINTER_SCHEMA)
    registry = reader.object("registry")
    return PointerDocument(
        registry=registry.text("name"),
        generated_at_utc=registry.timestamp("generated_at_utc"),
        issuer=registry.text("issuer"),
        pointers=tuple(_read_pointer(pointer) for pointer in reader.objects("pointers")),
        signatures=read_signatures(reader),
        document=document,
    )


def _read_pointer(reader: DocumentReader) -> Pointer:
    return Pointer(
        tool=reader.text("tool"),
        channel=reader.text("channel"),
        root_cid=reader.cid("root_cid"),
        descriptor_cid=reader.cid("descriptor_cid"),
        cid_profile=read_profile(reader),
        updated_at_utc=reader.timestamp("updated_at_utc"),
        constraints=_read_constraints(reader.object("constraints")) if "constraints" in reader else Constraints(),
    )


def _read_constraints(reader: DocumentReader) -> Constraints:
    return Constraints(
        require_signers=reader.strings("require_signers", default=[]),
        require_verifier_attestation=reader.boolean("require_verifier_attestation", default=False),
        min_attestations=reader.integer("min_attestations", minimum=1) if "min_attestations" in reader else 1,
    )


def build_unsigned_pointers(
    registry: str, issuer: str, generated_at_utc: str, pointers: Iterable[Pointer]
) -> dict[str, Any]:
    """Return the document without signatures; sign it with ``add_signature(..., POINTER_SIGNED_FIELDS, signer)``."""
    return {
        "schema_version": POINTER_SCHEMA,
        "registry": {"name": registry, "generated_at_utc": generated_at_utc, "issuer": issuer},
        "pointers": [_pointer_to_json(pointer) for pointer in pointers],
    }


def _pointer_to_json(pointer: Pointer) -> dict[str, Any]:
    value: dict[str, Any] = {
        "tool": pointer.tool,
        "channel": pointer.channel,
        "root_cid": pointer.root_cid,
        "descriptor_cid": pointer.descriptor_cid,
        "cid_profile": dict(pointer.cid_profile),
        "updated_at_utc": pointer.updated_at_utc,
    }
    constraints = _constraints_to_json(pointer.constraints)
    return {**value, "constraints": constraints} if constraints else value


def _constraints_to_json(constraints: Constraints) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if constraints.require_signers:
        value["require_signers"] = list(constraints.require_signers)
    if constraints.require_verifier_attestation:
        value["require_verifier_attestation"] = True
    if constraints.min_attestations != 1:
        value["min_attestations"] = constraints.min_attestations
    return value


# Events


LOG_EVENT_SCHEMA = "registry.pointerlog.event.v0.1"
LOG_EVENT_SIGNED_FIELDS = (
    "/log_id",
    "/seq",
    "/tool",
    "/channel",
    "/prev_root_cid",
    "/new_root_cid",
    "/descriptor_cid",
    "/cid_profile",
    "/issued_at_utc",
)
"""The signed fields in the preview of the rulebook."""
HARDENED_LOG_EVENT_FIELDS = (*LOG_EVENT_SIGNED_FIELDS, "/schema_version", "/reason", "/issuer")
"""The signed fields in hardened mode, which adds the document type, the reason and the issuer."""


class LogEvent(Record):
    """One pointer change."""

    log_id: str
    seq: int
    """The index of the event's leaf in the log."""
    tool: str
    channel: str
    prev_root_cid: str | None
    new_root_cid: str | None
    """The root CID of the new bundle; None if the pointer was removed."""
    descriptor_cid: str | None
    cid_profile: Mapping[str, Any]
    reason: str
    issued_at_utc: str
    issuer_key_id: str
    issuer_name: str
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def log_event_from_json(document: Any) -> LogEvent:
    """Build an event from a strictly parsed value, without verifying its signatures."""
    reader = DocumentReader.for_schema(document, LOG_EVENT_SCHEMA)
    issuer = reader.object("issuer")
    issuer.one_of("role", ("registry",))
    return LogEvent(
        log_id=reader.text("log_id"),
        seq=reader.integer("seq"),
        tool=reader.text("tool"),
        channel=reader.text("channel"),
        prev_root_cid=_read_optional_cid(reader, "prev_root_cid"),
        new_root_cid=_read_optional_cid(reader, "new_root_cid"),
        descriptor_cid=_read_optional_cid(reader, "descriptor_cid"),
        cid_profile=read_profile(reader),
        reason=reader.text("reason"),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        issuer_key_id=issuer.text("key_id"),
        issuer_name=issuer.text("name"),
        signatures=read_signatures(reader),
        document=document,
    )


def _read_optional_cid(reader: DocumentReader, member: str) -> str | None:
    return None if reader.value.get(member) is None else reader.cid(member)


def build_unsigned_log_event(event: LogEvent) -> dict[str, Any]:
    """Return the JSON document of an event, without signatures."""
    return {
        "schema_version": LOG_EVENT_SCHEMA,
        "log_id": event.log_id,
        "seq": event.seq,
        "tool": event.tool,
        "channel": event.channel,
        "prev_root_cid": event.prev_root_cid,
        "new_root_cid": event.new_root_cid,
        "descriptor_cid": event.descriptor_cid,
        "cid_profile": dict(event.cid_profile),
        "reason": event.reason,
        "issued_at_utc": event.issued_at_utc,
        "issuer": {"key_id": event.issuer_key_id, "role": "registry", "name": event.issuer_name},
    }


def encode_leaf(document: Mapping[str, Any]) -> bytes:
    """Return the log leaf of a signed document: its canonical form, including the signatures."""
    return canonicalize(dict(document), "rulebook")


# Checkpoints


CHECKPOINT_SCHEMA = "registry.pointerlog.checkpoint.v0.1"
CHECKPOINT_SIGNED_FIELDS = ("/log_id", "/size", "/root_hash", "/hash_alg", "/issued_at_utc")
HASH_ALGORITHM = "sha2-256"
_MULTIHASH = b"\x12\x20"


class CheckpointDocument(Record):
    """The head of the log: its size, the root of its Merkle tree, and the time of the signature."""

    log_id: str
    size: int
    root: bytes
    issued_at_utc: str
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_checkpoint(data: bytes) -> CheckpointDocument:
    """Parse a checkpoint, without verifying its signatures."""
    return checkpoint_from_json(read_json(data))


def checkpoint_from_json(document: Any) -> CheckpointDocument:
    """Build a checkpoint from a strictly parsed value, without verifying its signatures."""
    reader = DocumentReader.for_schema(document, CHECKPOINT_SCHEMA)
    reader.one_of("hash_alg", (HASH_ALGORITHM,))
    return CheckpointDocument(
        log_id=reader.text("log_id"),
        size=reader.integer("size"),
        root=_read_root(reader),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        signatures=read_signatures(reader),
        document=document,
    )


def _read_root(reader: DocumentReader) -> bytes:
    text = reader.text("root_hash")
    try:
        raw = decode_base64url(text[1:])
    except PinwardenError:
        raw = b""
    if text[0] != "u" or raw[:2] != _MULTIHASH or len(raw) != 34:
        reader.fail("root_hash", "is not a SHA-256 multihash in base64url")
    return raw[2:]


def build_unsigned_checkpoint(checkpoint: CheckpointDocument) -> dict[str, Any]:
    """Return the JSON document of a checkpoint, without signatures."""
    return {
        "schema_version": CHECKPOINT_SCHEMA,
        "log_id": checkpoint.log_id,
        "size": checkpoint.size,
        "root_hash": "u" + encode_base64url(_MULTIHASH + checkpoint.root),
        "hash_alg": HASH_ALGORITHM,
        "issued_at_utc": checkpoint.issued_at_utc,
    }


# Key changes


KEY_CHANGE_SCHEMA = "pinwarden.registry.key-change.v1"
KEY_CHANGES_SCHEMA = "pinwarden.registry.key-changes.v1"
KEY_CHANGE_SIGNED_FIELDS = (
    "/schema_version",
    "/log_id",
    "/seq",
    "/old_key_id",
    "/new_key_id",
    "/reason",
    "/issued_at_utc",
)
MAX_KEY_CHANGES_BYTES = 1024 * 1024
MAX_KEY_CHANGES = 500
"""The maximum number of key changes in a log: a new key every month for forty years."""


class KeyChange(Record):
    """A log entry that replaces the registry's key. The new key signs all later entries."""

    log_id: str
    seq: int
    """The index of this entry. Later entries and heads are signed by the new key."""
    old: PublicKey
    new: PublicKey
    reason: str
    issued_at_utc: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def leaf(self) -> bytes:
        """The leaf of this key change in the log."""
        return encode_leaf(self.document)


def key_change_from_json(document: Any) -> KeyChange:
    """Build a key change from a parsed value and verify both signatures."""
    reader = DocumentReader.for_schema(document, KEY_CHANGE_SCHEMA)
    old, new = (PublicKey.from_did(reader.text(name)) for name in ("old_key_id", "new_key_id"))
    signatures = read_signatures(reader)
    if old == new or {item.key_id for item in signatures} != {old.did, new.did} or len(signatures) != 2:
        reader.fail("signatures", "must be one by the old key and one by the new key")
    for signature, given in zip(signatures, document["signatures"], strict=True):
        if signature.signed_fields != KEY_CHANGE_SIGNED_FIELDS or not is_document_signature_valid(
            document, given, [old, new]
        ):
            raise PinwardenError("SIGNATURE_INVALID", f"the key change is not signed by {signature.key_id}")
    return KeyChange(
        log_id=reader.text("log_id"),
        seq=reader.integer("seq"),
        old=old,
        new=new,
        reason=reader.text("reason"),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        document=document,
    )


def sign_key_change(change: KeyChange, old: Signer, new: Signer) -> KeyChange:
    """Sign a key change with both keys."""
    value = {
        "schema_version": KEY_CHANGE_SCHEMA,
        "log_id": change.log_id,
        "seq": change.seq,
        "old_key_id": change.old.did,
        "new_key_id": change.new.did,
        "reason": change.reason,
        "issued_at_utc": change.issued_at_utc,
    }
    return key_change_from_json(
        add_signature(add_signature(value, KEY_CHANGE_SIGNED_FIELDS, old), KEY_CHANGE_SIGNED_FIELDS, new)
    )


def key_changes_to_json(log_id: str, changes: Iterable[KeyChange]) -> dict[str, Any]:
    """Return the document that lists all key changes, for clients that trust an earlier key."""
    return {
        "schema_version": KEY_CHANGES_SCHEMA,
        "log_id": log_id,
        "changes": [dict(change.document) for change in changes],
    }


def parse_key_changes(data: bytes, log_id: str) -> tuple[KeyChange, ...]:
    """Parse a log's key changes, verify their signatures, and check that each change follows the previous one."""
    reader = DocumentReader.for_schema(read_json(data), KEY_CHANGES_SCHEMA)
    changes = tuple(
        key_change_from_json(change.value) for change in reader.objects("changes", max_items=MAX_KEY_CHANGES)
    )
    seen: set[PublicKey] = set()
    for before, change in zip((None, *changes), changes, strict=False):
        is_next = before is None or (before.new == change.old and before.seq < change.seq)
        if change.log_id != log_id or not is_next or change.new in seen:
            reader.fail("changes", "must be one sequence of key changes of this log")
        seen.add(change.old)
    return changes
