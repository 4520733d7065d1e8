"""Text for a terminal: readable without colour, and safe to print whatever a server sent."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from pinwarden.cli.layout import terminal_width, wrap
from pinwarden.core.text import neutralize_log_commands, show_invisible

if TYPE_CHECKING:
    from pinwarden.core.report import Report, Row

_PAINT = {"critical": "1;31", "review": "33", "warning": "33", "info": "36", "add": "32", "remove": "31"}
_WIDTH = 8  # characters of the column for the level


def render_text(report: Report, *, colour: bool = False) -> str:
    """Rows, then notes, then the summary."""
    notes = (*(f"note: {note}" for note in report.notes), report.summary)
    return render_rows(report.rows, colour=colour) + "".join(map(wrap, notes))


def render_rows(rows: tuple[Row, ...], *, colour: bool = False) -> str:
    """Render only rows."""
    width = terminal_width()
    lines = (line for row, names in _group_alike(rows) for line in _row(row, names, width, colour))
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def _group_alike(rows: tuple[Row, ...]) -> list[tuple[Row, list[str]]]:
    """Group rows that differ only in the item: thirteen tools with the same change are one block to read."""
    groups: dict[tuple[object, ...], tuple[Row, list[str]]] = {}
    for row in rows:
        location, texts = (row.path, row.file, row.line), (row.message, row.before, row.after, row.excerpt)
        key = (row.severity, row.entity, row.code, *location, *texts)
        groups.setdefault(key, (row, []))[1].append(row.name)
    return list(groups.values())


def _row(row: Row, names: list[str], width: int, colour: bool) -> list[str]:
    level = _paint(f"{row.severity:{_WIDTH}}", row.severity, colour)
    path = "".join(f"  {location}" for location in (row.path, _file_location(row)) if location)
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        times = f"  ({len(names)} times)" if len(names) > 1 else ""
        lines = [f"{level}  {show_invisible(f'{row.entity} {row.name}'.strip() + path)}{times}"]
    else:
        lines = [f"{level}  {len(distinct)} {show_invisible(f'{_plural(row.entity)}{path}')}"]
        lines += _wrapped(show_invisible(", ".join(distinct)), width)
    lines += _wrapped(show_invisible(f"{row.message} ({row.code})"), width)
    if row.before is not None and row.after is not None:
        lines += _wrapped(_inline(row.before, row.after), width, colour=colour)
    elif row.before is not None:
        lines += _wrapped(_marked("delete", show_invisible(row.before)), width, colour=colour)
    elif row.after is not None:
        lines += _wrapped(_marked("insert", show_invisible(row.after)), width, colour=colour)
    elif row.excerpt:
        lines += _wrapped(f"> {show_invisible(row.excerpt)}", width)
    return lines


def _plural(entity: str) -> str:
    return f"{entity[:-1]}ies" if entity.endswith("y") else f"{entity}s"


def _file_location(row: Row) -> str:
    """``file:line:column`` as far as known, which many terminals can open."""
    known = (row.file, *((row.line, row.column) if row.file else ()))
    return ":".join(str(part) for part in known if part is not None)


def _inline(before: str, after: str) -> str:
    """Like ``git diff --word-diff``: removed text in [-…-], added text in {+…+}."""
    from pinwarden.surface.drift.text_diff import text_diff

    return "".join(_marked(operation, text) for operation, text in text_diff(before, after))


_MARKS = {"equal": ("", ""), "delete": ("[-", "-]"), "insert": ("{+", "+}")}
_FORGED = re.compile(r"(?<=\[)-|-(?=\])|(?<=\{)\+|\+(?=\})|^[\]}]")


def _marked(operation: str, text: str) -> str:
    """A text between its marks. Marks inside it are escaped, or they could make new text look unchanged."""
    return _FORGED.sub(lambda match: f"<U+{ord(match[0]):04X}>", text).join(_MARKS[operation])


def _wrapped(text: str, width: int, *, colour: bool = False) -> list[str]:
    indent = " " * (_WIDTH + 2)
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    )
    if not colour:
        return lines
    # Coloured after wrapping, so that escape codes do not count as width. A mark may span lines.
    painted, open_mark = [], ""
    for line in lines:
        shown = open_mark + line[len(indent) :]
        for start, end, name in (("[-", "-]", "remove"), ("{+", "+}", "add")):
            shown = shown.replace(start, f"\x1b[{_PAINT[name]}m{start}").replace(end, f"{end}\x1b[0m")
            if line.rfind(start) > line.rfind(end):
                open_mark = f"\x1b[{_PAINT[name]}m"
            elif end in line:
                open_mark = ""
        painted.append(indent + shown + "\x1b[0m")
    return painted


def _paint(text: str, name: str, colour: bool) -> str:
    return f"\x1b[{_PAINT[name]}m{text}\x1b[0m" if colour else text
