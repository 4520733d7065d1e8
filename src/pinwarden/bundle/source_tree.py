"""Read the files of a folder for a bundle: their paths, bytes and executable bits."""

from __future__ import annotations

import os
import re
import shlex
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from pinwarden.artifacts.archives.rules import PathSet, check_portable
from pinwarden.bundle.bundle_documents import BUNDLE_LIMITS, BundleLimits
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

EXCLUDED_NAMES = frozenset(
    {
        *(".git", ".hg", ".svn", ".DS_Store", "__pycache__", ".venv", ".tox", ".nox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache"),
        *(".env", ".env.local", ".env.development", ".env.production", ".netrc", ".npmrc", ".pypirc"),
    }
)
"""Names that are not packed: version control, generated files, and files that usually contain secrets."""
_GLOB_PART = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_GLOB_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class SourceFile(Record):
    """One file to pack."""

    path: str
    """Relative to the folder, with forward slashes."""
    data: bytes = field(repr=False)
    executable: bool = False


class SourceTree(Record):
    """The files of a folder in manifest order, and the paths that were excluded."""

    files: tuple[SourceFile, ...]
    excluded: tuple[str, ...] = ()


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for paths: ``*`` and ``?`` within a name, ``**`` for any folders.

    A pattern without a slash is for names in every folder. Raises ``USAGE`` for an absolute path, or one with ``..``.
    """
    parts = pattern.removesuffix("/").split("/")
    if not all(parts) or ".." in parts or len(pattern) > _MAX_GLOB:
        raise PinwardenError(
            "USAGE", f"--exclude: {pattern[:120]!a} is not a pattern for paths in the folder", hint="Use: 'docs/**'"
        )
    words = _GLOB_PART.findall("/".join(parts))
    expression = "".join(_GLOB_EXPRESSIONS.get(word) or re.escape(word) for word in words)
    return re.compile(expression if len(parts) > 1 else f"(?:.*/)?{expression}", re.DOTALL)


_MAX_GLOB = 1000


def read_tree(
    folder: Path, limits: BundleLimits = BUNDLE_LIMITS, *, is_excluded: Callable[[str], bool] = lambda _: False
) -> SourceTree:
    """Read all files below a folder. Links and devices are errors: their meaning depends on the machine.

    ``is_excluded`` decides about paths of files and folders, in addition to `EXCLUDED_NAMES`.
    """
    excluded: list[str] = []
    files: list[SourceFile] = []
    size = 0
    all_paths = PathSet()
    for path, entry in _walk(folder, "", excluded, is_excluded):
        _run_path_check(all_paths.add, path)
        data, mode = _read_source_file(entry, limits.total_bytes - size)
        size += len(data)
        # Only the owner's bit, because the bits of group and others depend on the umask.
        files.append(SourceFile(path=path, data=data, executable=bool(mode & stat.S_IXUSR)))
        if len(files) > limits.files:
            _refuse(f"{folder} has more than {limits.files} files")
    return SourceTree(files=tuple(sorted(files, key=lambda file: file.path)), excluded=tuple(sorted(excluded)))


def _walk(
    folder: Path, prefix: str, excluded: list[str], is_excluded: Callable[[str], bool]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{folder} cannot be read: {err.strerror or err}") from err
    for entry in entries:
        path = prefix + entry.name
        if entry.name in EXCLUDED_NAMES or is_excluded(path):
            excluded.append(path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{path}/", excluded, is_excluded)
        elif entry.is_file(follow_symlinks=False):
            yield _check_name(path), entry
        else:
            what = "a link" if entry.is_symlink() else "not a regular file"
            _refuse(f"{path[:120]!a} is {what}", f"Remove it, or leave it out: --exclude {shlex.quote(path[:500])}")


def _check_name(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        _refuse(f"the name {path[:120]!a} is not valid Unicode")
    if unicodedata.normalize("NFC", path) != path:
        _refuse(f"the name {path[:120]!a} is not in Unicode normal form NFC, so it would differ between machines")
    _run_path_check(check_portable, path)
    return path


def _run_path_check(check: Callable[[str], object], path: str) -> None:
    """Run a path check whose messages are about archives, and reword them for the author's own folder."""
    try:
        check(path)
    except PinwardenError as err:
        problem = f"the folder {err.message.removeprefix('the archive ')}"
        raise PinwardenError(err.code, problem, hint="Rename it, and pack the folder again.", data=err.data) from err


def _read_source_file(entry: os.DirEntry[str], max_bytes: int) -> tuple[bytes, int]:
    """Return the bytes and mode of a file. Raises if a link or pipe has replaced it since the folder was listed."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(entry.path, flags), "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = (
                stream.read(max_bytes + 1)
                if stat.S_ISREG(mode)
                else _refuse(f"{entry.path} is no longer a regular file")
            )
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{entry.path} cannot be read: {err.strerror or err}") from err
    return (data, mode) if len(data) <= max_bytes else _refuse("the files together exceed the size limit of a bundle")


def _refuse(problem: str, hint: str = "Change the folder, and pack it again.") -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", problem, hint=hint)
