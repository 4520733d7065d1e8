"""A registry takes a new key: one entry of its log, signed by both, and everything that it signs is signed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.bundle import pointer as pointer_document
from pinwarden.bundle.shape import read
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report, plural
from pinwarden.core.signed_note import Checkpoint
from pinwarden.registry import key_change
from pinwarden.registry.checkpoint import KEYS, NO_TOOL, appending, key_changes
from pinwarden.registry.key_change import KeyChange
from pinwarden.registry.registry import Registry, check_key, set_key
from pinwarden.registry.store import pointer_log, publications
from pinwarden.registry.store.publications import Channel

if TYPE_CHECKING:
    from pinwarden.core.keys import Signer
    from pinwarden.system.database import Transaction

_MAX_REASON = 500


def rotate(registry: Registry, new: Signer, reason: str) -> tuple[Registry, KeyChange, int]:
    """The registry with its new key, the change, and how many pointers were signed anew. All of it, or nothing.

    1. Nobody publishes meanwhile, and the key that is held is the one that the registry has.
    2. The change is an entry of the log; the head after it is signed by the new key alone.
    3. Every pointer is signed by the new key: the old one counts for nothing from here on.
    """
    if not reason or len(reason) > _MAX_REASON:
        raise PinwardenError("USAGE", f"a reason is text of up to {_MAX_REASON} characters")
    with appending(registry) as step:
        check_key(step, registry)
        earlier = {each.old for each in key_changes(step)} | {registry.identity.key}
        if new.public_key in earlier:
            raise PinwardenError("USAGE", f"{new.public_key.did} is, or was, the key of this registry")
        renewed = replace(registry, identity=replace(registry.identity, key=new.public_key), signer=new)
        change = _logged(step, registry, renewed, reason)
        set_key(step, new.public_key)
        count = _signed_anew(step, renewed, change.issued_at_utc)
    return renewed, change, count


def _logged(step: Transaction, old: Registry, renewed: Registry, reason: str) -> KeyChange:
    head = pointer_log.head_of(step)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", "the registry has no log")
    log_id = old.identity.log_id
    change = KeyChange(
        log_id=log_id,
        seq=head.size,
        old=old.identity.key,
        new=renewed.identity.key,
        reason=reason,
        issued_at_utc=old.now(),
    )
    change = key_change.made(change, old.signer, renewed.signer)
    edge = pointer_log.append(step, head.edge, NO_TOOL, KEYS, change.leaf)
    note = Checkpoint(origin=log_id, size=edge.size, root=edge.root).note().sign(log_id, renewed.signer)
    pointer_log.move_head(step, head.edge, edge, bytes(note))
    return change


def _signed_anew(step: Transaction, registry: Registry, now: str) -> int:
    count = 0
    for tool in publications.every_tool(step):
        for channel in publications.channels_of(step, tool):
            if channel.pointer is not None:
                publications.set_channel(step, replace(channel, pointer=_pointer(registry, channel, now)))
                count += 1
    return count


def _pointer(registry: Registry, channel: Channel, now: str) -> bytes:
    """The same pointer, issued now by the new key."""
    old = pointer_document.of(read(channel.pointer or b""))
    identity = registry.identity
    value = pointer_document.to_value(identity.name, identity.key.did, now, old.pointers)
    return to_bytes(signed(value, pointer_document.SIGNED_FIELDS, registry.signer))


def rotation_report(change: KeyChange, count: int) -> Report:
    """The report of ``pinwarden registry rotate-key``."""
    return Report(
        command="registry rotate-key",
        subject=change.log_id,
        summary=f"{change.new.did} is the key from entry {change.seq} on; {plural(count, 'pointer')} signed anew",
        exit_code=EXIT_CLEAN,
        notes=("every replica must be started again with the new key, and every export made anew",),
        facts={
            "log_id": change.log_id,
            "seq": change.seq,
            "old_key_id": change.old.did,
            "new_key_id": change.new.did,
            "reason": change.reason,
            "pointers": count,
        },
    )
