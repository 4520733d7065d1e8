"""Parse JSON with comments and trailing commas, and edit it in place.

People edit these files by hand. An edit therefore changes only the characters of one member, and keeps the order,
comments, indentation and line ends of everything else. The parser records the position of every value for this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from json.decoder import scanstring  # type: ignore[attr-defined]  # missing in the type stubs
from math import isfinite
from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import DEFAULT_LIMITS, Limits
from pinwarden.core.text import escape_invisible_json, lazy_pattern

_TRIVIA = lazy_pattern(r"(?:[ \t\r\n]+|//[^\r\n\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = lazy_pattern(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = lazy_pattern(r"true|false|null")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_REST_OF_LINE = lazy_pattern(r"[ \t]*\r?\n")
_BLANKS = lazy_pattern(r"[ \t]*")


class JsoncMember(Record):
    """A member of an object. ``start`` is the position of its name in the text."""

    name: str
    start: int
    value: Node


class Node(Record):
    """A parsed value and its position in the text, ``text[start:end]``."""

    value: Any = field(repr=False)
    start: int
    end: int
    members: tuple[JsoncMember, ...] = ()
    elements: tuple[Node, ...] = ()
    """The elements, if the value is an array."""
    trailing_comma: bool = False
    """Whether there is a comma between the last member and the closing brace."""

    def member(self, name: str) -> JsoncMember | None:
        """Return the member with this name, or None."""
        return next((member for member in self.members if member.name == name), None)


def decode_text(data: bytes, limits: Limits = DEFAULT_LIMITS) -> str:
    """Decode UTF-8 and keep a byte order mark. Raises ``CONFIG_INVALID``."""
    if len(data) > limits.max_bytes:
        raise PinwardenError("CONFIG_INVALID", f"the file is larger than {limits.max_bytes} bytes")
    try:
        return data.decode("utf-8", "strict")
    except UnicodeDecodeError as err:
        raise PinwardenError("CONFIG_INVALID", f"the file is not UTF-8 (byte {err.start})") from err


def parse_jsonc(text: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse JSON with comments. Refuses repeated members, because parsers differ in which of them they use."""
    start = 1 if text.startswith("\ufeff") else 0
    try:
        node = _Parser(text, limits).parse_value(_skip_trivia(text, start), 1)
    except RecursionError as err:
        raise PinwardenError("CONFIG_INVALID", "the file is nested too deeply") from err
    end = _skip_trivia(text, node.end)
    if end != len(text):
        _raise_invalid(text, end, "unexpected text after the end of the value")
    return node


