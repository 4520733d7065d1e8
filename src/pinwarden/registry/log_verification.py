"""Verification of a registry's log: heads, new entries, events, and whether a pointer is the latest of its channel.

Appending all new entries to the saved edge of the Merkle tree (`LogState`) proves two things: the old log is a prefix
of the new one, and no entry was skipped. A pointer that is not the latest event of its channel is a replay. A pointer
without an event was never logged.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from hmac import compare_digest
from typing import Any, NoReturn

from pinwarden.bundle import log_documents
from pinwarden.bundle.log_documents import HARDENED_LOG_EVENT_FIELDS, KeyChange, LogEvent, encode_leaf
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, is_document_signature_valid
from pinwarden.core.record import Record, field, replace
from pinwarden.core.signed_note import (
    Checkpoint,
    Cosignature,
    Note,
    NoteKey,
    TlogProof,
    WitnessKey,
    verify_cosignatures,
)
from pinwarden.core.strict_json import Limits, encode_json_file
from pinwarden.core.text import CLOCK_SKEW_SECONDS, parse_timestamp
from pinwarden.core.tlog import Frontier, hash_leaf
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.operator_documents import (
    ActionKey,
    OperatorAction,
    action_from_json,
    action_to_json,
    check_sequence,
    describe_takedown,
    find_takedown,
    is_action_entry,
    verify_action,
)


class VerifiedHead(Record):
    """A head with a valid signature of the log's key, and its valid cosignatures."""

    checkpoint: Checkpoint
    note: Note
    cosignatures: tuple[Cosignature, ...] = ()


def verify_head(
    data: bytes, log_id: str, key: NoteKey, witnesses: Sequence[WitnessKey] = (), quorum: int = 0
) -> VerifiedHead:
    """Verify a checkpoint: the log's signature, its origin, and that enough witnesses cosigned it."""
    note = Note.parse(data)
    note.verify([key])
    checkpoint = Checkpoint.parse(note.text)
    if checkpoint.origin != log_id:
        raise PinwardenError("LOG_PROOF_INVALID", f"the checkpoint does not belong to the log {log_id[:120]}")
    cosigned = verify_cosignatures(note, witnesses)
    # A key that is listed under two names counts once, and the registry cannot be its own witness.
    count = len({cosignature.witness.key for cosignature in cosigned} - {key.key})
    if count < quorum:
        raise PinwardenError(
            "LOG_WITNESS_MISSING",
            f"the head of the log has {count} cosignatures of known witnesses; {quorum} are required",
        )
    return VerifiedHead(checkpoint=checkpoint, note=note, cosignatures=cosigned)


def check_growth(state: LogState, head: VerifiedHead) -> None:
    """Raise if a log shrank, or has two roots for one size."""
    old, new = state.edge, head.checkpoint
    if new.size < old.size:
        raise PinwardenError(
            "LOG_ROLLBACK",
            f"the log had {old.size} entries and now has {new.size}",
            data={"seen": state.checkpoint, "shown": head.note.text},
        )
    if new.size == old.size and not compare_digest(new.root, old.root):
        raise _build_fork_error(state, head, f"the log has two histories of {new.size} entries")


