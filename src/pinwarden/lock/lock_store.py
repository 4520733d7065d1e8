"""The lockfile and what is next to it on disk: approved surfaces, dependency closures, and approved skills.

One writer at a time holds an exclusive lock on a sibling file. Replacing the lockfile commits the other files too:

1. Write new files next to the old ones, as ``<name>.json.pending``.
2. Replace the lockfile, which pins their digests.
3. Rename the pending files over the old ones.

After a crash before step 2, the pending files match no pin, and the next writer removes them. After a crash in step 3,
readers use a pending file that matches its pin, and the next writer finishes the step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import CODES, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern
from pinwarden.lock import lockfile
from pinwarden.lock.entry import LOCK_LIMITS
from pinwarden.lock.lockfile import Lock, list_pins, refuse_if_tampered, verify
from pinwarden.system.files import (
    MAX_WAIT_SECONDS,
    hold_write_lock,
    read_file,
    refuse_link,
    write_atomically,
)

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import FilePin

_MAX_READS = 10  # times that a file is read before it counts as different from its pin
_PENDING = ".pending"
_TEMPORARY = lazy_pattern(r"[a-z0-9_]{8}")  # the suffix that tempfile adds in write_atomically


class LockWrite(Record):
    """A lock to write, and the files next to it, by their path in the lock."""

    lock: Lock
    files: Mapping[str, bytes] = field(default_factory=dict)


def read(path: Path) -> Lock | None:
    """Read a lock; None if there is no file. The lock is not verified."""
    data = _read_if_exists(path)
    if data is None:
        return None
    with add_path_to_errors(path):
        return lockfile.parse(data)


def read_verified(path: Path) -> Lock:
    """Read a lockfile. Raises LOCK_MISSING if there is none, LOCK_TAMPERED if it was edited after it was sealed."""
    lock = find_verified(path)
    if lock is None:
        raise missing_lock_error(path)
    return lock


def find_verified(path: Path) -> Lock | None:
    """Read a lockfile, as `read_verified` does, or return None if there is none."""
    lock = read(path)
    if lock is not None:
        refuse_if_tampered(verify(lock))
    return lock


def missing_lock_error(path: Path) -> PinwardenError:
    """Return the error for a command that needs a lock where there is none."""
    return PinwardenError("LOCK_MISSING", f"there is no lockfile {path}")


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Add the lockfile's path to errors about its content, because commands read several files."""
    try:
        yield
    except PinwardenError as err:
        hint = CODES["LOCK_INVALID"].hint if err.code.startswith("JSON_") else err.hint
        raise PinwardenError(err.code, f"{path}: {err.message}", hint=hint, data=err.data) from err


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a lockfile of any format. Raises LOCK_MISSING if there is none."""
    data = _read_if_exists(path)
    if data is None:
        raise missing_lock_error(path)
    return data


def read_with_files(path: Path) -> tuple[Lock | None, dict[str, bytes]]:
    """Read the lock and the files that it pins, by path. Missing files are left out.

    Readers take no lock. If a file does not match its pin, a writer may be between two steps, so Pinwarden reads again.
    `verify_files` reports files that still do not match.
    """
    for _ in range(_MAX_READS):
        lock = read(path)
        pins = () if lock is None else tuple(list_pins(lock))
        contents = {pin.path: read_pinned_file(path, pin) for pin in pins}
        if all(_matches_pin(contents[pin.path], pin) for pin in pins):
            break
    return lock, {name: data for name, data in contents.items() if data is not None}


def read_pinned_file(path: Path, pin: FilePin) -> bytes | None:
    """Read a file that the lock pins; None if it is missing. The caller checks its digest.

    If the file does not match its pin but the pending copy of an unfinished write does, the copy is returned.
    """
    file = _resolve_path(path, pin.path)
    settled = _read_if_exists(file)
    if _matches_pin(settled, pin):
        return settled
    pending = _read_if_exists(_get_pending_path(file))
    return pending if _matches_pin(pending, pin) else settled


def _matches_pin(data: bytes | None, pin: FilePin) -> bool:
    return data is not None and Digest.of_bytes(data) == pin.file_digest


def _read_if_exists(path: Path) -> bytes | None:
    refuse_link(path)
    try:
        return read_file(path, LOCK_LIMITS.max_bytes)
    except PinwardenError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            return None
        raise


def surfaces_folder_name(path: Path) -> str:
    """Return the folder of a lockfile's approved surfaces: ``mcp-lock.surfaces`` for ``mcp-lock.json``."""
    return f"{path.stem}.surfaces"


