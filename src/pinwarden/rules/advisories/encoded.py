"""Text wrapped in base64, hex, percent or character escapes that unwraps to a command or an instruction."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

_MIN_PIECE = 16
_PIECE = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{16,}={0,2}")
_NOT_PIECE = bytes(byte if byte < 0x80 and (chr(byte).isalnum() or byte in b"+/_-=") else 0x20 for byte in range(256))
_HEX = re.compile(r"(?:0x)?((?:[0-9a-fA-F]{2}){8,})=?$")
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


def encoded_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and readable content of every wrapped piece of ``text``."""
    for found in _PIECE.finditer(text):
        as_hex = _HEX.match(found[0])
        yield from _shown(found, bytes.fromhex(as_hex[1]) if as_hex else _from_base64(found[0]))
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


def _escaped_character(found: re.Match[str]) -> str:
    digits, base = (found[3], 8) if found[3] else (found[1] or found[2], 16)
    return chr(int(digits, base))
