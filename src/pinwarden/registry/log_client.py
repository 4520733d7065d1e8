"""Follow a registry's log: download and verify the entries since the last saved state, and report new events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pinwarden.bundle.log_documents import (
    CHECKPOINT_SIGNED_FIELDS,
    MAX_KEY_CHANGES_BYTES,
    CheckpointDocument,
    KeyChange,
    LogEvent,
    parse_checkpoint,
    parse_key_changes,
)
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey, is_document_signature_valid
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey, WitnessKey
from pinwarden.core.text import plural
from pinwarden.core.tlog import TILE_WIDTH, TileNodes, compute_root, entries_path, tile_path, tile_width, unpack_entries
from pinwarden.registry import names
from pinwarden.registry.log_verification import (
    LOG_STATE_LIMITS,
    LogState,
    VerifiedHead,
    check_growth,
    check_key_not_replaced,
    encode_log_state,
    follow_entries,
    is_note_signed,
    list_expected_key_changes,
    parse_log_state,
    verify_event,
    verify_head,
)
from pinwarden.registry.names import is_in_namespace
from pinwarden.registry.operator_documents import OperatorAction, action_to_json
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.registry_documents import parse_identity
from pinwarden.system.files import read_file, write_atomically

_MAX_BUNDLE_BYTES = TILE_WIDTH * (2 + 0xFFFF)


class FollowOptions(Record):
    """The log's key, the witnesses that must have cosigned the head, and the names to watch."""

    key: PublicKey | None = None
    """The registry's key. If None, the first key that the registry presents is trusted and saved."""
    witnesses: tuple[WitnessKey, ...] = ()
    quorum: int = 0
    """The number of witnesses whose cosignatures are required."""
    watch: tuple[str, ...] | None = None
    """Bundles and namespaces whose events are returned; None for all."""

    def is_watched(self, subject: str) -> bool:
        """Whether a bundle or namespace is watched, or has a watched one inside."""
        return self.watch is None or any(
            is_in_namespace(subject, name) or is_in_namespace(name, subject) for name in self.watch
        )


class FollowedLog(Record):
    """The result of following a log."""

    state: LogState
    head: VerifiedHead
    events: tuple[LogEvent, ...]
    """New events of watched names."""
    actions: tuple[OperatorAction, ...] = ()
    """New actions of the registry's operator about watched names."""
    new_count: int
    """The number of new entries."""
    key_changes: tuple[KeyChange, ...] = ()
    """New changes of the registry's key."""
    is_first: bool
    """Whether there was no earlier state."""


def follow_log(files: RegistryReader, state: LogState | None, options: FollowOptions) -> FollowedLog:
    """Read the new entries of a registry's log, and verify that they extend the known state."""
    known = state or _build_first_state(files, options)
    if options.key is not None and options.key not in known.keys:
        raise PinwardenError("REGISTRY_KEY_MISMATCH", f"the log of {files} is signed by {known.key.did}")
    note = Note.parse(files.get(names.CHECKPOINT))
    known, changes = _fetch_key_changes(files, known, note)
    key = NoteKey(name=known.log_id, key=changes[-1].new if changes else known.key)
    head = verify_head(bytes(note), known.log_id, key, options.witnesses, options.quorum)
    check_growth(known, head)
    size = known.edge.size
    grown, events = follow_entries(
        known, head, _fetch_entries(files, size, head.checkpoint.size), changes, options.is_watched
    )
    return FollowedLog(
        state=grown,
        head=head,
        events=tuple(event for event in events if isinstance(event, LogEvent)),
        actions=tuple(event for event in events if isinstance(event, OperatorAction)),
        new_count=grown.edge.size - size,
        key_changes=changes,
        is_first=state is None,
    )


def _fetch_key_changes(files: RegistryReader, known: LogState, note: Note) -> tuple[LogState, tuple[KeyChange, ...]]:
    """Return the state with the key that signs its next entry, and the key changes that the new entries must contain.

    A state without entries goes back to the log's first key: all key changes are then among the new entries.
    The registry's list of key changes is downloaded only if the state is new, or if its key did not sign the head.
    """
    signed = is_note_signed(note, NoteKey(name=known.log_id, key=known.key))
    if known.edge.size and signed:
        return known, ()
    if not signed:
        check_key_not_replaced(known, note)
    data = files.find(names.KEY_CHANGES, MAX_KEY_CHANGES_BYTES)
    if data is None:
        return known, ()
    shown = parse_key_changes(data, known.log_id)
    return list_expected_key_changes(known, shown, Checkpoint.parse(note.text).size)


def _build_first_state(files: RegistryReader, options: FollowOptions) -> LogState:
    identity = parse_identity(files.get(names.IDENTITY))
    return LogState(log_id=identity.log_id, key=options.key or identity.key)


