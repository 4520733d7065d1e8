"""``pinwarden enforce --undo``: take edits of ``pinwarden enforce`` back.

A file that has not changed since the edit is restored byte for byte from its backup. If its client changed it, or if a
newer release was locked in the meantime, only the entries of the servers are edited, so that nothing else is lost. The
lock entries are restored the same way; approvals since then are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import parse_locked_start
from pinwarden.clients.config import ConfiguredServer, read_config
from pinwarden.clients.documents import build_config
from pinwarden.clients.entry_edit import replace_command
from pinwarden.clients.files import edit_entry, read_server_file, write_if_unchanged
from pinwarden.clients.table import get_client
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, plural, row_to_json
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.extension import LaunchCommand, LockExtension, RemoteLaunch, read_extension, with_extension
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.edit_backups import (
    Backup,
    BackupFile,
    BackupServer,
    has_backups,
    hold_backups,
    list_backups,
    remove_backup,
    save_backup,
)
from pinwarden.system.files import read_file, write_atomically
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project

_MAX_FILE = 64 * 1024 * 1024
UNDO_KINDS: FindingKinds = build_kind_table(
    info=(
        (
            "not_restored",
            "A client's file could not be restored byte for byte, because it or the lock changed since the edit.",
        ),
    )
)
_EXACT, _IN_PLACE, _LOCK_ONLY = "restored", "edited", "lock only"


class UndoneServer(Record):
    """A server that its client starts by its own command again."""

    server: BackupServer
    how: str
    """Whether the client's file was ``restored`` exactly, its entry was ``edited``, or only the lock was changed."""
    reason: str = ""
    """Why the file was not restored exactly."""


class _Restore(Record):
    """A backup that is restored, the lock as it is now, and the lock before the edit."""

    project: Project
    backup: Backup
    lock: Lock | None
    earlier: Lock

    def find_launch(self, server: BackupServer) -> LaunchCommand | RemoteLaunch | None:
        """What the lock says now that ``pinwarden run`` starts."""
        entry = _find_entry(self.lock, server.key)
        extension = read_extension(entry) if entry is not None else None
        return extension.launch if extension is not None else None

    def find_newer_launch(self, server: BackupServer) -> LaunchCommand | None:
        """The command of a release that was locked after the client's file was edited; None if there is none."""
        launch, earlier = self.find_launch(server), _find_entry(self.earlier, server.key)
        if not isinstance(launch, LaunchCommand) or earlier is None:
            return None
        return launch if launch.command != _read_command(earlier) else None


def undo_enforcement(projects: Sequence[Project], names: Collection[str] = ()) -> Report:
    """Restore the files and lock entries as they were before ``pinwarden enforce``, for some servers or all.

    Raises NOTHING_TO_UNDO if there is no backup for them.
    """
    undone: list[tuple[Project, UndoneServer]] = []
    for project in projects:
        if not has_backups(project):
            continue
        with hold_backups(project):
            for backup in list_backups(project):
                keys = {server.key for server in backup.servers if not names or server.name in names}
                if keys:
                    undone += ((project, server) for server in restore_backup(project, backup, keys))
    missing = [name for name in names if not any(server.server.name == name for _, server in undone)]
    if missing or not undone:
        what = f" for {missing[0][:120]!a}" if missing else ""
        raise PinwardenError("NOTHING_TO_UNDO", f"there is no backup of an edit by pinwarden enforce{what}")
    return _build_report(undone)


def recover_interrupted(project: Project) -> tuple[str, ...]:
    """Roll back an edit that was interrupted, for example because its process was killed. Returns notes about it."""
    if not has_backups(project):
        return ()
    notes: list[str] = []
    with hold_backups(project):
        for backup in list_backups(project):
            if not backup.complete:
                restore_backup(project, backup)
                notes.append("an earlier pinwarden enforce was interrupted; its edits were rolled back")
    return tuple(dict.fromkeys(notes))


