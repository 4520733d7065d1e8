"""The last signed checkpoint, kept in a file beside the registry's key.

A database can be copied or restored without its newest transactions. To append to it would give out indexes of the log
a second time, and everybody who follows the log would see a fork. So a log that is shorter than the checkpoint in the
file, or does not lead to it, is refused when the registry is opened and before every append.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.tlog import EMPTY_ROOT, TileNodes, root_hash
from pinwarden.registry import key_change
from pinwarden.registry.key_change import KeyChange
from pinwarden.registry.store import pointer_log
from pinwarden.registry.store.pointer_log import LogHead
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.registry.registry import Registry
    from pinwarden.system.database import Transaction

CHECKPOINT_FILE = "registry.checkpoint"
NO_TOOL, KEYS = "", "registry-key"
"""How the log's table names the entries that are about the registry's key. Tools have names."""
_MOST_BYTES = 64 * 1024
_WRITING = Lock()


@contextmanager
def appending(registry: Registry) -> Iterator[Transaction]:
    """A transaction that may append to the log. After it is committed, its checkpoint is in the file."""
    with registry.database.transaction(exclusive=pointer_log.ALONE) as step:
        before = pointer_log.head_of(step)
        check_log(step, registry.checkpoint, registry.identity.log_id, registry.identity.key)
        yield step
        head = pointer_log.head_of(step)
    if head is not None and head != before:
        registry.database.flush()
        keep_checkpoint(registry.checkpoint, head)


def keep_checkpoint(path: Path | None, head: LogHead) -> None:
    """Write the checkpoint, unless the file has a later one already: another thread may have been faster."""
    if path is None:
        return
    with _WRITING:
        present = _kept(path)
        if present is None or _checkpoint(present).size <= head.size:
            write_atomically(path, head.note)


def check_log(step: Transaction, path: Path | None, log_id: str, key: PublicKey) -> None:
    """Raises ``REGISTRY_LOG_BEHIND`` unless the log in the database leads to the checkpoint in the file."""
    note = None if path is None else _kept(path)
    if note is None:
        return
    keys = {key, *(each.old for each in key_changes(step)), *(each.new for each in key_changes(step))}
    kept = _checkpoint(note)
    head = pointer_log.head_of(step)
    size = 0 if head is None else head.size
    if kept.origin != log_id:
        _behind(f"{path} is of the log {kept.origin[:120]!a}, and the database has the log {log_id[:120]!a}")
    if size < kept.size:
        _behind(f"the log in the database has {size} entries; {kept.size} were signed, as {path} says")
    try:
        note.verify(NoteKey(name=log_id, key=each) for each in keys)
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{path} is not signed by this registry") from err
    if _root_at(step, kept.size) != kept.root:
        _behind(f"the log in the database has other entries than those that were signed, as {path} says")


def key_changes(step: Transaction) -> list[KeyChange]:
    """Every change of the registry's key, in the order of the log."""
    return [key_change.of(strict_json.parse_json(each)) for each in pointer_log.entries_of(step, NO_TOOL, KEYS)]


def _root_at(step: Transaction, size: int) -> bytes:
    def fetch(level: int, number: int, width: int) -> bytes:
        return pointer_log.tile(step, size, level, number, width) or b""

    return root_hash(size, TileNodes(size, fetch).read) if size else EMPTY_ROOT


def _kept(path: Path) -> Note | None:
    if not path.exists():
        return None
    try:
        return Note.parse(read_file(path, _MOST_BYTES))
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{path} cannot be read: {err.message}") from err


def _checkpoint(note: Note) -> Checkpoint:
    try:
        return Checkpoint.parse(note.text)
    except PinwardenError as err:
        raise PinwardenError("LOG_STATE_CORRUPT", f"{CHECKPOINT_FILE} is no checkpoint: {err.message}") from err


def _behind(why: str) -> NoReturn:
    raise PinwardenError("REGISTRY_LOG_BEHIND", why)
