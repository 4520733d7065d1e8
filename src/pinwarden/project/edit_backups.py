"""Copies of the clients' files and locks that Pinwarden edits, so that every edit can be undone exactly.

Each backup is a folder below the state folder of this user, readable only by the user, because clients' files contain
secrets. It has a copy of each file before and after the edit, and ``manifest.json``, which is written before the first
edit and says whether all edits were made. A process that was killed leaves an incomplete backup, which the next command
that edits the same files rolls back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.core.typed_json import JsonObject
from pinwarden.project.config_diff import FileEdit
from pinwarden.system.files import create_file, read_file, write_atomically
from pinwarden.system.state_folder import find_state_folder, prepare_state_folder

if TYPE_CHECKING:
    from pinwarden.project.project import Project

FORMAT = "pinwarden-backup/2"
MAX_BACKUPS = 100
"""How many backups are kept for one user. Older ones are removed."""
MAX_FILE_BYTES = 256 * 1024 * 1024
EditCommand = Literal["enforce", "pin", "update", "undo"]
"""The command that made an edit. The backup of an ``undo`` is removed when it is complete."""
_COMMANDS: tuple[EditCommand, ...] = ("enforce", "pin", "update", "undo")
_MANIFEST = "manifest.json"


class LockEdit(Record):
    """A lock before and after an edit."""

    path: Path
    before: bytes
    after: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The surfaces and closures that the lock pinned before the edit, by their path in the lock."""
    new_files: Mapping[str, bytes] = field(default_factory=dict)
    """The surfaces and closures that the edit writes, by their path in the lock."""


class BackupFile(Record):
    """A file that was edited, with its copies from before and after the edit."""

    path: Path
    copy: str
    """The name of the copy from before the edit, in the folder of the backup."""
    edited_copy: str
    """The name of the copy from after the edit."""
    before: Digest
    after: Digest


class BackupLock(Record):
    """A lock that was edited, with copies of the surfaces and closures that it pinned before the edit."""

    file: BackupFile
    files: Mapping[str, tuple[str, Digest]]
    """The name of each copy and its digest, by the path of the file in the lock."""


class BackupServer(Record):
    """A server whose entries were edited."""

    lock: Path
    key: str
    """The key of its entry in that lock. The lock need not have the entry."""
    name: str
    client: str
    """The id of the client in the table of clients."""
    path: Path | None
    """The client's file; None if only the lock was edited."""
    pointer: str = ""
    """JSON Pointer to its entry in the client's file."""


class Backup(Record):
    """One backup: all edits of one run of a command."""

    folder: Path
    command: EditCommand
    in_setup: bool
    """Whether ``pinwarden setup`` made the edit."""
    complete: bool
    """Whether all edits were made."""
    locks: tuple[BackupLock, ...]
    files: tuple[BackupFile, ...]
    servers: tuple[BackupServer, ...]

    def read_before(self, file: BackupFile) -> bytes:
        """Return the bytes of a file before the edit. Raises BACKUP_DAMAGED if the copy is not what was written."""
        return self._read(file.copy, file.before, file.path)

    def read_after(self, file: BackupFile) -> bytes:
        """Return the bytes of a file after the edit. Raises BACKUP_DAMAGED if the copy is not what was written."""
        return self._read(file.edited_copy, file.after, file.path)

    def read_lock_files(self, lock: BackupLock) -> dict[str, bytes]:
        """Return the surfaces and closures of a lock before the edit, by their path in the lock."""
        return {name: self._read(copy, digest, name) for name, (copy, digest) in lock.files.items()}

    def _read(self, copy: str, digest: Digest, of: Path | str) -> bytes:
        try:
            data = read_file(self.folder / copy, MAX_FILE_BYTES)
        except PinwardenError as err:
            raise _damaged(self.folder, err.message) from err
        if Digest.of_bytes(data) != digest:
            raise _damaged(self.folder, f"the copy of {of} was changed")
        return data


