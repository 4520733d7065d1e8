"""``registry.pointerlog.event``: one change of a pointer, a leaf of the transparency log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.profile import profile_in
from pinwarden.bundle.shape import Shape
from pinwarden.bundle.signatures import Signature, signatures_in
from pinwarden.core.canonical import canonicalize
from pinwarden.core.record import Record, field

SCHEMA = "registry.pointerlog.event.v0.1"
SIGNED_FIELDS = (
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
"""As the rulebook's preview signs it."""
HARDENED_FIELDS = (*SIGNED_FIELDS, "/schema_version", "/reason", "/issuer")
"""With what the preview leaves open: the kind of document, why it was made and by whom."""


class LogEvent(Record):
    """One change of a pointer."""

    log_id: str
    seq: int
    """The index of its leaf."""
    tool: str
    channel: str
    prev_root_cid: str | None
    new_root_cid: str | None
    """None where the pointer was taken away."""
    descriptor_cid: str | None
    cid_profile: Mapping[str, Any]
    reason: str
    issued_at_utc: str
    issuer_key_id: str
    issuer_name: str
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""


def of(document: Any) -> LogEvent:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    issuer = shape.inside("issuer")
    issuer.one_of("role", ("registry",))
    return LogEvent(
        log_id=shape.text("log_id"),
        seq=shape.number("seq"),
        tool=shape.text("tool"),
        channel=shape.text("channel"),
        prev_root_cid=_cid_or_none(shape, "prev_root_cid"),
        new_root_cid=_cid_or_none(shape, "new_root_cid"),
        descriptor_cid=_cid_or_none(shape, "descriptor_cid"),
        cid_profile=profile_in(shape),
        reason=shape.text("reason"),
        issued_at_utc=shape.moment("issued_at_utc"),
        issuer_key_id=issuer.text("key_id"),
        issuer_name=issuer.text("name"),
        signatures=signatures_in(shape),
        document=document,
    )


def _cid_or_none(shape: Shape, member: str) -> str | None:
    return None if shape.value.get(member) is None else shape.cid(member)


def to_value(event: LogEvent) -> dict[str, Any]:
    """The document without signatures."""
    return {
        "schema_version": SCHEMA,
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
    """What the log holds of a signed event: its canonical form, signatures included."""
    return canonicalize(dict(document), "rulebook")
