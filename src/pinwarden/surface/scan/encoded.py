"""Text wrapped in base64, hex, percent, character escapes or shifted letters that unwraps to an instruction."""

from __future__ import annotations

import re
from base64 import b32decode, b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

from pinwarden.core.lazy_regex import pattern
from pinwarden.surface.scan.plain_text import word_set

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
_TELLING = word_set(
    "ignore disregard previous instructions password credentials secret secretly system prompt token user send upload"
)
TURNED_GATE = frozenset(word.translate(_SHIFT) for word in _TELLING) | frozenset(word[::-1] for word in _TELLING)
"""Words of an instruction with their letters shifted by thirteen or written backwards; none of them means anything."""


def turned_texts(text: str) -> Iterator[str]:
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


def encoded_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and readable content of every wrapped piece of ``text``."""
    for found in _PIECE.finditer(text):
        as_hex = _HEX.match(found[0])
        yield from _shown(found, bytes.fromhex(as_hex[1]) if as_hex else _from_base64(found[0]))
        if _BASE32.match(found[0]):
            yield from _shown(found, _from_base32(found[0]))
    for found in _BITS.finditer(text):
        yield from _shown(found, bytes(int(byte, 2) for byte in found[0].split()))
    if "%" in text:
        for found in _PERCENT.finditer(text):
            if found[0].count("%") >= 6:
                yield from _shown(found, unquote(found[0], "latin-1").encode("latin-1", "replace"))
    if "\\" in text:
        for found in _ESCAPED.finditer(text):
            yield from _shown(found, _ESCAPE.sub(_escaped_character, found[0]).encode("latin-1", "replace"))
    if "&#" in text:
        for found in _ENTITIES.finditer(text):
            yield from _shown(found, unescape(found[0]).encode("latin-1", "replace"))


def long_pieces(text: str) -> str:
    """The pieces of ``text`` that are long enough to be base64 or hex, and nothing else."""
    pieces = text.encode("ascii", "replace").translate(_NOT_PIECE).split()
    return b" ".join({piece for piece in pieces if len(piece) >= _MIN_PIECE}).decode()


def is_command(text: str) -> bool:
    """Whether text that somebody took the trouble to wrap is something to run."""
    return _COMMAND.search(text) is not None


def _shown(found: re.Match[str], content: bytes | None) -> Iterator[tuple[int, int, str]]:
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
