"""Edit clients' files and locks together: all files of all scopes, or none.

`write_edits` compares every file with what was shown, backs all of them up, and writes them. If a write fails or is
interrupted, it restores everything at once. If the process was killed, the next command restores it (`undo_edits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import edit_entry, read_server_file, write_if_unchanged
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock import lock_store
from pinwarden.project.config_diff import FileEdit, diff_config
from pinwarden.project.edit_backups import (
    MAX_FILE_BYTES,
    Backup,
    BackupServer,
    EditSet,
    LockEdit,
    complete_backup,
    hold_backups,
    remove_backup,
    write_backup,
)
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from typing import Any

    from pinwarden.project.project import Project


def list_entry_edits(
    entries: Iterable[tuple[ConfiguredServer, dict[str, Any]]], contents: Mapping[Path, bytes] | None = None
) -> tuple[FileEdit, ...]:
    """Return the edits that replace the entries of these servers. A file may have servers of several scopes.

    ``contents`` are files that were already read.
    """
    edits: dict[Path, FileEdit] = {}
    for server, entry in entries:
        path = Path(server.path)
        edit = edits.get(path)
        if edit is None:
            data = contents[path] if contents is not None and path in contents else read_server_file(server)
            edit = FileEdit(path=path, before=data, after=data)
        edits[path] = replace(edit, after=edit_entry(edit.after, server, entry))
    return tuple(edit for edit in edits.values() if edit.before != edit.after)


def diff_edits(project: Project, edits: Iterable[FileEdit]) -> tuple[tuple[str, str], ...]:
    """Return the edit of each client's file as a unified diff, by the file's path for display. Secrets are masked."""
    shown = ((project.display_path(edit.path), edit) for edit in edits)
    return tuple((name, diff_config(name, edit.before, edit.after)) for name, edit in shown)


def to_backup_server(
    project: Project, key: str, server: ConfiguredServer, edited: Iterable[FileEdit] | None = None
) -> BackupServer:
    """Return the record of an edited server, for a backup.

    Without ``edited``, the client's file counts as edited. If ``edited`` lacks that file, only the lock was edited, and
    the record has no path.
    """
    path = Path(server.path)
    is_edited = edited is None or any(edit.path == path for edit in edited)
    return BackupServer(
        lock=project.lock.absolute(),
        key=key,
        name=server.name,
        client=server.client,
        path=path.absolute() if is_edited else None,
        pointer=server.pointer,
    )


def write_edits(project: Project, edits: EditSet) -> None:
    """Back up all files and make the edits. If anything fails or is interrupted, everything is restored.

    Raises CONFIG_CHANGED, before the first edit, if a file is not as it was when the edits were planned.
    """
    with hold_backups(project):
        complete_backup(make_edits(project, edits))


def make_edits(project: Project, edits: EditSet) -> Backup:
    """Make the edits, as `write_edits` does, and return their backup, which is not marked as complete yet.

    Call it inside ``hold_backups``.
    """
    _refuse_changed_files(project, edits)
    backup = write_backup(project, edits)
    try:
        for lock in edits.locks:
            if lock.before != lock.after:
                lock_store.replace_bytes(lock.path, lock.before, lock.after, lock.new_files)
        for file in edits.files:
            write_if_unchanged(file.path, file.before, file.after)
    except BaseException:
        _roll_back(edits)
        remove_backup(backup)
        raise
    return backup


def read_lock_edit(path: Path) -> LockEdit:
    """Return an edit of the lock that changes nothing yet, with the files that the lock pins now."""
    data = lock_store.read_bytes(path)
    _, files = lock_store.read_with_files(path)
    return LockEdit(path=path, before=data, after=data, files=files)


def _refuse_changed_files(project: Project, edits: EditSet) -> None:
    changed = [file.path for file in edits.files if _read(file.path) != file.before]
    changed += [lock.path for lock in edits.locks if _read(lock.path) != lock.before]
    if changed:
        names = ", ".join(map(project.display_path, changed))
        raise PinwardenError(
            "CONFIG_CHANGED", f"another program changed {names} after the edit was shown; no file was edited"
        )


def _roll_back(edits: EditSet) -> None:
    """Restore what was written before a failure. A file that another program changed since stays as it is."""
    for file in edits.files:
        if _read(file.path) == file.after:
            write_atomically(file.path, file.before)
    for lock in edits.locks:
        if lock.before != lock.after and _read(lock.path) == lock.after:
            lock_store.replace_bytes(lock.path, lock.after, lock.before, lock.files)


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except PinwardenError:
        return None