class _Parser:
    """A recursive-descent parser for one text."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.limits = limits

    def parse_value(self, position: int, depth: int) -> Node:
        if depth > self.limits.max_depth:
            _raise_invalid(self.text, position, "the value is nested too deeply")
        first = self.text[position : position + 1]
        if first == "{":
            return self._parse_object(position, depth)
        if first == "[":
            return self._parse_array(position, depth)
        if first == '"':
            value, end = self._parse_string(position)
            return Node(value=value, start=position, end=end)
        word = _WORD.match(self.text, position)
        if word:
            return Node(value=_WORDS[word[0]], start=position, end=word.end())
        return self._parse_number(position)

    def _parse_object(self, start: int, depth: int) -> Node:
        members: dict[str, JsoncMember] = {}
        position = _skip_trivia(self.text, start + 1)
        comma = False
        while self.text[position : position + 1] != "}":
            if members and not comma:
                _raise_invalid(self.text, position, "expected , or }")
            if self.text[position : position + 1] != '"':
                _raise_invalid(self.text, position, "expected a member name or }")
            name, end = self._parse_string(position)
            colon = _skip_trivia(self.text, end)
            if self.text[colon : colon + 1] != ":":
                _raise_invalid(self.text, colon, "expected :")
            if name in members:
                _raise_invalid(self.text, position, f"member {name[:80]!a} occurs more than once in one object")
            value = self.parse_value(_skip_trivia(self.text, colon + 1), depth + 1)
            members[name] = JsoncMember(name=name, start=position, value=value)
            position, comma = self._skip_comma(value.end)
        return Node(
            value={name: member.value.value for name, member in members.items()},
            start=start,
            end=position + 1,
            members=tuple(members.values()),
            trailing_comma=comma,
        )

    def _parse_array(self, start: int, depth: int) -> Node:
        elements: list[Node] = []
        position = _skip_trivia(self.text, start + 1)
        comma = False
        while self.text[position : position + 1] != "]":
            if elements and not comma:
                _raise_invalid(self.text, position, "expected , or ]")
            elements.append(self.parse_value(position, depth + 1))
            position, comma = self._skip_comma(elements[-1].end)
        values = [element.value for element in elements]
        return Node(value=values, start=start, end=position + 1, elements=tuple(elements))

    def _skip_comma(self, position: int) -> tuple[int, bool]:
        position = _skip_trivia(self.text, position)
        if self.text[position : position + 1] != ",":
            return position, False
        return _skip_trivia(self.text, position + 1), True

    def _parse_string(self, position: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self.text, position + 1, True)
            value.encode()
        except UnicodeEncodeError:
            _raise_invalid(self.text, position, "a string contains a lone surrogate")
        except ValueError:
            _raise_invalid(self.text, position, "a string does not end, or contains a bad escape or control character")
        return value, end

    def _parse_number(self, position: int) -> Node:
        match = _NUMBER.match(self.text, position)
        if not match:
            _raise_invalid(self.text, position, "expected a value")
        if len(match[0]) > self.limits.max_digits:
            _raise_invalid(self.text, position, "a number has too many digits")
        number: int | float = float(match[0]) if match[1] or match[2] else int(match[0])
        if not isfinite(number):
            _raise_invalid(self.text, position, "a number is too large")
        return Node(value=number, start=position, end=match.end())


def put_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """Return the text with the member at ``path`` set to ``value``. Missing objects along the path are created.

    If an object replaces an object, only the members that differ are edited, so that comments inside it stay. Likewise,
    if an array keeps its length, only the elements that differ are edited. An array on one line stays on one line.
    """
    node = parse_jsonc(text)
    for depth, name in enumerate(path):
        if type(node.value) is not dict:
            raise PinwardenError("CONFIG_UNEDITABLE", f"{'/'.join(path[:depth]) or 'the file'} is not an object")
        member = node.member(name)
        if member is None:
            for inner in reversed(path[depth + 1 :]):
                value = {inner: value}
            return _insert_member(text, node, name, value)
        node = member.value
    if _is_equal(node.value, value):
        return text
    if type(node.value) is dict and type(value) is dict:
        for name in node.value:
            if name not in value:
                text = remove_value(text, (*path, name))
        for name, inner in value.items():
            text = put_value(text, (*path, name), inner)
        return text
    if type(node.value) is list and type(value) is list and node.elements:
        return _replace_elements(text, node, value)
    return text[: node.start] + _render(value, _Style.detect(text), _get_indent(text, node.start)) + text[node.end :]


def _replace_elements(text: str, node: Node, values: list[Any]) -> str:
    """Return the text with new elements in an array, on one line or several lines as before."""
    style, outer = _Style.detect(text), _get_indent(text, node.start)
    if len(values) == len(node.elements):
        for element, value in reversed(list(zip(node.elements, values, strict=True))):
            if not _is_equal(element.value, value):
                rendered = _render(value, style, _get_indent(text, element.start))
                text = text[: element.start] + rendered + text[element.end :]
        return text
    if "\n" in text[node.start : node.end]:
        return text[: node.start] + _render(values, style, outer) + text[node.end :]
    close = [one.end + 1 == other.start for one, other in pairwise(node.elements)]
    between = "," if close and all(close) else ", "
    return f"{text[: node.start]}[{between.join(map(render_inline, values))}]{text[node.end :]}"


def remove_value(text: str, path: tuple[str, ...]) -> str:
    """Return the text without the member at ``path``, but with the comments around it."""
    node = parse_jsonc(text)
    for name in path[:-1]:
        member = node.member(name)
        if member is None:
            return text
        node = member.value
    names = [member.name for member in node.members]
    if path[-1] not in names:
        return text
    return _remove_member(text, node, names.index(path[-1]))


def render_file(value: Any) -> str:
    """Render a new file, indented by two spaces, with a line feed after each line."""
    return _render(value, _Style(indent="  ", newline="\n"), "") + "\n"


class _Style(Record):
    """The indentation and line ends that a text uses."""

    indent: str
    newline: str

    @classmethod
    def detect(cls, text: str) -> _Style:
        first = text.find("\n")
        newline = "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"
        indented = re.search(r"\n([ \t]+)\"", text)
        return cls(indent=indented[1] if indented else "  ", newline=newline)


def _insert_member(text: str, node: Node, name: str, value: Any) -> str:
    """Insert a member at the end of an object, after any comments there."""
    style = _Style.detect(text)
    last = node.members[-1] if node.members else None
    closing = node.end - 1
    position = closing
    while text[position - 1] in " \t\r\n":
        position -= 1
    brace_on_own_line = "\n" in text[position:closing]
    if last is not None and not brace_on_own_line and not _begins_line(text, last.start):
        comma = "," if node.trailing_comma else ""
        return _splice(text, node, position, f" {render_inline(name)}: {render_inline(value)}{comma}", position)
    outer = _get_indent(text, node.start)
    inner = _get_indent(text, last.start) if last is not None else outer + style.indent
    added = f"{style.newline}{inner}{render_inline(name)}: {_render(value, style, inner)}"
    added += "," if node.trailing_comma else ""
    if brace_on_own_line:
        return _splice(text, node, position, added, position)
    return _splice(text, node, position, added + style.newline + outer, closing)


def _splice(text: str, node: Node, start: int, added: str, end: int) -> str:
    """Replace ``text[start:end]`` by ``added``, and insert a comma after the member that was last until now."""
    if not node.members or node.trailing_comma:
        return text[:start] + added + text[end:]
    after = node.members[-1].value.end
    return text[:after] + "," + text[after:start] + added + text[end:]


def _remove_member(text: str, node: Node, index: int) -> str:
    start, end = node.members[index].start, node.members[index].value.end
    cuts: list[tuple[int, int]] = []
    if index < len(node.members) - 1 or node.trailing_comma:
        comma = _skip_trivia(text, end)
        if comma == end:
            end += 1
        else:  # keep the comment between the value and its comma
            cuts.append((comma, comma + 1))
    elif index > 0:
        comma = _skip_trivia(text, node.members[index - 1].value.end)
        cuts.append((comma, comma + 1))
    line_end = _REST_OF_LINE.match(text, end)
    if not _begins_line(text, start):
        while text[start - 1] in " \t":
            start -= 1
    elif line_end:
        start, end = text.rfind("\n", 0, start) + 1, line_end.end()
    for cut_start, cut_end in sorted([*cuts, (start, end)], reverse=True):
        text = text[:cut_start] + text[cut_end:]
    return _collapse_empty_object(text, node.start) if len(node.members) == 1 else text


def _collapse_empty_object(text: str, start: int) -> str:
    """Write an object that contains only spaces as ``{}``."""
    end = start + 1
    while text[end] in " \t\r\n":
        end += 1
    return text[: start + 1] + text[end:] if text[end] == "}" else text


def _render(value: Any, style: _Style, outer: str) -> str:
    """Render a value over several lines, as ``JSON.stringify`` does if called with an indentation."""
    inner = outer + style.indent
    between = "," + style.newline + inner
    if type(value) is dict and value:
        members = between.join(f"{render_inline(name)}: {_render(item, style, inner)}" for name, item in value.items())
        return "{" + style.newline + inner + members + style.newline + outer + "}"
    if type(value) is list and value:
        elements = between.join(_render(item, style, inner) for item in value)
        return "[" + style.newline + inner + elements + style.newline + outer + "]"
    return render_inline(value)


def render_inline(value: Any) -> str:
    """Render a value on one line, with invisible characters escaped."""
    return escape_invisible_json(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _get_indent(text: str, position: int) -> str:
    """Return the spaces and tabs at the beginning of the line that contains ``position``."""
    match = _BLANKS.match(text, text.rfind("\n", 0, position) + 1, position)
    return match[0] if match else ""


def _begins_line(text: str, position: int) -> bool:
    return not text[text.rfind("\n", 0, position) + 1 : position].strip(" \t")


def _skip_trivia(text: str, position: int) -> int:
    match = _TRIVIA.match(text, position)
    return match.end() if match else position


def _is_equal(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _raise_invalid(text: str, position: int, problem: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise PinwardenError("CONFIG_INVALID", f"line {line}, column {column}: {problem}", data={"line": line})
