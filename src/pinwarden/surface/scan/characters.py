"""Characters that hide, steer a terminal, or pass for others: judged by their neighbours, so that emoji and
scripts which need joiners stay unsuspected.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from pinwarden.core.visible import INVISIBLE
from pinwarden.surface.scan.plain_text import LOOK_ALIKES

Span = tuple[int, int]

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_KEYCAPS = frozenset("#*0123456789")
_BLACK_FLAG = "\U0001f3f4"
# Escape sequences whole (CSI, OSC and its kin up to their end), then any other control character but tab, line feed
# and a carriage return before a line feed.
_TERMINAL = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ "
    "-/]{0,8}[@-~]?|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,512}(?:\x07|\x1b\\\\|\x9c)?|\x1b[ "
    "-~]?|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")  # of ASCII text
_LATIN = re.compile("[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2,}")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u05ff\u0620-\u06dc\u06de-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def terminal_escapes(text: str) -> Iterator[Span]:
    """Where text would move a cursor, hide output, set a title or overwrite a line."""
    if text.isascii() and not _CONTROL.search(text):
        return
    for found in _TERMINAL.finditer(text):
        yield found.span()


def hidden_characters(text: str) -> Iterator[Span]:
    """Runs of characters that a reader does not see and a model does."""
    start = end = -1
    right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    for found in INVISIBLE.finditer(text):
        place = found.start()
        if _has_reason(text, place, right_to_left):
            continue
        if place != end:
            if end >= 0:
                yield start, end
            start = place
        end = place + 1
    if end >= 0:
        yield start, end


def look_alikes(text: str) -> Iterator[Span]:
    """Words that mix Latin letters with letters of another script drawn the same, or are all of such letters."""
    words = [found for found in _WORD.finditer(text) if not found[0].isascii()]
    if not words:
        return
    whole_words_count = _LATIN.search(text) is not None and not _is_foreign(text)
    for found in words:
        if _passes_for_latin(found[0], whole_words_count):
            yield found.span()


def _passes_for_latin(word: str, whole_words_count: bool) -> bool:
    disguised = sum(character in LOOK_ALIKES and not _is_latin(character) for character in word)
    latin = sum(_is_latin(character) for character in word)
    styled = sum("\U0001d400" <= character <= "\U0001d7ff" for character in word)
    if styled >= 3:
        return True
    if not disguised:
        return False
    if latin:
        return disguised + latin == len(word)  # a letter of neither kind shows that this is honest foreign text
    return whole_words_count and len(word) >= 3 and disguised == len(word)


def _is_foreign(text: str) -> bool:
    """Whether text holds letters of another script that cannot pass for Latin ones."""
    return any(ord(character) > 0x36F and character.isalpha() and character not in LOOK_ALIKES for character in text)


def _is_latin(character: str) -> bool:
    return character.isascii() or ord(character) < 0x250


def _has_reason(text: str, place: int, right_to_left: bool) -> bool:
    """Whether an invisible character does what it is for: space, line end, emoji, or a script that needs it."""
    character = text[place]
    point = ord(character)
    if point < 0xA0 or character.isspace():
        return True  # spaces of any width; control characters are terminal_escapes
    before = text[place - 1] if place else ""
    after = text[place + 1] if place + 1 < len(text) else ""
    if 0xFE00 <= point <= 0xFE0F:
        return _takes_variation(before, point)
    if character == _ZWJ and _is_pictograph(after):
        return _ends_pictograph(text, place - 1)
    if character in (_ZWNJ, _ZWJ):
        return _joins(before) and (_joins(after) or not after.isalpha())
    if point in (0x200E, 0x200F, 0x061C):
        return right_to_left
    if 0xE0020 <= point <= 0xE007F:
        return _in_flag(text, place)
    if 0xE0100 <= point <= 0xE01EF:
        return "\u3400" <= before <= "\u9fff" or "\U00020000" <= before <= "\U0003ffff"
    if point == 0x2800:
        return "\u2801" <= before <= "\u28ff" or "\u2801" <= after <= "\u28ff"
    if 0x180B <= point <= 0x180F:
        return "\u1820" <= before <= "\u18aa"
    return unicodedata.category(character) == "Mn" and _joins(before)


def _takes_variation(before: str, point: int) -> bool:
    """Whether ``before`` has a variant of that number: text or emoji form, or one of a few forms of a letter."""
    if before in _KEYCAPS or _is_pictograph(before):
        return point in (0xFE0E, 0xFE0F)
    if point == 0xFE0F:
        return unicodedata.category(before or " ") in ("Sm", "So", "Po")
    return point <= 0xFE02 and unicodedata.category(before or " ") in ("Sm", "So", "Lo", "Po")


def _is_pictograph(character: str) -> bool:
    if not character or ord(character) < 0xA9:
        return False
    if character >= "\U0001f000":
        return character <= "\U0001faff"  # emoji newer than our Unicode tables included
    return unicodedata.category(character) in ("So", "Sk") or character in "\u2194\u2195\u203c\u2049"


def _ends_pictograph(text: str, place: int) -> bool:
    if place >= 0 and text[place] == "\ufe0f":
        place -= 1
    return place >= 0 and _is_pictograph(text[place])


def _joins(character: str) -> bool:
    """Whether a character belongs to a script that is written with joiners (Arabic, the scripts of India, ...)."""
    return "\u0600" <= character <= "\u109f" or "\u1780" <= character <= "\u18af" or "\ufb50" <= character <= "\ufefc"


def _in_flag(text: str, place: int) -> bool:
    """Whether a tag character belongs to a flag: a black flag, at most six tags, and the closing tag."""
    first = place
    while first > 0 and "\U000e0020" <= text[first - 1] <= "\U000e007f" and place - first < 7:
        first -= 1
    last = place
    while last + 1 < len(text) and "\U000e0020" <= text[last + 1] <= "\U000e007f" and last - first < 7:
        last += 1
    return first > 0 and text[first - 1] == _BLACK_FLAG and last - first <= 6 and text[last] == "\U000e007f"