def follow_entries(
    state: LogState,
    head: VerifiedHead,
    entries: Iterable[bytes],
    changes: Iterable[KeyChange] = (),
    selects: Callable[[str], bool] = lambda _: True,
) -> tuple[LogState, list[LogEvent | OperatorAction]]:
    """Verify all entries up to the head. Returns the new state, and the events about names that ``selects`` accepts.

    Raises unless the log has the size and root of the head after the last entry. ``changes`` are the key changes that
    must be among the entries (`list_expected_key_changes`).
    """
    check_growth(state, head)
    edge, pointers, events = state.edge, dict(state.pointers), list[LogEvent | OperatorAction]()
    actions = dict(state.actions)
    pending_changes = {change.seq: change for change in changes}
    for entry in entries:
        if edge.size == head.checkpoint.size:
            raise PinwardenError("LOG_PROOF_INVALID", "the log has more entries than its head states")
        change = pending_changes.pop(edge.size, None)
        if change is not None:
            if change.leaf != entry:
                raise _build_invalid_event_error(edge.size, "is not the key change that the registry lists")
            state = apply_key_change(state, change)
            edge, _ = edge.append(hash_leaf(entry))
            continue
        if is_action_entry(entry):
            action = _verify_next_action(entry, state, actions, edge.size)
            actions[action.key] = action
            edge, _ = edge.append(hash_leaf(entry))
            if selects(action.name):
                events.append(action)
            continue
        event = verify_event(entry, state.log_id, state.key, edge.size)
        before = pointers.get((event.tool, event.channel))
        if event.prev_root_cid != (before.root_cid if before else None):
            raise _build_invalid_event_error(edge.size, "does not continue the previous event of its channel")
        pointers[event.tool, event.channel] = LoggedPointer(
            seq=event.seq,
            root_cid=event.new_root_cid,
            descriptor_cid=event.descriptor_cid,
            reason=event.reason if event.channel.startswith(YANKED_PREFIX) else None,
        )
        edge, _ = edge.append(hash_leaf(entry))
        if selects(event.tool):
            events.append(event)
    if edge.size != head.checkpoint.size or not compare_digest(edge.root, head.checkpoint.root):
        raise _build_fork_error(state, head, "the log's entries do not match its signed head")
    if pending_changes:
        raise _build_fork_error(state, head, "the registry lists a key change that is not in its log")
    checkpoint = bytes(head.note).decode()
    return replace(state, edge=edge, checkpoint=checkpoint, pointers=pointers, actions=actions), events


def _verify_next_action(
    entry: bytes, state: LogState, actions: Mapping[ActionKey, OperatorAction], index: int
) -> OperatorAction:
    try:
        action = verify_action(entry, state.log_id, state.key, index)
        check_sequence(actions.get(action.key), action)
    except PinwardenError as err:
        raise _build_invalid_event_error(index, f"is not a valid action of the operator: {err.message}") from err
    return action


def verify_event(entry: bytes, log_id: str, key: PublicKey, index: int) -> LogEvent:
    """Verify the canonical form, log, index and signature of an entry. ``key`` is the registry's key at this index."""
    try:
        document = strict_json.parse_json(entry)
        event = log_documents.log_event_from_json(document)
    except PinwardenError as err:
        raise _build_invalid_event_error(index, f"cannot be read: {err.message}") from err
    if encode_leaf(document) != entry:
        raise _build_invalid_event_error(index, "is not in its canonical form")
    if event.log_id != log_id or event.seq != index:
        raise _build_invalid_event_error(index, "belongs to another log or index")
    signed = any(
        set(HARDENED_LOG_EVENT_FIELDS) <= set(signature.signed_fields)
        and is_document_signature_valid(document, raw, [key])
        for signature, raw in zip(event.signatures, document["signatures"], strict=True)
    )
    if not signed:
        raise _build_invalid_event_error(index, "is not signed by the registry")
    return event


def _build_fork_error(state: LogState, head: VerifiedHead, why: str) -> PinwardenError:
    return PinwardenError("LOG_PROOF_INVALID", why, data={"seen": state.checkpoint, "shown": bytes(head.note).decode()})


def _build_invalid_event_error(index: int, why: str) -> PinwardenError:
    return PinwardenError("LOG_EVENT_INVALID", f"entry {index} of the log {why}", data={"index": index})


# Pointers


