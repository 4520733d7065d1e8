"""Names that a reader takes for one another, and names that other names are made from."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.lazy_regex import pattern
from pinwarden.surface.scan.plain_text import fold_word

_SEPARATORS = pattern(r"[\s_.\-/:]+")
_DIGITS_LIKE_LETTERS = str.maketrans("01", "ol")
_WORD = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


def skeleton(name: str) -> str:
    """What is left of a name without case, separators, invisible characters and disguised letters."""
    return _SEPARATORS.sub("", fold_word(name)).translate(_DIGITS_LIKE_LETTERS)


def look_alikes(fresh: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """For each of the ``fresh`` names that reads like a different ``present`` one, that other name."""
    suspects = {name: skeleton(name) for name in fresh}
    if not suspects:
        return {}
    wanted = set(suspects.values())
    bearers: dict[str, list[str]] = {}
    for name in present:
        bare = skeleton(name)
        if bare in wanted:
            bearers.setdefault(bare, []).append(name)
    found: dict[str, str] = {}
    for name, bare in suspects.items():
        others = [other for other in bearers.get(bare, ()) if other != name]
        if others:
            found[name] = min(others)
    return found


def name_words(name: str) -> frozenset[str]:
    """The words a name is put together from, whichever way they are joined."""
    return frozenset(word.lower() for word in _WORD.findall(name))
