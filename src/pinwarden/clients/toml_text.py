"""Parse TOML, and replace, add or remove the tables of one server without changing any other text."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import INVISIBLE

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# The tokens of TOML, in just enough detail to find the end of a statement. The text has already been parsed by tomllib.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'|"
    r"#[^\r\n]*|"
    r"[\[\]{}\n]|"
    r"[ \t\r]+|"
    r"[^\"'#\[\]{}\s]+",
    re.DOTALL,
)
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def read_toml(text: str) -> Any:
    """Parse a TOML document. Raises ``CONFIG_INVALID``."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError as err:
        raise PinwardenError("CONFIG_INVALID", "the file is nested too deeply") from err
    except ValueError as err:
        # Only the position is reported: tomllib's message may quote a secret.
        position = re.search(r"\(at [a-z0-9, ]+\)", str(err))
        message = f"the file is not valid TOML {position[0] if position else ''}".strip()
        raise PinwardenError("CONFIG_INVALID", message) from err


def put_table(text: str, path: tuple[str, ...], value: dict[str, Any]) -> str:
    """Return the text with the table at ``path`` set to ``value``."""
    newline = "\r\n" if "\r\n" in text else "\n"
    rendered = newline.join(_render_table(path, value))
    sections = [section for section in _find_sections(text) if section.path[: len(path)] == path]
    if not sections:
        gap = "" if not text.strip("\r\n") else newline if text.endswith("\n") else newline * 2
        return (text if gap else "") + gap + rendered + newline
    first, *others = sections
    for section in reversed(others):
        text = _cut_section(text, section)
    return text[: first.start] + rendered + text[first.end :]


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """Return the text without the table at ``path`` and its subtables."""
    for section in reversed(_find_sections(text)):
        if section.path[: len(path)] == path:
            text = _cut_section(text, section)
    return text


def quote_string(text: str) -> str:
    """Quote a string for TOML or YAML, with invisible characters escaped."""
    escaped = "".join(_SHORT_ESCAPES.get(character, character) for character in text)
    return '"' + INVISIBLE.sub(lambda match: _escape(match[0]), escaped) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class _Section(Record):
    """A table header and its statements, ``text[start:end]``, without the blank lines and comments after them."""

    path: tuple[str, ...]
    start: int
    end: int


def _cut_section(text: str, section: _Section) -> str:
    """Remove a section and its line end. If there are blank lines before and after it, one of them is removed too."""
    before, after = text[: section.start], text[section.end :]
    after = re.sub(r"\A\r?\n", "", after, count=1)
    if not before or re.search(r"\n\r?\n\Z", before):
        after = re.sub(r"\A\r?\n", "", after, count=1)
    if not after:
        before = re.sub(r"(?<=\n)\r?\n\Z", "", before)
    return before + after


def _find_sections(text: str) -> list[_Section]:
    sections: list[_Section] = []
    header: tuple[tuple[str, ...], int] | None = None
    end = 0
    depth = 0
    statement: int | None = None  # the start of the current statement
    position = 1 if text.startswith("\ufeff") else 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise PinwardenError("CONFIG_UNEDITABLE", "the TOML file has a layout that cannot be edited")
        word, start, position = token[0], position, token.end()
        if word == "\n" and depth == 0:
            statement = None
        elif word[0] not in " \t\r\n#":
            if statement is None and word == "[":
                if header:
                    sections.append(_Section(path=header[0], start=header[1], end=end))
                header = _parse_header(text, start), start
            statement = start if statement is None else statement
            depth += (word in "[{") - (word in "]}")
        if statement is not None and word[0] not in "\n\r \t":
            end = position  # a comment on the same line belongs to the statement
    if header:
        sections.append(_Section(path=header[0], start=header[1], end=end))
    return sections


def _parse_header(text: str, start: int) -> tuple[str, ...]:
    line_end = text.find("\n", start)
    table: Any = tomllib.loads(text[start : line_end + 1 if line_end >= 0 else len(text)])
    path: list[str] = []
    while type(table) is dict and table:
        name, table = next(iter(table.items()))
        path.append(name)
        if type(table) is list:
            table = table[0]
    return tuple(path)


def _render_table(path: tuple[str, ...], value: dict[str, Any]) -> list[str]:
    """Render scalar and list members first, then a subtable for each member that is a non-empty object."""
    lines = [f"[{'.'.join(map(_render_key, path))}]"]
    lines += [f"{_render_key(name)} = {_render_value(item)}" for name, item in value.items() if type(item) is not dict]
    for name, item in value.items():
        if type(item) is dict and item:
            lines += _render_table((*path, name), item)
    return lines


def _render_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else quote_string(name)


def _render_value(value: Any) -> str:
    if type(value) is str:
        return quote_string(value)
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (int, float):
        return repr(value)
    if type(value) is list:
        return "[" + ", ".join(map(_render_value, value)) + "]"
    if type(value) is dict:
        return "{" + ", ".join(f"{_render_key(name)} = {_render_value(item)}" for name, item in value.items()) + "}"
    raise PinwardenError("CONFIG_UNEDITABLE", f"TOML has no values of type {type(value).__name__}")
