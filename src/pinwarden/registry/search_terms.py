"""The words under which a bundle is found: those of its name, its description and its surface, with weights.

Words are case-folded and without accents or invisible characters. Chinese and Japanese text has no spaces, so each pair
of adjacent characters is a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from unicodedata import combining, normalize

from pinwarden.core.text import INVISIBLE
from pinwarden.surface.surface import PROMPT, TOOL, Surface

NAME_WEIGHT = 40
DISPLAY_NAME_WEIGHT = 20
ITEM_NAME_WEIGHT = 10
DESCRIPTION_WEIGHT = 4
ITEM_DESCRIPTION_WEIGHT = 1
MAX_TERM_CHARS = 64
MAX_TERMS = 2_000
"""The maximum number of terms per bundle. Names come first, so the rest of very long descriptions is not found."""
MAX_QUERY_WORDS = 8

_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]+|[^\W_{_IDEOGRAPHS}]+")


def list_bundle_terms(tool: str, display_name: str, description: str, surface: Surface | None) -> dict[str, int]:
    """Return the terms of a bundle, each with the highest weight of the texts that contain it."""
    terms: dict[str, int] = {}
    for text, weight in _list_texts(tool, display_name, description, surface):
        for word in split_words(text):
            if terms.get(word, 0) < weight:
                terms[word] = weight
            if len(terms) >= MAX_TERMS:
                return terms
    return terms


def _list_texts(tool: str, display_name: str, description: str, surface: Surface | None) -> Iterator[tuple[str, int]]:
    """Yield texts with their weights, the highest weight first."""
    yield tool, NAME_WEIGHT
    yield display_name, DISPLAY_NAME_WEIGHT
    items = [*surface.items_of_kind(TOOL), *surface.items_of_kind(PROMPT)] if surface else []
    yield from ((item.name, ITEM_NAME_WEIGHT) for item in items)
    yield description, DESCRIPTION_WEIGHT
    for item in items:
        text = item.value.get("description") if isinstance(item.value, dict) else None
        if isinstance(text, str):
            yield text, ITEM_DESCRIPTION_WEIGHT


def split_query(text: str) -> list[str]:
    """Return the words of a query, without repetition."""
    return list(dict.fromkeys(split_words(text)))[:MAX_QUERY_WORDS]


def measure_match(words: Sequence[str], terms: Mapping[str, int]) -> int:
    """Return how well the terms of a bundle match all words of a query; 0 if a word is missing.

    A term that equals the word counts twice, as in `store/catalog.py`.
    """
    score = 0
    for word in words:
        weights = (weight * (2 if term == word else 1) for term, weight in terms.items() if term.startswith(word))
        best = max(weights, default=0)
        if not best:
            return 0
        score += best
    return score


def split_words(text: str) -> Iterator[str]:
    """Yield the words of a text as they are indexed."""
    for word in _WORD.findall(_fold(_CAMEL_CASE.sub(" ", text))):
        if "\u3040" <= word[0] <= "\u9fff" and len(word) > 1:
            yield from map("".join, pairwise(word))
        else:
            yield word[:MAX_TERM_CHARS]


def _fold(text: str) -> str:
    """Return text without case, accents and compatibility forms. Invisible characters separate no words."""
    if text.isascii():
        return text.lower()
    spaced = " ".join(text.split())
    plain = normalize("NFKD", INVISIBLE.sub(lambda match: " " if match[0] == " " else "", spaced)).casefold()
    return normalize("NFC", "".join(character for character in plain if not combining(character)))
