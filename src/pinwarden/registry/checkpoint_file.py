"""The last signed checkpoint, stored in a file next to the registry's key.

A restored backup of the database may lack the newest transactions. Appending to such a database would reuse log
indexes, and followers would see a fork. Therefore the registry compares its log with the stored checkpoint when it
opens and before every append, and refuses a log that is shorter or different.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from pinwarden.bundle.log_documents import KeyChange, key_change_from_json
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.tlog import EMPTY_ROOT, TileNodes, compute_root
from pinwarden.registry.store import pointer_log
from pinwarden.registry.store.pointer_log import LogHead
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.registry.registry import Registry
    from pinwarden.system.database import Transaction

CHECKPOINT_FILE = "registry.checkpoint"
NO_TOOL, KEYS = "", "registry-key"
"""The bundle name and channel under which the log stores changes of the registry's key. No bundle has an empty name."""
_MAX_BYTES = 64 * 1024
_WRITE_LOCK = Lock()


@contextmanager
def open_append_transaction(registry: Registry) -> Iterator[Transaction]:
    """Open a transaction that may append to the log. After the commit, store the new checkpoint in the file."""
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        before = pointer_log.load_head(transaction)
        check_not_behind(transaction, registry.checkpoint, registry.identity.log_id, registry.identity.key)
        yield transaction
        head = pointer_log.load_head(transaction)
    if head is not None and head != before:
        registry.database.flush()
        save_checkpoint(registry.checkpoint, head)


def save_checkpoint(path: Path | None, head: LogHead) -> None:
    """Store a checkpoint, unless the file already has a later one from another thread."""
    if path is None:
        return
    with _WRITE_LOCK:
        present = _read_note(path)
        if present is None or _parse_checkpoint(present).size <= head.size:
            write_atomically(path, head.note)


def check_not_behind(transaction: Transaction, path: Path | None, log_id: str, key: PublicKey) -> None:
    """Raise ``REGISTRY_LOG_BEHIND`` if the log in the database does not contain the log of the stored checkpoint."""
    note = None if path is None else _read_note(path)
    if note is None:
        return
    keys = {
        key,
        *(change.old for change in load_key_changes(transaction)),
        *(change.new for change in load_key_changes(transaction)),
    }
    stored = _parse_checkpoint(note)
    head = pointer_log.load_head(transaction)
    size = 0 if head is None else head.size
    if stored.origin != log_id:
        _refuse_behind(
            f"{path} belongs to the log {stored.origin[:120]!a}, but the database contains the log {log_id[:120]!a}"
        )
    if size < stored.size:
        _refuse_behind(f"the log in the database has {size} entries, but {stored.size} were signed according to {path}")
    try:
        note.verify(NoteKey(name=log_id, key=change) for change in keys)
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{path} is not signed by this registry") from err
    if _compute_root_at(transaction, stored.size) != stored.root:
        _refuse_behind(f"the log in the database differs from the signed checkpoint in {path}")


def load_key_changes(transaction: Transaction) -> list[KeyChange]:
    """Return all changes of the registry's key, in log order."""
    return [
        key_change_from_json(strict_json.parse_json(entry))
        for entry in pointer_log.list_channel_entries(transaction, NO_TOOL, KEYS)
    ]


def _compute_root_at(transaction: Transaction, size: int) -> bytes:
    def fetch(level: int, index: int, width: int) -> bytes:
        return pointer_log.read_tile(transaction, size, level, index, width) or b""

    return compute_root(size, TileNodes(size, fetch).read) if size else EMPTY_ROOT


def _read_note(path: Path) -> Note | None:
    if not path.exists():
        return None
    try:
        return Note.parse(read_file(path, _MAX_BYTES))
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{path} cannot be read: {err.message}") from err


def _parse_checkpoint(note: Note) -> Checkpoint:
    try:
        return Checkpoint.parse(note.text)
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{CHECKPOINT_FILE} is not a checkpoint: {err.message}") from err


def _refuse_behind(why: str) -> NoReturn:
    raise PinwardenError("REGISTRY_LOG_BEHIND", why)
