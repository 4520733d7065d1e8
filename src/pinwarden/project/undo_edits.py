"""Undo edits of clients' files: ``--undo`` of ``enforce``, ``pin``, ``update``, ``add`` and ``remove``.

A file that has not changed since the edit is restored byte for byte from its backup. If its client changed it, only the
entries of the servers are edited, so that nothing else is lost. The lock entries are restored the same way; approvals
since then are kept. `plan_undo` computes everything from copies in memory, `apply_undo` writes it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import find_client
from pinwarden.lock.lockfile import put_entries, remove_entries
from pinwarden.project.client_edits import make_edits, restore_file
from pinwarden.project.config_diff import FileEdit
from pinwarden.project.edit_backups import (
    MAX_FILE_BYTES,
    Backup,
    BackupFile,
    BackupServer,
    EditCommand,
    EditSet,
    FileCopy,
    LockEdit,
    complete_backup,
    has_backups,
    hold_backups,
    keep_servers,
    list_backups,
    remove_backup,
)
from pinwarden.project.undo_entries import (
    ENTRY_COMMANDS,
    EXACT,
    LOCK_ONLY,
    NOT_UNDONE,
    EntryVersions,
    UndoneServer,
    find_newer_launch,
    find_server,
    restore_enforced_lock_entry,
    restore_entry,
    restore_released_lock_entry,
)
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project


class UndoPlan(Record):
    """All edits that undo earlier ones, computed but not made."""

    project: Project
    undone: tuple[UndoneServer, ...]
    edits: EditSet
    kept: tuple[tuple[Backup, tuple[BackupServer, ...], dict[Path, bytes | None]], ...]
    """For each backup, the servers whose edits are not undone, and its files and locks after this undo."""


class _Contents:
    """Clients' files and locks as they are now, and as they will be."""

    def __init__(self) -> None:
        self._files: dict[Path, FileEdit] = {}
        self._locks: dict[Path, LockEdit] = {}

    def read_file(self, path: Path) -> bytes | None:
        if path not in self._files:
            data = read_file(path, MAX_FILE_BYTES) if os.path.lexists(path) else None
            self._files[path] = FileEdit(path=path, before=data, after=data)
        return self._files[path].after

    def write_file(self, path: Path, data: bytes | None) -> None:
        self._files[path] = replace(self._files[path], after=data)

    def read_lock(self, path: Path) -> bytes | None:
        if path not in self._locks:
            lock, files = lock_store.read_with_files(path)
            data = None if lock is None else lock_store.read_bytes(path)
            self._locks[path] = LockEdit(path=path, before=data, after=data, files=files)
        return self._locks[path].after

    def write_lock(self, path: Path, data: bytes | None, files: dict[str, bytes]) -> None:
        edit = self._locks[path]
        self._locks[path] = replace(edit, after=data, new_files={**edit.new_files, **files})

    def list_edits(self) -> EditSet:
        return EditSet(
            command="undo",
            files=tuple(edit for edit in self._files.values() if edit.before != edit.after),
            locks=tuple(edit for edit in self._locks.values() if edit.before != edit.after),
        )


def plan_undo(projects: Sequence[Project], command: EditCommand, names: Collection[str] = ()) -> UndoPlan:
    """Plan to undo the edits that a command made in these scopes, the newest first, for some servers or all.

    ``enforce`` includes the releases that ``pinwarden setup`` wrote before it enforced the servers: one undo returns
    the files to what they were before. Raises NOTHING_TO_UNDO if there is no such edit, and USAGE for the name of a
    server that was not edited while others were.
    """
    project = projects[0]
    locks = {scope.lock.absolute() for scope in projects}
    contents = _Contents()
    undone: list[UndoneServer] = []
    edited: dict[str, None] = {}
    kept: list[tuple[Backup, tuple[BackupServer, ...], dict[Path, bytes | None]]] = []
    for backup in list_backups(project):
        if not _is_made_by(backup, command):
            continue
        in_scope = [server for server in backup.servers if server.lock in locks]
        edited |= dict.fromkeys(server.name for server in in_scope)
        chosen = [server for server in in_scope if not names or server.name in names]
        if chosen:
            restore = _Restore(contents, backup, chosen)
            restored = restore.plan()
            undone += restored
            refused = {server.edited for server in restored if server.how == NOT_UNDONE}
            others = tuple(server for server in backup.servers if server not in chosen or server in refused)
            kept.append((backup, others, restore.list_edited()))
    if not edited:
        raise PinwardenError("NOTHING_TO_UNDO", f"there is no backup of an edit by pinwarden {command}")
    unknown = next((name for name in names if name not in edited), None)
    if unknown is not None:
        raise PinwardenError(
            "USAGE",
            f"--undo takes the names of servers that pinwarden {command} edited: {', '.join(edited)[:400]}; it did not "
            f"edit {unknown[:120]!a}",
            hint=f"Run: pinwarden {command} {shlex.quote(next(iter(edited)))} --undo"
            if command in ENTRY_COMMANDS
            else f"To undo the edits of all of them: pinwarden {command} --undo",
        )
    return UndoPlan(project=project, undone=tuple(undone), edits=contents.list_edits(), kept=tuple(kept))


