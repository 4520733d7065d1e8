"""Edits of JSON as text, for tests that compare bytes. None of this is the gateway's code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def replaced(frame: bytes, path: tuple[str, ...], value: Any) -> bytes:
    """Return the message with the value at a path replaced."""
    text = frame.decode()
    start, end = place(text, path)
    return (text[:start] + compact(value).decode() + text[end:]).encode()


def added(frame: bytes, member: str, what: bytes) -> bytes:
    """Return the message with a member added to one of its objects."""
    text = frame.decode()
    start, end = place(text, (member,))
    comma = "," if text[start + 1 : end - 1].strip() else ""
    return (text[: start + 1] + what.decode() + comma + text[start + 1 :]).encode()


def compact(value: Any) -> bytes:
    """Serialize JSON without white space."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def place(text: str, path: tuple[str, ...]) -> tuple[int, int]:
    """Return start and end of the value at a path."""
    start, end = 0, len(text)
    for name in path:
        start, end = next((begin, stop) for member, begin, stop in members(text, start) if member == name)
    return start, end


def members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of every member of the object at a position."""

    def one(at: int) -> tuple[str, int, int]:
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        return name, start, _DECODER.raw_decode(text, start)[1]

    return _parts(text, at, one)


def elements(text: str, at: int) -> list[str]:
    """Yield the elements of the array at a position."""

    def one(at: int) -> tuple[str, int, int]:
        return "", at, _DECODER.raw_decode(text, at)[1]

    return [text[start:end] for _, start, end in _parts(text, at, one)]


def _parts(text: str, at: int, one: Callable[[int], tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    at = _skip(text, at) + 1
    while text[at := _skip(text, at)] not in "]}":
        part = one(at)
        yield part
        at = _skip(text, part[2])
        at += text[at] == ","
