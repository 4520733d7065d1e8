"""Run a sandboxed server, and stop it when it creates a file that makes other programs execute code.

A mount can protect an existing path. It cannot keep a server from creating ``.git`` in a writable folder, and the next
``git status`` of the user there would run commands from the configuration of the new repository. So this program runs
outside the sandbox as the parent of the server, watches the writable folders with inotify, ends the sandbox at the
first forbidden name, and renames what was created.

This file is a stand-alone program that uses only the standard library. ``pinwarden`` imports `find_forbidden_paths`
from it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress

MAX_ENTRIES = 200_000
"""Maximum number of files and folders in a writable folder. Searching more before every start would take too long."""
REPOSITORY_NAMES = frozenset({".git", ".hg", ".jj", ".svn", ".bzr"})
MAX_PATH = 2000
"""Maximum bytes of a path below a writable folder. The kernel allows 4095, and renaming makes names longer."""
BLOCKED_SUFFIX = ".blocked-by-pinwarden"
"""The suffix that a forbidden path gets."""

_CREATED, _MOVED_HERE, _ONLY_FOLDERS, _NO_LINKS = 0x100, 0x80, 0x01000000, 0x02000000
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_HEADER = struct.Struct("iIII")
_BECOME_SUBREAPER = 36
_PARENT_CHECK_MILLISECONDS = 1000


def is_write_guard(command: object) -> bool:
    """Whether a command line starts this program."""
    return isinstance(command, list | tuple) and any(word == os.path.realpath(__file__) for word in command[1:4])


class TooManyFilesError(Exception):
    """A writable folder has more than `MAX_ENTRIES`."""


def find_forbidden_paths(folder: str, names: Collection[str], max_entries: int | None = None) -> Iterator[str]:
    """Yield all forbidden paths below a folder, without following links.

    Forbidden are the names in any case, and files that make git treat a folder without ``.git`` as a repository.
    Raises `TooManyFilesError`, and OSError for a folder that cannot be read or a path of more than `MAX_PATH` bytes.
    """
    max_entries = MAX_ENTRIES if max_entries is None else max_entries
    seen = 0
    pending = [folder]
    while pending:
        current = pending.pop()
        if len(current) - len(folder) > MAX_PATH or len(os.fsencode(current)) - len(os.fsencode(folder)) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), current)
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(current) as entries:
            listed = list(entries)
            seen += len(listed)
            if seen > max_entries:
                raise TooManyFilesError(folder)
            forbidden = find_forbidden_names([entry.name for entry in listed], names)
            yield from (os.path.join(current, name) for name in sorted(forbidden))  # noqa: PTH118  thousands of them
            pending += [
                entry.path for entry in listed if entry.name not in forbidden and entry.is_dir(follow_symlinks=False)
            ]


def find_forbidden_names(listed: Collection[str], names: Collection[str]) -> set[str]:
    """Return the forbidden names in one folder.

    Git treats a folder with ``HEAD``, ``objects`` and ``refs``, or with ``HEAD`` and ``commondir``, as a repository, so
    its ``HEAD`` is forbidden.
    """
    folded = {name.casefold() for name in listed}
    forbidden = {name for name in listed if name.casefold() in names}
    if "head" in folded and ({"objects", "refs"} <= folded or "commondir" in folded):
        forbidden |= {name for name in listed if name.casefold() == "head"}
    return forbidden


class _FolderWatch:
    """Watches folders and everything below them with inotify."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._folders: dict[int, str] = {}
        if self.descriptor < 0:
            sys.exit(f"pinwarden: could not watch the writable folders: {os.strerror(ctypes.get_errno())}")

    def add(self, folder: str) -> None:
        """Watch a folder and everything below it. Raises OSError."""
        pending = [folder]
        while pending:
            current = pending.pop()
            mask = _CREATED | _MOVED_HERE | _ONLY_FOLDERS | _NO_LINKS
            watch_id = self._libc.inotify_add_watch(self.descriptor, os.fsencode(current), mask)
            if watch_id < 0:
                error = ctypes.get_errno()
                if error in (errno.ENOENT, errno.ENOTDIR):  # the folder was removed in the meantime
                    continue
                reason = f"{os.strerror(error)} (fs.inotify.max_user_watches)"
                raise OSError(error, reason if error == errno.ENOSPC else os.strerror(error), current)
            self._folders[watch_id] = current
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(current) as entries:
                pending += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]

    def process_events(self) -> bool:
        """Process the events. Returns True if the changed folders contain no forbidden path.

        Also returns False if events were lost. Then new folders may be unwatched: `add` all of them again.
        Raises OSError and `TooManyFilesError`.
        """
        changed: set[str] = set()
        appeared: set[str] = set()
        with suppress(BlockingIOError):
            while data := os.read(self.descriptor, 1 << 16):
                at = 0
                while at < len(data):
                    watch_id, mask, _, length = _HEADER.unpack_from(data, at)
                    name = os.fsdecode(data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0"))
                    at += _HEADER.size + length
                    if mask & _OVERFLOW:  # events were lost
                        return False
                    folder = self._folders.get(watch_id)
                    if folder is not None:
                        changed.add(folder)
                        if mask & _IS_FOLDER:
                            appeared.add(f"{folder}/{name}")
        for folder in appeared:
            self.add(folder)
        return not any(map(self._has_forbidden, changed)) and not any(
            path for folder in appeared for path in find_forbidden_paths(folder, self._names)
        )

    def _has_forbidden(self, folder: str) -> bool:
        try:
            return bool(find_forbidden_names(os.listdir(folder), self._names))  # noqa: PTH208  thousands of them
        except (FileNotFoundError, NotADirectoryError):  # the folder was removed in the meantime
            return False


def main(names: frozenset[str], folders: list[str], command: list[str]) -> int:
    """Run the command. Stop it if it creates a forbidden path, or if our parent process ends. Returns the exit code."""
    parent = os.getppid()
    watch = _FolderWatch(names)
    try:
        existing = {path for folder in folders for path in find_forbidden_paths(folder, names)}
        for folder in folders:
            watch.add(folder)
    except (OSError, TooManyFilesError) as err:
        sys.exit(f"pinwarden: could not watch a writable folder: {_describe(err)}")
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)  # noqa: S603  no shell
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: process.kill())  # bubblewrap may ignore the signal itself
    poll = select.poll()
    poll.register(watch.descriptor, select.POLLIN)
    poll.register(os.pidfd_open(process.pid), select.POLLIN)
    stopped = False
    while process.poll() is None:
        ready = [descriptor for descriptor, _ in poll.poll(_PARENT_CHECK_MILLISECONDS)]
        stopped = watch.descriptor in ready and not _is_allowed(watch, folders, names, existing)
        if stopped or os.getppid() != parent:
            process.kill()  # killing bubblewrap ends everything in the sandbox
            process.wait()
    with suppress(ChildProcessError):  # the first process of the sandbox ends after all others in it
        while True:
            os.wait()
    if _rename_all_created(folders, names, existing) or stopped:
        return 1
    code = process.returncode
    return code if code >= 0 else 128 - code