def can_undo(projects: Sequence[Project], command: EditCommand) -> bool:
    """Whether there is an edit by a command in these scopes that could be undone."""
    locks = {scope.lock.absolute() for scope in projects}
    return any(
        _is_made_by(backup, command) and any(server.lock in locks for server in backup.servers)
        for backup in list_backups(projects[0])
    )


def apply_undo(plan: UndoPlan) -> None:
    """Write the files and locks, all or none, and remove the backups that are not needed any more."""
    with hold_backups(plan.project):
        own = make_edits(plan.project, plan.edits)
        complete_backup(own)
        for backup, servers, files in plan.kept:
            keep_servers(backup, servers, files)
        remove_backup(own)


def recover_interrupted(projects: Sequence[Project]) -> tuple[str, ...]:
    """Roll back edits of these scopes that were interrupted, for example because their process was killed.

    Returns a note about each command whose edits were rolled back.
    """
    project = projects[0]
    if not has_backups(project):
        return ()
    locks = {scope.lock.absolute() for scope in projects}
    notes: list[str] = []
    with hold_backups(project):
        for backup in list_backups(project):
            if not {*(server.lock for server in backup.servers), *(lock.file.path for lock in backup.locks)} & locks:
                continue
            if backup.complete:
                if backup.command == "undo":
                    remove_backup(backup)
                continue
            contents = _Contents()
            _Restore(contents, backup, backup.servers).plan()
            _write_at_once(contents.list_edits())
            remove_backup(backup)
            notes.append(f"an earlier pinwarden {backup.command} was interrupted; its edits were rolled back")
    return tuple(dict.fromkeys(notes))


def _is_made_by(backup: Backup, command: EditCommand) -> bool:
    return backup.command == command or (command == "enforce" and backup.command == "pin" and backup.in_setup)


def _write_at_once(edits: EditSet) -> None:
    for lock in edits.locks:
        lock_store.replace_bytes(lock.path, lock.before, lock.after, lock.new_files)
    for file in edits.files:
        restore_file(file.path, file.after)