def restore_backup(project: Project, backup: Backup, keys: Collection[str] | None = None) -> list[UndoneServer]:
    """Restore the files of a backup, for the servers with these keys or all, and remove the backup.

    May be repeated after an interruption: files that are restored already do not change. Call it with
    ``hold_backups``.
    """
    chosen = [server for server in backup.servers if keys is None or server.key in keys]
    others = tuple(server for server in backup.servers if server not in chosen)
    earlier = lockfile.parse(backup.read_copy(backup.lock))
    restore = _Restore(project=project, backup=backup, lock=lock_store.read(project.lock), earlier=earlier)
    undone = [UndoneServer(server=server, how=_LOCK_ONLY) for server in chosen if server.path is None]
    files: list[BackupFile] = []
    for file in backup.files:
        in_file = [server for server in chosen if server.path == str(file.path)]
        kept = [server for server in others if server.path == str(file.path)]
        after = None
        if in_file:
            restored, after = _restore_file(restore, file, in_file, whole=not kept)
            undone += restored
        if kept:
            files.append(replace(file, after=after or file.after))
    lock_digest = _restore_lock(restore, chosen, whole=not others)
    if others:
        save_backup(replace(backup, files=tuple(files), servers=others, lock=replace(backup.lock, after=lock_digest)))
    else:
        remove_backup(backup)
    return undone


def _restore_file(
    restore: _Restore, file: BackupFile, servers: Sequence[BackupServer], *, whole: bool
) -> tuple[list[UndoneServer], Digest | None]:
    """Restore one client's file. The digest is that of the file now, if nothing else had changed in it."""
    try:
        current = read_file(file.path, _MAX_FILE)
    except PinwardenError as err:
        return [UndoneServer(server=server, how=_LOCK_ONLY, reason=err.message) for server in servers], None
    digest = Digest.of_bytes(current)
    if digest == file.before:
        return [UndoneServer(server=server, how=_EXACT) for server in servers], None
    newer = any(restore.find_newer_launch(server) is not None for server in servers)
    if digest == file.after and whole and not newer:
        write_if_unchanged(file.path, current, restore.backup.read_copy(file))
        return [UndoneServer(server=server, how=_EXACT) for server in servers], None
    reason = "a newer release was locked in the meantime" if newer else ""
    if digest != file.after:
        reason = "its client changed the file in the meantime"
    undone = [_edit_in_place(restore, file, server, reason) for server in servers]
    return undone, Digest.of_bytes(read_file(file.path, _MAX_FILE)) if digest == file.after else None


def _edit_in_place(restore: _Restore, file: BackupFile, server: BackupServer, reason: str) -> UndoneServer:
    now = _find_server(restore.project.find_servers(), server)
    before = _find_server(_read_copy_servers(restore.backup, file, server), server)
    if now is None or before is None:
        return UndoneServer(server=server, how=_LOCK_ONLY, reason=f"{file.path.name} no longer has it")
    start = parse_locked_start(now.target.command) if isinstance(now.target, StdioTarget) else None
    if start is None:
        return UndoneServer(server=server, how=_LOCK_ONLY, reason="it is not started through pinwarden run any more")
    entry = _merge_entry(now, before)
    newer = restore.find_newer_launch(server)
    if newer is not None:
        entry = replace_command(entry, get_client(server.client), newer.command)
    data = read_server_file(now)
    write_if_unchanged(Path(now.path), data, edit_entry(data, now, entry))
    return UndoneServer(server=server, how=_IN_PLACE, reason=reason)


def _merge_entry(now: ConfiguredServer, before: ConfiguredServer) -> dict[str, Any]:
    """The earlier entry, with the members that the user changed since and that do not decide what is started."""
    client = get_client(now.client)
    form = client.entry_format
    if not isinstance(before.target, StdioTarget):  # a remote address has other members than a command
        return dict(before.entry)
    started = {form.command_member, "args", "type", *([form.wrapper_member] if form.wrapper_member else [])}
    kept = {name: value for name, value in now.entry.items() if name not in started}
    return {**{name: value for name, value in before.entry.items() if name in started or name in kept}, **kept}


def _find_server(servers: Sequence[ConfiguredServer], wanted: BackupServer) -> ConfiguredServer | None:
    return next(
        (
            server
            for server in servers
            if (server.name, server.client, server.scope) == (wanted.name, wanted.client, wanted.scope)
            and str(Path(server.path).absolute()) == wanted.path
        ),
        None,
    )