def _is_allowed(watch: _FolderWatch, folders: list[str], names: frozenset[str], existing: set[str]) -> bool:
    """Whether the server may continue: it created no forbidden path, and its folders can be searched.

    Forbidden paths from before the start (``existing``) do not count, because they are read-only in the sandbox.
    """
    try:
        if watch.process_events():
            return True
        for folder in folders:
            watch.add(folder)
        return not _find_created(folders, names, existing)
    except (OSError, TooManyFilesError) as err:
        sys.stderr.write(f"pinwarden: stopped the server, because its files cannot be checked: {_describe(err)}\n")
        return False


def _describe(err: Exception) -> str:
    if isinstance(err, TooManyFilesError):
        return f"more than {MAX_ENTRIES} files in {str(err)[:300]!a}"
    return f"{err.strerror}: {str(err.filename)[:300]!a}" if isinstance(err, OSError) else str(err)


def _find_created(
    folders: list[str], names: frozenset[str], existing: set[str], max_entries: int | None = None
) -> list[str]:
    return [
        path for folder in folders for path in find_forbidden_paths(folder, names, max_entries) if path not in existing
    ]


def _rename_all_created(folders: list[str], names: frozenset[str], existing: set[str]) -> bool:
    """Rename every forbidden path that the server created. Returns whether there was one.

    A renamed ``.git`` is still a repository for a user who enters it, so this repeats until nothing is found. The
    server has ended, so nothing changes meanwhile. Unreadable, too deep and too large folders are searched as well.
    """
    blocked = False
    try:
        created = _find_created(folders, names, existing, sys.maxsize)
    except OSError:
        for folder in folders:
            _make_readable(folder)
        created = _find_created(folders, names, existing, sys.maxsize)
    while created:
        blocked = True
        for path in created:
            _rename(path)
        created = _find_created(folders, names, existing, sys.maxsize)
    return blocked


def _make_readable(folder: str) -> None:
    """Make every folder below this one readable, and move folders with a very long path up."""
    pending = [folder]
    while pending:
        current = pending.pop()
        if not os.access(current, os.R_OK | os.X_OK):
            os.chmod(current, 0o700)  # noqa: PTH101
        with os.scandir(current) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in below:
            if len(os.fsencode(path)) - len(os.fsencode(folder)) > MAX_PATH // 2:
                _make_writable(current)
                _make_writable(path)  # a folder that is not writable cannot be moved
                to = _find_free_path(f"{folder}/deep{BLOCKED_SUFFIX}")
                os.rename(path, to)  # noqa: PTH104
                pending.append(to)
            else:
                pending.append(path)


def _make_writable(folder: str) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        os.chmod(folder, 0o700)  # noqa: PTH101


def _find_free_path(path: str) -> str:
    """Return the path, or the path with the first numeric suffix that is not in use."""
    number = 0
    while os.path.lexists(to := f"{path}{f'-{number}' if number else ''}"):
        number += 1
    return to


def _rename(path: str) -> None:
    to = _find_free_path(f"{path}{BLOCKED_SUFFIX}")
    _make_writable(os.path.dirname(path))  # noqa: PTH120
    os.rename(path, to)  # noqa: PTH104
    sys.stderr.write(
        f"pinwarden: stopped the server, because it created {path!a}, which makes other programs execute code; "
        f"renamed it to {to!a}\n"
    )


if __name__ == "__main__":
    _end_of_folders = sys.argv.index("--")
    sys.exit(main(frozenset(sys.argv[1].split("/")), sys.argv[2:_end_of_folders], sys.argv[_end_of_folders + 1 :]))