class PointerTarget(Record):
    """The bundle that a signed pointer names."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str


def check_pointer_is_latest(pointer: PointerTarget, state: LogState, index: int | None) -> int:
    """Return the log index of the pointer's event. Raises if it is not the latest event of its channel.

    ``index`` is the index in the pointer's inclusion proof; None if the pointer has no proof.
    """
    newest = state.find_pointer(pointer.tool, pointer.channel)
    if newest is None:
        raise PinwardenError("POINTER_UNLOGGED", f"the log has no event for {pointer.tool} on {pointer.channel}")
    if (newest.root_cid, newest.descriptor_cid) == (pointer.root_cid, pointer.descriptor_cid):
        return newest.seq
    data = {"pointed": pointer.root_cid, "newest": newest.root_cid, "index": newest.seq}
    if index is not None and index < newest.seq:
        newer = "removed the pointer" if newest.root_cid is None else f"points to {newest.root_cid}"
        raise PinwardenError(
            "POINTER_STALE",
            f"the pointer is event {index} of the log, but the later event {newest.seq} {newer}",
            data={**data, "given": index},
        )
    raise PinwardenError(
        "POINTER_UNLOGGED", f"the latest event for {pointer.tool} on {pointer.channel} names another bundle", data=data
    )


def verify_proof(
    pointer: PointerTarget, event: bytes, proof: bytes, state: LogState, head: VerifiedHead
) -> tuple[int, VerifiedHead]:
    """Verify the inclusion proof of a pointer. Returns the index of its event, and the head that the proof refers to.

    The caller downloads ``head`` after the proof, so it must not be older than the proof's head.
    """
    parsed = TlogProof.parse(proof)
    size = Checkpoint.parse(parsed.checkpoint.text).size
    proved = verify_head(bytes(parsed.checkpoint), state.log_id, NoteKey(name=state.log_id, key=state.find_key(size)))
    parsed.verify_entry(event)
    logged = verify_event(event, state.log_id, state.find_key(parsed.index), parsed.index)
    target = (logged.tool, logged.channel, logged.new_root_cid, logged.descriptor_cid)
    if target != (pointer.tool, pointer.channel, pointer.root_cid, pointer.descriptor_cid):
        raise PinwardenError(
            "POINTER_UNLOGGED", f"the log event of the pointer {pointer.tool}@{pointer.channel} names another bundle"
        )
    if proved.checkpoint.size > head.checkpoint.size:
        raise PinwardenError(
            "LOG_ROLLBACK",
            f"the proof is for a log of {proved.checkpoint.size} events, but the log has {head.checkpoint.size}",
            data={"seen": bytes(proved.note).decode(), "shown": bytes(head.note).decode()},
        )
    if proved.checkpoint.size == head.checkpoint.size and proved.checkpoint.root != head.checkpoint.root:
        raise PinwardenError(
            "LOG_PROOF_INVALID",
            "the proof is for another history of the log",
            data={"seen": bytes(proved.note).decode(), "shown": bytes(head.note).decode()},
        )
    return parsed.index, proved


def check_not_yanked(pointer: PointerTarget, version: str, state: LogState) -> None:
    """Raise VERSION_YANKED if the log records that the version was yanked."""
    mark = state.find_pointer(pointer.tool, f"{YANKED_PREFIX}{version}")
    if mark is not None and mark.root_cid is not None:
        raise PinwardenError("VERSION_YANKED", describe_yank(pointer.tool, version, mark.seq))


def describe_yank(tool: str, version: str, event: int, reason: str = "", at: str = "") -> str:
    """Return the sentence that a version was yanked. ``event`` is the number of the log's entry that says so."""
    time, why = f" at {at}" if at else "", f": {reason}" if reason else ""
    return f"{tool} {version} was yanked by its publisher{time}{why} (event {event} of its log)"


def check_not_taken_down(tool: str, version: str, state: LogState) -> None:
    """Raise VERSION_TAKEN_DOWN if the log records that the registry's operator took down the version or its bundle."""
    takedown = find_takedown(state.actions, tool, version)
    if takedown is not None:
        raise build_takedown_error(takedown)


def build_takedown_error(takedown: OperatorAction) -> PinwardenError:
    """Build the error for a version that the registry's operator took down."""
    return PinwardenError(
        "VERSION_TAKEN_DOWN",
        describe_takedown(takedown),
        data={
            "tool": takedown.name,
            "version": takedown.version,
            "reason": takedown.reason,
            "taken_down_at_utc": takedown.issued_at_utc,
            "index": takedown.seq,
        },
    )


