"""Find names of servers and packages that are easily mistaken for approved ones."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pinwarden.surface.drift.pairing import compute_name_skeleton

_COMMON = frozenset({"server", "servers", "mcpserver", "client", "index", "tools"})
_MAX_NAME = 200  # longer names are not compared letter by letter
_LONG = 8  # names of at least this length may differ by two typos, shorter names by one


def find_similar_name(name: str, approved: Iterable[str]) -> str | None:
    """Return the approved name for which a reader could mistake ``name``, or None.

    Two names are similar if they differ only in look-alike letters, separators, one or two typos, or the owner of the
    package. For a name that is itself approved, the result is None.
    """
    known = sorted(set(approved))
    if name in known:
        return None
    bare = _compute_skeleton(name)
    for other in known:
        theirs = _compute_skeleton(other)
        if bare == theirs or _strip_owner(name) == _strip_owner(other) or _differ_by_typos(bare, theirs):
            return other
    return None


@lru_cache(maxsize=65536)
def _compute_skeleton(name: str) -> str:
    return compute_name_skeleton(name)


def _strip_owner(name: str) -> str:
    """Remove the owner from a package name such as ``@owner/notes``, unless only a common word would remain.

    A name that stays complete gets a NUL byte at its end, so that it differs from every stripped name.
    """
    owner, slash, last = name.rpartition("/")
    bare = _compute_skeleton(last)
    return bare if slash and owner and len(bare) >= 5 and bare not in _COMMON else name + "\0"


def _differ_by_typos(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    if shorter > _MAX_NAME:
        return False
    allowed = 0 if shorter < 4 else 1 if shorter < _LONG else 2
    return abs(len(one) - len(other)) <= allowed and compute_edit_distance(one, other, allowed) <= allowed


def compute_edit_distance(one: str, other: str, enough: int) -> int:
    """Count letters omitted, added, replaced or swapped with a neighbour. Results above ``enough`` are not exact."""
    before_last: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        # A cell further than ``enough`` from the diagonal costs more than ``enough``, so it is skipped.
        first, end = max(1, row - enough), min(len(other), row + enough)
        current = [row, *[enough + 1] * len(other)]
        for column in range(first, end + 1):
            theirs = other[column - 1]
            cost = min(last[column] + 1, current[column - 1] + 1, last[column - 1] + (letter != theirs))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == theirs:
                cost = min(cost, before_last[column - 2] + 1)
            current[column] = cost
        if min(current) > enough:
            return enough + 1
        before_last, last = last, current
    return last[-1]
