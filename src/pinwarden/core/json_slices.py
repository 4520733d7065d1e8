"""Split JSON text into its outermost members or elements, without parsing them.

If one item of a list is not strict JSON, the other items can still be parsed, each from its own slice.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import lazy_pattern

_SPACE = " \t\n\r"
_MARK = lazy_pattern(r'"[^"\\]*"|["\[\]{}]')  # a string without escapes, the start of another string, a bracket
# A piece of a string. Its length is bounded, because the regex engine stores a backtracking position per escape.
_PIECE = lazy_pattern(r'(?:[^"\\]+|\\.){1,4096}', re.DOTALL)


def _discard(_: Any) -> None:
    return None


# Skips values: it converts no numbers and builds no objects.
_SKIP = JSONDecoder(object_pairs_hook=_discard, parse_int=_discard, parse_float=_discard, parse_constant=_discard)


class JsonSpan(Record):
    """The position of one member or element in a text, in characters."""

    name: str
    """The name of the member; empty for an element."""
    name_start: int
    """Start of the name; for an element, start of the value."""
    start: int
    """Start of the value."""
    end: int
    """End of the value."""


def split_array(data: bytes) -> list[bytes]:
    """Return the bytes of each element of an array."""
    return [element for _, element in _split_container(data, "[", "]")]


def split_object(data: bytes) -> list[tuple[str, bytes]]:
    """Return the name and bytes of each member of an object, including repeated members."""
    return _split_container(data, "{", "}")


def find_array_spans(text: str, position: int = 0) -> list[JsonSpan]:
    """Return the position of each element of the array that begins at ``position``. Text after it is ignored."""
    return _find_spans(text, position, "[", "]")[0]


def find_object_spans(text: str, position: int = 0) -> list[JsonSpan]:
    """Return the position of each member of the object that begins at ``position``. Text after it is ignored."""
    return _find_spans(text, position, "{", "}")[0]


def _split_container(data: bytes, opening: str, closing: str) -> list[tuple[str, bytes]]:
    try:
        text = data.decode("utf-8", "strict")
    except ValueError as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {type(err).__name__}") from err
    spans, end = _find_spans(text, 0, opening, closing)
    if text[end:].strip(_SPACE):
        raise PinwardenError("JSON_PARSE_ERROR", f"unexpected text after character {end}")
    return [(span.name, text[span.start : span.end].encode()) for span in spans]


def _find_spans(text: str, position: int, opening: str, closing: str) -> tuple[list[JsonSpan], int]:
    try:
        return _scan_spans(text, position, opening, closing)
    except (ValueError, RecursionError) as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {type(err).__name__}") from err


def _scan_spans(text: str, position: int, opening: str, closing: str) -> tuple[list[JsonSpan], int]:
    position = _skip_space(text, position)
    if text[position : position + 1] != opening:
        raise PinwardenError("JSON_PARSE_ERROR", f"expected {opening} at character {position}")
    position = _skip_space(text, position + 1)
    spans: list[JsonSpan] = []
    while text[position : position + 1] != closing or spans:
        name, name_start = "", position
        if opening == "{":
            name, position = _read_name(text, position)
        end = _find_value_end(text, position)
        spans.append(JsonSpan(name=name, name_start=name_start, start=position, end=end))
        position = _skip_space(text, end)
        if text[position : position + 1] != ",":
            break
        position = _skip_space(text, position + 1)
    if text[position : position + 1] != closing:
        raise PinwardenError("JSON_PARSE_ERROR", f"expected {closing} at character {position}")
    return spans, position + 1


def _find_value_end(text: str, position: int) -> int:
    """Return the offset after a value.

    If the value is nested too deeply to parse, search for its closing bracket instead.
    """
    try:
        return _SKIP.raw_decode(text, position)[1]
    except RecursionError:
        end = _find_closing_bracket(text, position)
        if end is None:
            raise
        return end


def _find_closing_bracket(text: str, position: int) -> int | None:
    """Return the offset after the bracket that closes the value; None if the value or a string in it does not end."""
    depth = 0
    restart = True
    while restart:
        restart = False
        for match in _MARK.finditer(text, position):
            mark = match[0]
            if mark in "[{":
                depth += 1
            elif mark in "]}":
                depth -= 1
                if depth == 0:
                    return match.end()
            elif mark == '"':
                position, restart = _find_string_end(text, match.end()), True
                break
    return None


def _find_string_end(text: str, position: int) -> int:
    """Return the offset after the string that begins at ``position``; the end of the text if it is not closed."""
    while (piece := _PIECE.match(text, position)) is not None:
        position = piece.end()
    return position + 1 if text[position : position + 1] == '"' else len(text)


def _read_name(text: str, position: int) -> tuple[str, int]:
    if text[position : position + 1] != '"':
        raise PinwardenError("JSON_PARSE_ERROR", f"expected a member name at character {position}")
    name, position = _SKIP.raw_decode(text, position)
    position = _skip_space(text, position)
    if text[position : position + 1] != ":":
        raise PinwardenError("JSON_PARSE_ERROR", f"expected : at character {position}")
    return name, _skip_space(text, position + 1)


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1] in _SPACE and position < len(text):
        position += 1
    return position