class _Restore:
    """Restores the files and locks of one backup in memory, for some of its servers."""

    def __init__(self, contents: _Contents, backup: Backup, servers: Sequence[BackupServer]) -> None:
        self._contents, self._backup, self._servers = contents, backup, servers
        self._locks = {lock.file.path: lock for lock in backup.locks}
        self._restores_all = len(servers) == len(backup.servers)
        self._unchanged: list[BackupFile] = []
        """The files and locks that nothing changed since the edit."""

    def plan(self) -> list[UndoneServer]:
        undone = [UndoneServer(edited=server, how=LOCK_ONLY) for server in self._servers if server.path is None]
        for file in self._backup.files:
            in_file = [server for server in self._servers if server.path == file.path]
            if in_file or not self._backup.servers:
                undone += self._restore_file(file, in_file)
        refused = {server.edited for server in undone if server.how == NOT_UNDONE}
        for path in dict.fromkeys(server.lock for server in self._servers):
            servers = [server for server in self._servers if server.lock == path and server not in refused]
            self._restore_lock(path, servers, is_whole=self._restores_all and not refused)
        if not self._backup.servers:  # an interrupted undo
            for lock in self._backup.locks:
                self._restore_lock(lock.file.path, (), is_whole=True)
        return undone

    def list_edited(self) -> dict[Path, bytes | None]:
        """Return the files and locks that nothing else changed since the edit, with their content after the undo."""
        locks = {lock.file.path for lock in self._backup.locks}
        return {
            file.path: (self._contents.read_lock if file.path in locks else self._contents.read_file)(file.path)
            for file in self._unchanged
        }

    def _restore_file(self, file: BackupFile, servers: Sequence[BackupServer]) -> list[UndoneServer]:
        try:
            current = self._contents.read_file(file.path)
        except PinwardenError as err:
            return [UndoneServer(edited=server, how=LOCK_ONLY, reason=err.message) for server in servers]
        if _is_copied(current, file.before):
            return [UndoneServer(edited=server, how=EXACT) for server in servers]
        is_unchanged = _is_copied(current, file.after)
        if is_unchanged:
            self._unchanged.append(file)
        elif current is None:
            reason = f"{file.path.name} does not exist any more"
            return [UndoneServer(edited=server, how=LOCK_ONLY, reason=reason) for server in servers]
        is_whole = len(servers) == sum(server.path == file.path for server in self._backup.servers)
        refused = [server for server in servers if self._find_problem(server)]
        newer = any(self._find_newer(server) is not None for server in servers)
        if is_unchanged and is_whole and not newer and not refused:
            self._contents.write_file(file.path, self._backup.read_before(file))
            return [UndoneServer(edited=server, how=EXACT) for server in servers]
        reason = "a newer release was locked in the meantime" if newer else ""
        if not is_unchanged:
            reason = "its client changed the file in the meantime"
        return [self._edit_in_place(file, server, reason) for server in servers]

    def _edit_in_place(self, file: BackupFile, server: BackupServer, reason: str) -> UndoneServer:
        problem = self._find_problem(server)
        if problem:
            return UndoneServer(edited=server, how=NOT_UNDONE, reason=problem)
        data = self._contents.read_file(file.path)
        versions = EntryVersions(
            before=find_server(self._backup.read_before(file), server),
            after=find_server(self._backup.read_after(file), server),
            now=find_server(data, server),
        )
        restored, data = restore_entry(self._backup, server, versions, data, self._find_newer(server))
        self._contents.write_file(file.path, data)
        return replace(restored, reason=restored.reason or reason)

    def _find_problem(self, server: BackupServer) -> str:
        """Return why the edit of a server must stay; empty if it can be undone."""
        if self._backup.command not in ("update", *ENTRY_COMMANDS) or not self._backup.complete:
            return ""
        before, after, now = self._find_lock_entries(server)
        changed = "it was approved, enforced or locked again since"
        return "" if now in (after, before) else f"{changed} the {self._backup.command}"

    def _find_newer(self, server: BackupServer) -> Sequence[str] | None:
        if self._backup.command != "enforce":
            return None
        before, _, now = self._find_lock_entries(server)
        return find_newer_launch(before, now)

    def _find_lock_entries(self, server: BackupServer) -> tuple[Entry | None, Entry | None, Entry | None]:
        """Return the lock entry of a server before and after the edit, and now."""
        lock, data = self._locks.get(server.lock), self._contents.read_lock(server.lock)
        now = _find_entry(data, server)
        if lock is None:
            return None, now, now
        before, after = self._backup.read_before(lock.file), self._backup.read_after(lock.file)
        return _find_entry(before, server), _find_entry(after, server), now

    def _restore_lock(self, path: Path, servers: Sequence[BackupServer], *, is_whole: bool) -> None:
        """Restore the lock entries of servers. With ``is_whole``, a lock without later changes is restored exactly."""
        data, lock = self._contents.read_lock(path), self._locks.get(path)
        if lock is not None and _is_copied(data, lock.file.after):
            self._unchanged.append(lock.file)
            if is_whole:
                self._contents.write_lock(path, self._backup.read_before(lock.file), self._backup.read_lock_files(lock))
                return
        if data is None or (lock is not None and _is_copied(data, lock.file.before)):
            return
        current = lockfile.parse(data)
        entries = [entry for server in servers if (entry := self._restore_lock_entry(server)) is not None]
        restored = put_entries(current, entries, current.updated_at or "")
        added = [server.key for server in servers if self._is_added(server)]
        if added:
            restored = remove_entries(restored, added, current.updated_at or "")
        if restored is not current:
            files = self._backup.read_lock_files(lock) if lock is not None and self._backup.command != "enforce" else {}
            self._contents.write_lock(path, lockfile.to_bytes(restored), _select_files(restored, files))

    def _restore_lock_entry(self, server: BackupServer) -> Entry | None:
        before, after, now = self._find_lock_entries(server)
        if self._backup.command in ENTRY_COMMANDS:
            return before if now == after else None
        if now is None:
            return None
        if self._backup.command == "enforce":
            return None if before is None else restore_enforced_lock_entry(now, before)
        if before is not None and now == after:
            return before
        if self._backup.command == "update" or server.path is None:
            return None
        file = next(file for file in self._backup.files if file.path == server.path)
        return restore_released_lock_entry(
            now,
            find_server(self._backup.read_after(file), server),
            find_server(self._contents.read_file(file.path), server),
        )

    def _is_added(self, server: BackupServer) -> bool:
        """Whether the edit added the lock entry of a server, which is still as it was added."""
        before, after, now = self._find_lock_entries(server)
        added = self._backup.command in ENTRY_COMMANDS and before is None and after is not None
        return added and server.lock in self._locks and now == after


def _is_copied(data: bytes | None, copy: FileCopy | None) -> bool:
    """Whether a file is as it was when it was copied. None: there is no file, and there was none."""
    return data is None if copy is None else copy.is_of(data)


def _select_files(lock: Lock, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return those of the files whose bytes are exactly what the lock pins."""
    pins = {pin.path: pin.file_digest for _, _, pin in lockfile.list_file_pins(lock)}
    return {name: data for name, data in files.items() if pins.get(name) == Digest.of_bytes(data)}


def _find_entry(data: bytes | None, server: BackupServer) -> Entry | None:
    """Return the lock entry of a server. It may have been locked after the edit, under another key."""
    entries = lockfile.parse(data).entries if data is not None else ()
    own = [entry for entry in entries if entry.name == server.name and find_client(entry) == server.client]
    return next((entry for entry in own if entry.key == server.key), next(iter(own), None))
