"""Which key signs a registry's log, and when: a key that was once trusted leads to the present one by the log alone."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.registry.key_change import KeyChange
from pinwarden.registry.log_state import LoggedKeyChange, LogState


def is_signed(note: Note, key: NoteKey) -> bool:
    """Whether the key signed the note."""
    try:
        note.verify([key])
    except PinwardenError:
        return False
    return True


def refuse_ended(state: LogState, note: Note) -> None:
    """A head by a key that gave way is an old one that is played again, or the work of whoever stole that key."""
    for change in state.key_changes:
        if not is_signed(note, NoteKey(name=state.log_id, key=change.old)):
            continue
        size, told = Checkpoint.parse(note.text).size, f"entry {change.seq} of the log ended the key {change.old.did}"
        data = {"seen": state.checkpoint, "shown": note.text, "ended_by": change.seq}
        if size < state.edge.size:
            why = f"the log had {state.edge.size} entries and is shown with {size}; {told}"
            raise PinwardenError("LOG_ROLLBACK", why, data=data)
        raise PinwardenError("REGISTRY_KEY_ENDED", f"{told}, and the head of the log is signed by it", data=data)


def expected_changes(state: LogState, shown: Sequence[KeyChange], size: int) -> tuple[LogState, tuple[KeyChange, ...]]:
    """The changes of key between a state and a head of so many entries, and the state with the key that it begins with.

    Nothing of it is believed before the log was read: each change must be found there, at its place.
    """
    within = tuple(each for each in shown if each.seq < size)
    if state.edge.size:
        known, coming = within[: len(state.key_changes)], within[len(state.key_changes) :]
        same = tuple(map(_logged, known)) == state.key_changes
        if not same or any(each.seq < state.edge.size for each in coming) or not _goes_on(state, coming):
            raise PinwardenError("LOG_PROOF_INVALID", "the registry shows other changes of its key than those seen")
        return state, coming
    keys = [each.old for each in within] + [each.new for each in within[-1:]]
    if not within or state.key not in keys:
        return state, ()  # then the head must be signed by the key that is known
    # A key vouches for those that it came after, too, so any of them is enough to begin with.
    return replace(state, key=within[0].old), within


def _goes_on(state: LogState, coming: Sequence[KeyChange]) -> bool:
    return not coming or coming[0].old == state.key


def after_change(state: LogState, change: KeyChange) -> LogState:
    """The state once a change was found in the log."""
    return replace(state, key=change.new, key_changes=(*state.key_changes, _logged(change)))


def _logged(change: KeyChange) -> LoggedKeyChange:
    return LoggedKeyChange(seq=change.seq, old=change.old, new=change.new)
