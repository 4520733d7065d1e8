"""Find hidden text, and convert disguised text to a plain form that phrase rules can search.

`fold_text` drops invisible characters, replaces look-alike and styled letters by plain ones, removes accents and
joins spaced letters (``i g n o r e``). It records the position of each character in the text as sent.

The ``find_*`` functions find invisible characters, terminal escapes, look-alike letters and hidden markup. They do not
report invisible characters that emoji and some scripts need. `find_encoded_texts` decodes base64, hex and other
encodings, so that phrase rules can search the decoded text.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b32decode, b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterator
from functools import cache, lru_cache
from urllib.parse import unquote

from pinwarden.core.record import Record
from pinwarden.core.text import INVISIBLE, lazy_pattern

# For each Latin letter, the Cyrillic, Greek, Armenian, Cherokee and phonetic letters that look like it in most fonts.
_SIMILAR_LETTERS: dict[str, str] = {
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
LOOK_ALIKES: dict[str, str] = {other: latin for latin, others in _SIMILAR_LETTERS.items() for other in others}

_CONTROL_CHARACTER = lazy_pattern("[\x00-\x08\x0e-\x1b\x7f]")
_UNEVEN_SPACE = lazy_pattern(r"\s{2,}|[^\S ]")
# Typographic punctuation and its ASCII form. Each is a single character, so the positions in the text stay the same.
PLAIN_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201c\u201d", "'"),
        **dict.fromkeys("\u2010\u2011", "-"),
        **dict.fromkeys(
            "\u2013\u2014\u2022\u2026\u2190\u2191\u2192\u2193\u00b0\u00b1\u00d7\u2264\u2265\u00a7\u00b7", ","
        ),
    }
)
# Five or more single letters with the same separator between them. Ordinary text has no such sequences.
_SPACED_LETTERS = lazy_pattern(r"(?<![^\W_])[^\W\d_](?:([ ._*\-|/])[^\W\d_])(?:\1[^\W\d_]){3,}(?![^\W_])")


def parse_words(words: str) -> frozenset[str]:
    """Split a string at spaces into a set of words."""
    return frozenset(words.split())


class PlainText:
    """The plain form of a text, with the position of each character in the text as sent."""

    __slots__ = ("_original", "_origins", "text")

    def __init__(self, text: str, original: str, origins: tuple[int, ...] | None = None) -> None:
        self.text = text
        self._original = original
        self._origins = origins

    def to_original_span(self, start: int, end: int) -> tuple[int, int]:
        """Convert a span of the plain form to the corresponding span of the text as sent."""
        if self._origins is None:
            if len(self.text) == len(self._original):
                return start, end
            # Positions are computed only on demand, because few texts have a cue.
            self._origins = _fold_text(self._original)._origins or ()
        if start >= len(self._origins):
            return len(self._original), len(self._original)
        return self._origins[start], self._origins[max(start, end - 1)] + 1


def fold_text(text: str) -> PlainText:
    """Convert a text to its plain form: lower case, plain letters, no invisible characters."""
    simplified = text if text.isascii() else text.translate(PLAIN_PUNCTUATION)
    if not simplified.isascii() or _CONTROL_CHARACTER.search(simplified) or _SPACED_LETTERS.search(simplified):
        return _fold_text(text)
    return PlainText(_UNEVEN_SPACE.sub(" ", simplified.lower()), text)


@lru_cache(maxsize=4096)  # the letters of an alphabet occur many times
def fold_letter(character: str) -> str:
    """Return the plain lower-case form of one character; an empty string if the character is invisible."""
    if character.isspace():
        return " "
    if INVISIBLE.match(character):
        return ""
    known = LOOK_ALIKES.get(character)
    if known is not None:
        return known.lower()
    if character in "\u2026\u00b0":
        return ","  # Unicode decomposition would give more than one character
    decomposed = unicodedata.normalize("NFKD", character)
    kept = "".join(LOOK_ALIKES.get(part, part) for part in decomposed if not unicodedata.combining(part))
    return kept.translate(PLAIN_PUNCTUATION).lower()


def fold_word(word: str) -> str:
    """Return the plain form of a name. Two names with the same plain form look the same to a reader."""
    return word.lower() if word.isascii() else "".join(map(fold_letter, word))


def find_spaced_letters(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and letters of every sequence such as ``i g n o r e``."""
    for match in _SPACED_LETTERS.finditer(text):
        yield match.start(), match.end(), match[0][::2].lower()


