"""JSON Pointer (RFC 6901), strictly: what is malformed or names nothing is an error."""

from __future__ import annotations

import re
from collections.abc import Collection
from json import JSONDecoder
from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError


def resolve_pointer(document: Any, pointer: str) -> Any:
    """The value that ``pointer`` names in ``document``."""
    value = document
    for step in pointer_tokens(pointer):
        value = _resolve_token(value, step, pointer)
    return value


def escape_pointer_token(name: str | int) -> str:
    """A name or a number as one step of a pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def pointer_tokens(pointer: str) -> list[str]:
    """The names and numbers that a pointer leads through, unescaped; none for the whole document."""
    if type(pointer) is not str:
        raise PinwardenError("POINTER_PATH_INVALID", "a JSON Pointer is a string")
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        _invalid_pointer(pointer, "does not begin with /")
    return [_unescape_token(step, pointer) for step in pointer[1:].split("/")]


def _unescape_token(step: str, pointer: str) -> str:
    pieces = step.split("~")
    if any(piece[:1] not in ("0", "1") for piece in pieces[1:]):
        _invalid_pointer(pointer, "holds ~ without 0 or 1 after it")
    return step.replace("~1", "/").replace("~0", "~")


def _resolve_token(value: Any, step: str, pointer: str) -> Any:
    if type(value) is dict and step in value:
        return value[step]
    if type(value) is list and _is_array_index(step, len(value)):
        return value[int(step)]
    _invalid_pointer(pointer, "names nothing in the document")


def _is_array_index(step: str, length: int) -> bool:
    plain = step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")
    return plain and len(step) <= len(str(length)) and int(step) < length


def _invalid_pointer(pointer: str, why: str) -> NoReturn:
    raise PinwardenError("POINTER_PATH_INVALID", f"the pointer {pointer[:100]!a} {why}")


_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r"[-+.0-9A-Za-z]+")  # a number, true, false or null
_MARK = re.compile(r'["\[\]{}]')
_STRINGS = JSONDecoder()
_CLOSING = {"{": "}", "[": "]"}


def locate_pointers(data: bytes, pointers: Collection[str]) -> dict[str, tuple[int, int]]:
    """Line and column, from 1 and in code points, of the value that each JSON Pointer names.

    A pointer that names nothing is left out. Where an object has a member twice, the first one counts. Lines end
    with a line feed.
    """
    try:
        text = data.decode("utf-8", "strict")
        offsets = _offsets(text, _pointer_tree(pointers))
    except ValueError as err:  # UTF-8 or a string
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {err}") from err
    return _lines_and_columns(text, offsets)


class _PointerNode:
    """A place on the way to values that are asked for. Children are taken out when they are met: the first counts."""

    __slots__ = ("children", "pointer")

    def __init__(self) -> None:
        self.pointer: str | None = None
        self.children: dict[str, _PointerNode] = {}


def _pointer_tree(pointers: Collection[str]) -> _PointerNode:
    root = _PointerNode()
    for pointer in pointers:
        node = root
        for step in pointer_tokens(pointer):
            node = node.children.setdefault(step, _PointerNode())
        node.pointer = pointer
    return root


class _Container:
    """An object or array that is being walked through."""

    __slots__ = ("closing", "count", "place", "text", "wanted")

    def __init__(self, text: str, place: int, wanted: _PointerNode) -> None:
        self.text = text
        self.closing = _CLOSING[text[place]]
        self.place = place + 1
        self.wanted = wanted
        self.count = 0

    def next_wanted(self) -> _PointerNode | None:
        """Go to the next value that lies on the way to one asked for; None, and behind the end, if there is none."""
        text = self.text
        while True:
            self.place = _after_space(text, self.place)
            if text.startswith(self.closing, self.place):
                self.place += 1
                return None
            if self.count:
                self._expect(",")
            child = self.wanted.children.pop(self._step(), None)
            self.count += 1
            if child is not None:
                return child
            self.place = _after_value(text, self.place)

    def _step(self) -> str:
        """The name or number of the value that begins next, and the place there."""
        if self.closing == "]":
            return str(self.count)
        if not self.text.startswith('"', self.place):
            _unexpected(self.place)
        name: str
        name, end = _STRINGS.raw_decode(self.text, self.place)
        self.place = _after_space(self.text, end)
        self._expect(":")
        return name

    def _expect(self, mark: str) -> None:
        if not self.text.startswith(mark, self.place):
            _unexpected(self.place)
        self.place = _after_space(self.text, self.place + 1)


def _offsets(text: str, root: _PointerNode) -> dict[str, int]:
    """Where in the text each value begins."""
    found: dict[str, int] = {}
    inside: list[_Container] = []
    place, wanted = _after_space(text, 0), root
    while True:
        if wanted.pointer is not None:
            found[wanted.pointer] = place
        if wanted.children and text[place : place + 1] in _CLOSING:
            inside.append(_Container(text, place, wanted))
        elif inside:
            inside[-1].place = _after_value(text, place)
        else:
            _after_value(text, place)
            return found
        while (following := inside[-1].next_wanted()) is None:
            end = inside.pop().place
            if not inside:
                return found
            inside[-1].place = end
        place, wanted = inside[-1].place, following


def _after_value(text: str, place: int) -> int:
    mark = text[place : place + 1]
    if mark == '"':
        return _STRINGS.raw_decode(text, place)[1]
    if mark not in _CLOSING:
        plain = _PLAIN.match(text, place)
        return plain.end() if plain else _unexpected(place)
    depth = 0
    while found := _MARK.search(text, place):
        place = found.end()
        if found[0] == '"':
            place = _STRINGS.raw_decode(text, found.start())[1]
        else:
            depth += 1 if found[0] in _CLOSING else -1
            if depth == 0:
                return place
    _unexpected(len(text))


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _lines_and_columns(text: str, offsets: dict[str, int]) -> dict[str, tuple[int, int]]:
    line, line_start, last = 1, 0, 0
    result: dict[str, tuple[int, int]] = {}
    for pointer, offset in sorted(offsets.items(), key=lambda found: found[1]):
        line += text.count("\n", last, offset)
        # Looked for only since the last offset, so that a long line is not searched once per pointer.
        line_start = max(line_start, text.rfind("\n", last, offset) + 1)
        last = offset
        result[pointer] = (line, offset - line_start + 1)
    return result


def _unexpected(place: int) -> NoReturn:
    raise PinwardenError("JSON_PARSE_ERROR", f"not JSON at character {place}")
