"""The lockfile and the folders beside it on disk: approved surfaces, and dependency closures.

One writer at a time holds an exclusive lock on a sibling file. The lockfile is replaced in one step, and it is the
moment of decision for the other files too:

1. New files are written beside the old ones, as ``<name>.json.pending``.
2. The lockfile, which pins their digests, is replaced.
3. The pending files take the place of the old ones.

After a crash before 2 the pending files fit no pin and are swept away by the next writer; after 2, a reader takes a
pending file if it is the one that the pin names, and the next writer finishes step 3.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import CODES, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import pattern
from pinwarden.lock import lockfile
from pinwarden.lock.entry import LOCK_LIMITS
from pinwarden.lock.lockfile import Lock, file_pins
from pinwarden.system.files import read_file, try_lock_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import FilePin

MAX_WAIT_SECONDS = 10.0
"""A writer holds the lock for the time of one write, not of a download: ten seconds mean that something hangs."""

_POLL_SECONDS = 0.01
_LOOKS = 10  # how often a reader looks before it takes a text that does not fit for changed
_PENDING = ".pending"
_TEMPORARY = pattern(r"[a-z0-9_]{8}")  # what tempfile puts after the prefix of write_atomically


class LockWrite(Record):
    """What to write: the lock, and the files beside it by the path that the lock names."""

    lock: Lock
    files: Mapping[str, bytes] = field(default_factory=dict)


def read(path: Path) -> Lock | None:
    """The lock at a path; None if there is no file. Reading does not verify."""
    data = _read_if_there(path)
    if data is None:
        return None
    with told_of(path):
        return lockfile.parse(data)


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Put the name of the lockfile before an error about what is in it: commands read several files."""
    try:
        yield
    except PinwardenError as err:
        hint = CODES["LOCK_INVALID"].hint if err.code.startswith("JSON_") else err.hint
        raise PinwardenError(err.code, f"{path}: {err.message}", hint=hint, data=err.data) from err


def read_bytes(path: Path) -> bytes:
    """The bytes of a lockfile, of whatever format; that there is none is an error here."""
    data = _read_if_there(path)
    if data is None:
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {path}")
    return data


def read_with_files(path: Path) -> tuple[Lock | None, dict[str, bytes]]:
    """The lock, and the files that it pins by their path; one that is not there is absent.

    Readers take no lock. One that looks while a writer is between two steps sees a text that does not fit, and looks
    again; what still does not fit then is for ``verify_files`` to judge.
    """
    for _ in range(_LOOKS):
        lock = read(path)
        pins = () if lock is None else tuple(pin for _, _, pin in file_pins(lock))
        texts = {pin.path: _text_of(path, pin) for pin in pins}
        if all(_fits(texts[pin.path], pin) for pin in pins):
            break
    return lock, {name: text for name, text in texts.items() if text is not None}


def read_pinned(path: Path, pin: FilePin) -> bytes | None:
    """One file beside the lock; None if it is not there. Whether it is the pinned one is for the caller to see."""
    return _text_of(path, pin)


def _text_of(path: Path, pin: FilePin) -> bytes | None:
    file = _place_of(path, pin.path)
    settled = _read_if_there(file)
    if _fits(settled, pin):
        return settled
    pending = _read_if_there(_pending(file))
    return pending if _fits(pending, pin) else settled


def _fits(text: bytes | None, pin: FilePin) -> bool:
    return text is not None and Digest.of_bytes(text) == pin.file_digest


def _read_if_there(path: Path) -> bytes | None:
    _refuse_link(path)
    try:
        return read_file(path, LOCK_LIMITS.max_bytes)
    except PinwardenError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            return None
        raise


def surfaces_folder(path: Path) -> str:
    """The folder of approved texts that belongs to a lockfile: ``mcp-lock.surfaces`` for ``mcp-lock.json``."""
    return f"{path.stem}.surfaces"


def closures_folder(path: Path) -> str:
    """The folder of dependency closures that belongs to a lockfile: ``mcp-lock.closures`` for ``mcp-lock.json``."""
    return f"{path.stem}.closures"


def update(path: Path, change: Callable[[Lock | None], LockWrite], *, wait_seconds: float = MAX_WAIT_SECONDS) -> Lock:
    """Read, change and write under the lock. If ``change`` raises or returns what it was given, nothing is written."""
    with exclusive(path, wait_seconds):
        _finish_earlier_write(path)
        old = read(path)
        changed = change(old)
        writes = {_place_of(path, name): data for name, data in changed.files.items()}
        writes = {file: data for file, data in writes.items() if _read_if_there(file) != data}
        for file, data in writes.items():
            _make_folder(file.parent)
            write_atomically(_pending(file), data)
        if changed.lock is not old:
            write_atomically(path, lockfile.to_bytes(changed.lock))
        for file in writes:
            _settle(file)
        _remove_unpinned(path, old, changed.lock)
        return changed.lock


