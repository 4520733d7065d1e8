"""Key rotation in a registry's log: the signed entry, and how a follower gets from an old key to the current one.

Both keys sign the entry. The old key names its successor, so trust in the old key is enough to find the new one. The
new key proves that its holder made the change, and confirms the entries before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pinwarden.bundle.document import DocumentReader, add_signature, read_json, read_signatures, refuse_document
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record, field, replace
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.signing import document_signature_valid
from pinwarden.registry.log_state import LoggedKeyChange, LogState

KEY_CHANGE_SCHEMA = "pinwarden.registry.key-change.v1"
KEY_CHANGES_SCHEMA = "pinwarden.registry.key-changes.v1"
KEY_CHANGE_SIGNED_FIELDS = (
    "/schema_version",
    "/log_id",
    "/seq",
    "/old_key_id",
    "/new_key_id",
    "/reason",
    "/issued_at_utc",
)
MAX_KEY_CHANGES_BYTES = 1024 * 1024
MAX_KEY_CHANGES = 500
"""A new key every month for forty years."""


class KeyChange(Record):
    """The entry of the log after which another key signs."""

    log_id: str
    seq: int
    """The index of this entry. Later entries and heads are signed by the new key."""
    old: PublicKey
    new: PublicKey
    reason: str
    issued_at_utc: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def leaf(self) -> bytes:
        """The leaf of the log."""
        return canonicalize(dict(self.document), "rulebook")


def key_change_from_json(document: Any) -> KeyChange:
    """Build a key change from a parsed value and verify both signatures."""
    shape = DocumentReader.for_schema(document, KEY_CHANGE_SCHEMA)
    old, new = (PublicKey.from_did(shape.text(name)) for name in ("old_key_id", "new_key_id"))
    signatures = read_signatures(shape)
    if old == new or {each.key_id for each in signatures} != {old.did, new.did} or len(signatures) != 2:
        refuse_document(f"{shape.path}/signatures", "must be one by the old key and one by the new key")
    for signature, given in zip(signatures, document["signatures"], strict=True):
        if signature.signed_fields != KEY_CHANGE_SIGNED_FIELDS or not document_signature_valid(
            document, given, [old, new]
        ):
            raise PinwardenError("SIGNATURE_INVALID", f"the key change is not signed by {signature.key_id}")
    return KeyChange(
        log_id=shape.text("log_id"),
        seq=shape.integer("seq"),
        old=old,
        new=new,
        reason=shape.text("reason"),
        issued_at_utc=shape.timestamp("issued_at_utc"),
        document=document,
    )


def sign_key_change(change: KeyChange, old: Signer, new: Signer) -> KeyChange:
    """Sign a key change with both keys."""
    value = {
        "schema_version": KEY_CHANGE_SCHEMA,
        "log_id": change.log_id,
        "seq": change.seq,
        "old_key_id": change.old.did,
        "new_key_id": change.new.did,
        "reason": change.reason,
        "issued_at_utc": change.issued_at_utc,
    }
    return key_change_from_json(
        add_signature(add_signature(value, KEY_CHANGE_SIGNED_FIELDS, old), KEY_CHANGE_SIGNED_FIELDS, new)
    )


def key_changes_to_json(log_id: str, changes: Iterable[KeyChange]) -> dict[str, Any]:
    """The document that lists all key changes, for followers that know an earlier key."""
    return {
        "schema_version": KEY_CHANGES_SCHEMA,
        "log_id": log_id,
        "changes": [dict(each.document) for each in changes],
    }


def parse_key_changes(data: bytes, log_id: str) -> tuple[KeyChange, ...]:
    """Parse a log's key changes, and verify their signatures and that each continues the one before."""
    shape = DocumentReader.for_schema(read_json(data), KEY_CHANGES_SCHEMA)
    shown = shape.objects("changes")
    if len(shown) > MAX_KEY_CHANGES:
        refuse_document(f"{shape.path}/changes", f"has more than {MAX_KEY_CHANGES} items")
    changes = tuple(key_change_from_json(each.value) for each in shown)
    seen: set[PublicKey] = set()
    for before, change in zip((None, *changes), changes, strict=False):
        follows = before is None or (before.new == change.old and before.seq < change.seq)
        if change.log_id != log_id or not follows or change.new in seen:
            refuse_document(f"{shape.path}/changes", "do not form one sequence, or belong to another log")
        seen.add(change.old)
    return changes


def is_note_signed(note: Note, key: NoteKey) -> bool:
    """Whether the key signed the note."""
    try:
        note.verify([key])
    except PinwardenError:
        return False
    return True


def check_not_ended(state: LogState, note: Note) -> None:
    """Raise if a replaced key signed the head: it is a replay of an old head, or was signed with a stolen key."""
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


def expected_key_changes(
    state: LogState, shown: Sequence[KeyChange], size: int
) -> tuple[LogState, tuple[KeyChange, ...]]:
    """The key changes between a state and a head of ``size`` entries, and the state with the key to start from.

    They are only expectations: each must be found in the log at its index.
    """
    within = tuple(each for each in shown if each.seq < size)
    if state.edge.size:
        known, coming = within[: len(state.key_changes)], within[len(state.key_changes) :]
        same = tuple(map(_logged, known)) == state.key_changes
        if not same or any(each.seq < state.edge.size for each in coming) or not _goes_on(state, coming):
            raise PinwardenError(
                "LOG_PROOF_INVALID", "the registry's list of key changes contradicts the ones already seen"
            )
        return state, coming
    keys = [each.old for each in within] + [each.new for each in within[-1:]]
    if not within or state.key not in keys:
        return state, ()  # the head must be signed by the known key
    # A key also confirms its predecessors, so a follower may start with any of them.
    return replace(state, key=within[0].old), within


def _goes_on(state: LogState, coming: Sequence[KeyChange]) -> bool:
    return not coming or coming[0].old == state.key


def apply_key_change(state: LogState, change: KeyChange) -> LogState:
    """The state after a key change was found in the log."""
    return replace(state, key=change.new, key_changes=(*state.key_changes, _logged(change)))


def _logged(change: KeyChange) -> LoggedKeyChange:
    return LoggedKeyChange(seq=change.seq, old=change.old, new=change.new)
