"""``registry.pointerlog.checkpoint``: the head of the log as a signed JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.shape import Shape, read, refuse
from pinwarden.bundle.signatures import Signature, signatures_in
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import decode_base64url, encode_base64url
from pinwarden.core.record import Record, field

SCHEMA = "registry.pointerlog.checkpoint.v0.1"
SIGNED_FIELDS = ("/log_id", "/size", "/root_hash", "/hash_alg", "/issued_at_utc")
HASH_ALGORITHM = "sha2-256"
_MULTIHASH = b"\x12\x20"


class PointerLogCheckpoint(Record):
    """How long the log is, and the root of its tree."""

    log_id: str
    size: int
    root: bytes
    issued_at_utc: str
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""


def parse(data: bytes) -> PointerLogCheckpoint:
    """A checkpoint; its signatures are not checked here."""
    return of(read(data))


def of(document: Any) -> PointerLogCheckpoint:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    shape.one_of("hash_alg", (HASH_ALGORITHM,))
    return PointerLogCheckpoint(
        log_id=shape.text("log_id"),
        size=shape.number("size"),
        root=_root(shape),
        issued_at_utc=shape.moment("issued_at_utc"),
        signatures=signatures_in(shape),
        document=document,
    )


def _root(shape: Shape) -> bytes:
    text = shape.text("root_hash")
    try:
        raw = decode_base64url(text[1:])
    except PinwardenError:
        raw = b""
    if text[0] != "u" or raw[:2] != _MULTIHASH or len(raw) != 34:
        refuse(f"{shape.path}/root_hash", "is not a SHA-256 multihash in base64url")
    return raw[2:]


def to_value(checkpoint: PointerLogCheckpoint) -> dict[str, Any]:
    """The document without signatures."""
    return {
        "schema_version": SCHEMA,
        "log_id": checkpoint.log_id,
        "size": checkpoint.size,
        "root_hash": "u" + encode_base64url(_MULTIHASH + checkpoint.root),
        "hash_alg": HASH_ALGORITHM,
        "issued_at_utc": checkpoint.issued_at_utc,
    }