def _fetch_entries(files: RegistryReader, start: int, stop: int) -> Iterator[bytes]:
    """Yield the entries from ``start`` up to, but not including, ``stop``. Downloads one tile at a time."""
    for index in range(start // TILE_WIDTH, -(-stop // TILE_WIDTH)) if stop > start else ():
        width = tile_width(stop, 0, index)
        tile = files.find(f"{names.LOG}/{entries_path(index, width)}", _MAX_BUNDLE_BYTES)
        if tile is None and width < TILE_WIDTH:
            # The registry may delete a partial tile after the full tile exists.
            tile = files.find(f"{names.LOG}/{entries_path(index)}", _MAX_BUNDLE_BYTES)
        if tile is None:
            raise PinwardenError(
                "LOG_PROOF_INVALID", f"{files} does not serve the log entries from {index * TILE_WIDTH} on"
            )
        entries = unpack_entries(tile)[:width]
        if len(entries) < width:
            raise PinwardenError("LOG_PROOF_INVALID", f"{files} does not serve all log entries before {stop}")
        yield from entries[max(0, start - index * TILE_WIDTH) :]


def fetch_event(files: RegistryReader, followed: FollowedLog, seq: int) -> LogEvent:
    """Download one event of a followed log, and verify its inclusion at its index."""
    from pinwarden.core.tlog import hash_leaf, prove_inclusion, verify_inclusion

    head = followed.head.checkpoint

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{names.LOG}/{tile_path(level, index, width)}")

    entry = next(_fetch_entries(files, seq, head.size))
    proof = prove_inclusion(seq, head.size, TileNodes(head.size, fetch).read)
    verify_inclusion(hash_leaf(entry), seq, head.size, head.root, proof)
    return verify_event(entry, followed.state.log_id, followed.state.find_key(seq), seq)


def fetch_signed_checkpoint(files: RegistryReader, log: NoteKey, head: VerifiedHead) -> CheckpointDocument:
    """Download the JSON checkpoint, and verify its signature. If its size is the head's, its root must be, too."""
    document = parse_checkpoint(files.get(names.SIGNED_CHECKPOINT))
    signed = any(
        set(CHECKPOINT_SIGNED_FIELDS) <= set(signature.signed_fields)
        and is_document_signature_valid(document.document, raw_signature, [log.key])
        for signature, raw_signature in zip(document.signatures, document.document["signatures"], strict=True)
    )
    if not signed or document.log_id != log.name:
        raise PinwardenError("SIGNATURE_INVALID", "the JSON checkpoint is not signed by the registry")
    if document.size == head.checkpoint.size and document.root != head.checkpoint.root:
        raise PinwardenError(
            "LOG_PROOF_INVALID", "the JSON checkpoint and the checkpoint note have different roots for the same size"
        )
    return document


def check_consistency(files: RegistryReader, old: VerifiedHead, new: VerifiedHead) -> None:
    """Verify that the head ``new`` extends the head ``old``. Reads only tiles, not the entries between the heads."""
    from pinwarden.core.tlog import prove_consistency, verify_consistency

    size = new.checkpoint.size

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{names.LOG}/{tile_path(level, index, width)}")

    proof = prove_consistency(old.checkpoint.size, size, TileNodes(size, fetch).read)
    verify_consistency(old.checkpoint.size, size, old.checkpoint.root, new.checkpoint.root, proof)


def load_log_state(path: Path) -> LogState | None:
    """Load a saved state; None if there is none. Raises if the file is damaged."""
    return parse_log_state(read_file(path, LOG_STATE_LIMITS.max_bytes)) if path.exists() else None


def save_log_state(path: Path, state: LogState) -> None:
    """Save a state atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, encode_log_state(state))


# Commands


def monitor_log(files: RegistryReader, path: Path, options: FollowOptions, watch: Sequence[str]) -> Report:
    """Follow the log from the saved state, and report new events of watched names (``pinwarden log monitor``)."""
    before = load_log_state(path)
    followed = follow_log(files, before, replace(options, watch=tuple(watch)))
    save_log_state(path, followed.state)
    shown = _list_entries(followed)
    size = plural(followed.head.checkpoint.size, "event")
    summary = f"{plural(followed.new_count, 'new event')}, {len(shown)} for watched names; the log has {size}"
    notes = (f"first run: the key {followed.state.key.did} is trusted from now on",) if followed.is_first else ()
    # Key changes are always reported, whichever names are watched.
    rows = (*(_build_key_row(change) for change in followed.key_changes), *map(_build_entry_row, shown))
    return Report(
        command="log monitor",
        subject=str(files),
        summary=summary,
        exit_code=EXIT_REFUSED if rows and not followed.is_first else EXIT_CLEAN,
        rows=rows,
        notes=notes if options.key is None else (),
        facts={
            **_build_facts(followed),
            "new": followed.new_count,
            "events": [_event_to_json(event) for event in followed.events],
            "actions": [action_to_json(action) for action in followed.actions],
        },
    )


def show_log(files: RegistryReader, options: FollowOptions, names_shown: Sequence[str]) -> Report:
    """Verify the log, and report its entries about some names, or all entries (``pinwarden log show``)."""
    followed = follow_log(files, None, replace(options, watch=tuple(names_shown) or None))
    rows = tuple(map(_build_entry_row, _list_entries(followed)))
    return Report(
        command="log show",
        subject=str(files),
        summary=f"{plural(len(rows), 'event')} of {plural(followed.head.checkpoint.size, 'event')} shown",
        exit_code=EXIT_CLEAN,
        rows=tuple(sorted((*rows, *map(_build_key_row, followed.key_changes)), key=lambda row: int(row.path[1:]))),
        facts={
            **_build_facts(followed),
            "events": [_event_to_json(event) for event in followed.events],
            "actions": [action_to_json(action) for action in followed.actions],
        },
    )


def verify_log(files: RegistryReader, options: FollowOptions) -> Report:
    """Verify all entries, the tiles and both forms of the head (``pinwarden log verify``)."""
    followed = follow_log(files, None, replace(options, watch=()))
    head = followed.head.checkpoint
    _check_tiles(files, head.size, head.root)
    issued = fetch_signed_checkpoint(
        files, NoteKey(name=head.origin, key=followed.state.key), followed.head
    ).issued_at_utc
    tools = {tool for tool, _ in followed.state.pointers}
    return Report(
        command="log verify",
        subject=str(files),
        summary=f"{plural(head.size, 'event')} of {plural(len(tools), 'tool')}: all entries match the signed head",
        exit_code=EXIT_CLEAN,
        notes=()
        if options.key is not None
        else (f"signed by {followed.state.key.did}; compare this key with one from another source",),
        facts={**_build_facts(followed), "issued_at_utc": issued, "tools": len(tools)},
    )


def _check_tiles(files: RegistryReader, size: int, root: bytes) -> None:
    """Raise if the tiles do not have the root of the head. Clients compute their proofs from tiles."""

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{names.LOG}/{tile_path(level, index, width)}")

    if compute_root(size, TileNodes(size, fetch).read) != root:
        raise PinwardenError("LOG_PROOF_INVALID", "the log's tiles do not match its signed head")


def _list_entries(followed: FollowedLog) -> list[LogEvent | OperatorAction]:
    return sorted((*followed.events, *followed.actions), key=lambda entry: entry.seq)


def _build_entry_row(event: LogEvent | OperatorAction) -> Row:
    if isinstance(event, OperatorAction):
        return _build_action_row(event)
    target = f"now {event.new_root_cid}" if event.new_root_cid else "pointer removed"
    return Row(
        code="pointer_moved" if event.new_root_cid else "pointer_removed",
        severity="info",
        entity="pointer",
        name=f"{event.tool}@{event.channel}",
        path=f"/{event.seq}",
        message=f"{event.reason} at {event.issued_at_utc}: {target}",
        before=event.prev_root_cid,
        after=event.new_root_cid,
    )


def _build_action_row(action: OperatorAction) -> Row:
    details = ", ".join(f"{name} {_format_detail(value)}" for name, value in sorted(action.details.items()))
    return Row(
        code="operator_action",
        severity="review",
        entity="registry",
        name=action.subject,
        path=f"/{action.seq}",
        message=f"{action.action} at {action.issued_at_utc}: {action.reason}{f' ({details})' if details else ''}",
    )


def _format_detail(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _build_key_row(change: KeyChange) -> Row:
    return Row(
        code="registry_key_changed",
        severity="review",
        entity="registry",
        name=change.log_id,
        path=f"/{change.seq}",
        message=f"{change.reason} at {change.issued_at_utc}: the registry uses a new key from here on",
        before=change.old.did,
        after=change.new.did,
    )


def _event_to_json(event: LogEvent) -> dict[str, object]:
    return {
        "seq": event.seq,
        "tool": event.tool,
        "channel": event.channel,
        "prev_root_cid": event.prev_root_cid,
        "new_root_cid": event.new_root_cid,
        "descriptor_cid": event.descriptor_cid,
        "reason": event.reason,
        "issued_at_utc": event.issued_at_utc,
    }


def _build_facts(followed: FollowedLog) -> dict[str, object]:
    head = followed.head.checkpoint
    return {
        "log_id": head.origin,
        "key_id": followed.state.key.did,
        "ended_keys": [{"key_id": change.old.did, "seq": change.seq} for change in followed.state.key_changes],
        "size": head.size,
        "root": head.root.hex(),
        "witnesses": [
            {"name": cosignature.witness.name, "time": cosignature.time} for cosignature in followed.head.cosignatures
        ],
    }
