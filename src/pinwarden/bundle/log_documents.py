"""The transparency log's documents: ``registry.pointerlog.event`` (one pointer change, a leaf of the log) and
``registry.pointerlog.checkpoint`` (the head of the log as signed JSON)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.document import (
    DocumentReader,
    Signature,
    read_json,
    read_profile,
    read_signatures,
    refuse_document,
)
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import decode_base64url, encode_base64url
from pinwarden.core.record import Record, field

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
"""The fields that the rulebook's preview signs."""
HARDENED_LOG_EVENT_FIELDS = (*LOG_EVENT_SIGNED_FIELDS, "/schema_version", "/reason", "/issuer")
"""Adds what the preview leaves unsigned: the document type, the reason and the issuer."""


class LogEvent(Record):
    """One pointer change."""

    log_id: str
    seq: int
    """The index of its leaf."""
    tool: str
    channel: str
    prev_root_cid: str | None
    new_root_cid: str | None
    """None if the pointer was removed."""
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
    """Build the record from a strictly parsed value. Its signatures are not verified."""
    reader = DocumentReader.for_schema(document, LOG_EVENT_SCHEMA)
    issuer = reader.object("issuer")
    issuer.one_of("role", ("registry",))
    return LogEvent(
        log_id=reader.text("log_id"),
        seq=reader.integer("seq"),
        tool=reader.text("tool"),
        channel=reader.text("channel"),
        prev_root_cid=_cid_or_none(reader, "prev_root_cid"),
        new_root_cid=_cid_or_none(reader, "new_root_cid"),
        descriptor_cid=_cid_or_none(reader, "descriptor_cid"),
        cid_profile=read_profile(reader),
        reason=reader.text("reason"),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        issuer_key_id=issuer.text("key_id"),
        issuer_name=issuer.text("name"),
        signatures=read_signatures(reader),
        document=document,
    )


def _cid_or_none(reader: DocumentReader, member: str) -> str | None:
    return None if reader.value.get(member) is None else reader.cid(member)


def unsigned_log_event(event: LogEvent) -> dict[str, Any]:
    """The document, without signatures."""
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


def leaf_bytes(document: Mapping[str, Any]) -> bytes:
    """The log leaf of a signed event: its canonical form, signatures included."""
    return canonicalize(dict(document), "rulebook")


CHECKPOINT_SCHEMA = "registry.pointerlog.checkpoint.v0.1"
CHECKPOINT_SIGNED_FIELDS = ("/log_id", "/size", "/root_hash", "/hash_alg", "/issued_at_utc")
HASH_ALGORITHM = "sha2-256"
_MULTIHASH = b"\x12\x20"


class CheckpointDocument(Record):
    """The size of the log and the root of its tree."""

    log_id: str
    size: int
    root: bytes
    issued_at_utc: str
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_checkpoint(data: bytes) -> CheckpointDocument:
    """Parse a checkpoint. Its signatures are not verified."""
    return checkpoint_from_json(read_json(data))


def checkpoint_from_json(document: Any) -> CheckpointDocument:
    """Build the record from a strictly parsed value. Its signatures are not verified."""
    reader = DocumentReader.for_schema(document, CHECKPOINT_SCHEMA)
    reader.one_of("hash_alg", (HASH_ALGORITHM,))
    return CheckpointDocument(
        log_id=reader.text("log_id"),
        size=reader.integer("size"),
        root=_root(reader),
        issued_at_utc=reader.timestamp("issued_at_utc"),
        signatures=read_signatures(reader),
        document=document,
    )


def _root(reader: DocumentReader) -> bytes:
    text = reader.text("root_hash")
    try:
        raw = decode_base64url(text[1:])
    except PinwardenError:
        raw = b""
    if text[0] != "u" or raw[:2] != _MULTIHASH or len(raw) != 34:
        refuse_document(f"{reader.path}/root_hash", "is not a SHA-256 multihash in base64url")
    return raw[2:]


def unsigned_checkpoint(checkpoint: CheckpointDocument) -> dict[str, Any]:
    """The document, without signatures."""
    return {
        "schema_version": CHECKPOINT_SCHEMA,
        "log_id": checkpoint.log_id,
        "size": checkpoint.size,
        "root_hash": "u" + encode_base64url(_MULTIHASH + checkpoint.root),
        "hash_alg": HASH_ALGORITHM,
        "issued_at_utc": checkpoint.issued_at_utc,
    }