def _fold_text(text: str) -> PlainText:
    joined = {
        position for match in _SPACED_LETTERS.finditer(text) for position in range(match.start() + 1, match.end(), 2)
    }
    characters: list[str] = []
    origins: list[int] = []
    for position, character in enumerate(text):
        if position in joined:
            continue
        for plain_character in fold_letter(character):
            if plain_character == " " and characters and characters[-1] == " ":
                continue
            characters.append(plain_character)
            origins.append(position)
    return PlainText("".join(characters), text, tuple(origins))


WORDS_2 = r"(?:[\w'/]{1,20} ){0,2}"
WORDS_4 = r"(?:[\w'/]{1,20} ){0,4}"
"""Patterns for up to two or up to four arbitrary words, each followed by a space."""

# What may be between two words of a phrase: a space, emphasis, quotes, or the separators of an identifier.
_GAP = r"[ _*`'\"\-]{1,3}"
_LONE_SPACE = lazy_pattern(r"\[(?:\\.|[^\]\\])*\]|\\.| (?![?*+{])")


@cache  # compiled on first use: most patterns are never needed, and compiling all of them is slower than a scan
def compile_phrase(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. A space in it matches any gap between words, such as an underscore or a quotation mark."""
    return re.compile(_LONE_SPACE.sub(lambda match: _GAP if match[0] == " " else match[0], pattern))


class PhraseRule(Record):
    """Patterns that recognise one phrase, and the code of the cue that a match produces."""

    code: str
    gates: tuple[frozenset[str], ...]
    """Sets of words. The patterns are tried only if the text has at least one word of each set."""
    patterns: tuple[str, ...]
    """Regular expressions. Each begins with literal text, so that the regex engine can skip ahead."""
    negatable: bool
    """Whether ``never`` or ``do not`` before the phrase makes it harmless."""
    shouted: bool
    """Whether the phrase counts only in capital letters, as in ``SYSTEM:``."""
    certain: bool
    """Whether the phrase counts in any sentence. Others count only in a sentence that the classifier suspects too."""


def build_phrase_rule(
    code: str, gate: str, *patterns: str, negatable: bool = True, shouted: bool = False, certain: bool = False
) -> PhraseRule:
    """Build a phrase rule. ``gate`` has words separated by spaces, and ``&`` between the sets of words."""
    gates = tuple(frozenset(words.split()) for words in gate.split("&"))
    return PhraseRule(code=code, gates=gates, patterns=patterns, negatable=negatable, shouted=shouted, certain=certain)


CharacterRange = tuple[int, int]

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_KEYCAPS = frozenset("#*0123456789")
_BLACK_FLAG = "\U0001f3f4"
# Complete escape sequences (CSI, OSC and similar), then any other control character except tab, line feed, and carriage
# return before a line feed.
_TERMINAL = lazy_pattern(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ "
    "-/]{0,8}[@-~]?|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,512}(?:\x07|\x1b\\\\|\x9c)?|\x1b[ "
    "-~]?|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
_CONTROL = lazy_pattern("[\x00-\x08\x0b-\x1f\x7f]")  # in ASCII text
_LATIN = lazy_pattern("[A-Za-z]")
_LETTERS_WORD = lazy_pattern(r"[^\W\d_]{2,}")
_RIGHT_TO_LEFT = lazy_pattern("[\u0590-\u05ff\u0620-\u06dc\u06de-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def find_terminal_escapes(text: str) -> Iterator[CharacterRange]:
    """Yield the spans of control characters with which text moves the cursor, hides output or overwrites a line."""
    if text.isascii() and not _CONTROL.search(text):
        return
    for match in _TERMINAL.finditer(text):
        yield match.span()


def find_hidden_characters(text: str) -> Iterator[CharacterRange]:
    """Yield the spans of characters that a model reads but a person does not see."""
    start = end = -1
    right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    for match in INVISIBLE.finditer(text):
        position = match.start()
        if _is_legitimate(text, position, right_to_left):
            continue
        if position != end:
            if end >= 0:
                yield start, end
            start = position
        end = position + 1
    if end >= 0:
        yield start, end


def find_look_alike_words(text: str) -> Iterator[CharacterRange]:
    """Yield the spans of words with letters of another script that look like Latin letters."""
    words = [word for word in _LETTERS_WORD.finditer(text) if not word[0].isascii()]
    if not words:
        return
    include_whole_words = _LATIN.search(text) is not None and not _has_foreign_letters(text)
    for word in words:
        if _imitates_latin(word[0], include_whole_words):
            yield word.span()


def _imitates_latin(word: str, include_whole_words: bool) -> bool:
    disguised = sum(character in LOOK_ALIKES and not _is_latin(character) for character in word)
    latin = sum(_is_latin(character) for character in word)
    styled = sum("\U0001d400" <= character <= "\U0001d7ff" for character in word)
    if styled >= 3:
        return True
    if not disguised:
        return False
    if latin:
        return disguised + latin == len(word)  # any other letter shows that the word is from another language
    return include_whole_words and len(word) >= 3 and disguised == len(word)


def _has_foreign_letters(text: str) -> bool:
    """Whether text has letters of another script that do not look like Latin letters."""
    return any(ord(character) > 0x36F and character.isalpha() and character not in LOOK_ALIKES for character in text)


def _is_latin(character: str) -> bool:
    return character.isascii() or ord(character) < 0x250


def _is_legitimate(text: str, position: int, right_to_left: bool) -> bool:
    """Whether an invisible character has a legitimate use: space, line end, emoji, or a script that needs it."""
    character = text[position]
    point = ord(character)
    if point < 0xA0 or character.isspace():
        return True  # spaces of any width are legitimate; control characters are reported as terminal escapes
    before = text[position - 1] if position else ""
    after = text[position + 1] if position + 1 < len(text) else ""
    if 0xFE00 <= point <= 0xFE0F:
        return _has_variation(before, point)
    if character == _ZWJ and _is_pictograph(after):
        return _ends_pictograph(text, position - 1)
    if character in (_ZWNJ, _ZWJ):
        return _uses_joiners(before) and (_uses_joiners(after) or not after.isalpha())
    if point in (0x200E, 0x200F, 0x061C):
        return right_to_left
    if 0xE0020 <= point <= 0xE007F:
        return _is_in_flag_emoji(text, position)
    if 0xE0100 <= point <= 0xE01EF:
        return "\u3400" <= before <= "\u9fff" or "\U00020000" <= before <= "\U0003ffff"
    if point == 0x2800:
        return "\u2801" <= before <= "\u28ff" or "\u2801" <= after <= "\u28ff"
    if 0x180B <= point <= 0x180F:
        return "\u1820" <= before <= "\u18aa"
    return unicodedata.category(character) == "Mn" and _uses_joiners(before)


def _has_variation(before: str, point: int) -> bool:
    """Whether Unicode allows this variation selector after the character ``before``."""
    if before in _KEYCAPS or _is_pictograph(before):
        return point in (0xFE0E, 0xFE0F)
    if point == 0xFE0F:
        return unicodedata.category(before or " ") in ("Sm", "So", "Po")
    return point <= 0xFE02 and unicodedata.category(before or " ") in ("Sm", "So", "Lo", "Po")


def _is_pictograph(character: str) -> bool:
    if not character or ord(character) < 0xA9:
        return False
    if character >= "\U0001f000":
        return character <= "\U0001faff"  # includes emoji that are newer than Python's Unicode tables
    return unicodedata.category(character) in ("So", "Sk") or character in "\u2194\u2195\u203c\u2049"


def _ends_pictograph(text: str, position: int) -> bool:
    if position >= 0 and text[position] == "\ufe0f":
        position -= 1
    return position >= 0 and _is_pictograph(text[position])


def _uses_joiners(character: str) -> bool:
    """Whether a character belongs to a script that uses joiners, such as Arabic or the scripts of India."""
    return "\u0600" <= character <= "\u109f" or "\u1780" <= character <= "\u18af" or "\ufb50" <= character <= "\ufefc"


def _is_in_flag_emoji(text: str, position: int) -> bool:
    """Whether a tag character belongs to a flag: a black flag, at most six tags, and the closing tag."""
    first = position
    while first > 0 and "\U000e0020" <= text[first - 1] <= "\U000e007f" and position - first < 7:
        first -= 1
    last = position
    while last + 1 < len(text) and "\U000e0020" <= text[last + 1] <= "\U000e007f" and last - first < 7:
        last += 1
    return first > 0 and text[first - 1] == _BLACK_FLAG and last - first <= 6 and text[last] == "\U000e007f"


_UNSEEN_ELEMENT = lazy_pattern(
    r"<\w{1,16}\b[^<>]{0,200}(?:display ?: ?none|visibility ?: ?hidden|font-size ?: ?0|opacity ?: ?0(?![.\d]*[1-9])"
    r"|color ?: ?(?:transparent|white|#fff)\b|\bhidden\b)[^<>]{0,200}>([^<]{12,2000})",
    re.IGNORECASE,
)
_WORD = lazy_pattern(r"[^\W\d_]{2,}")
_MIN_WORDS = 4
# Most comments are notes of authors. A comment is suspicious if it addresses a model or mentions the user.
_ADDRESSES_MODEL = lazy_pattern(
    r"\b(?:assistants?|ai(?: agents?)?|agents?|llms?|chatbots?|you must|your|user's|do not tell|secretly|silently"
    r"|instructions?)\b",
    re.IGNORECASE,
)
# A URL with a placeholder for a part of the conversation or for a secret.
_FILLED_URL = lazy_pattern(
    r"\b(?:https?|wss?|ftp)://[^\s'\"`<>{}$]{3,200}?(?:[{<$]|%7b)[^}>]{0,60}?(?:conversation|history|chat|transcript"
    r"|cookie|password|passwd|credential|system[ _-]?prompt|messages?\b|env\b|environ|(?:github|aws|openai|anthropic"
    r"|slack|npm|google|azure|session|user)[ _-]?\w{0,16}(?:token|secret|key)|secret|clipboard|user[ '_-]{0,2}s?[ _-]?"
    r"(?:data|e-?mail|input|query))",
    re.IGNORECASE,
)
_QUERY = lazy_pattern(r"[?&#;=]")


def find_hidden_markup(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of text in comments, and in HTML elements that are styled to be invisible."""
    for start, end in _find_comments(text):
        content = text[start + 4 : end]
        if _ADDRESSES_MODEL.search(content) and _has_words(content):
            yield start, end
    for match in _UNSEEN_ELEMENT.finditer(text):
        if _has_words(match[1]):
            yield match.span()


def _find_comments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of HTML comments. A comment that is not closed extends to the end of the text."""
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start + 4)
        yield start, end + 3 if end >= 0 else len(text)
        start = text.find("<!--", end) if end >= 0 else -1


def find_leaking_urls(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of URLs whose query has a placeholder for private data."""
    for match in _FILLED_URL.finditer(text):
        if _QUERY.search(match[0]):
            yield match.span()


def _has_words(content: str) -> bool:
    return len(_WORD.findall(content)) >= _MIN_WORDS


_MIN_PIECE = 16
_PIECE = lazy_pattern(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{16,}={0,2}")
_NOT_PIECE = bytes(byte if byte < 0x80 and (chr(byte).isalnum() or byte in b"+/_-=") else 0x20 for byte in range(256))
_HEX = lazy_pattern(r"(?:0x)?((?:[0-9a-fA-F]{2}){8,})=?$")
_BASE32 = lazy_pattern(r"[A-Z2-7]{16,}=?=?$")
_BITS = lazy_pattern(r"(?<![01])[01]{8}(?:\s[01]{8}){7,}(?![01])")
_PERCENT = lazy_pattern(r"(?:%[0-9a-fA-F]{2}|[\w.\-~/]){12,}")
_ESCAPED = lazy_pattern(r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[0-7]{3}){6,}")
_ENTITIES = lazy_pattern(r"(?:&#x?[0-9a-fA-F]{1,6};){6,}")
_ESCAPE = lazy_pattern(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\([0-7]{3})")

_COMMAND = lazy_pattern(
    r"\b(?:curl|wget|chmod|chown|rm -[rf]|mkfifo|nohup|crontab|powershell|invoke-(?:webrequest|expression)|iex\b"
    r"|certutil|netcat|nc -|ncat|socat|scp |ssh |sudo |eval ?\(|exec ?\(|system ?\(|popen ?\(|__import__|base64 -d"
    r"|python3? -c|perl -e|ruby -e|node -e|php -r|osascript|launchctl|systemctl|mshta|rundll32|regsvr32|fetch ?\("
    r"|require ?\(|document\.cookie)|/bin/(?:ba|z|da)?sh\b|/dev/tcp/|\|[ ]?(?:ba|z)?sh\b|&&|>&|drop table|<script",
    re.IGNORECASE,
)
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ROT13 = str.maketrans(_LETTERS, _LETTERS[13:] + _LETTERS[:13])
_DIGIT_LETTERS = str.maketrans("013457@$", "oieastas")
_DIGITS_IN_WORD = lazy_pattern(r"[a-z][013457]{1,2}[a-z]")
_INSTRUCTION_WORDS = parse_words(
    "ignore disregard previous instructions password credentials secret secretly system prompt token user send upload"
)
ROTATED_WORDS = frozenset(word.translate(_ROT13) for word in _INSTRUCTION_WORDS) | frozenset(
    word[::-1] for word in _INSTRUCTION_WORDS
)
"""Words that are typical of instructions, in ROT13 and reversed. None of these forms is a real word."""


def undo_rotations(text: str) -> Iterator[str]:
    """Yield the lower-case text decoded from ROT13, and then the text reversed."""
    yield text.translate(_ROT13)
    yield text[::-1]


def has_digits_for_letters(text: str) -> bool:
    """Whether lower-case text has words with digits for letters, as in ``p4ssw0rd``."""
    first = _DIGITS_IN_WORD.search(text)
    return first is not None and _DIGITS_IN_WORD.search(text, first.end()) is not None


def replace_digits_by_letters(text: str) -> str:
    """Replace digits in lower-case text by the letters they look like: ``p4ssw0rd`` becomes ``password``."""
    return text.translate(_DIGIT_LETTERS)


def find_encoded_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and decoded content of every encoded part of ``text`` that decodes to readable text."""
    for match in _PIECE.finditer(text):
        as_hex = _HEX.match(match[0])
        yield from _yield_readable(match, bytes.fromhex(as_hex[1]) if as_hex else _decode_base64(match[0]))
        if _BASE32.match(match[0]):
            yield from _yield_readable(match, _decode_base32(match[0]))
    for match in _BITS.finditer(text):
        yield from _yield_readable(match, bytes(int(byte, 2) for byte in match[0].split()))
    if "%" in text:
        for match in _PERCENT.finditer(text):
            if match[0].count("%") >= 6:
                yield from _yield_readable(match, unquote(match[0], "latin-1").encode("latin-1", "replace"))
    if "\\" in text:
        for match in _ESCAPED.finditer(text):
            yield from _yield_readable(match, _ESCAPE.sub(_decode_escape, match[0]).encode("latin-1", "replace"))
    if "&#" in text:
        from html import unescape  # imported here because it loads a large table that few texts need

        for match in _ENTITIES.finditer(text):
            yield from _yield_readable(match, unescape(match[0]).encode("latin-1", "replace"))


def extract_long_pieces(text: str) -> str:
    """Keep only the parts of ``text`` that are long enough to be base64 or hex, separated by spaces."""
    pieces = text.encode("ascii", "replace").translate(_NOT_PIECE).split()
    return b" ".join({piece for piece in pieces if len(piece) >= _MIN_PIECE}).decode()


def has_command(text: str) -> bool:
    """Whether decoded text has a shell command or code."""
    return _COMMAND.search(text) is not None


def _yield_readable(match: re.Match[str], content: bytes | None) -> Iterator[tuple[int, int, str]]:
    if content is not None and len(content) >= 6 and not content.translate(None, _PRINTABLE):
        yield match.start(), match.end(), content.decode()


def _decode_base64(encoded: str) -> bytes | None:
    """Decode base64; None if it is invalid. Like lenient decoders, drops an incomplete group of letters at the end."""
    body = encoded.rstrip("=").replace("-", "+").replace("_", "/")
    if len(body) % 4 == 1:
        body = body[:-1]
    try:
        return b64decode(body + "=" * (-len(body) % 4))
    except (BinasciiError, ValueError):
        return None


def _decode_base32(encoded: str) -> bytes | None:
    body = encoded.rstrip("=")
    body = body[: len(body) - (len(body) % 8 in (1, 3, 6))]
    try:
        return b32decode(body + "=" * (-len(body) % 8))
    except (BinasciiError, ValueError):
        return None


def _decode_escape(match: re.Match[str]) -> str:
    digits, base = (match[3], 8) if match[3] else (match[1] or match[2], 16)
    return chr(int(digits, base))
