"""Text hidden from people: invisible characters, terminal escapes, look-alike letters, hidden markup, encodings.

Characters are judged by their neighbours, so that emoji and scripts with joiners are not reported. Encoded text
(base64, hex, percent, escapes, rotated letters) is decoded for the other checks.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b32decode, b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

from pinwarden.core.lazy_regex import pattern
from pinwarden.core.visible import INVISIBLE
from pinwarden.surface.scan.plain_text import LOOK_ALIKES, word_set

CharacterRange = tuple[int, int]

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
_LETTERS_WORD = re.compile(r"[^\W\d_]{2,}")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u05ff\u0620-\u06dc\u06de-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def find_terminal_escapes(text: str) -> Iterator[CharacterRange]:
    """Where text would move a cursor, hide output, set a title or overwrite a line."""
    if text.isascii() and not _CONTROL.search(text):
        return
    for found in _TERMINAL.finditer(text):
        yield found.span()


def find_hidden_characters(text: str) -> Iterator[CharacterRange]:
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


def find_look_alike_words(text: str) -> Iterator[CharacterRange]:
    """Words that mix Latin letters with letters of another script drawn the same, or are all of such letters."""
    words = [found for found in _LETTERS_WORD.finditer(text) if not found[0].isascii()]
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


_UNSEEN_ELEMENT = pattern(
    r"<\w{1,16}\b[^<>]{0,200}(?:display ?: ?none|visibility ?: ?hidden|font-size ?: ?0|opacity ?: ?0(?![.\d]*[1-9])"
    r"|color ?: ?(?:transparent|white|#fff)\b|\bhidden\b)[^<>]{0,200}>([^<]{12,2000})",
    re.IGNORECASE,
)
_WORD = pattern(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 4
# Comments are for authors. One for the reader addresses a model or talks about the user.
_SPEAKS_TO = pattern(
    r"\b(?:assistants?|ai(?: agents?)?|agents?|llms?|chatbots?|you must|your|user's|do not tell|secretly|silently"
    r"|instructions?)\b",
    re.IGNORECASE,
)
# A placeholder in an address for parts of the conversation or for a secret of a named owner.
_FILLED_URL = pattern(
    r"\b(?:https?|wss?|ftp)://[^\s'\"`<>{}$]{3,200}?(?:[{<$]|%7b)[^}>]{0,60}?(?:conversation|history|chat|transcript"
    r"|cookie|password|passwd|credential|system[ _-]?prompt|messages?\b|env\b|environ|(?:github|aws|openai|anthropic"
    r"|slack|npm|google|azure|session|user)[ _-]?\w{0,16}(?:token|secret|key)|secret|clipboard|user[ '_-]{0,2}s?[ _-]?"
    r"(?:data|e-?mail|input|query))",
    re.IGNORECASE,
)
_QUERY = pattern(r"[?&#;=]")


def find_unseen_text(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of text in comments and in elements that are styled away."""
    for start, end in _comments(text):
        content = text[start + 4 : end]
        if _SPEAKS_TO.search(content) and _says_something(content):
            yield start, end
    for found in _UNSEEN_ELEMENT.finditer(text):
        if _says_something(found[1]):
            yield found.span()


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Where comments stand; one without an end hides all the rest."""
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start + 4)
        yield start, end + 3 if end >= 0 else len(text)
        start = text.find("<!--", end) if end >= 0 else -1


def find_filled_urls(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of addresses with a placeholder for private data in their query."""
    for found in _FILLED_URL.finditer(text):
        if _QUERY.search(found[0]):
            yield found.span()


def _says_something(content: str) -> bool:
    return len(_WORD.findall(content)) >= _FEWEST_WORDS


_MIN_PIECE = 16
_PIECE = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{16,}={0,2}")
_NOT_PIECE = bytes(byte if byte < 0x80 and (chr(byte).isalnum() or byte in b"+/_-=") else 0x20 for byte in range(256))
_HEX = re.compile(r"(?:0x)?((?:[0-9a-fA-F]{2}){8,})=?$")
_BASE32 = pattern(r"[A-Z2-7]{16,}=?=?$")
_BITS = pattern(r"(?<![01])[01]{8}(?:\s[01]{8}){7,}(?![01])")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2}|[\w.\-~/]){12,}")
_ESCAPED = re.compile(r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[0-7]{3}){6,}")
_ENTITIES = re.compile(r"(?:&#x?[0-9a-fA-F]{1,6};){6,}")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\([0-7]{3})")

