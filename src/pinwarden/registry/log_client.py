"""Follow a registry's log from where it was last seen: fetch what is new, prove it, report it, remember it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pinwarden.bundle import checkpoint as checkpoint_document
from pinwarden.bundle.checkpoint import PointerLogCheckpoint
from pinwarden.bundle.log_event import LogEvent
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row, plural
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey, WitnessKey
from pinwarden.core.signing import document_signature_valid
from pinwarden.core.tlog import TILE_WIDTH, TileNodes, entries_path, root_hash, tile_path, tile_width, unpack_entries
from pinwarden.registry import key_change, layout, log_state
from pinwarden.registry.files import RegistryFiles
from pinwarden.registry.key_change import KeyChange
from pinwarden.registry.log_following import Head, check_direction, event_in, follow, verified_head
from pinwarden.registry.log_keys import expected_changes, is_signed, refuse_ended
from pinwarden.registry.log_state import LIMITS, LogState
from pinwarden.registry.names import is_inside
from pinwarden.registry.version import Identity, parse_identity
from pinwarden.system.files import read_file, write_atomically

_MOST_BUNDLE = TILE_WIDTH * (2 + 0xFFFF)


class Following(Record):
    """Whose log is followed, and who must have seen it."""

    key: PublicKey | None = None
    """The registry's key. Without one, the first that is seen is kept and demanded from then on."""
    witnesses: tuple[WitnessKey, ...] = ()
    quorum: int = 0
    watch: tuple[str, ...] | None = None
    """Whose events are kept, of those that are read; None for all."""

    def keeps(self, event: LogEvent) -> bool:
        """Whether an event is of a name that is watched."""
        return self.watch is None or any(is_inside(event.tool, name) for name in self.watch)


class Followed(Record):
    """What following a log came to."""

    state: LogState
    head: Head
    events: tuple[LogEvent, ...]
    """Those that were not seen before, and are watched."""
    new: int
    """How many entries were not seen before."""
    key_changes: tuple[KeyChange, ...] = ()
    """Those of the registry's key that were not seen before."""
    first: bool
    """Whether the log was never seen before."""


def follow_log(files: RegistryFiles, state: LogState | None, wanted: Following) -> Followed:
    """Read everything that is new in the log of a registry, and prove that it follows from what was seen."""
    known = state or _first_state(files, wanted)
    if wanted.key is not None and wanted.key not in known.keys:
        raise PinwardenError("REGISTRY_KEY_MISMATCH", f"the log of {files} is signed by {known.key.did}")
    note = Note.parse(files.get(layout.CHECKPOINT))
    known, changes = _key_changes(files, known, note)
    key = NoteKey(name=known.log_id, key=changes[-1].new if changes else known.key)
    head = verified_head(bytes(note), known.log_id, key, wanted.witnesses, wanted.quorum)
    check_direction(known, head)
    size = known.edge.size
    grown, events = follow(known, head, _entries(files, size, head.checkpoint.size), changes, wanted.keeps)
    return Followed(
        state=grown,
        head=head,
        events=tuple(events),
        new=grown.edge.size - size,
        key_changes=changes,
        first=state is None,
    )


def _key_changes(files: RegistryFiles, known: LogState, note: Note) -> tuple[LogState, tuple[KeyChange, ...]]:
    """The changes of key that are to be met on the way to a head, and the state with the key that signs until then.

    Asked for at the first entry, and when another key than the one that is known signed the head.
    """
    signed = is_signed(note, NoteKey(name=known.log_id, key=known.key))
    if known.edge.size and signed:
        return known, ()
    if not signed:
        refuse_ended(known, note)
    data = files.find(layout.KEY_CHANGES, key_change.MOST_BYTES)
    if data is None:
        return known, ()
    shown = key_change.parse_list(data, known.log_id)
    return expected_changes(known, shown, Checkpoint.parse(note.text).size)


def _first_state(files: RegistryFiles, wanted: Following) -> LogState:
    identity = parse_identity(files.get(layout.IDENTITY))
    return LogState(log_id=identity.log_id, key=wanted.key or identity.key)


