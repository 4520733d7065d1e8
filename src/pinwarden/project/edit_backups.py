"""Copies of the files that ``pinwarden enforce`` edits, so that an edit can be undone exactly.

Each backup is a folder below the state folder of this user, readable only by the user, because clients' files contain
secrets. It has one copy per file and ``manifest.json``, which is written before the first edit and says whether all
edits were made. A process that was killed leaves an incomplete backup, which the next ``enforce`` rolls back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.core.typed_json import JsonObject
from pinwarden.project.config_diff import FileEdit
from pinwarden.system.files import create_file, read_file, write_atomically
from pinwarden.system.state_folder import find_state_folder, prepare_state_folder

if TYPE_CHECKING:
    from pinwarden.project.project import Project

FORMAT = "pinwarden-backup/1"
MAX_BACKUPS = 20
"""How many backups are kept for one lock. Older ones are removed."""
MAX_FILE_BYTES = 64 * 1024 * 1024
_MANIFEST = "manifest.json"


class BackupFile(Record):
    """The copy of one file, with the digests of the file before and after the edit."""

    path: Path
    copy: str
    """The name of the copy in the folder of the backup."""
    before: Digest
    after: Digest


class BackupServer(Record):
    """A server whose entries were edited."""

    key: str
    """The key of its lock entry."""
    name: str
    client: str
    """The client in the table of clients."""
    scope: str
    path: str | None
    """The client's file; None if only the lock was edited."""


class Backup(Record):
    """One backup."""

    folder: Path
    complete: bool
    """Whether all edits were made."""
    lock: BackupFile
    files: tuple[BackupFile, ...]
    servers: tuple[BackupServer, ...]

    def read_copy(self, file: BackupFile) -> bytes:
        """The bytes of a file before the edit. Raises BACKUP_DAMAGED if the copy is not what was written."""
        try:
            data = read_file(self.folder / file.copy, MAX_FILE_BYTES)
        except PinwardenError as err:
            raise _damaged(self.folder, err.message) from err
        if Digest.of_bytes(data) != file.before:
            raise _damaged(self.folder, f"the copy of {file.path} was changed")
        return data


@contextmanager
def hold_backups(project: Project) -> Iterator[None]:
    """Be the only process that edits or restores files for this lock."""
    from pinwarden.lock.lock_store import hold_write_lock

    folder = _find_folder(project)
    prepare_state_folder(find_state_folder(project.variables, project.home))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
    with hold_write_lock(folder / "backups"):
        yield


def has_backups(project: Project) -> bool:
    """Whether there is something to undo, or to roll back, for this lock."""
    return bool(_list_folders(project))


def list_backups(project: Project) -> list[Backup]:
    """The backups for this lock, the newest first."""
    return [_read(folder) for folder in reversed(_list_folders(project))]


def write_backup(
    project: Project, lock: FileEdit, files: Sequence[FileEdit], servers: Sequence[BackupServer]
) -> Backup:
    """Copy files that will be edited. Everything is on disk when this returns."""
    earlier = _list_folders(project)
    folder = _find_folder(project) / f"{int(earlier[-1].name) + 1 if earlier else 1:06}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
    copies = [
        BackupFile(
            path=edit.path.absolute(),
            copy=f"{index}.copy",
            before=Digest.of_bytes(edit.before),
            after=Digest.of_bytes(edit.after),
        )
        for index, edit in enumerate((lock, *files))
    ]
    for edit, copy in zip((lock, *files), copies, strict=True):
        create_file(folder / copy.copy, edit.before, 0o600)
    backup = Backup(folder=folder, complete=False, lock=copies[0], files=tuple(copies[1:]), servers=tuple(servers))
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


def _remove_folder(folder: Path) -> None:
    # Without its manifest, a folder is no backup: it goes first, in case the rest is interrupted.
    (folder / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _find_folder(project: Project) -> Path:
    digest = Digest.of_bytes(os.fsencode(project.lock.resolve())).hex[:16]
    return find_state_folder(project.variables, project.home) / "backups" / digest


def _list_folders(project: Project) -> list[Path]:
    """The folders of complete manifests, the oldest first. A folder without one was left before any edit."""
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
        "complete": backup.complete,
        "lock": _file_to_json(backup.lock),
        "files": [_file_to_json(file) for file in backup.files],
        "servers": [
            {
                "key": server.key,
                "name": server.name,
                "client": server.client,
                "scope": server.scope,
                **({} if server.path is None else {"path": server.path}),
            }
            for server in backup.servers
        ],
    }


def _file_to_json(file: BackupFile) -> dict[str, str]:
    return {"path": str(file.path), "copy": file.copy, "before": str(file.before), "after": str(file.after)}


def _read(folder: Path) -> Backup:
    try:
        record = JsonObject(
            parse_json(read_file(folder / _MANIFEST)), "", lambda path, why: _damaged(folder, path + why)
        )
        if record.string("format") != FORMAT:
            record.fail("format", f"is not {FORMAT}")
        return Backup(
            folder=folder,
            complete=record.value.get("complete") is True,
            lock=_parse_file(record.object("lock")),
            files=tuple(map(_parse_file, record.objects("files"))),
            servers=tuple(map(_parse_server, record.objects("servers"))),
        )
    except PinwardenError as err:
        raise err if err.code == "BACKUP_DAMAGED" else _damaged(folder, err.message) from err


def _parse_file(record: JsonObject) -> BackupFile:
    copy = record.string("copy")
    if Path(copy).name != copy:
        record.fail("copy", "is not a file name")
    return BackupFile(
        path=Path(record.string("path")),
        copy=copy,
        before=record.parse_string("before", Digest.parse),
        after=record.parse_string("after", Digest.parse),
    )


def _parse_server(record: JsonObject) -> BackupServer:
    return BackupServer(
        key=record.string("key"),
        name=record.string("name"),
        client=record.string("client"),
        scope=record.string("scope"),
        path=record.string("path") if "path" in record else None,
    )


def _damaged(folder: Path, why: str) -> PinwardenError:
    return PinwardenError("BACKUP_DAMAGED", f"the backup {folder} cannot be used: {why}")