def check_head_age(issued_at: str, now: str, max_age_days: int) -> None:
    """Raise LOG_FROZEN if the head is from the future, or so old that the registry may be hiding later events."""
    issued, present = parse_timestamp(issued_at), parse_timestamp(now)
    if issued is None or present is None or issued > present + timedelta(seconds=CLOCK_SKEW_SECONDS):
        raise PinwardenError(
            "LOG_FROZEN",
            f"the head of the log was signed at {issued_at[:40]}, which is in the future (now {now[:40]})",
            hint="Check this machine's clock, and try again.",
        )
    if present - issued > timedelta(days=max_age_days):
        raise PinwardenError(
            "LOG_FROZEN",
            f"the registry signed the head of its log at {issued_at}, more than {max_age_days} days ago",
            data={"issued_at_utc": issued_at, "now_utc": now, "max_age_days": max_age_days},
        )


# Key changes


def is_note_signed(note: Note, key: NoteKey) -> bool:
    """Whether the key signed the note."""
    try:
        note.verify([key])
    except PinwardenError:
        return False
    return True


def check_key_not_replaced(state: LogState, note: Note) -> None:
    """Raise if a key that was replaced signed the head: the head is old, or forged with a stolen key."""
    for change in state.key_changes:
        if not is_note_signed(note, NoteKey(name=state.log_id, key=change.old)):
            continue
        size = Checkpoint.parse(note.text).size
        ended = f"entry {change.seq} of the log replaced the key {change.old.did}"
        data = {"seen": state.checkpoint, "shown": note.text, "ended_by": change.seq}
        if size < state.edge.size:
            problem = f"the log had {state.edge.size} entries and now has {size}; {ended}"
            raise PinwardenError("LOG_ROLLBACK", problem, data=data)
        raise PinwardenError("REGISTRY_KEY_ENDED", f"{ended}, but the head of the log is signed by it", data=data)


def list_expected_key_changes(
    state: LogState, listed: Sequence[KeyChange], size: int
) -> tuple[LogState, tuple[KeyChange, ...]]:
    """Return the state with the key that signs its next entry, and its new key changes in a log of ``size`` entries.

    ``listed`` is not trusted: `follow_entries` must find each change in the log at its index.
    """
    earlier_changes = tuple(change for change in listed if change.seq < size)
    if state.edge.size:
        known, pending_changes = earlier_changes[: len(state.key_changes)], earlier_changes[len(state.key_changes) :]
        same = tuple(map(_to_logged_change, known)) == state.key_changes
        if (
            not same
            or any(change.seq < state.edge.size for change in pending_changes)
            or not _starts_from_current_key(state, pending_changes)
        ):
            raise PinwardenError(
                "LOG_PROOF_INVALID",
                "the registry's list of key changes contradicts the key changes in the saved log state",
            )
        return state, pending_changes
    keys = [change.old for change in earlier_changes] + [change.new for change in earlier_changes[-1:]]
    if not earlier_changes or state.key not in keys:
        return state, ()  # no listed change concerns the known key, so that key must have signed the head
    # Each key change is signed by both keys, so a follower may start with any key of the log.
    return replace(state, key=earlier_changes[0].old), earlier_changes


def _starts_from_current_key(state: LogState, pending_changes: Sequence[KeyChange]) -> bool:
    return not pending_changes or pending_changes[0].old == state.key


def apply_key_change(state: LogState, change: KeyChange) -> LogState:
    """Return the state with the new key. Call it only after the key change was found in the log."""
    return replace(state, key=change.new, key_changes=(*state.key_changes, _to_logged_change(change)))


def _to_logged_change(change: KeyChange) -> LoggedKeyChange:
    return LoggedKeyChange(seq=change.seq, old=change.old, new=change.new)


# The saved state of a follower


FORMAT = "pinwarden-log-state/1"
LOG_STATE_LIMITS = Limits(max_bytes=256 * 1024 * 1024, max_depth=10)


class LoggedPointer(Record):
    """The latest event of a bundle's channel."""

    seq: int
    root_cid: str | None
    """The root CID of the bundle that the channel points to; None if the pointer was removed."""
    descriptor_cid: str | None
    reason: str | None = None
    """The reason for a yank; None for other events."""


class LoggedKeyChange(Record):
    """A key change, with the index of its log entry."""

    seq: int
    old: PublicKey
    new: PublicKey