class EditSet(Record):
    """Edits of clients' files and locks that are made together or not at all."""

    command: EditCommand
    files: tuple[FileEdit, ...]
    locks: tuple[LockEdit, ...]
    servers: tuple[BackupServer, ...] = ()
    """The servers whose entries the edits change."""
    in_setup: bool = False


@contextmanager
def hold_backups(project: Project) -> Iterator[None]:
    """Keep other processes of this user from editing or restoring clients' files meanwhile."""
    from pinwarden.system.files import hold_write_lock

    folder = _find_folder(project)
    prepare_state_folder(find_state_folder(project.variables, project.home))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
    with hold_write_lock(folder / "backups"):
        yield


def has_backups(project: Project) -> bool:
    """Whether this user has a backup of an edit."""
    return bool(_list_folders(project))


def list_backups(project: Project) -> list[Backup]:
    """Return the backups of this user, the newest first."""
    return [_read(folder) for folder in reversed(_list_folders(project))]


def write_backup(project: Project, edits: EditSet) -> Backup:
    """Copy the files that will be edited. Everything is on disk when this returns. Call it inside ``hold_backups``."""
    earlier = _list_folders(project)
    folder = _find_folder(project) / f"{int(earlier[-1].name) + 1 if earlier else 1:06}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
    copies = _CopyWriter(folder)
    backup = Backup(
        folder=folder,
        command=edits.command,
        in_setup=edits.in_setup,
        complete=False,
        locks=tuple(map(copies.write_lock, edits.locks)),
        files=tuple(map(copies.write_file, edits.files)),
        servers=edits.servers,
    )
    save_backup(backup)
    for old in earlier[: max(0, len(earlier) + 1 - MAX_BACKUPS)]:
        _remove_folder(old)
    return backup


def save_backup(backup: Backup) -> None:
    """Write the manifest of a backup."""
    import json

    path = backup.folder / _MANIFEST
    data = (json.dumps(_to_json(backup), indent=2) + "\n").encode()
    if path.exists():
        write_atomically(path, data)
    else:
        create_file(path, data, 0o600)


def complete_backup(backup: Backup) -> None:
    """Record that all edits were made."""
    save_backup(replace(backup, complete=True))


def remove_backup(backup: Backup) -> None:
    """Remove a backup that is not needed any more."""
    _remove_folder(backup.folder)


def keep_servers(backup: Backup, servers: tuple[BackupServer, ...], contents: Mapping[Path, bytes]) -> None:
    """Keep a backup for some of its servers only, because the edits of the others were undone.

    ``contents`` are the files and locks as they are without the edits of the others. They count as the result of the
    edit from now on, so that undoing the rest can still restore the original files byte for byte.
    """
    if not servers:
        remove_backup(backup)
        return
    copies = _CopyWriter(backup.folder)

    def renew(file: BackupFile) -> BackupFile:
        data = contents.get(file.path)
        if data is None:
            return file
        return replace(file, edited_copy=copies.write(data), after=Digest.of_bytes(data))

    paths = {server.path for server in servers}
    save_backup(
        replace(
            backup,
            servers=servers,
            files=tuple(renew(file) for file in backup.files if file.path in paths),
            locks=tuple(replace(lock, file=renew(lock.file)) for lock in backup.locks),
        )
    )


