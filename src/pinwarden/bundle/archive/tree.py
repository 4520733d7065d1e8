"""A folder as a bundle sees it: paths, bytes and whether a file can be started. No times, owners or links.

What belongs to a work in progress and not to the work is left out, and named in the result.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from pinwarden.artifacts.archives.rules import PathSet, check_portable
from pinwarden.bundle.archive.limits import DEFAULT_LIMITS, BundleLimits
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

LEFT_OUT = frozenset({".git", ".hg", ".svn", ".DS_Store", "__pycache__", ".env"})
"""Histories, what programs leave behind, and a file that is there to hold secrets."""


class SourceFile(Record):
    """One file of a bundle."""

    path: str
    """With forward slashes, below the folder."""
    data: bytes = field(repr=False)
    executable: bool = False


class Tree(Record):
    """The files of a folder in the order of a manifest, and what is not among them."""

    files: tuple[SourceFile, ...]
    left_out: tuple[str, ...] = ()


def read_tree(folder: Path, limits: BundleLimits = DEFAULT_LIMITS) -> Tree:
    """All files below a folder. A link or device is an error: what it stands for differs from machine to machine."""
    left_out: list[str] = []
    files: list[SourceFile] = []
    size = 0
    together = PathSet()
    for path, entry in _walk(folder, "", left_out):
        _portable(together.add, path)
        data, mode = _read(entry, limits.total_bytes - size)
        size += len(data)
        # Only its owner's right counts: those of others depend on the umask that the folder was made under.
        files.append(SourceFile(path=path, data=data, executable=bool(mode & stat.S_IXUSR)))
        if len(files) > limits.files:
            _refuse(f"{folder} has more than {limits.files} files")
    return Tree(files=tuple(sorted(files, key=lambda file: file.path)), left_out=tuple(sorted(left_out)))


def _walk(folder: Path, above: str, left_out: list[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{folder}: {err.strerror or err}") from err
    for entry in found:
        path = above + entry.name
        if entry.name in LEFT_OUT:
            left_out.append(path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{path}/", left_out)
        elif entry.is_file(follow_symlinks=False):
            yield _checked(path), entry
        else:
            _refuse(f"{path[:120]!a} is a link, or no file at all")


def _checked(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        _refuse(f"the name {path[:120]!a} is not text")
    if unicodedata.normalize("NFC", path) != path:
        _refuse(f"the name {path[:120]!a} is not in the composed form (NFC), and would differ between machines")
    _portable(check_portable, path)
    return path


def _portable(check: Callable[[str], object], path: str) -> None:
    """Run a check that is worded for archives of others; here the author reads it about their own folder."""
    try:
        check(path)
    except PinwardenError as err:
        why = f"the folder {err.message.removeprefix('the archive ')}"
        raise PinwardenError(err.code, why, hint="Rename it; then pack the folder again.", data=err.data) from err


def _read(entry: os.DirEntry[str], most: int) -> tuple[bytes, int]:
    """The bytes of a file and its mode, both of what was opened: a link or pipe may have taken its place meanwhile."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(entry.path, flags), "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(most + 1) if stat.S_ISREG(mode) else _refuse(f"{entry.path} is no file any more")
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{entry.path}: {err.strerror or err}") from err
    return (data, mode) if len(data) <= most else _refuse("the files are larger together than a bundle may be")


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", why, hint="Change the folder; then pack it again.")