_COMMAND = re.compile(
    r"\b(?:curl|wget|chmod|chown|rm -[rf]|mkfifo|nohup|crontab|powershell|invoke-(?:webrequest|expression)|iex\b"
    r"|certutil|netcat|nc -|ncat|socat|scp |ssh |sudo |eval ?\(|exec ?\(|system ?\(|popen ?\(|__import__|base64 -d"
    r"|python3? -c|perl -e|ruby -e|node -e|php -r|osascript|launchctl|systemctl|mshta|rundll32|regsvr32|fetch ?\("
    r"|require ?\(|document\.cookie)|/bin/(?:ba|z|da)?sh\b|/dev/tcp/|\|[ ]?(?:ba|z)?sh\b|&&|>&|drop table|<script",
    re.IGNORECASE,
)
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHIFT = str.maketrans(_LETTERS, _LETTERS[13:] + _LETTERS[:13])
_DIGIT_LETTERS = str.maketrans("013457@$", "oieastas")
_DIGITS_IN_WORD = pattern(r"[a-z][013457]{1,2}[a-z]")
_INSTRUCTION_WORDS = word_set(
    "ignore disregard previous instructions password credentials secret secretly system prompt token user send upload"
)
ROTATED_WORDS = frozenset(word.translate(_SHIFT) for word in _INSTRUCTION_WORDS) | frozenset(
    word[::-1] for word in _INSTRUCTION_WORDS
)
"""Words of an instruction with their letters shifted by thirteen or written backwards; none of them means anything."""


def undo_rotations(text: str) -> Iterator[str]:
    """Lower-case text with its letters shifted back by thirteen, and read from its end."""
    yield text.translate(_SHIFT)
    yield text[::-1]


def has_digits_for_letters(text: str) -> bool:
    """Whether lower-case text has words in which digits stand where letters belong, as in ``p4ssw0rd``."""
    first = _DIGITS_IN_WORD.search(text)
    return first is not None and _DIGITS_IN_WORD.search(text, first.end()) is not None


def with_letters_for_digits(text: str) -> str:
    """Lower-case text with the letters that its digits stand for."""
    return text.translate(_DIGIT_LETTERS)


def find_encoded_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and readable content of every wrapped piece of ``text``."""
    for found in _PIECE.finditer(text):
        as_hex = _HEX.match(found[0])
        yield from _readable(found, bytes.fromhex(as_hex[1]) if as_hex else _from_base64(found[0]))
        if _BASE32.match(found[0]):
            yield from _readable(found, _from_base32(found[0]))
    for found in _BITS.finditer(text):
        yield from _readable(found, bytes(int(byte, 2) for byte in found[0].split()))
    if "%" in text:
        for found in _PERCENT.finditer(text):
            if found[0].count("%") >= 6:
                yield from _readable(found, unquote(found[0], "latin-1").encode("latin-1", "replace"))
    if "\\" in text:
        for found in _ESCAPED.finditer(text):
            yield from _readable(found, _ESCAPE.sub(_escaped_character, found[0]).encode("latin-1", "replace"))
    if "&#" in text:
        for found in _ENTITIES.finditer(text):
            yield from _readable(found, unescape(found[0]).encode("latin-1", "replace"))


def long_pieces(text: str) -> str:
    """The pieces of ``text`` that are long enough to be base64 or hex, and nothing else."""
    pieces = text.encode("ascii", "replace").translate(_NOT_PIECE).split()
    return b" ".join({piece for piece in pieces if len(piece) >= _MIN_PIECE}).decode()


def is_command(text: str) -> bool:
    """Whether decoded text is a command."""
    return _COMMAND.search(text) is not None


def _readable(found: re.Match[str], content: bytes | None) -> Iterator[tuple[int, int, str]]:
    if content is not None and len(content) >= 6 and not content.translate(None, _PRINTABLE):
        yield found.start(), found.end(), content.decode()


def _from_base64(wrapped: str) -> bytes | None:
    """The bytes; letters that complete no group of four are cut off, as lenient decoders do."""
    body = wrapped.rstrip("=").replace("-", "+").replace("_", "/")
    if len(body) % 4 == 1:
        body = body[:-1]
    try:
        return b64decode(body + "=" * (-len(body) % 4))
    except (BinasciiError, ValueError):
        return None


def _from_base32(wrapped: str) -> bytes | None:
    body = wrapped.rstrip("=")
    body = body[: len(body) - (len(body) % 8 in (1, 3, 6))]
    try:
        return b32decode(body + "=" * (-len(body) % 8))
    except (BinasciiError, ValueError):
        return None


def _escaped_character(found: re.Match[str]) -> str:
    digits, base = (found[3], 8) if found[3] else (found[1] or found[2], 16)
    return chr(int(digits, base))
