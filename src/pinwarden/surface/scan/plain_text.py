"""Text as a model reads it: what the usual disguises come down to, with the way back to the original.

Invisible characters are dropped, look-alike and styled letters become plain ones, accents go, whitespace becomes one
space, ``i g n o r e`` becomes ``ignore``. Every character of the result knows its place in the original.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import Record
from pinwarden.core.visible import INVISIBLE

# By Latin letter, what Cyrillic, Greek, Armenian, Cherokee and phonetic letters most fonts draw like it.
_DRAWN_LIKE: dict[str, str] = {
    "a": "\u0430\u03b1\u0251\u1d00",
    "b": "\u0184\u042c\u0299",
    "c": "\u0441\u03f2\u1d04",
    "d": "\u0501\u13e7\u1d05",
    "e": "\u0435\u0454\u04bd\u1d07",
    "g": "\u0261\u0581\u0262",
    "h": "\u04bb\u0570\u029c",
    "i": "\u0456\u0457\u03b9\u0131\u0269\u026a\u04cf",
    "j": "\u0458\u03f3\u1d0a",
    "k": "\u043a\u03ba\u1d0b",
    "l": "\u029f\u2113",
    "m": "\u043c\u1d0d",
    "n": "\u0578\u0274",
    "o": "\u043e\u03bf\u0585\u1d0f",
    "p": "\u0440\u03c1\u1d18",
    "q": "\u051b\u0566",
    "r": "\u0433\u0280",
    "s": "\u0455\ua731",
    "t": "\u0442\u03c4\u1d1b",
    "u": "\u057d\u03c5\u1d1c",
    "v": "\u0475\u03bd\u1d20",
    "w": "\u051d\u0561\u1d21",
    "x": "\u0445\u03c7",
    "y": "\u0443\u04af\u028f",
    "z": "\u1d22",
    "A": "\u0410\u0391\u13aa",
    "B": "\u0412\u0392\u13f4",
    "C": "\u0421\u13df",
    "D": "\u13a0",
    "E": "\u0415\u0395\u13ac",
    "G": "\u050c\u13c0",
    "H": "\u041d\u0397\u13bb",
    "I": "\u0406\u0399\u04c0",
    "J": "\u0408\u13ab",
    "K": "\u041a\u039a\u13e6",
    "L": "\u13de",
    "M": "\u041c\u039c\u13b7",
    "N": "\u039d",
    "O": "\u041e\u039f\u0555",
    "P": "\u0420\u03a1\u13e2",
    "Q": "\u051a",
    "R": "\u13a1",
    "S": "\u0405\u13da\u054f",
    "T": "\u0422\u03a4\u13a2",
    "U": "\u054d",
    "V": "\u0474\u13d9",
    "W": "\u051c\u13b3",
    "X": "\u0425\u03a7",
    "Y": "\u04ae\u03a5",
    "Z": "\u0396\u13c3",
}
LOOK_ALIKES: dict[str, str] = {other: latin for latin, others in _DRAWN_LIKE.items() for other in others}

_CONTROL = pattern("[\x00-\x08\x0e-\x1b\x7f]")
_UNEVEN_SPACE = pattern(r"\s{2,}|[^\S ]")
# Punctuation without guile, and what it comes down to; one character for one, so that places stay.
PLAIN_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201c\u201d", "'"),
        **dict.fromkeys("\u2010\u2011", "-"),
        **dict.fromkeys(
            "\u2013\u2014\u2022\u2026\u2190\u2191\u2192\u2193\u00b0\u00b1\u00d7\u2264\u2265\u00a7\u00b7", ","
        ),
    }
)
# Five or more single letters with the same short gap between them, which does not happen by accident.
_SPACED_LETTERS = pattern(r"(?<![^\W_])[^\W\d_](?:([ ._*\-|/])[^\W\d_])(?:\1[^\W\d_]){3,}(?![^\W_])")


def word_set(words: str) -> frozenset[str]:
    """The words of a list written as text."""
    return frozenset(words.split())


class PlainText:
    """The plain form of a text, and the way back to where each of its characters came from."""

    __slots__ = ("_original", "_origins", "text")

    def __init__(self, text: str, original: str, origins: tuple[int, ...] | None = None) -> None:
        self.text = text
        self._original = original
        self._origins = origins

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the original the characters ``start`` to ``end`` of the plain form came from."""
        if self._origins is None:
            if len(self.text) == len(self._original):
                return start, end
            # Few texts are ever asked.
            self._origins = _fold_text(self._original)._origins or ()
        if start >= len(self._origins):
            return len(self._original), len(self._original)
        return self._origins[start], self._origins[max(start, end - 1)] + 1


