"""Paths of an archive that mean the same everywhere: file systems differ in what they take for the same name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

from pinwarden.core.errors import PinwardenError

_NOT_EVERYWHERE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_MAX_STEP = 255
_MAX_PATH = 1000
"""Bytes. Some systems end at 1,024 with the folder that it is unpacked in."""
_MAX_STEPS = 64
"""Every folder above a file is looked at, so a small manifest of deep paths would be a large amount of work."""
# What nearly all paths are made of. Paths of nothing else are looked at all together.
_PLAIN = re.compile(r"[A-Za-z0-9_@+~=,./\n-]*")
_PLAIN_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})


class PathSet:
    """The files of one archive, added one by one. Two that some file system takes for one are refused.

    That goes for folders, too: where ``Lib/a`` and ``lib/b`` are in one folder on one machine and in two on another, a
    program can find different files.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._spelled: dict[str, str] = {}
        self._above: set[str] = set()

    def add(self, path: str) -> None:
        """One more file."""
        above = path.rpartition("/")[0]
        if above in self._above:  # then only the file itself is new
            self._add([path], [_folded(path)])
            return
        steps = path.split("/")
        places = ["/".join(steps[:count]) for count in range(1, len(steps) + 1)]
        self._add(places, [_folded(place) for place in places])
        self._above.add(above)

    def _add(self, places: list[str], keys: list[str]) -> None:
        for place, key in zip(places, keys, strict=True):
            if self._spelled.setdefault(key, place) != place:
                _refuse(place, f"has {self._spelled[key][:120]!a} and {place[:120]!a}, which are one on some machines")
            if key in self._files:
                _refuse(place, f"has {place[:120]!a} twice, or as a file and a folder")
        if keys[-1] in self._folders:
            _refuse(places[-1], f"has {places[-1][:120]!a} as a file and a folder")
        self._files.add(keys[-1])
        self._folders.update(keys[:-1])


def check_all_portable(paths: Sequence[str]) -> None:
    """What ``check_portable`` and ``PathSet`` refuse, for all files of an archive at once."""
    if _all_plain_and_different(paths):
        return
    together = PathSet()
    for path in paths:
        together.add(check_portable(path))


def _all_plain_and_different(paths: Sequence[str]) -> bool:
    """The usual case, without taking each path apart: names of plain letters, no two of them alike."""
    together = "\n".join(paths)
    if not _PLAIN.fullmatch(together) or together.count("\n") != len(paths) - 1:
        return False
    if max(map(len, paths), default=0) > _MAX_PATH or max(path.count("/") for path in paths or ("",)) >= _MAX_STEPS:
        return False
    steps = set(together.replace("\n", "/").split("/"))
    if any(not step or step[-1] == "." or len(step) > _MAX_STEP for step in steps):
        return False
    if not _PLAIN_DEVICES.isdisjoint({step.partition(".")[0].lower() for step in steps}):
        return False
    folders: set[str] = set()
    for above in {path.rpartition("/")[0] for path in paths}:
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]  # noqa: PLW2901  # upwards, until a folder that was seen
    folded_files, folded_folders = {path.lower() for path in paths}, {folder.lower() for folder in folders}
    all_different = len(folded_files) == len(paths) and len(folded_folders) == len(folders)
    return all_different and folded_files.isdisjoint(folded_folders)


def check_portable(path: str) -> str:
    """The path, if every usual file system can hold it under this name."""
    if len(path) > _MAX_PATH or len(path.encode("utf-8", "surrogatepass")) > _MAX_PATH or path.count("/") >= _MAX_STEPS:
        _refuse(path[:_MAX_PATH], f"has a path that is too long or too deep: {path[:120]!a}")
    for step in path.split("/"):
        if not step or step in (".", "..") or _NOT_EVERYWHERE.search(step) or _DEVICES.fullmatch(step):
            _refuse(path, f"has a name that is not one everywhere: {path[:120]!a}")
        if step[-1] in ". " or len(step.encode()) > _MAX_STEP:
            _refuse(path, f"has a name that is not one everywhere: {path[:120]!a}")
    return path


def _folded(path: str) -> str:
    """What file systems compare at most: without case, and with composed and decomposed letters as one."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _refuse(path: str, why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {why}", data={"path": path})
