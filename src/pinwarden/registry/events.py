"""Changes of pointers become events of the log, in the same transaction as what they tell of."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.bundle import log_event
from pinwarden.bundle import pointer as pointer_document
from pinwarden.bundle.log_event import HARDENED_FIELDS, LogEvent
from pinwarden.bundle.pointer import Constraints, Pointer
from pinwarden.bundle.profile import default_profile
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.signed_note import Checkpoint
from pinwarden.core.tlog import Frontier
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.registry import Registry, check_key
from pinwarden.registry.store import pointer_log, publications
from pinwarden.registry.store.publications import Channel
from pinwarden.registry.version import PublishedVersion
from pinwarden.system.database import Transaction


class Change(Record):
    """A channel that will point to a version, or, without one, nowhere."""

    tool: str
    channel: str
    version: PublishedVersion | None
    reason: str


def log_changes(step: Transaction, registry: Registry, changes: Sequence[Change]) -> int:
    """Write events, the channels they move, and the new head. Returns the index of the first event.

    The transaction is alone (`pointer_log.ALONE`): an index is given out once, and what is not committed was never
    given out.
    """
    check_key(step, registry)
    head = pointer_log.head_of(step)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", "the registry has no log")
    now = registry.now()
    edge = head.edge
    for change in changes:
        edge = _log(step, registry, change, edge, now)
    checkpoint = Checkpoint(origin=registry.identity.log_id, size=edge.size, root=edge.root)
    note = checkpoint.note().sign(registry.identity.log_id, registry.signer)
    pointer_log.move_head(step, head.edge, edge, bytes(note))
    return head.size


def _log(step: Transaction, registry: Registry, change: Change, edge: Frontier, now: str) -> Frontier:
    before = publications.channel_of(step, change.tool, change.channel)
    version = change.version
    event = LogEvent(
        log_id=registry.identity.log_id,
        seq=edge.size,
        tool=change.tool,
        channel=change.channel,
        prev_root_cid=before.root_cid if before else None,
        new_root_cid=version.root_cid if version else None,
        descriptor_cid=version.descriptor_cid if version else None,
        cid_profile=default_profile(),
        reason=change.reason,
        issued_at_utc=now,
        issuer_key_id=registry.identity.key.did,
        issuer_name=registry.identity.name,
    )
    document = signed(log_event.to_value(event), HARDENED_FIELDS, registry.signer)
    grown = pointer_log.append(step, edge, change.tool, change.channel, log_event.leaf_bytes(document))
    channel = Channel(
        tool=change.tool,
        channel=change.channel,
        version=version.version if version else None,
        root_cid=version.root_cid if version else None,
        seq=edge.size,
        pointer=_pointer(registry, change, version, now) if version and _may_install(change) else None,
    )
    publications.set_channel(step, channel)
    return grown


def _may_install(change: Change) -> bool:
    """A mark that a version was taken back is logged like a channel, and is none."""
    return not change.channel.startswith(YANKED_PREFIX)


def _pointer(registry: Registry, change: Change, version: PublishedVersion, now: str) -> bytes:
    """The signed document of a channel."""
    pointer = Pointer(
        tool=change.tool,
        channel=change.channel,
        root_cid=version.root_cid,
        descriptor_cid=version.descriptor_cid,
        cid_profile=default_profile(),
        updated_at_utc=now,
        constraints=Constraints(),
    )
    identity = registry.identity
    value = pointer_document.to_value(identity.name, identity.key.did, now, [pointer])
    return to_bytes(signed(value, pointer_document.SIGNED_FIELDS, registry.signer))