def plain(text: str) -> PlainText:
    """The plain form of ``text``, in lower case."""
    shown = text if text.isascii() else text.translate(PLAIN_PUNCTUATION)
    if not shown.isascii() or _CONTROL.search(shown) or _SPACED_LETTERS.search(shown):
        return _fold_text(text)
    return PlainText(_UNEVEN_SPACE.sub(" ", shown.lower()), text)


@lru_cache(maxsize=4096)  # the letters of one alphabet, again and again
def fold_letter(character: str) -> str:
    """One character as the plain lower-case text it stands for; empty if it leaves no mark."""
    if character.isspace():
        return " "
    if INVISIBLE.match(character):
        return ""
    known = LOOK_ALIKES.get(character)
    if known is not None:
        return known.lower()
    if character in "\u2026\u00b0":
        return ","  # decomposition would make more of them than one character
    decomposed = unicodedata.normalize("NFKD", character)
    kept = "".join(LOOK_ALIKES.get(part, part) for part in decomposed if not unicodedata.combining(part))
    return kept.translate(PLAIN_PUNCTUATION).lower()


def fold_word(word: str) -> str:
    """A name with its disguises taken off: two names with the same fold look the same to a reader."""
    return word.lower() if word.isascii() else "".join(map(fold_letter, word))


def spaced_letters(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and letters of every run of single letters with gaps between."""
    for found in _SPACED_LETTERS.finditer(text):
        yield found.start(), found.end(), found[0][::2].lower()


def _fold_text(text: str) -> PlainText:
    joined = {place for found in _SPACED_LETTERS.finditer(text) for place in range(found.start() + 1, found.end(), 2)}
    characters: list[str] = []
    origins: list[int] = []
    for place, character in enumerate(text):
        if place in joined:
            continue
        for plain_character in fold_letter(character):
            if plain_character == " " and characters and characters[-1] == " ":
                continue
            characters.append(plain_character)
            origins.append(place)
    return PlainText("".join(characters), text, tuple(origins))


WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
"""Up to so many words, whatever they are, each with the gap after it."""

# What may stand between two words of a turn: a space, emphasis, quotes, or the joints of an identifier.
_GAP = r"[ _*`'\"\-]{1,3}"
_LONE_SPACE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.| (?![?*+{])")


@cache  # most turns are never tried, and compiling all of them takes longer than scanning a server
def compile_phrase(pattern: str) -> re.Pattern[str]:
    """A pattern in which one space stands for any gap between words."""
    return re.compile(_LONE_SPACE.sub(lambda found: _GAP if found[0] == " " else found[0], pattern))


class PhraseRule(Record):
    """Patterns of one phrase, and the code of its cue."""

    code: str
    gates: tuple[frozenset[str], ...]
    """Sets of words. The patterns are tried only if the text has at least one word of each set."""
    patterns: tuple[str, ...]
    """Each begins with literal text, which lets the engine skip ahead."""
    negatable: bool
    """Whether ``never`` or ``do not`` before it makes it harmless."""
    shouted: bool
    """Whether it counts only in capitals, as in ``SYSTEM:``."""


def phrase_rule(code: str, gate: str, *patterns: str, negatable: bool = True, shouted: bool = False) -> PhraseRule:
    """A phrase rule whose gate is written as words, with ``&`` between the sets."""
    gates = tuple(frozenset(words.split()) for words in gate.split("&"))
    return PhraseRule(code=code, gates=gates, patterns=patterns, negatable=negatable, shouted=shouted)