def closures_folder_name(path: Path) -> str:
    """Return the folder of a lockfile's dependency closures: ``mcp-lock.closures`` for ``mcp-lock.json``."""
    return f"{path.stem}.closures"


def skills_file_name(path: Path) -> str:
    """Return the file of a lockfile's approved skills: ``mcp-lock.skills.json`` for ``mcp-lock.json``."""
    return f"{path.stem}.skills.json"


def update(path: Path, change: Callable[[Lock | None], LockWrite], *, wait_seconds: float = MAX_WAIT_SECONDS) -> Lock:
    """Read, change and write the lock, as the only writer. Return the new lock.

    Pinwarden writes nothing if ``change`` raises or returns the lock that it was given. The folder of the lock is
    created if it does not exist; the lock of a user's own servers is the first file in its folder.
    """
    _make_folder(path.parent)
    with hold_write_lock(path, wait_seconds):
        _finish_earlier_write(path)
        old = read(path)
        changed = change(old)
        writes = {_resolve_path(path, name): data for name, data in changed.files.items()}
        writes = {file: data for file, data in writes.items() if _read_if_exists(file) != data}
        for file, data in writes.items():
            _make_folder(file.parent)
            write_atomically(_get_pending_path(file), data)
        if changed.lock is not old:
            write_atomically(path, lockfile.to_bytes(changed.lock))
        for file in writes:
            _replace_by_pending(file)
        _remove_unpinned(path, old, changed.lock)
        return changed.lock


def replace_bytes(
    path: Path, before: bytes | None, after: bytes | None, files: Mapping[str, bytes] | None = None
) -> None:
    """Replace the bytes of a lock, and write those of the ``files`` that the new lock pins, as the only writer.

    Without ``before``, the lock is created; without ``after``, it is removed. Raises LOCK_BUSY if the lock does not
    have the bytes ``before``. Removes files that only the earlier lock pinned.
    """
    _make_folder(path.parent)
    with hold_write_lock(path):
        _finish_earlier_write(path)
        if _read_if_exists(path) != before:
            raise PinwardenError("LOCK_BUSY", f"another program changed {path.name}")
        old = None if before is None else lockfile.parse(before)
        if after is None:
            _remove_with_files(path, old)
            return
        new = lockfile.parse(after)
        pinned = {pin.path for pin in list_pins(new)}
        _restore(path, after, {name: data for name, data in (files or {}).items() if name in pinned})
        _remove_unpinned(path, old, new)


def write_bytes(path: Path, data: bytes, files: Mapping[str, bytes]) -> None:
    """Write a lock with exactly these bytes, and those of the ``files`` that it pins, as the only writer.

    Replaces a file that is not a valid lock.
    """
    new = lockfile.parse(data)
    _make_folder(path.parent)
    with hold_write_lock(path):
        try:
            old = read(path)
        except PinwardenError:
            old = None
            _remove(path)
        _finish_earlier_write(path)
        pinned = {pin.path for pin in list_pins(new)}
        _restore(path, data, {name: text for name, text in files.items() if name in pinned})
        _remove_unpinned(path, old, new)


@contextmanager
def restore_on_error(path: Path, keys: Collection[str]) -> Iterator[None]:
    """Restore the lock and the files next to it if the block raises or is interrupted.

    ``keys`` are the entries that the block changes. A lock that the block created is removed. If other entries changed
    in the meantime, another process wrote the lock, and it is left as it is. The raised error says if the lock was not
    restored.
    """
    lock, files = read_with_files(path)
    data = _read_if_exists(path)
    others = _list_other_entries(lock, keys)
    try:
        yield
    except BaseException as err:
        try:
            if _read_if_exists(path) != data:
                _undo(path, lock, data, files, others, keys)
        except PinwardenError as failure:
            message = f"{getattr(err, 'message', err)}; {path} was not restored and has the new entries"
            raise PinwardenError(failure.code, f"{message}: {failure.message}", hint=failure.hint) from err
        raise


def _undo(  # noqa: PLR0913, PLR0917
    path: Path,
    lock: Lock | None,
    data: bytes | None,
    files: Mapping[str, bytes],
    others: tuple[Entry, ...],
    keys: Collection[str],
) -> None:
    """Replace the current lock by the earlier one, or remove it if there was none."""
    with hold_write_lock(path):
        _finish_earlier_write(path)
        current = read(path)
        if current is None or _list_other_entries(current, keys) != others:
            raise PinwardenError("LOCK_BUSY", "another process changed it")
        if lock is not None and data is not None:
            _restore(path, data, files)
            _remove_unpinned(path, current, lock)
            return
        _remove_with_files(path, current)


