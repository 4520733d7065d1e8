"""Step 5: the files of a manifest are sorted, and each has a path that stays inside on every machine."""

from __future__ import annotations

from itertools import pairwise
from operator import lt
from typing import Any, NoReturn

from pinwarden.artifacts.archives.rules import check_all_portable
from pinwarden.bundle.acceptance.values import listed
from pinwarden.core.errors import PinwardenError


def check_entries(manifest: Any, *, literal: bool) -> None:
    """Step 5: order first, then paths."""
    paths = [each.get("path") if type(each) is dict else None for each in listed(manifest, "entries")]
    _check_order(paths, literal=literal)
    _check_paths(paths, literal=literal)


def _check_order(paths: list[Any], *, literal: bool) -> None:
    """By code points, and each once; to the letter by UTF-16 units, as JavaScript sorts, and twice is nothing."""
    texts = [each for each in paths if type(each) is str]
    if not literal and all(map(lt, texts, texts[1:])):
        return  # nearly always; the rest is to find out where it is not so
    for before, after in pairwise(texts):
        in_order = _utf16(before) <= _utf16(after) if literal else before < after
        if not in_order:
            raise PinwardenError(
                "MANIFEST_ENTRY_ORDER_INVALID",
                f"the manifest's files are not sorted, or one is there twice: {after[:120]!a}",
                data={"path": after, "after": before},
            )


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _check_paths(paths: list[Any], *, literal: bool) -> None:
    for path in paths:
        if type(path) is not str or "\\" in path:
            _refuse(path, "a path is text without backslashes")
    if literal:
        return
    try:
        check_all_portable(paths)
    except PinwardenError as err:
        _refuse(err.data.get("path"), err.message)


def _refuse(path: Any, reason: str) -> NoReturn:
    raise PinwardenError(
        "MANIFEST_PATH_INVALID",
        f"a file of the manifest has no safe path: {reason[:200]}",
        data={"path": path, "reason": reason},
    )
