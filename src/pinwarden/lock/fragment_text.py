"""Fragments as text: Codex's TOML and Continue's YAML, byte for byte as ToolPin prints them.

ToolPin writes YAML with the npm package ``yaml``: text is plain where YAML 1.2 lets it be, in double quotes otherwise
(single quotes if it holds only double ones), lines break at spaces before column 80, text with line feeds is a block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 80
_MIN_CONTENT = 20  # however deep the indentation is, a line has at least that much text


# TOML


def codex_toml(config: dict[str, Any]) -> str:
    """The tables of ``mcp_servers``: scalars and lists first, then one table for each object that is not empty."""
    lines: list[str] = []
    for name, members in config["mcp_servers"].items():
        table = f"mcp_servers.{_toml_key(name)}"
        lines.append(f"[{table}]")
        lines += _toml_lines({key: value for key, value in members.items() if not isinstance(value, dict)})
        for key, inner in members.items():
            if isinstance(inner, dict) and inner:
                lines.append(f"[{table}.{_toml_key(key)}]")
                lines += _toml_lines(inner)
    return "\n".join(lines) + "\n"


def _toml_lines(members: dict[str, Any]) -> Iterator[str]:
    for key, value in members.items():
        if value is not None:  # TOML has no null
            yield f"{_toml_key(key)} = {_toml_value(value)}"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# YAML

_NEEDS_QUOTES = re.compile(r"^[\n\t ,\[\]{}#&*!|>'\"%@`]|^[?-]$|^[?-][ \t]|[\n:][ \t]|[ \t]\n|[\n\t ]#|[\n :-]$")
# What YAML 1.2's core schema would read as something else than text.
_NOT_TEXT = re.compile(
    r"(?:~|[Nn]ull|NULL)?|[Tt]rue|TRUE|[Ff]alse|FALSE|0o[0-7]+|[-+]?[0-9]+|0x[0-9a-fA-F]+|"
    r"[-+]?\.(?:inf|Inf|INF)|\.nan|\.NaN|\.NAN|"
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ESCAPES = {"\0": "\\0", "\x07": "\\a", "\x0b": "\\v", "\x1b": "\\e", "\x85": "\\N"}


def continue_yaml(config: dict[str, Any]) -> str:
    """A whole file, followed by the empty line that ToolPin prints after it."""
    return "\n".join(_yaml_members(config, 0)) + "\n\n"


def _yaml_members(value: dict[str, Any], column: int) -> Iterator[str]:
    for name, member in value.items():
        key = _yaml_key(name) + ":"
        head = " " * column + key
        if isinstance(member, dict) and member:
            yield head
            yield from _yaml_members(member, column + 2)
        elif isinstance(member, list) and member:
            yield head
            yield from _yaml_items(member, column + 2)
        else:
            yield f"{head} {_yaml_leaf(member, column + 2, len(key) + 1)}"


def _yaml_items(items: list[Any], column: int) -> Iterator[str]:
    dash = " " * column + "- "
    for item in items:
        if isinstance(item, dict) and item:
            first, *others = _yaml_members(item, column + 2)
            yield dash + first.lstrip(" ")
            yield from others
        else:
            yield dash + _yaml_leaf(item, column + 2, column + 2)


def _yaml_key(name: str) -> str:
    if not name or "\n" in name or _NEEDS_QUOTES.search(name) or _NOT_TEXT.fullmatch(name):
        return _quoted(name)
    return name


def _yaml_leaf(value: Any, indent: int, used: int) -> str:
    """A value without members or items; ``used`` is how much of its first line is taken, as that package counts."""
    if isinstance(value, str):
        return _yaml_text(value, indent, used)
    if isinstance(value, dict | list):
        return "{}" if isinstance(value, dict) else "[]"
    return json.dumps(value)


def _yaml_text(text: str, indent: int, used: int) -> str:
    if _CONTROL.search(text):
        return _quoted(text)
    if "\n" in text:
        return _block(text, indent)
    if _NEEDS_QUOTES.search(text) or _NOT_TEXT.fullmatch(text):
        return _folded(_quoted(text), indent, used)
    return _folded(text, indent, used)


def _quoted(text: str) -> str:
    if '"' in text and "'" not in text and not _CONTROL.search(text) and "\n" not in text:
        return f"'{text}'"
    quoted = json.dumps(text, ensure_ascii=False)
    for character, escape in _ESCAPES.items():
        quoted = quoted.replace(json.dumps(character)[1:-1], escape).replace(character, escape)
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", quoted)


def _block(text: str, indent: int) -> str:
    """A literal block; the mark says what becomes of the line feeds at the end."""
    body = text.rstrip("\n")
    trailing = len(text) - len(body)
    mark = "-" if trailing == 0 else "" if trailing == 1 else "+"
    depth = "2" if body[:1] in (" ", "\n", "\t") else ""
    lines = body.split("\n") + [""] * max(0, trailing - 1)
    return "\n".join([f"|{depth}{mark}", *(" " * indent + line if line else "" for line in lines)])


def _folded(text: str, indent: int, used: int) -> str:
    """Broken where a line would be too long: at a single space, or inside a word of double-quoted text with a \\."""
    step = max(_MIN_CONTENT, _WIDTH - indent) + 1
    if len(text) <= step:
        return text
    newline = "\n" + " " * indent
    crowded = used > _WIDTH - _MIN_CONTENT  # then the text begins on a line of its own
    places = _fold_places(text, step, _WIDTH - (indent if crowded else used))
    if crowded:
        text = newline + text
        places = [(place + len(newline), in_word) for place, in_word in places]
    if not places:
        return text
    pieces = [text[: places[0][0]]]
    for number, (place, in_word) in enumerate(places):
        end = places[number + 1][0] if number + 1 < len(places) else len(text)
        pieces.append((text[place] + "\\" if in_word else "") + newline + text[place + 1 : end])
    return "".join(pieces)


def _fold_places(text: str, step: int, end: int) -> list[tuple[int, bool]]:
    """Where lines break, and whether it is inside a word."""
    breaks_words = text[0] == '"'
    found: list[tuple[int, bool]] = []
    space = 0  # the last space that a line could break at
    escape_start = escape_end = -1
    place = 0
    while place < len(text):
        if breaks_words and text[place] == "\\":
            escape_start = place
            place += {"x": 3, "u": 5, "U": 9}.get(text[place + 1 : place + 2], 1)
            escape_end = place
        elif (
            text[place] == " " and 0 < place < len(text) - 1 and not set(text[place - 1] + text[place + 1]) & set(" \t")
        ):
            space = place
        if place >= end:
            if space:
                found.append((space, False))
                end, space = space + step, 0
            elif breaks_words:
                while place < len(text) - 1 and text[place - 1] in " \t":
                    place += 1
                cut = place - 2 if place > escape_end + 1 else escape_start - 1
                if (cut, True) in found:
                    return []  # an escape longer than a line: nothing is broken at all
                found.append((cut, True))
                end = cut + step
        place += 1
    return found
