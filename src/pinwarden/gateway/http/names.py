"""Names on the merged endpoint: each begins with its server, so that no server can take another one's name.

A tool or prompt is ``server__name``, a resource ``server+uri``. A server's part has no ``__`` and no ``+``, so the
first one always ends it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_LONGEST_SLUG = 32
LONGEST_NAME = 128
"""Of a tool, as the protocol advises."""
_SHORT, _LONG = 8, 64  # letters of a mark
_MARK_OF_NAME = 32  # letters: no server finds two names of its own with one mark
_SHORTENED = re.compile(rf".*-[0-9a-f]{{{_MARK_OF_NAME}}}", re.DOTALL)
_SEPARATOR = "__"
_SCHEME = "+"


def slugs_of(names: Iterable[str]) -> dict[str, str]:
    """A part for addresses and names for each server. Those of different servers are always different."""
    slugs = wanted = {name: _slug(name) for name in sorted(set(names))}
    # Whoever has to share gets a mark, all of them: which one comes first decides nothing. A name may be chosen so that
    # it is another one with its mark; then the mark is as long as no name is.
    for letters in (_SHORT, _LONG):
        times = Counter(slug.lower() for slug in slugs.values())
        slugs = {
            name: f"{wanted[name]}-{_mark(name, letters)}" if times[slug.lower()] > 1 else slug
            for name, slug in slugs.items()
        }
    return slugs


def _slug(name: str) -> str:
    plain = _NOT_PLAIN.sub("-", name).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"s-{plain}"
    if len(plain) > _LONGEST_SLUG:
        plain = f"{plain[: _LONGEST_SLUG - 9]}-{_mark(name)}"
    return plain.rstrip("-") if plain != name else plain


def _mark(name: str, letters: int = _SHORT) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:letters]


def merged_name(slug: str, name: str) -> str:
    """The name of a tool or prompt on the merged endpoint; a long one ends in a mark of what it was.

    So does one that looks as if it had been shortened: it may be chosen to be the short name of another one.
    """
    whole = f"{slug}{_SEPARATOR}{name}"
    if len(whole) < LONGEST_NAME or (len(whole) == LONGEST_NAME and not _SHORTENED.fullmatch(whole)):
        return whole
    return f"{whole[: LONGEST_NAME - _MARK_OF_NAME - 1]}-{_mark(name, _MARK_OF_NAME)}"


def split_name(name: str) -> tuple[str, str]:
    """The server and its own name for a tool or prompt; the server is empty if the name has none."""
    slug, separator, rest = name.partition(_SEPARATOR)
    return (slug, rest) if separator else ("", name)


def merged_uri(slug: str, uri: str) -> str:
    """The address of a resource, or the pattern of some, on the merged endpoint."""
    return f"{slug}{_SCHEME}{uri}"


def split_uri(uri: str) -> tuple[str, str]:
    """The server and its own address for a resource."""
    slug, separator, rest = uri.partition(_SCHEME)
    return (slug, rest) if separator else ("", uri)
