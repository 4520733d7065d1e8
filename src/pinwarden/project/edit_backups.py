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
from typing import TYPE_CHECKING, Any, Literal, get_args

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

FORMAT = "pinwarden-backup/3"
MAX_BACKUPS = 100
"""How many backups are kept for one user. Older ones are removed."""
MAX_FILE_BYTES = 256 * 1024 * 1024
EditCommand = Literal["enforce", "pin", "update", "add", "install", "remove", "undo"]
"""The command that made an edit. The backup of an ``undo`` is removed when it is complete."""
_COMMANDS: tuple[EditCommand, ...] = get_args(EditCommand)
_MANIFEST = "manifest.json"


class LockEdit(Record):
    """A lock before and after an edit. None: there is no lock."""

    path: Path
    before: bytes | None
    after: bytes | None
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The surfaces and closures that the lock pinned before the edit, by their path in the lock."""
    new_files: Mapping[str, bytes] = field(default_factory=dict)
    """The surfaces and closures that the edit writes, by their path in the lock."""


class FileCopy(Record):
    """A copy of a file in the folder of a backup."""

    name: str
    digest: Digest

    def is_of(self, data: bytes | None) -> bool:
        """Whether these bytes are those of the copy."""
        return data is not None and Digest.of_bytes(data) == self.digest


class BackupFile(Record):
    """A file that was edited, with its copies from before and after the edit. None: there was no file."""

    path: Path
    before: FileCopy | None
    after: FileCopy | None


class BackupLock(Record):
    """A lock that was edited, with copies of the surfaces and closures that it pinned before the edit."""

    file: BackupFile
    files: Mapping[str, FileCopy]
    """The copies, by the path of the file in the lock."""


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

    def read_before(self, file: BackupFile) -> bytes | None:
        """Return the bytes of a file before the edit. Raises BACKUP_DAMAGED if the copy is not what was written."""
        return None if file.before is None else self._read(file.before, file.path)

    def read_after(self, file: BackupFile) -> bytes | None:
        """Return the bytes of a file after the edit. Raises BACKUP_DAMAGED if the copy is not what was written."""
        return None if file.after is None else self._read(file.after, file.path)

    def read_lock_files(self, lock: BackupLock) -> dict[str, bytes]:
        """Return the surfaces and closures of a lock before the edit, by their path in the lock."""
        return {name: self._read(copy, name) for name, copy in lock.files.items()}

    def _read(self, copy: FileCopy, of: Path | str) -> bytes:
        try:
            data = read_file(self.folder / copy.name, MAX_FILE_BYTES)
        except PinwardenError as err:
            raise _damaged(self.folder, err.message) from err
        if not copy.is_of(data):
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


def keep_servers(backup: Backup, servers: tuple[BackupServer, ...], contents: Mapping[Path, bytes | None]) -> None:
    """Keep a backup for some of its servers only, because the edits of the others were undone.

    ``contents`` are the files and locks as they are without the edits of the others. They count as the result of the
    edit from now on, so that undoing the rest can still restore the original files byte for byte.
    """
    if not servers:
        remove_backup(backup)
        return
    copies = _CopyWriter(backup.folder)

    def renew(file: BackupFile) -> BackupFile:
        if file.path not in contents:
            return file
        return replace(file, after=copies.write(contents[file.path]))

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
        return BackupFile(path=edit.path.absolute(), before=self.write(edit.before), after=self.write(edit.after))

    def write_lock(self, edit: LockEdit) -> BackupLock:
        files = {name: self._write(data) for name, data in edit.files.items()}
        return BackupLock(file=self.write_file(edit), files=files)

    def write(self, data: bytes | None) -> FileCopy | None:
        return None if data is None else self._write(data)

    def _write(self, data: bytes) -> FileCopy:
        name = f"{self._count}.copy"
        self._count += 1
        create_file(self._folder / name, data, 0o600)
        return FileCopy(name=name, digest=Digest.of_bytes(data))


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
                "files": [{"name": name, **_copy_to_json(copy)} for name, copy in lock.files.items()],
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


def _file_to_json(file: BackupFile) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "before": None if file.before is None else _copy_to_json(file.before),
        "after": None if file.after is None else _copy_to_json(file.after),
    }


def _copy_to_json(copy: FileCopy) -> dict[str, str]:
    return {"copy": copy.name, "digest": str(copy.digest)}


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
    files = {file.string("name"): _parse_copy(file) for file in record.objects("files")}
    return BackupLock(file=_parse_file(record), files=files)


def _parse_file(record: JsonObject) -> BackupFile:
    return BackupFile(
        path=Path(record.string("path")),
        before=_parse_optional_copy(record, "before"),
        after=_parse_optional_copy(record, "after"),
    )


def _parse_optional_copy(record: JsonObject, member: str) -> FileCopy | None:
    if member not in record:  # a missing member must not look like a missing file, which undoing would remove
        record.fail(member, "is missing")
    copy = record.optional_object(member)
    return None if copy is None else _parse_copy(copy)


def _parse_copy(record: JsonObject) -> FileCopy:
    name = record.string("copy")
    if Path(name).name != name:
        record.fail("copy", "is not a file name")
    return FileCopy(name=name, digest=record.parse_string("digest", Digest.parse))


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
