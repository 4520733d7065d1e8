"""JSON Pointers (RFC 6901), the lines and columns of values in a text, and equality of JSON values.

`locate_pointers` makes one pass over a text, without recursion. It visits only the requested values and does not notice
syntax errors elsewhere, so callers parse the text strictly first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from json import JSONDecoder
from typing import Any, NoReturn

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError


def resolve_pointer(document: Any, pointer: str) -> Any:
    """Return the value at ``pointer`` in ``document``. Raises POINTER_PATH_INVALID if there is none."""
    value = document
    for token in split_pointer(pointer):
        value = _resolve_token(value, token, pointer)
    return value


def escape_pointer_token(name: str | int) -> str:
    """Return a member name or array index as one token of a pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def split_pointer(pointer: str) -> list[str]:
    """Return the unescaped tokens of a pointer. The empty pointer names the whole document and has no tokens."""
    if type(pointer) is not str:
        raise PinwardenError("POINTER_PATH_INVALID", "the JSON Pointer is not a string")
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        _refuse_pointer(pointer, "does not begin with /")
    return [_unescape_token(token, pointer) for token in pointer[1:].split("/")]


def _unescape_token(token: str, pointer: str) -> str:
    pieces = token.split("~")
    if any(piece[:1] not in ("0", "1") for piece in pieces[1:]):
        _refuse_pointer(pointer, "has a ~ that is not followed by 0 or 1")
    return token.replace("~1", "/").replace("~0", "~")


def _resolve_token(value: Any, token: str, pointer: str) -> Any:
    if type(value) is dict and token in value:
        return value[token]
    if type(value) is list and _is_array_index(token, len(value)):
        return value[int(token)]
    _refuse_pointer(pointer, "does not exist in the document")


def _is_array_index(text: str, length: int) -> bool:
    plain = text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")
    return plain and len(text) <= len(str(length)) and int(text) < length


def _refuse_pointer(pointer: str, why: str) -> NoReturn:
    raise PinwardenError("POINTER_PATH_INVALID", f"the pointer {pointer[:100]!a} {why}")


_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r"[-+.0-9A-Za-z]+")  # a number, true, false or null
_MARK = re.compile(r'["\[\]{}]')
_STRINGS = JSONDecoder()
_CLOSING = {"{": "}", "[": "]"}