class _CopyWriter:
    """Writes copies into the folder of a backup."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = sum(1 for _ in folder.glob("*.copy"))

    def write_file(self, edit: FileEdit | LockEdit) -> BackupFile:
        return BackupFile(
            path=edit.path.absolute(),
            copy=self.write(edit.before),
            edited_copy=self.write(edit.after),
            before=Digest.of_bytes(edit.before),
            after=Digest.of_bytes(edit.after),
        )

    def write_lock(self, edit: LockEdit) -> BackupLock:
        files = {name: (self.write(data), Digest.of_bytes(data)) for name, data in edit.files.items()}
        return BackupLock(file=self.write_file(edit), files=files)

    def write(self, data: bytes) -> str:
        name = f"{self._count}.copy"
        self._count += 1
        create_file(self._folder / name, data, 0o600)
        return name


def _remove_folder(folder: Path) -> None:
    # The manifest goes first: if the removal is interrupted, a folder without it does not count as a backup.
    (folder / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _find_folder(project: Project) -> Path:
    return find_state_folder(project.variables, project.home) / "backups"


def _list_folders(project: Project) -> list[Path]:
    """Return the folders that have a manifest, the oldest first. Folders without one are not backups."""
    try:
        folders = sorted(_find_folder(project).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"the backups cannot be listed: {err.strerror or err}") from err
    return [folder for folder in folders if folder.name.isdigit() and (folder / _MANIFEST).is_file()]


def _to_json(backup: Backup) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "command": backup.command,
        "inSetup": backup.in_setup,
        "complete": backup.complete,
        "locks": [
            {
                **_file_to_json(lock.file),
                "files": [
                    {"name": name, "copy": copy, "digest": str(digest)} for name, (copy, digest) in lock.files.items()
                ],
            }
            for lock in backup.locks
        ],
        "files": [_file_to_json(file) for file in backup.files],
        "servers": [
            {
                "lock": str(server.lock),
                "key": server.key,
                "name": server.name,
                "client": server.client,
                "pointer": server.pointer,
                **({} if server.path is None else {"path": str(server.path)}),
            }
            for server in backup.servers
        ],
    }


def _file_to_json(file: BackupFile) -> dict[str, str]:
    return {
        "path": str(file.path),
        "copy": file.copy,
        "editedCopy": file.edited_copy,
        "before": str(file.before),
        "after": str(file.after),
    }


def _read(folder: Path) -> Backup:
    try:
        record = JsonObject(
            parse_json(read_file(folder / _MANIFEST)), "", lambda path, why: _damaged(folder, path + why)
        )
        if record.string("format") != FORMAT:
            record.fail("format", f"is not {FORMAT}")
        return Backup(
            folder=folder,
            command=record.one_of("command", _COMMANDS),
            in_setup=record.value.get("inSetup") is True,
            complete=record.value.get("complete") is True,
            locks=tuple(map(_parse_lock, record.objects("locks"))),
            files=tuple(map(_parse_file, record.objects("files"))),
            servers=tuple(map(_parse_server, record.objects("servers"))),
        )
    except PinwardenError as err:
        raise err if err.code == "BACKUP_DAMAGED" else _damaged(folder, err.message) from err


def _parse_lock(record: JsonObject) -> BackupLock:
    files = {
        file.string("name"): (_parse_copy(file, "copy"), file.parse_string("digest", Digest.parse))
        for file in record.objects("files")
    }
    return BackupLock(file=_parse_file(record), files=files)


def _parse_file(record: JsonObject) -> BackupFile:
    return BackupFile(
        path=Path(record.string("path")),
        copy=_parse_copy(record, "copy"),
        edited_copy=_parse_copy(record, "editedCopy"),
        before=record.parse_string("before", Digest.parse),
        after=record.parse_string("after", Digest.parse),
    )


def _parse_copy(record: JsonObject, member: str) -> str:
    copy = record.string(member)
    if Path(copy).name != copy:
        record.fail(member, "is not a file name")
    return copy


def _parse_server(record: JsonObject) -> BackupServer:
    return BackupServer(
        lock=Path(record.string("lock")),
        key=record.string("key"),
        name=record.string("name"),
        client=record.string("client"),
        path=Path(record.string("path")) if "path" in record else None,
        pointer=record.string("pointer"),
    )


def _damaged(folder: Path, why: str) -> PinwardenError:
    return PinwardenError("BACKUP_DAMAGED", f"the backup {folder} cannot be used: {why}")
