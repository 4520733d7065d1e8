"""A registry's key gives way to another: an entry of the log that both keys signed.

The old key says who comes after it, so that whoever trusts the old one need ask nobody else; the new key says that it
is held by whoever made the change, and vouches for what was signed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.shape import Shape, read, refuse
from pinwarden.bundle.signatures import signatures_in, signed
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record, field
from pinwarden.core.signing import document_signature_valid

SCHEMA = "pinwarden.registry.key-change.v1"
LIST_SCHEMA = "pinwarden.registry.key-changes.v1"
SIGNED_FIELDS = ("/schema_version", "/log_id", "/seq", "/old_key_id", "/new_key_id", "/reason", "/issued_at_utc")
MOST_BYTES = 1024 * 1024
MOST_CHANGES = 500
"""A key for every month of forty years."""


class KeyChange(Record):
    """From one entry of the log on, another key signs."""

    log_id: str
    seq: int
    """The index of this entry. Entries and heads after it are signed by the new key."""
    old: PublicKey
    new: PublicKey
    reason: str
    issued_at_utc: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def leaf(self) -> bytes:
        """What the log holds of it."""
        return canonicalize(dict(self.document), "rulebook")


def of(document: Any) -> KeyChange:
    """A change that both keys signed, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    old, new = (PublicKey.from_did(shape.text(name)) for name in ("old_key_id", "new_key_id"))
    signatures = signatures_in(shape)
    if old == new or {each.key_id for each in signatures} != {old.did, new.did} or len(signatures) != 2:
        refuse(f"{shape.path}/signatures", "are not one of the old key and one of the new")
    for signature, given in zip(signatures, document["signatures"], strict=True):
        if signature.signed_fields != SIGNED_FIELDS or not document_signature_valid(document, given, [old, new]):
            raise PinwardenError("SIGNATURE_INVALID", f"{signature.key_id} did not sign the change of key")
    return KeyChange(
        log_id=shape.text("log_id"),
        seq=shape.number("seq"),
        old=old,
        new=new,
        reason=shape.text("reason"),
        issued_at_utc=shape.moment("issued_at_utc"),
        document=document,
    )


def made(change: KeyChange, old: Signer, new: Signer) -> KeyChange:
    """The change with both signatures."""
    value = {
        "schema_version": SCHEMA,
        "log_id": change.log_id,
        "seq": change.seq,
        "old_key_id": change.old.did,
        "new_key_id": change.new.did,
        "reason": change.reason,
        "issued_at_utc": change.issued_at_utc,
    }
    return of(signed(signed(value, SIGNED_FIELDS, old), SIGNED_FIELDS, new))


def list_value(log_id: str, changes: Iterable[KeyChange]) -> dict[str, Any]:
    """Every change of a registry's key, as it shows them to whoever knows an earlier one."""
    return {
        "schema_version": LIST_SCHEMA,
        "log_id": log_id,
        "changes": [dict(each.document) for each in changes],
    }


def parse_list(data: bytes, log_id: str) -> tuple[KeyChange, ...]:
    """The changes of one log: each signed twice, each from the key that the one before it brought."""
    shape = Shape.of(read(data), LIST_SCHEMA)
    shown = shape.each("changes")
    if len(shown) > MOST_CHANGES:
        refuse(f"{shape.path}/changes", f"are more than {MOST_CHANGES}")
    changes = tuple(of(each.value) for each in shown)
    seen: set[PublicKey] = set()
    for before, change in zip((None, *changes), changes, strict=False):
        follows = before is None or (before.new == change.old and before.seq < change.seq)
        if change.log_id != log_id or not follows or change.new in seen:
            refuse(f"{shape.path}/changes", "do not follow from each other, or are of another log")
        seen.add(change.old)
    return changes
