"""A draft of the lock, in which a newer release of a server is prepared before anything of the project changes.

`draft_lock` copies the lock and the files next to it into a temporary folder. `commit_draft` backs up the lock and the
clients' files, and then writes all of them or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.lockfile import list_file_pins, put_entries
from pinwarden.project.client_edits import plan_lock_edit, to_backup_server, write_edits
from pinwarden.project.edit_backups import EditSet
from pinwarden.system.files import write_atomically

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.config_diff import FileEdit
    from pinwarden.project.project import Project


class LockDraft(Record):
    """A project, and the same project with a copy of its lock."""

    project: Project
    copy: Project
    """The project with the copy of the lock. Changes of this lock do not change the project's."""
    original: Lock
    """The project's lock when the copy was made."""


@contextmanager
def draft_lock(project: Project) -> Iterator[LockDraft]:
    """Copy the lock and the files next to it into a temporary folder, which is removed afterwards."""
    lock, files = lock_store.read_with_files(project.lock)
    if lock is None:
        raise lock_store.missing_lock_error(project.lock)
    with TemporaryDirectory(prefix="pinwarden-") as name:
        folder = Path(name)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / path, data)
        copy = replace(project, lock=folder / project.lock.name)
        write_atomically(copy.lock, lock_store.read_bytes(project.lock))
        yield LockDraft(project=project, copy=copy, original=lock)


def commit_draft(
    draft: LockDraft,
    keys: Sequence[str],
    configured: Mapping[str, ConfiguredServer],
    files: tuple[FileEdit, ...],
    now: str,
) -> None:
    """Write the drafted entries into the project's lock, and edit the clients' files. If this raises, nothing changed.

    ``keys`` are the lock entries of the server. ``configured`` has, by key, the server in each client's file.
    """
    project = draft.project
    new, drafted = lock_store.read_with_files(draft.copy.lock)
    entries = [entry for entry in (new.entries if new is not None else ()) if entry.key in keys]
    pinned = {pin.path for entry, _, pin in list_file_pins(new) if entry.key in keys} if new else set()

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        if old is None or _select(old, keys) != _select(draft.original, keys):
            raise PinwardenError("LOCK_BUSY", f"{project.lock.name} changed in the meantime")
        written = {path: data for path, data in drafted.items() if path in pinned}
        return lock_store.LockWrite(lock=put_entries(old, entries, now), files=written)

    servers = tuple(to_backup_server(project, key, server, files) for key, server in configured.items())
    locks = (plan_lock_edit(project.lock, change_lock),)
    write_edits(project, EditSet(command="update", files=files, locks=locks, servers=servers))


def _select(lock: Lock, keys: Sequence[str]) -> list[Entry]:
    return [entry for entry in lock.entries if entry.key in keys]