def _remove_with_files(path: Path, lock: Lock | None) -> None:
    """Remove a lock, and the files that it pins."""
    _remove(path)
    for pin in list_pins(lock) if lock is not None else ():
        file = _resolve_path(path, pin.path)
        _remove(file)
        if file.parent != path.parent:
            with suppress(OSError):  # the folder has other files
                file.parent.rmdir()


def _list_other_entries(lock: Lock | None, keys: Collection[str]) -> tuple[Entry, ...]:
    return tuple(entry for entry in (lock.entries if lock is not None else ()) if entry.key not in keys)


def _restore(path: Path, data: bytes, files: Mapping[str, bytes]) -> None:
    writes = {_resolve_path(path, name): text for name, text in files.items()}
    for file, text in writes.items():
        if _read_if_exists(file) != text:
            _make_folder(file.parent)
            write_atomically(_get_pending_path(file), text)
    write_atomically(path, data)
    for file in writes:
        if _get_pending_path(file).exists():
            _replace_by_pending(file)


def check_writable(path: Path) -> None:
    """Raise FILE_UNWRITABLE if the lock or its surfaces cannot be written."""
    with hold_write_lock(path):
        folder = path.parent / surfaces_folder_name(path)
        for item in (path.parent, *((folder,) if folder.exists() else ())):
            if not os.access(item, os.W_OK):
                raise PinwardenError("FILE_UNWRITABLE", f"no permission to write to {item}")


def _finish_earlier_write(path: Path) -> None:
    """Clean up after a writer that was killed: remove its temporary files, and finish or remove its pending files."""
    from glob import escape

    folders = [path.with_name(surfaces_folder_name(path)), path.with_name(closures_folder_name(path))]
    leftovers = [*path.parent.glob(f".{escape(path.name)}.*")]
    pending: list[Path] = []
    for folder in folders:
        refuse_link(folder)
        leftovers += folder.glob(f".*{_PENDING}.*")
        pending += folder.glob(f"*.json{_PENDING}")
    skills = path.with_name(skills_file_name(path))
    leftovers += path.parent.glob(f".{escape(skills.name)}*.*")
    pending += path.parent.glob(f"{escape(skills.name)}{_PENDING}")
    for leftover in leftovers:
        if _TEMPORARY.fullmatch(leftover.name.rpartition(".")[2]):
            _remove(leftover)
    if not pending:
        return
    lock = read(path)
    pins = {} if lock is None else {_resolve_path(path, pin.path): pin.file_digest for pin in list_pins(lock)}
    for file in pending:
        refuse_link(file)
        settled = file.with_name(file.name.removesuffix(_PENDING))
        if settled in pins and Digest.of_bytes(read_file(file, LOCK_LIMITS.max_bytes)) == pins[settled]:
            _replace_by_pending(settled)
        else:
            _remove(file)


def _remove_unpinned(path: Path, old: Lock | None, new: Lock) -> None:
    """Remove files that the old lock pinned and the new one does not."""
    if old is None or old is new:
        return
    pinned = {pin.path for pin in list_pins(new)}
    for pin in list_pins(old):
        if pin.path not in pinned:
            _remove(_resolve_path(path, pin.path))


def _replace_by_pending(file: Path) -> None:
    try:
        _get_pending_path(file).replace(file)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{file} cannot be replaced: {err.strerror or err}") from err


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{file} cannot be removed: {err.strerror or err}") from err


def _resolve_path(path: Path, relative: str) -> Path:
    """Return the path of a file next to the lock. Refuses paths that are not of skills, surfaces or closures."""
    if relative == skills_file_name(path):
        refuse_link(path.parent / relative)
        return path.parent / relative
    folder, _, name = relative.partition("/")
    file = path.parent / folder / name
    if file.parent.parent != path.parent or not name or not folder.endswith((".surfaces", ".closures")):
        raise PinwardenError("LOCK_INVALID", f"{relative[:200]!a} is not in a folder of surfaces or closures")
    refuse_link(path.parent / folder)
    return file


def _get_pending_path(file: Path) -> Path:
    return file.with_name(file.name + _PENDING)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder} cannot be created: {err.strerror or err}") from err