def locate_pointers(data: bytes, pointers: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the line and column of the value at each pointer, counted from 1 and in code points.

    Pointers without a value are omitted. If an object has a member twice, the first one counts. Lines end with a line
    feed.
    """
    try:
        text = data.decode("utf-8", "strict")
        offsets = _find_offsets(text, _build_pointer_tree(pointers))
    except ValueError as err:  # invalid UTF-8, or an invalid string
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {err}") from err
    return _to_lines_and_columns(text, offsets)


class _PointerNode:
    """A node in the tree of requested pointers. A child is removed when it is found, so the first member counts."""

    __slots__ = ("children", "pointer")

    def __init__(self) -> None:
        self.pointer: str | None = None
        self.children: dict[str, _PointerNode] = {}


def _build_pointer_tree(pointers: Collection[str]) -> _PointerNode:
    root = _PointerNode()
    for pointer in pointers:
        node = root
        for token in split_pointer(pointer):
            node = node.children.setdefault(token, _PointerNode())
        node.pointer = pointer
    return root


class _Container:
    """An object or array whose members are being visited."""

    __slots__ = ("closing", "count", "position", "requested", "text")

    def __init__(self, text: str, position: int, requested: _PointerNode) -> None:
        self.text = text
        self.closing = _CLOSING[text[position]]
        self.position = position + 1
        self.requested = requested
        self.count = 0

    def next_requested(self) -> _PointerNode | None:
        """Move to the next value on the way to a requested pointer, and return its node; None at the end."""
        text = self.text
        while True:
            self.position = _skip_space(text, self.position)
            if text.startswith(self.closing, self.position):
                self.position += 1
                return None
            if self.count:
                self._expect(",")
            child = self.requested.children.pop(self._read_token(), None)
            self.count += 1
            if child is not None:
                return child
            self.position = _skip_value(text, self.position)

    def _read_token(self) -> str:
        """Read the name or index of the next value, and move to the start of the value."""
        if self.closing == "]":
            return str(self.count)
        if not self.text.startswith('"', self.position):
            _refuse_character(self.position)
        name: str
        name, end = _STRINGS.raw_decode(self.text, self.position)
        self.position = _skip_space(self.text, end)
        self._expect(":")
        return name

    def _expect(self, mark: str) -> None:
        if not self.text.startswith(mark, self.position):
            _refuse_character(self.position)
        self.position = _skip_space(self.text, self.position + 1)


def _find_offsets(text: str, root: _PointerNode) -> dict[str, int]:
    """Return the offset of each requested value."""
    offsets: dict[str, int] = {}
    containers: list[_Container] = []
    position, requested = _skip_space(text, 0), root
    while True:
        if requested.pointer is not None:
            offsets[requested.pointer] = position
        if requested.children and text[position : position + 1] in _CLOSING:
            containers.append(_Container(text, position, requested))
        elif containers:
            containers[-1].position = _skip_value(text, position)
        else:
            _skip_value(text, position)
            return offsets
        while (following := containers[-1].next_requested()) is None:
            end = containers.pop().position
            if not containers:
                return offsets
            containers[-1].position = end
        position, requested = containers[-1].position, following


def _skip_value(text: str, position: int) -> int:
    mark = text[position : position + 1]
    if mark == '"':
        return _STRINGS.raw_decode(text, position)[1]
    if mark not in _CLOSING:
        plain = _PLAIN.match(text, position)
        return plain.end() if plain else _refuse_character(position)
    depth = 0
    while match := _MARK.search(text, position):
        position = match.end()
        if match[0] == '"':
            position = _STRINGS.raw_decode(text, match.start())[1]
        else:
            depth += 1 if match[0] in _CLOSING else -1
            if depth == 0:
                return position
    _refuse_character(len(text))


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _to_lines_and_columns(text: str, offsets: dict[str, int]) -> dict[str, tuple[int, int]]:
    line, line_start, last = 1, 0, 0
    result: dict[str, tuple[int, int]] = {}
    for pointer, offset in sorted(offsets.items(), key=lambda item: item[1]):
        line += text.count("\n", last, offset)
        # Search only from the last offset, so that a long line is not searched once per pointer.
        line_start = max(line_start, text.rfind("\n", last, offset) + 1)
        last = offset
        result[pointer] = (line, offset - line_start + 1)
    return result


def _refuse_character(position: int) -> NoReturn:
    raise PinwardenError("JSON_PARSE_ERROR", f"not JSON at character {position}")


def is_json_equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal. 1 equals 1.0, but true does not equal 1, unlike in Python."""
    if one is other:
        return True
    if type(one) is bool or type(other) is bool:
        return False
    if type(one) is dict:
        return (
            type(other) is dict
            and len(one) == len(other)
            and all(name in other and is_json_equal(value, other[name]) for name, value in one.items())
        )
    if type(one) is list:
        return type(other) is list and len(one) == len(other) and all(map(is_json_equal, one, other))
    return bool(one == other)


def json_identity(value: Any) -> bytes:
    """Return a hashable key of a value. Two values have equal keys exactly if `is_json_equal` is true for them."""
    return canonicalize(value)


def iter_strings(value: Any) -> Iterator[str]:
    """Yield every string in a value, including member names, in document order."""
    if type(value) is str:
        yield value
    elif type(value) is dict:
        for name, member in value.items():
            yield name
            yield from iter_strings(member)
    elif type(value) is list:
        for element in value:
            yield from iter_strings(element)


def child_pointer(pointer: str, token: str | int) -> str:
    """Return the pointer of a member or element of the value at ``pointer``."""
    return f"{pointer}/{escape_pointer_token(token)}"
