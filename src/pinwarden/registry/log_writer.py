"""Append pointer changes and key rotations to the registry's log, in the transaction that changes the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.bundle import log_documents
from pinwarden.bundle import log_documents as pointer_document
from pinwarden.bundle.document import add_signature, build_default_profile, encode_document, read_json
from pinwarden.bundle.log_documents import (
    HARDENED_LOG_EVENT_FIELDS,
    KeyChange,
    LogEvent,
    Pointer,
    sign_key_change,
)
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report
from pinwarden.core.signed_note import Checkpoint
from pinwarden.core.text import plural
from pinwarden.core.tlog import Frontier
from pinwarden.registry.checkpoint_file import KEYS, NO_TOOL, load_key_changes, open_append_transaction
from pinwarden.registry.names import OPERATOR_CHANNEL, YANKED_PREFIX
from pinwarden.registry.operator_documents import OperatorAction, sign_action
from pinwarden.registry.registry import Registry, check_current_key, store_key
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import operators, pointer_log, publications
from pinwarden.registry.store.publications import Channel
from pinwarden.system.database import Transaction

if TYPE_CHECKING:
    from pinwarden.core.keys import Signer
    from pinwarden.system.database import Transaction


class PointerChange(Record):
    """A channel and its new version. If the version is None, the channel's pointer is removed."""

    tool: str
    channel: str
    version: PublishedVersion | None
    reason: str


def append_pointer_changes(transaction: Transaction, registry: Registry, changes: Sequence[PointerChange]) -> int:
    """Write the events, the channels and the new head. Return the index of the first event.

    The transaction must hold `pointer_log.WRITE_LOCK`, so that every index is assigned only once.
    """
    check_current_key(transaction, registry)
    head = pointer_log.load_head(transaction)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", "the registry has no log")
    now = registry.now()
    edge = head.edge
    for change in changes:
        edge = _append_event(transaction, registry, change, edge, now)
    _sign_head(transaction, registry, head.edge, edge)
    return head.size


def append_action(transaction: Transaction, registry: Registry, action: OperatorAction) -> OperatorAction:
    """Append an action of the operator, and return it with its index. The transaction must hold the write lock."""
    check_current_key(transaction, registry)
    head = pointer_log.load_head(transaction)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", "the registry has no log")
    logged = replace(action, seq=head.size)
    entry = sign_action(logged, registry.signer)
    edge = pointer_log.append_entry(transaction, head.edge, action.name, OPERATOR_CHANNEL, entry)
    _sign_head(transaction, registry, head.edge, edge)
    return logged


def _sign_head(transaction: Transaction, registry: Registry, old: Frontier, new: Frontier) -> None:
    log_id = registry.identity.log_id
    note = Checkpoint(origin=log_id, size=new.size, root=new.root).note().sign(log_id, registry.signer)
    pointer_log.move_head(transaction, old, new, bytes(note))


def _append_event(
    transaction: Transaction, registry: Registry, change: PointerChange, edge: Frontier, now: str
) -> Frontier:
    before = publications.find_channel(transaction, change.tool, change.channel)
    version = change.version
    event = LogEvent(
        log_id=registry.identity.log_id,
        seq=edge.size,
        tool=change.tool,
        channel=change.channel,
        prev_root_cid=before.root_cid if before else None,
        new_root_cid=version.root_cid if version else None,
        descriptor_cid=version.descriptor_cid if version else None,
        cid_profile=build_default_profile(),
        reason=change.reason,
        issued_at_utc=now,
        issuer_key_id=registry.identity.key.did,
        issuer_name=registry.identity.name,
    )
    document = add_signature(log_documents.build_unsigned_log_event(event), HARDENED_LOG_EVENT_FIELDS, registry.signer)
    grown = pointer_log.append_entry(
        transaction, edge, change.tool, change.channel, log_documents.encode_leaf(document)
    )
    channel = Channel(
        tool=change.tool,
        channel=change.channel,
        version=version.version if version else None,
        root_cid=version.root_cid if version else None,
        seq=edge.size,
        pointer=_build_pointer(transaction, registry, change, version, now)
        if version and _is_installable(change)
        else None,
    )
    publications.set_channel(transaction, channel)
    return grown


def _is_installable(change: PointerChange) -> bool:
    """Whether clients can install from the channel. Yanks are logged on special channels, which have no pointer."""
    return not change.channel.startswith(YANKED_PREFIX)


