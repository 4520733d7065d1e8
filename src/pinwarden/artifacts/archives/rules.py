"""Size limits for archives, and rules for file names that are valid on every operating system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record


class ArchiveLimits(Record):
    """Limits for one archive, as protection against decompression bombs."""

    members: int = 100_000
    """The largest packages in use have about 30,000 files."""
    total_bytes: int = 4 * 1024 * 1024 * 1024
    path_bytes: int = 1024
    header_bytes: int = 64 * 1024
    """Per extended header. Long names and timestamps need a few hundred bytes."""


ARCHIVE_LIMITS = ArchiveLimits()


_FORBIDDEN_CHARACTERS = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_MAX_NAME = 255
_MAX_PATH = 1000
"""In bytes. Some systems allow 1,024 bytes, including the path of the target folder."""
_MAX_DEPTH = 64
"""Limits the work of ``PathSet``, which examines every parent folder of every path."""
# Nearly all paths consist of these characters, for which check_all_portable has a fast path.
_COMMON_CHARACTERS = re.compile(r"[A-Za-z0-9_@+~=,./\n-]*")
_ASCII_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


class PathSet:
    """The paths of one archive. Raises ``ARCHIVE_UNSAFE`` if a file system would treat two paths as the same.

    Folders count too: ``Lib/a`` and ``lib/b`` are in one folder on some systems and in two on others.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._path_by_key: dict[str, str] = {}
        self._known_folders: set[str] = set()

    def add(self, path: str) -> None:
        """Add the path of one file."""
        folder = path.rpartition("/")[0]
        if folder in self._known_folders:
            self._add([path], [_fold(path)])
            return
        parts = path.split("/")
        prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        self._add(prefixes, [_fold(prefix) for prefix in prefixes])
        self._known_folders.add(folder)

    def _add(self, prefixes: list[str], keys: list[str]) -> None:
        for prefix, key in zip(prefixes, keys, strict=True):
            if self._path_by_key.setdefault(key, prefix) != prefix:
                known = self._path_by_key[key]
                _refuse(prefix, f"has {known[:120]!a} and {prefix[:120]!a}, which some systems treat as the same path")
            if key in self._files:
                _refuse(prefix, f"has {prefix[:120]!a} twice, or as both a file and a folder")
        if keys[-1] in self._folders:
            _refuse(prefixes[-1], f"has {prefixes[-1][:120]!a} as both a file and a folder")
        self._files.add(keys[-1])
        self._folders.update(keys[:-1])


def check_all_portable(paths: Sequence[str]) -> None:
    """Check all files of an archive with ``check_portable`` and ``PathSet``."""
    if _are_simple_and_distinct(paths):
        return
    path_set = PathSet()
    for path in paths:
        path_set.add(check_portable(path))


def _are_simple_and_distinct(paths: Sequence[str]) -> bool:
    """Whether all names are plain ASCII and remain distinct if case is ignored. This is the common case."""
    joined = "\n".join(paths)
    if not _COMMON_CHARACTERS.fullmatch(joined) or joined.count("\n") != len(paths) - 1:
        return False
    if max(map(len, paths), default=0) > _MAX_PATH or max(path.count("/") for path in paths or ("",)) >= _MAX_DEPTH:
        return False
    parts = set(joined.replace("\n", "/").split("/"))
    if any(not part or part[-1] == "." or len(part) > _MAX_NAME for part in parts):
        return False
    if not _ASCII_DEVICES.isdisjoint({part.partition(".")[0].lower() for part in parts}):
        return False
    folders: set[str] = set()
    for folder_path in {path.rpartition("/")[0] for path in paths}:
        while folder_path and folder_path not in folders:
            folders.add(folder_path)
            folder_path = folder_path.rpartition("/")[0]  # noqa: PLW2901
    folded_files, folded_folders = {path.lower() for path in paths}, {folder.lower() for folder in folders}
    all_different = len(folded_files) == len(paths) and len(folded_folders) == len(folders)
    return all_different and folded_files.isdisjoint(folded_folders)


def check_portable(path: str) -> str:
    """Return the path unchanged. Raises ``ARCHIVE_UNSAFE`` if a common file system cannot store it."""
    if len(path) > _MAX_PATH or len(path.encode("utf-8", "surrogatepass")) > _MAX_PATH or path.count("/") >= _MAX_DEPTH:
        _refuse(path[:_MAX_PATH], f"has a path that is too long or too deep: {path[:120]!a}")
    for part in path.split("/"):
        if not part or part in (".", "..") or _FORBIDDEN_CHARACTERS.search(part) or _DEVICES.fullmatch(part):
            _refuse(path, f"has a name that some systems do not allow: {path[:120]!a}")
        if part[-1] in ". " or len(part.encode()) > _MAX_NAME:
            _refuse(path, f"has a name that some systems do not allow: {path[:120]!a}")
    return path


def _fold(path: str) -> str:
    """Fold case and normalise Unicode, as the least strict file systems do when they compare names."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _refuse(path: str, problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {problem}", data={"path": path})
