"""Paths of an archive that mean the same everywhere: file systems differ in what they take for the same name."""

from __future__ import annotations

import re
import unicodedata
from typing import NoReturn

from pinwarden.core.errors import PinwardenError

_NOT_EVERYWHERE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_MAX_STEP = 255


class PathSet:
    """The files of one archive, added one by one. Two that some file system takes for one are refused.

    That goes for folders, too: where ``Lib/a`` and ``lib/b`` are in one folder on one machine and in two on another, a
    program can find different files.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._spelled: dict[str, str] = {}

    def add(self, path: str) -> None:
        """One more file."""
        steps = path.split("/")
        places = ["/".join(steps[:count]) for count in range(1, len(steps) + 1)]
        keys = [_folded(place) for place in places]
        for place, key in zip(places, keys, strict=True):
            if self._spelled.setdefault(key, place) != place:
                _refuse(f"has {self._spelled[key][:120]!a} and {place[:120]!a}, which are one on some machines")
            if key in self._files:
                _refuse(f"has {place[:120]!a} twice, or as a file and a folder")
        if keys[-1] in self._folders:
            _refuse(f"has {path[:120]!a} as a file and a folder")
        self._files.add(keys[-1])
        self._folders.update(keys[:-1])


def check_portable(path: str) -> str:
    """The path, if every usual file system can hold it under this name."""
    for step in path.split("/"):
        if not step or step in (".", "..") or _NOT_EVERYWHERE.search(step) or _DEVICES.fullmatch(step):
            _refuse(f"has a name that is not one everywhere: {path[:120]!a}")
        if step[-1] in ". " or len(step.encode()) > _MAX_STEP:
            _refuse(f"has a name that is not one everywhere: {path[:120]!a}")
    return path


def _folded(path: str) -> str:
    """What file systems compare at most: without case, and with composed and decomposed letters as one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {why}")