def _build_pointer(
    transaction: Transaction, registry: Registry, change: PointerChange, version: PublishedVersion, now: str
) -> bytes:
    """Return the signed pointer document of a channel."""
    pointer = Pointer(
        tool=change.tool,
        channel=change.channel,
        root_cid=version.root_cid,
        descriptor_cid=version.descriptor_cid,
        cid_profile=build_default_profile(),
        updated_at_utc=now,
        constraints=operators.find_requirements(transaction, change.tool, change.channel),
    )
    identity = registry.identity
    value = pointer_document.build_unsigned_pointers(identity.name, identity.key.did, now, [pointer])
    return encode_document(add_signature(value, pointer_document.POINTER_SIGNED_FIELDS, registry.signer))


_MAX_REASON = 500


def rotate_key(registry: Registry, new: Signer, reason: str) -> tuple[Registry, KeyChange, int]:
    """Rotate the registry's key, all or nothing. Return the registry with its new key, the change, and the number of
    pointers that were signed again.

    1. Lock out publishing, and check that this process has the registry's current key.
    2. Append the key change; the head after it is signed by the new key alone.
    3. Sign every pointer with the new key, because clients no longer trust the old key.
    """
    if not reason or len(reason) > _MAX_REASON:
        raise PinwardenError("USAGE", f"a reason must be text of at most {_MAX_REASON} characters")
    with open_append_transaction(registry) as transaction:
        check_current_key(transaction, registry)
        earlier = {change.old for change in load_key_changes(transaction)} | {registry.identity.key}
        if new.public_key in earlier:
            raise PinwardenError("USAGE", f"{new.public_key.did} is or was already the key of this registry")
        renewed = replace(registry, identity=replace(registry.identity, key=new.public_key), signer=new)
        change = _append_key_change(transaction, registry, renewed, reason)
        store_key(transaction, new.public_key)
        count = _resign_pointers(transaction, renewed, change.issued_at_utc)
    return renewed, change, count


def _append_key_change(transaction: Transaction, old: Registry, renewed: Registry, reason: str) -> KeyChange:
    head = pointer_log.load_head(transaction)
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
    change = sign_key_change(change, old.signer, renewed.signer)
    edge = pointer_log.append_entry(transaction, head.edge, NO_TOOL, KEYS, change.leaf)
    _sign_head(transaction, renewed, head.edge, edge)
    return change


def _resign_pointers(transaction: Transaction, registry: Registry, now: str) -> int:
    return sum(resign_tool_pointers(transaction, registry, tool, now) for tool in publications.list_tools(transaction))


def resign_tool_pointers(transaction: Transaction, registry: Registry, tool: str, now: str) -> int:
    """Sign the pointers of a bundle again, with the current key and requirements. Return their number."""
    count = 0
    for channel in publications.list_channels(transaction, tool):
        if channel.pointer is not None:
            pointer = _reissue_pointer(transaction, registry, channel, now)
            publications.set_channel(transaction, replace(channel, pointer=pointer))
            count += 1
    return count


def _reissue_pointer(transaction: Transaction, registry: Registry, channel: Channel, now: str) -> bytes:
    """Return the pointer of a channel, signed again."""
    old = pointer_document.pointers_from_json(read_json(channel.pointer or b""))
    identity = registry.identity
    required = operators.find_requirements(transaction, channel.tool, channel.channel)
    pointers = [replace(pointer, constraints=required) for pointer in old.pointers]
    value = pointer_document.build_unsigned_pointers(identity.name, identity.key.did, now, pointers)
    return encode_document(add_signature(value, pointer_document.POINTER_SIGNED_FIELDS, registry.signer))


def build_rotation_report(change: KeyChange, count: int) -> Report:
    """Build the report of ``pinwarden registry rotate-key``."""
    return Report(
        command="registry rotate-key",
        subject=change.log_id,
        summary=f"{change.new.did} is the key from entry {change.seq} on; {plural(count, 'pointer')} signed again",
        exit_code=EXIT_CLEAN,
        notes=("restart every replica with the new key, and repeat every export",),
        facts={
            "log_id": change.log_id,
            "seq": change.seq,
            "old_key_id": change.old.did,
            "new_key_id": change.new.did,
            "reason": change.reason,
            "pointers": count,
        },
    )
