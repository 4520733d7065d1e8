"""Edit clients' files and locks together: all files of all scopes, or none.

`ServerEdits` computes which files change when servers are added or removed.

`write_edits` compares every file with what was shown, backs all of them up, and writes them. If a write fails or is
interrupted, it restores everything at once. If the process was killed, the next command restores it (`undo_edits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import (
    edit_entry,
    put_entry,
    read_client_file,
    read_server_file,
    remove_entry,
    write_if_unchanged,
)
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import child_pointer
from pinwarden.core.record import replace
from pinwarden.lock import lock_store, lockfile
from pinwarden.project.config_diff import FileEdit, diff_config
from pinwarden.project.edit_backups import (
    MAX_FILE_BYTES,
    Backup,
    BackupServer,
    EditCommand,
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

    from pinwarden.clients.files import Action
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project


def write_locked_servers(
    project: Project,
    command: EditCommand,
    entries: Sequence[Entry],
    change_lock: Callable[[Lock | None], lock_store.LockWrite],
    paths: Mapping[str, Path],
) -> list[dict[str, str]]:
    """Change the lock, and write the locked configurations into the files of their clients, or do neither.

    ``paths`` has the file of each client; a client without one is skipped. Returns the edits for the report.
    """
    lock = plan_lock_edit(project.lock, change_lock)
    edits = ServerEdits(project)
    done: list[dict[str, str]] = []
    for entry in entries:
        if entry.client in paths:
            path = paths[entry.client]
            action = edits.put(entry, path)
            done.append({"client": entry.client, "file": project.display_path(path), "action": action})
    edits.write(command, lock)
    return done


class ServerEdits:
    """Locked servers to write into their clients' files, or to remove there, together with the lock."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._files: dict[Path, FileEdit] = {}
        self._servers: list[BackupServer] = []

    def put(self, entry: Entry, path: Path) -> Action:
        """Plan to add or replace a server. Raises if its client's file must not or cannot be edited."""
        edit = self._read(path, entry)
        after = put_entry(edit.after, path, entry.client, entry.name, entry.config)
        self._plan(entry, replace(edit, after=after))
        return "unchanged" if after == edit.after else "created" if edit.after is None else "updated"

    def remove(self, entry: Entry, path: Path) -> Action:
        """Plan to remove a server. Raises if its client's file must not or cannot be edited."""
        edit = self._read(path, entry)
        after = remove_entry(edit.after, path, entry.client, entry.name)
        self._plan(entry, replace(edit, after=after))
        return "missing" if after == edit.after else "removed"

    def write(self, command: EditCommand, lock: LockEdit) -> None:
        """Write the lock and the clients' files, or nothing. If no client's file changes, there is no backup."""
        files = tuple(edit for edit in self._files.values() if edit.before != edit.after)
        servers = tuple(self._servers) if files else ()
        write_edits(self._project, EditSet(command=command, files=files, locks=(lock,), servers=servers))

    def _read(self, path: Path, entry: Entry) -> FileEdit:
        if path not in self._files:
            data = read_client_file(path, entry.client)
            self._files[path] = FileEdit(path=path, before=data, after=data)
        return self._files[path]

    def _plan(self, entry: Entry, edit: FileEdit) -> None:
        self._files[edit.path] = edit
        pointer = ""
        for step in (*get_client(entry.client).root, entry.name):
            pointer = child_pointer(pointer, step)
        self._servers.append(
            BackupServer(
                lock=self._project.lock.absolute(),
                key=entry.key,
                name=entry.name,
                client=entry.client,
                path=edit.path.absolute(),
                pointer=pointer,
            )
        )


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
        edits[path] = replace(edit, after=edit_entry(edit.after or b"", server, entry))
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

    Raises CONFIG_CHANGED, before the first edit, if a file is not as it was when the edits were planned. Edits without
    servers are those of a lock alone, which are not backed up.
    """
    if not edits.servers:
        for lock in edits.locks:
            _write_lock(lock)
        return
    with hold_backups(project):
        complete_backup(make_edits(project, edits))


def make_edits(project: Project, edits: EditSet) -> Backup:
    """Make the edits, as `write_edits` does, and return their backup, which is not marked as complete yet.

    Call it inside ``hold_backups``.
    """
    _refuse_changed_files(project, edits)
    backup = write_backup(project, edits)
    folders = {folder for path in _list_paths(edits) for folder in path.parents if not folder.exists()}
    try:
        for lock in edits.locks:
            _write_lock(lock)
        for file in edits.files:
            write_if_unchanged(file.path, file.before, file.after)
    except BaseException:
        _roll_back(edits)
        for folder in sorted(folders, reverse=True):
            with suppress(OSError):  # it was not created yet, or another program wrote a file there
                folder.rmdir()
        remove_backup(backup)
        raise
    return backup


def plan_lock_edit(path: Path, change: Callable[[Lock | None], lock_store.LockWrite]) -> LockEdit:
    """Return the edit that `lock_store.update` would make with this change. Writes nothing."""
    lock, files = lock_store.read_with_files(path)
    before = None if lock is None else lock_store.read_bytes(path)
    changed = change(lock)
    after = before if changed.lock is lock else lockfile.to_bytes(changed.lock)
    return LockEdit(path=path, before=before, after=after, files=files, new_files=changed.files)


def _list_paths(edits: EditSet) -> tuple[Path, ...]:
    return (*(lock.path for lock in edits.locks), *(file.path for file in edits.files))


def _write_lock(edit: LockEdit) -> None:
    if edit.before != edit.after or edit.new_files:
        lock_store.replace_bytes(edit.path, edit.before, edit.after, edit.new_files)


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
        if file.before != file.after and _read(file.path) == file.after:
            restore_file(file.path, file.before)
    for lock in edits.locks:
        if lock.before != lock.after and _read(lock.path) == lock.after:
            lock_store.replace_bytes(lock.path, lock.after, lock.before, lock.files)


def restore_file(path: Path, data: bytes | None) -> None:
    """Write a client's file as it was before an edit; without ``data``, remove it."""
    if data is not None:
        write_atomically(path, data)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be removed: {err.strerror or err}") from err


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except PinwardenError:
        return None
