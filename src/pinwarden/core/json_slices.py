"""The parts of a JSON text as they were written, without giving them a meaning.

When one item of a list cannot be read strictly, the others still must be. These functions cut a text at its
outermost level, so that each part can be judged on its own bytes.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.patterns import pattern
from pinwarden.core.record import Record

_SPACE = " \t\n\r"
_MARK = pattern(r'"[^"\\]*"|["\[\]{}]')  # a string without escapes, the begin of another one, a bracket
# A part of a string. It is bounded so that a string of escapes alone does not fill the memory with ways back.
_PIECE = pattern(r'(?:[^"\\]+|\\.){1,4096}', re.DOTALL)


def _nothing(_: Any) -> None:
    return None


# Values are only skipped, so numbers are not converted and objects not built.
_SKIP = JSONDecoder(object_pairs_hook=_nothing, parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)


class Span(Record):
    """Where one member or element stands in a text, in characters."""

    name: str
    """The member's name; empty for an element."""
    begin: int
    """Where its name starts; for an element, where its value does."""
    start: int
    end: int
    """Where its value starts and ends."""


def array_elements(data: bytes) -> list[bytes]:
    """The text of each element of an array."""
    return [element for _, element in _parts(data, "[", "]")]


def object_members(data: bytes) -> list[tuple[str, bytes]]:
    """The name and text of each member of an object, repeated ones included."""
    return _parts(data, "{", "}")


def array_spans(text: str, place: int = 0) -> list[Span]:
    """Where each element of the array stands that begins at a place; what follows the array is not looked at."""
    return _guarded(text, place, "[", "]")[0]


def object_spans(text: str, place: int = 0) -> list[Span]:
    """Where each member of the object stands that begins at a place; what follows the object is not looked at."""
    return _guarded(text, place, "{", "}")[0]


def _parts(data: bytes, opening: str, closing: str) -> list[tuple[str, bytes]]:
    try:
        text = data.decode("utf-8", "strict")
    except ValueError as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {type(err).__name__}") from err
    spans, end = _guarded(text, 0, opening, closing)
    if text[end:].strip(_SPACE):
        raise PinwardenError("JSON_PARSE_ERROR", f"expected nothing after character {end}")
    return [(span.name, text[span.start : span.end].encode()) for span in spans]


def _guarded(text: str, place: int, opening: str, closing: str) -> tuple[list[Span], int]:
    try:
        return _spans(text, place, opening, closing)
    except (ValueError, RecursionError) as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {type(err).__name__}") from err


def _spans(text: str, place: int, opening: str, closing: str) -> tuple[list[Span], int]:
    place = _after_space(text, place)
    if text[place : place + 1] != opening:
        raise PinwardenError("JSON_PARSE_ERROR", f"expected {opening} at character {place}")
    place = _after_space(text, place + 1)
    spans: list[Span] = []
    while text[place : place + 1] != closing or spans:
        name, begin = "", place
        if opening == "{":
            name, place = _name(text, place)
        end = _end(text, place)
        spans.append(Span(name=name, begin=begin, start=place, end=end))
        place = _after_space(text, end)
        if text[place : place + 1] != ",":
            break
        place = _after_space(text, place + 1)
    if text[place : place + 1] != closing:
        raise PinwardenError("JSON_PARSE_ERROR", f"expected {closing} at character {place}")
    return spans, place + 1


def _end(text: str, place: int) -> int:
    """Where a value ends. One that is nested too deeply to be read is cut at its brackets, and judged by itself."""
    try:
        return _SKIP.raw_decode(text, place)[1]
    except RecursionError:
        end = _end_of_brackets(text, place)
        if end is None:
            raise
        return end


def _end_of_brackets(text: str, place: int) -> int | None:
    """Where the outermost bracket is closed; None if it is not, or if a string has no end."""
    depth = 0
    begun = True
    while begun:
        begun = False
        for found in _MARK.finditer(text, place):
            mark = found[0]
            if mark in "[{":
                depth += 1
            elif mark in "]}":
                depth -= 1
                if depth == 0:
                    return found.end()
            elif mark == '"':
                place, begun = _after_string(text, found.end()), True
                break
    return None


def _after_string(text: str, place: int) -> int:
    """Behind a string, given where its characters begin; behind the whole text if it has no end."""
    while (piece := _PIECE.match(text, place)) is not None:
        place = piece.end()
    return place + 1 if text[place : place + 1] == '"' else len(text)


def _name(text: str, place: int) -> tuple[str, int]:
    if text[place : place + 1] != '"':
        raise PinwardenError("JSON_PARSE_ERROR", f"expected a member name at character {place}")
    name, place = _SKIP.raw_decode(text, place)
    place = _after_space(text, place)
    if text[place : place + 1] != ":":
        raise PinwardenError("JSON_PARSE_ERROR", f"expected : at character {place}")
    return name, _after_space(text, place + 1)


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1] in _SPACE and place < len(text):
        place += 1
    return place