@contextmanager
def restored_on_error(path: Path, keys: Collection[str]) -> Iterator[None]:
    """Put the lock and the files beside it back, to the byte, if the block raises or is interrupted.

    ``keys`` are the entries that the block changes. If other entries changed meanwhile, another process wrote the lock,
    and it stays as that process left it.
    """
    lock, files = read_with_files(path)
    data = _read_if_there(path)
    others = _others(lock, keys)
    try:
        yield
    except BaseException:
        with exclusive(path):
            _finish_earlier_write(path)
            written = read(path)
            if data is not None and lock is not None and written != lock and _others(written, keys) == others:
                _restore(path, data, files)
                _remove_unpinned(path, written, lock)
        raise


def _others(lock: Lock | None, keys: Collection[str]) -> tuple[Entry, ...]:
    return tuple(entry for entry in (lock.entries if lock is not None else ()) if entry.key not in keys)


def _restore(path: Path, data: bytes, files: Mapping[str, bytes]) -> None:
    writes = {_place_of(path, name): text for name, text in files.items()}
    for file, text in writes.items():
        if _read_if_there(file) != text:
            _make_folder(file.parent)
            write_atomically(_pending(file), text)
    write_atomically(path, data)
    for file in writes:
        if _pending(file).exists():
            _settle(file)


def refuse_unwritable(path: Path) -> None:
    """Raise if the lock and the texts beside it could not be written now."""
    with exclusive(path):
        folder = path.parent / surfaces_folder(path)
        for item in (path.parent, *((folder,) if folder.exists() else ())):
            if not os.access(item, os.W_OK):
                raise PinwardenError("FILE_UNWRITABLE", f"{item} cannot be written to")


@contextmanager
def exclusive(path: Path, wait_seconds: float = MAX_WAIT_SECONDS) -> Iterator[None]:
    """Hold off every other writer of this file. The system frees the lock of a process that dies."""
    _refuse_link(path)
    sibling = path.with_name(f".{path.name}.lock")
    descriptor = _locked(sibling, time.monotonic() + wait_seconds)
    try:
        yield
    finally:
        # Removed while still held: a waiting process sees that the name is gone and opens it again.
        if os.name == "posix":
            sibling.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(sibling: Path, deadline: float) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        try:
            descriptor = os.open(sibling, flags, 0o666)
            try:
                acquired = try_lock_file(descriptor) and _is_still(sibling, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{sibling}: {err.strerror or err}") from err
        if acquired:
            return descriptor
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise PinwardenError("LOCK_BUSY", f"{sibling} is held by another process")
        time.sleep(_POLL_SECONDS)


def _is_still(sibling: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(sibling.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _finish_earlier_write(path: Path) -> None:
    """Sweep up after a writer that was killed: its temporary files, and files that it did not settle."""
    from glob import escape

    folders = [path.with_name(surfaces_folder(path)), path.with_name(closures_folder(path))]
    leftovers = [*path.parent.glob(f".{escape(path.name)}.*")]
    pending: list[Path] = []
    for folder in folders:
        _refuse_link(folder)
        leftovers += folder.glob(f".*{_PENDING}.*")
        pending += folder.glob(f"*.json{_PENDING}")
    for leftover in leftovers:
        if _TEMPORARY.fullmatch(leftover.name.rpartition(".")[2]):
            _remove(leftover)
    if not pending:
        return
    lock = read(path)
    pins = {} if lock is None else {_place_of(path, pin.path): pin.file_digest for _, _, pin in file_pins(lock)}
    for file in pending:
        _refuse_link(file)
        settled = file.with_name(file.name.removesuffix(_PENDING))
        if settled in pins and Digest.of_bytes(read_file(file, LOCK_LIMITS.max_bytes)) == pins[settled]:
            _settle(settled)
        else:
            _remove(file)


def _remove_unpinned(path: Path, old: Lock | None, new: Lock) -> None:
    """Files that the old lock pinned and the new one does not."""
    if old is None or old is new:
        return
    pinned = {pin.path for _, _, pin in file_pins(new)}
    for _, _, pin in file_pins(old):
        if pin.path not in pinned:
            _remove(_place_of(path, pin.path))


def _settle(file: Path) -> None:
    try:
        _pending(file).replace(file)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{file}: {err.strerror or err}") from err


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{file}: {err.strerror or err}") from err


def _place_of(path: Path, relative: str) -> Path:
    """The place of a file beside the lock. The form of the name was checked when the lock was read."""
    folder, _, name = relative.partition("/")
    file = path.parent / folder / name
    if file.parent.parent != path.parent or not name or not folder.endswith((".surfaces", ".closures")):
        raise PinwardenError("LOCK_INVALID", f"{relative[:200]!a} is not in a folder of surfaces or closures")
    _refuse_link(path.parent / folder)
    return file


def _pending(file: Path) -> Path:
    return file.with_name(file.name + _PENDING)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err


def _refuse_link(path: Path) -> None:
    """Refuse links: they would make Pinwarden read or replace another file."""
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path}: {err.strerror or err}") from err
    if stat.S_ISLNK(mode):
        raise PinwardenError("FILE_UNREADABLE", f"{path} is a symbolic link", hint="Replace the link by the file.")