class LogState(Record):
    """The saved state of a follower: the verified Merkle frontier of the log, and the latest event of each channel."""

    log_id: str
    key: PublicKey
    """The key that signs the head and later entries."""
    key_changes: tuple[LoggedKeyChange, ...] = ()
    """The key changes that led to ``key``."""
    edge: Frontier = field(default_factory=Frontier)
    checkpoint: str = ""
    """The last verified checkpoint note, kept as evidence."""
    pointers: Mapping[tuple[str, str], LoggedPointer] = field(default_factory=dict, repr=False)
    """The latest events, by bundle and channel."""
    actions: Mapping[ActionKey, OperatorAction] = field(default_factory=dict, repr=False)
    """The latest actions of the registry's operator, by subject."""

    def find_pointer(self, tool: str, channel: str) -> LoggedPointer | None:
        """Return the latest event of a channel; None if there is none."""
        return self.pointers.get((tool, channel))

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """All keys of the log, the current one last."""
        return (*(change.old for change in self.key_changes), self.key)

    def find_key(self, size: int) -> PublicKey:
        """Return the key that signs a head of ``size`` entries and the next entry."""
        return next((change.old for change in self.key_changes if size <= change.seq), self.key)


def encode_log_state(state: LogState) -> bytes:
    """Encode a state as a file, with a digest that detects damage."""
    pointers: dict[str, dict[str, Any]] = {}
    for (tool, channel), pointer in sorted(state.pointers.items()):
        row = {"seq": pointer.seq, "root_cid": pointer.root_cid, "descriptor_cid": pointer.descriptor_cid}
        if pointer.reason is not None:
            row["reason"] = pointer.reason
        pointers.setdefault(tool, {})[channel] = row
    document = {
        "format": FORMAT,
        "log_id": state.log_id,
        "key_id": state.key.did,
        "size": state.edge.size,
        "edge": b64encode(bytes(state.edge)).decode(),
        "checkpoint": state.checkpoint,
        "pointers": pointers,
        "key_changes": [
            {"seq": change.seq, "old_key_id": change.old.did, "new_key_id": change.new.did}
            for change in state.key_changes
        ],
        "actions": [action_to_json(action) for action in sorted(state.actions.values(), key=lambda each: each.seq)],
    }
    return encode_json_file({**document, "integrity": str(Digest.of_bytes(encode_json_file(document)))})


def parse_log_state(data: bytes) -> LogState:
    """Parse a saved state. Raises LOG_STATE_CORRUPT for a damaged file, since starting over could hide a rewrite."""
    try:
        document = strict_json.parse_json(data, LOG_STATE_LIMITS)
    except PinwardenError as err:
        _raise_corrupt(err.message)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _raise_corrupt(f"its format is not {FORMAT}")
    content = {name: value for name, value in document.items() if name != "integrity"}
    if document.get("integrity") != str(Digest.of_bytes(encode_json_file(content))):
        _raise_corrupt("its integrity digest does not match its content")
    try:
        pointers = {
            (tool, channel): LoggedPointer(**row)
            for tool, channels in content["pointers"].items()
            for channel, row in channels.items()
        }
        actions = [action_from_json(row, content["log_id"]) for row in content.get("actions", [])]
        return LogState(
            log_id=content["log_id"],
            key=PublicKey.from_did(content["key_id"]),
            key_changes=tuple(_parse_key_change(row) for row in content.get("key_changes", [])),
            edge=Frontier.from_bytes(content["size"], b64decode(content["edge"], validate=True)),
            checkpoint=content["checkpoint"],
            pointers=pointers,
            actions={action.key: action for action in actions},
        )
    except (KeyError, TypeError, AttributeError, BinasciiError, PinwardenError) as err:
        raise PinwardenError("LOG_STATE_CORRUPT", "the saved log state is damaged") from err


def _parse_key_change(row: dict[str, Any]) -> LoggedKeyChange:
    return LoggedKeyChange(
        seq=row["seq"], old=PublicKey.from_did(row["old_key_id"]), new=PublicKey.from_did(row["new_key_id"])
    )


def _raise_corrupt(why: str) -> NoReturn:
    raise PinwardenError("LOG_STATE_CORRUPT", f"the saved log state is damaged: {why}")