def _read_copy_servers(backup: Backup, file: BackupFile, server: BackupServer) -> tuple[ConfiguredServer, ...]:
    """The servers in the copy of a file. Which location of its client it is does not matter for one server."""
    client = get_client(server.client)
    data = backup.read_copy(file)
    found: list[ConfiguredServer] = []
    for location in client.locations:
        if location.settings or location.code or location.agents:
            continue
        found += read_config(data, client=client, location=location, path=str(file.path)).servers
    return tuple(
        replace(candidate, scope=server.scope) if candidate.folder is None and server.scope != "local" else candidate
        for candidate in found
    )


def _find_entry(lock: Lock | None, key: str) -> Entry | None:
    return next((entry for entry in (lock.entries if lock is not None else ()) if entry.key == key), None)


def _read_command(entry: Entry) -> tuple[str, ...]:
    from pinwarden.lock.locked_launch import read_locked_launch

    try:
        return read_locked_launch(entry).command
    except PinwardenError:
        return ()


def _restore_lock(restore: _Restore, servers: Sequence[BackupServer], *, whole: bool) -> Digest:
    """Restore the lock entries of servers; the whole file byte for byte, if nothing else changed in it."""
    path, pin = restore.project.lock, restore.backup.lock
    with lock_store.hold_write_lock(path):
        data = lock_store.read_bytes(path)
        digest = Digest.of_bytes(data)
        if digest == pin.after and whole:
            write_atomically(path, restore.backup.read_copy(pin))
            return pin.before
        if digest == pin.before:
            return digest
        lock = lockfile.parse(data)
        pairs = [(_find_entry(lock, server.key), _find_entry(restore.earlier, server.key)) for server in servers]
        changed = [_restore_entry(entry, before) for entry, before in pairs if entry is not None and before is not None]
        restored = put_entries(lock, changed, lock.updated_at or "")
        if restored is not lock:
            write_atomically(path, lockfile.to_bytes(restored))
        return Digest.of_bytes(lock_store.read_bytes(path))


def _restore_entry(entry: Entry, before: Entry) -> Entry:
    """The entry with its earlier configuration. Approvals and pinned bytes since then stay."""
    extension = read_extension(entry) or LockExtension()
    earlier = read_extension(before) or LockExtension()
    fragment = before.document.get("config")
    launch = extension.launch
    if isinstance(launch, LaunchCommand) and launch.command != _read_command(before):
        from pinwarden.lock.locked_config import read_config_origin, read_locked_config

        where = read_config_origin(entry)
        client = get_client(where.client if where else entry.client)
        approved = read_locked_config(before.key, before.document).entry
        changed = redact_entry(replace_command(approved, client, launch.command))
        fragment = build_config(client, entry.name, changed)
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    plain = lock_entry.with_integrity(replace(entry, document=document))
    return with_extension(plain, replace(extension, launch=earlier.launch))


def _build_report(undone: Sequence[tuple[Project, UndoneServer]]) -> Report:
    rows = [
        Row(
            code="not_restored",
            severity="info",
            entity="config",
            name=server.server.name,
            path="",
            message=_describe(server),
            file=None if server.server.path is None else project.display_path(server.server.path),
        )
        for project, server in undone
        if server.reason
    ]
    entries = [
        {
            "server": server.server.name,
            "client": server.server.client,
            "action": server.how,
            **({} if server.server.path is None else {"file": project.display_path(server.server.path)}),
        }
        for project, server in undone
    ]
    files = {(project.root, server.server.path) for project, server in undone if server.how == _EXACT}
    names = dict.fromkeys(server.server.name for _, server in undone)
    return Report(
        command="enforce",
        subject=undone[0][0].lock.name,
        summary=f"{plural(len(names), 'server')} started by their own commands again; "
        f"{plural(len(files), 'file')} restored byte for byte",
        exit_code=EXIT_REFUSED if any(row.severity != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        facts={"undone": entries, "findings": [row_to_json(row) for row in rows]},
    )


def _describe(server: UndoneServer) -> str:
    if server.how == _IN_PLACE:
        return f"only the entry of this server was edited: {server.reason}"
    return f"the client's file was left as it is: {server.reason}"
