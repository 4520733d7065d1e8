"""Text: lazily compiled patterns, invisible characters, log commands of build servers, file names, counts, timestamps.

Files, diffs and checks use the same table of invisible characters, so that the person who approves a text sees
everything that the model reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, AnyStr, cast
from unicodedata import normalize

if TYPE_CHECKING:
    from datetime import datetime

_METHODS = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub")


class _LazyPattern:
    """A pattern that is compiled when one of its methods is first used."""

    __slots__ = ("_flags", "_text", *_METHODS)

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but the pattern is compiled on first use. Its attributes (``flags``) are not available."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


# Code points that have no visible glyph, move the cursor, reorder text or look like a space.
INVISIBLE_RANGES: tuple[tuple[int, int], ...] = (
    (0x0000, 0x001F),  # C0 controls
    (0x007F, 0x00A0),  # delete, C1 controls, no-break space
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x0600, 0x0605),  # Arabic number signs (format characters)
    (0x061C, 0x061C),  # Arabic letter mark
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),  # Hangul fillers
    (0x1680, 0x1680),  # Ogham space
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors and vowel separator
    (0x2000, 0x200F),  # spaces of all widths, zero width, direction marks
    (0x2028, 0x202F),  # line and paragraph separators, direction overrides, narrow space
    (0x205F, 0x206F),  # mathematical space, invisible operators, direction isolates
    (0x2800, 0x2800),  # blank Braille pattern
    (0x3000, 0x3000),  # ideographic space
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xDFFF),  # lone surrogates
    (0xE000, 0xF8FF),  # private use
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # zero width no-break space
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFFB),  # unassigned and interlinear annotation
    (0xFFFE, 0xFFFF),  # not characters
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),  # hieroglyph format controls
    (0x1BCA0, 0x1BCA3),  # shorthand format controls
    (0x1D159, 0x1D159),
    (0x1D173, 0x1D17A),  # musical format controls
    (0xE0000, 0xE0FFF),  # tag block, variation selectors supplement
    (0xF0000, 0x10FFFF),  # private use
)

_CLASS = "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in INVISIBLE_RANGES)
INVISIBLE = lazy_pattern(f"[{_CLASS}]")


def show_invisible(text: str) -> str:
    """Replace every invisible character by ``<U+XXXX>``, so that a person sees it. The result is one line."""
    return INVISIBLE.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


_LOG_COMMAND = lazy_pattern(r"(?<=#)#(?=\[|vso\[|teamcity\[)|^([^\S\n]*):(?=:)", re.IGNORECASE | re.MULTILINE)


def neutralize_log_commands(text: str) -> str:
    """Escape text so that build servers find no log command in it.

    GitHub executes ``::name::`` at the start of a line, after any blanks, and ``##[name]`` anywhere in it; Azure
    Pipelines ``##vso[name]`` and TeamCity ``##teamcity[name]``. A server's text can contain any of these, and wrapping
    can move it to the start of a line.
    """
    return _LOG_COMMAND.sub(lambda match: "<U+0023>" if match[0] == "#" else f"{match[1]}<U+003A>", text)


def escape_invisible_json(json_text: str) -> str:
    """Escape every invisible character in JSON text, except line feeds."""
    return INVISIBLE.sub(_escape_character, json_text)


def escape_json_for_log(json_text: str) -> str:
    """Like `escape_invisible_json`, but also escapes log commands of build servers. For output, not for files.

    Only the commands with ``##`` need it, because no line of JSON begins with ``::``.
    """
    return _LOG_COMMAND.sub(lambda match: "\\u0023" if match[0] == "#" else match[0], escape_invisible_json(json_text))


def _escape_character(match: re.Match[str]) -> str:
    character = match[0]
    if character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))


def fold_file_name(name: str) -> str:
    """Return a key that is equal for all names that some file system treats as one file.

    Windows and macOS ignore case and the encoding of accents, macOS ignores invisible characters, and Windows ignores
    trailing dots and blanks.
    """
    if name.isascii():
        return name.casefold().rstrip(". ")
    return normalize("NFC", INVISIBLE.sub("", normalize("NFD", name)).casefold()).rstrip(". ")


CLOCK_SKEW_SECONDS = 600
"""How far the clock of a signer may be ahead of or behind the clock of this machine."""


def parse_timestamp(text: Any) -> datetime | None:
    """Parse an ISO 8601 timestamp; None for anything else, including a time without a zone."""
    if not isinstance(text, str):
        return None
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 finding``, ``2 findings``, ``2 entries``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