def _entries(files: RegistryFiles, start: int, stop: int) -> Iterator[bytes]:
    """The entries from one index up to another, bundle by bundle."""
    for index in range(start // TILE_WIDTH, -(-stop // TILE_WIDTH)) if stop > start else ():
        width = tile_width(stop, 0, index)
        found = files.find(f"{layout.LOG}/{entries_path(index, width)}", _MOST_BUNDLE)
        if found is None and width < TILE_WIDTH:
            # A partial bundle may be gone once it is full.
            found = files.find(f"{layout.LOG}/{entries_path(index)}", _MOST_BUNDLE)
        if found is None:
            raise PinwardenError("LOG_PROOF_INVALID", f"the registry does not show entries {index * TILE_WIDTH} and on")
        entries = unpack_entries(found)[:width]
        if len(entries) < width:
            raise PinwardenError("LOG_PROOF_INVALID", f"the registry does not show all entries up to {stop}")
        yield from entries[max(0, start - index * TILE_WIDTH) :]


def logged_event(files: RegistryFiles, followed: Followed, seq: int) -> LogEvent:
    """One event of a log that was followed to its head, read again and proved to be where it is said to be."""
    from pinwarden.core.tlog import inclusion_proof, leaf_hash, verify_inclusion

    head = followed.head.checkpoint

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{layout.LOG}/{tile_path(level, index, width)}")

    entry = next(_entries(files, seq, head.size))
    proof = inclusion_proof(seq, head.size, TileNodes(head.size, fetch).read)
    verify_inclusion(leaf_hash(entry), seq, head.size, head.root, proof)
    return event_in(entry, followed.state.log_id, followed.state.key_for(seq), seq)


def load_state(path: Path) -> LogState | None:
    """What was kept; None if nothing was. A damaged file is an error."""
    return log_state.parse(read_file(path, LIMITS.max_bytes)) if path.exists() else None


def save_state(path: Path, state: LogState) -> None:
    """Keep a state, as a whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, log_state.to_bytes(state))


# Commands


def monitor(files: RegistryFiles, path: Path, wanted: Following, watch: Sequence[str]) -> Report:
    """The report of ``pinwarden log monitor``: every new event of the names that are watched."""
    before = load_state(path)
    followed = follow_log(files, before, replace(wanted, watch=tuple(watch)))
    save_state(path, followed.state)
    shown = followed.events
    size = followed.head.checkpoint.size
    told = f"{plural(followed.new, 'new event')}, {len(shown)} of watched names; the log has {size}"
    notes = (f"first seen: the key {followed.state.key.did} is remembered",) if followed.first else ()
    # A change of the registry's key is everybody's business, whatever they watch.
    rows = (*(_key_row(change) for change in followed.key_changes), *(_row(event) for event in shown))
    return Report(
        command="log monitor",
        subject=str(files),
        summary=told,
        exit_code=EXIT_REFUSED if rows and not followed.first else EXIT_CLEAN,
        rows=rows,
        notes=notes if wanted.key is None else (),
        facts={**_facts(followed), "new": followed.new, "events": [_event_facts(each) for each in shown]},
    )


def verify(files: RegistryFiles, wanted: Following) -> Report:
    """The report of ``pinwarden log verify``: the whole log from its first entry, its tiles and both its heads."""
    followed = follow_log(files, None, replace(wanted, watch=()))
    head = followed.head.checkpoint
    _check_tiles(files, head.size, head.root)
    identity = Identity(name=".", log_id=head.origin, key=followed.state.key)
    issued = check_signed_view(files, identity, followed.head).issued_at_utc
    tools = {tool for tool, _ in followed.state.pointers}
    return Report(
        command="log verify",
        subject=str(files),
        summary=f"{plural(head.size, 'event')} of {plural(len(tools), 'tool')}: every entry leads to the signed head",
        exit_code=EXIT_CLEAN,
        notes=() if wanted.key is not None else (f"signed by {followed.state.key.did}; compare it by another way",),
        facts={**_facts(followed), "issued_at_utc": issued, "tools": len(tools)},
    )


def check_signed_view(files: RegistryFiles, identity: Identity, head: Head) -> PointerLogCheckpoint:
    """The signed JSON view of the head with its moment, if the log's key signed it and it shows no other history."""
    view = checkpoint_document.parse(files.get(layout.SIGNED_CHECKPOINT))
    signed = any(
        set(checkpoint_document.SIGNED_FIELDS) <= set(each.signed_fields)
        and document_signature_valid(view.document, given, [identity.key])
        for each, given in zip(view.signatures, view.document["signatures"], strict=True)
    )
    if not signed or view.log_id != identity.log_id:
        raise PinwardenError("SIGNATURE_INVALID", "the signed view of the log's head is not the registry's")
    if view.size == head.checkpoint.size and view.root != head.checkpoint.root:
        raise PinwardenError("LOG_PROOF_INVALID", "the two views of the log's head show different histories")
    return view


def _check_tiles(files: RegistryFiles, size: int, root: bytes) -> None:
    """The tiles must give the same root as the entries, or proofs made from them would not verify."""

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{layout.LOG}/{tile_path(level, index, width)}")

    if root_hash(size, TileNodes(size, fetch).read) != root:
        raise PinwardenError("LOG_PROOF_INVALID", "the tiles of the log do not lead to its signed head")


def consistency_checked(files: RegistryFiles, old: Head, new: Head) -> None:
    """Prove that one head follows from another, by tiles alone, without reading the entries between them."""
    from pinwarden.core.tlog import consistency_proof, verify_consistency

    size = new.checkpoint.size

    def fetch(level: int, index: int, width: int) -> bytes:
        return files.get(f"{layout.LOG}/{tile_path(level, index, width)}")

    proof = consistency_proof(old.checkpoint.size, size, TileNodes(size, fetch).read)
    verify_consistency(old.checkpoint.size, size, old.checkpoint.root, new.checkpoint.root, proof)


def _row(event: LogEvent) -> Row:
    place = f"now {event.new_root_cid}" if event.new_root_cid else "points nowhere now"
    return Row(
        code="pointer_moved" if event.new_root_cid else "pointer_removed",
        severity="info",
        entity="pointer",
        name=f"{event.tool}@{event.channel}",
        path=f"/{event.seq}",
        message=f"{event.reason} at {event.issued_at_utc}: {place}",
        before=event.prev_root_cid,
        after=event.new_root_cid,
    )


def _key_row(change: KeyChange) -> Row:
    return Row(
        code="registry_key_changed",
        severity="review",
        entity="registry",
        name=change.log_id,
        path=f"/{change.seq}",
        message=f"{change.reason} at {change.issued_at_utc}: another key signs from here on",
        before=change.old.did,
        after=change.new.did,
    )


def _event_facts(event: LogEvent) -> dict[str, object]:
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


def _facts(followed: Followed) -> dict[str, object]:
    head = followed.head.checkpoint
    return {
        "log_id": head.origin,
        "key_id": followed.state.key.did,
        "ended_keys": [{"key_id": each.old.did, "seq": each.seq} for each in followed.state.key_changes],
        "size": head.size,
        "root": head.root.hex(),
        "witnesses": [{"name": each.witness.name, "time": each.time} for each in followed.head.cosigned],
    }
