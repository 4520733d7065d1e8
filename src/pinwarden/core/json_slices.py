"""The parts of a JSON text as they were written, without giving them a meaning.

When one item of a list cannot be read strictly, the others still must be. These functions cut a text at its
outermost level, so that each part can be judged on its own bytes.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Any

from pinwarden.core.errors import PinwardenError

_SPACE = " \t\n\r"
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def _nothing(_: Any) -> None:
    return None


# Values are only skipped, so numbers are not converted and objects not built.
_SKIP = JSONDecoder(object_pairs_hook=_nothing, parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing)


def array_elements(data: bytes) -> list[bytes]:
    """The text of each element of an array."""
    return [element for _, element in _parts(data, "[", "]")]


def object_members(data: bytes) -> list[tuple[str, bytes]]:
    """The name and text of each member of an object, repeated ones included."""
    return _parts(data, "{", "}")


def _parts(data: bytes, opening: str, closing: str) -> list[tuple[str, bytes]]:
    try:
        text = data.decode("utf-8", "strict")
        place = _after_space(text, 0)
        if text[place : place + 1] != opening:
            raise PinwardenError("JSON_PARSE_ERROR", f"expected {opening} at character {place}")
        place = _after_space(text, place + 1)
        parts: list[tuple[str, bytes]] = []
        while text[place : place + 1] != closing or parts:
            name = ""
            if opening == "{":
                name, place = _name(text, place)
            end = _end(text, place)
            parts.append((name, text[place:end].encode()))
            place = _after_space(text, end)
            if text[place : place + 1] != ",":
                break
            place = _after_space(text, place + 1)
        if text[place : place + 1] != closing or text[place + 1 :].strip(_SPACE):
            raise PinwardenError("JSON_PARSE_ERROR", f"expected {closing} at character {place}")
    except (ValueError, RecursionError) as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {type(err).__name__}") from err
    return parts


def _end(text: str, place: int) -> int:
    """Where a value ends. One that is nested too deeply to be read is cut at its brackets, and judged by itself."""
    try:
        return _SKIP.raw_decode(text, place)[1]
    except RecursionError:
        depth = 0
        for found in _BRACKET.finditer(text, place):
            depth += found[0] in "[{"
            depth -= found[0] in "]}"
            if depth == 0:
                return found.end()
        raise


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
