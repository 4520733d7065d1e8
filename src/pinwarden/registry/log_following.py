"""Following a registry's log: every new entry is seen, follows from those before, and leads to the signed head.

Reading all new entries onto the kept edge of the tree proves two things at once: the old log is a prefix of the new
one, and nothing is in the new one that was not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hmac import compare_digest

from pinwarden.bundle import log_event
from pinwarden.bundle.log_event import HARDENED_FIELDS, LogEvent, leaf_bytes
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.signed_note import Checkpoint, Cosignature, Note, NoteKey, WitnessKey, verify_cosignatures
from pinwarden.core.signing import document_signature_valid
from pinwarden.core.tlog import leaf_hash
from pinwarden.registry.key_change import KeyChange
from pinwarden.registry.log_keys import after_change
from pinwarden.registry.log_state import LoggedPointer, LogState
from pinwarden.registry.names import YANKED_PREFIX


class Head(Record):
    """A head of a log that its key signed, and the witnesses that have seen it."""

    checkpoint: Checkpoint
    note: Note
    cosigned: tuple[Cosignature, ...] = ()


def verified_head(
    data: bytes, log_id: str, key: NoteKey, witnesses: Sequence[WitnessKey] = (), quorum: int = 0
) -> Head:
    """The head that a checkpoint states, if the log's key signed it, and as many witnesses as are demanded."""
    note = Note.parse(data)
    note.verify([key])
    checkpoint = Checkpoint.parse(note.text)
    if checkpoint.origin != log_id:
        raise PinwardenError("LOG_PROOF_INVALID", "the checkpoint is that of another log")
    cosigned = verify_cosignatures(note, witnesses)
    # One key under two names is one witness, and the registry is none of its own.
    count = len({each.witness.key for each in cosigned} - {key.key})
    if count < quorum:
        raise PinwardenError(
            "LOG_WITNESS_MISSING", f"{count} of the known witnesses signed the head of the log, not {quorum}"
        )
    return Head(checkpoint=checkpoint, note=note, cosigned=cosigned)


def check_direction(state: LogState, head: Head) -> None:
    """A log only grows, and at one size it has one root."""
    old, new = state.edge, head.checkpoint
    if new.size < old.size:
        raise PinwardenError(
            "LOG_ROLLBACK",
            f"the log had {old.size} entries and is shown with {new.size}",
            data={"seen": state.checkpoint, "shown": head.note.text},
        )
    if new.size == old.size and not compare_digest(new.root, old.root):
        raise _forked(state, head, f"the log shows two histories of {new.size} entries")


def follow(
    state: LogState,
    head: Head,
    entries: Iterable[bytes],
    changes: Iterable[KeyChange] = (),
    kept: Callable[[LogEvent], bool] = lambda _: True,
) -> tuple[LogState, list[LogEvent]]:
    """The state after all entries up to the head, and the events that are to be kept. Nothing is believed before the
    last; a log has any number of entries, and whoever installs needs none of them afterwards.

    ``changes`` are those of the registry's key that must be among the entries (``registry/log_keys.py``).
    """
    check_direction(state, head)
    edge, pointers, events = state.edge, dict(state.pointers), list[LogEvent]()
    coming = {each.seq: each for each in changes}
    for entry in entries:
        if edge.size == head.checkpoint.size:
            raise PinwardenError("LOG_PROOF_INVALID", "the log has more entries than its head says")
        change = coming.pop(edge.size, None)
        if change is not None:
            if change.leaf != entry:
                raise _invalid(edge.size, "is not the change of key that the registry shows")
            state = after_change(state, change)
            edge, _ = edge.append(leaf_hash(entry))
            continue
        event = event_in(entry, state.log_id, state.key, edge.size)
        before = pointers.get((event.tool, event.channel))
        if event.prev_root_cid != (before.root_cid if before else None):
            raise _invalid(edge.size, "does not follow from the one before it on its channel")
        pointers[event.tool, event.channel] = LoggedPointer(
            seq=event.seq,
            root_cid=event.new_root_cid,
            descriptor_cid=event.descriptor_cid,
            reason=event.reason if event.channel.startswith(YANKED_PREFIX) else None,
        )
        edge, _ = edge.append(leaf_hash(entry))
        if kept(event):
            events.append(event)
    if edge.size != head.checkpoint.size or not compare_digest(edge.root, head.checkpoint.root):
        raise _forked(state, head, "the entries of the log do not lead to its signed head")
    if coming:
        raise _forked(state, head, "the registry shows a change of its key that its log does not have")
    grown = replace(state, edge=edge, checkpoint=bytes(head.note).decode(), pointers=pointers)
    return grown, events


def event_in(entry: bytes, log_id: str, key: PublicKey, index: int) -> LogEvent:
    """The event that an entry is: in its one spelling, of this log and place, signed by the log's key of then."""
    try:
        document = strict_json.parse_json(entry)
        event = log_event.of(document)
    except PinwardenError as err:
        raise _invalid(index, f"cannot be read: {err.message}") from err
    if leaf_bytes(document) != entry:
        raise _invalid(index, "is not in its canonical form")
    if event.log_id != log_id or event.seq != index:
        raise _invalid(index, "belongs to another log or another place")
    good = any(
        set(HARDENED_FIELDS) <= set(signature.signed_fields) and document_signature_valid(document, given, [key])
        for signature, given in zip(event.signatures, document["signatures"], strict=True)
    )
    if not good:
        raise _invalid(index, "is not signed by the registry")
    return event


def _forked(state: LogState, head: Head, why: str) -> PinwardenError:
    return PinwardenError("LOG_PROOF_INVALID", why, data={"seen": state.checkpoint, "shown": bytes(head.note).decode()})


def _invalid(index: int, why: str) -> PinwardenError:
    return PinwardenError("LOG_EVENT_INVALID", f"entry {index} of the log {why}", data={"index": index})
