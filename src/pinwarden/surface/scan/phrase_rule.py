"""What a turn of phrase is, and how its patterns are written.

A description says what a tool does; an attack says what the agent shall do besides. Each turn is one regular
expression over the plain form of a text, tried only if its gate words are there. Every repetition is bounded,
so that the time grows with the length of the text and with nothing else.
"""

from __future__ import annotations

import re
from functools import cache

from pinwarden.core.record import Record

WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
"""Up to so many words, whatever they are, each with the gap after it."""

# What may stand between two words of a turn: a space, emphasis, quotes, or the joints of an identifier.
_GAP = r"[ _*`'\"\-]{1,3}"
_LONE_SPACE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.| (?![?*+{])")


@cache  # most turns are never tried, and compiling all of them takes longer than scanning a server
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern in which one space stands for any gap between words."""
    return re.compile(_LONE_SPACE.sub(lambda found: _GAP if found[0] == " " else found[0], pattern))


class Turn(Record):
    """One turn of phrase and the code of the cue that it is."""

    code: str
    gates: tuple[frozenset[str], ...]
    """Sets of words; the text must hold at least one word of each set."""
    patterns: tuple[str, ...]
    """Each begins with plain words or marks, by which the engine skips ahead."""
    negatable: bool
    """Whether ``never`` or ``do not`` before it makes it harmless."""
    shouted: bool
    """Whether it counts only in capitals, as in ``SYSTEM:``."""


def turn(code: str, gate: str, *patterns: str, negatable: bool = True, shouted: bool = False) -> Turn:
    """A turn whose gate is written as words, with ``&`` between the sets."""
    gates = tuple(frozenset(words.split()) for words in gate.split("&"))
    return Turn(code=code, gates=gates, patterns=patterns, negatable=negatable, shouted=shouted)
