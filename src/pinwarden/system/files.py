"""Files: bounded reads, atomic writes, locks between writers, stamps that show changes, programs on the search path.

Only regular files are read.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import DEFAULT_LIMITS
from pinwarden.core.text import fold_file_name

MAX_WAIT_SECONDS = 10.0
"""How long to wait for another writer. A write takes milliseconds, because downloads happen before it."""
_POLL_SECONDS = 0.01


def read_file(path: Path, max_bytes: int = DEFAULT_LIMITS.max_bytes) -> bytes:
    """Return the content of a regular file. Raises FILE_UNREADABLE if it has more than ``max_bytes``."""
    with open_regular(path) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise PinwardenError("FILE_UNREADABLE", f"{path} is larger than {max_bytes} bytes")
    return data


def file_digest(path: Path, algorithm: str = "sha256") -> Digest:
    """Return the digest of a regular file of any size, in constant memory."""
    with open_regular(path) as stream:
        return Digest.of_stream(stream, algorithm)


def find_case_twins(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files in the same folders whose names some file system treats as equal to one of these paths."""
    by_folder: dict[Path, set[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, set()).add(path.name)
    for folder, names in by_folder.items():
        try:
            present = sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            continue
        except OSError as err:
            raise PinwardenError("FILE_UNREADABLE", f"{folder} cannot be read: {err.strerror or err}") from err
        folded = {fold_file_name(name) for name in names}
        yield from (folder / name for name in present if name not in names and fold_file_name(name) in folded)


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Pipes and devices are refused, because they could block or never end."""
    try:
        # Non-blocking, so that opening a named pipe returns; it has no effect on regular files.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PinwardenError("FILE_UNREADABLE", f"{path} is not a regular file")
            yield stream
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path} cannot be read: {err.strerror or err}") from err


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file. Readers see either the old or the new content, also after a crash."""
    from tempfile import NamedTemporaryFile  # not needed by commands that only read

    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            try:
                temporary.write(data)
                temporary.flush()
                os.fchmod(temporary.fileno(), _choose_mode(path))
                os.fsync(temporary.fileno())
                Path(temporary.name).replace(path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
        _sync_folder(path.parent)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}") from err


def create_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file. Raises FILE_EXISTS if the file exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        _sync_folder(path.parent)
    except FileExistsError as err:
        raise PinwardenError("FILE_EXISTS", f"{path} exists already") from err
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}") from err


@contextmanager
def open_new_file(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a new file that gets its name only when it is complete on disk. Raises FILE_EXISTS if the file exists."""
    from tempfile import NamedTemporaryFile

    try:
        if path.exists() or path.is_symlink():
            raise FileExistsError
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            try:
                yield temporary  # type: ignore[misc]
                temporary.flush()
                Path(temporary.name).chmod(mode)
                os.fsync(temporary.fileno())
                _claim_name(Path(temporary.name), path)
            finally:
                Path(temporary.name).unlink(missing_ok=True)
        _sync_folder(path.parent)
    except FileExistsError as err:
        raise PinwardenError("FILE_EXISTS", f"{path} exists already") from err
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}") from err


def _claim_name(temporary: Path, path: Path) -> None:
    """Give a temporary file its final name. Raises FileExistsError if the name is in use by now."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        temporary.rename(path)


def _choose_mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Where the system cannot do this, the rename is only atomic."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def try_lock_file(descriptor: int) -> bool:
    """Lock an open file exclusively, until this process ends. Returns False if another process has the lock.

    Raises OSError if the file system does not support locks.
    """
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError as err:
        if err.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


@contextmanager
def hold_write_lock(path: Path, wait_seconds: float = MAX_WAIT_SECONDS) -> Iterator[None]:
    """Exclude all other writers of a file or folder. The operating system releases the lock when the process ends.

    Raises LOCK_BUSY after ``wait_seconds``. Links are refused.
    """
    refuse_link(path)
    sibling = path.with_name(f".{path.name}.lock")
    descriptor = _open_locked(sibling, time.monotonic() + wait_seconds)
    try:
        yield
    finally:
        # Removed while still locked: a waiting process notices that the file is gone and opens it again.
        if os.name == "posix":
            sibling.unlink(missing_ok=True)
        os.close(descriptor)


def _open_locked(sibling: Path, deadline: float) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        try:
            descriptor = os.open(sibling, flags, 0o666)
            try:
                acquired = try_lock_file(descriptor) and _is_same_file(sibling, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{sibling} cannot be opened: {err.strerror or err}") from err
        if acquired:
            return descriptor
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise PinwardenError("LOCK_BUSY", f"another process holds the lock {sibling}")
        time.sleep(_POLL_SECONDS)


def _is_same_file(sibling: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(sibling.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def refuse_link(path: Path) -> None:
    """Refuse symbolic links, because Pinwarden would read or replace the linked file."""
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path} cannot be read: {err.strerror or err}") from err
    if stat.S_ISLNK(mode):
        raise PinwardenError("FILE_UNREADABLE", f"{path} is a symbolic link", hint="Replace the link with the file.")


def read_file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when the file changes; None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def find_program(name: str, search_path: str) -> Path | None:
    """Return the path of a program on the search path, or None.

    Like `shutil.which`, but importing `shutil` loads all compression modules, which delays the start of a server.
    """
    if not search_path:
        return None
    if os.name != "posix":  # Windows, where a program's file name has a suffix such as .exe
        from shutil import which

        path = which(name, path=search_path)
        return None if path is None else Path(path)
    for folder in [""] if "/" in name else search_path.split(os.pathsep):
        candidate = os.path.join(folder, name)  # noqa: PTH118  an empty entry means the current folder
        if os.access(candidate, os.F_OK | os.X_OK) and not os.path.isdir(candidate):  # noqa: PTH112
            return Path(candidate)
    return None


def find_relative_search_folders(search_path: str) -> list[str]:
    """Return the relative folders of a search path. An empty entry is the current folder."""
    return [folder for folder in search_path.split(os.pathsep) if not Path(folder).is_absolute()] if search_path else []
