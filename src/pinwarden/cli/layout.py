"""Wrapped text, tables and lists for a terminal. Text from servers and files is made harmless first."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, TextIO

from pinwarden.core.text import neutralize_log_commands, show_invisible

_MAX_CELL = 60


def terminal_width() -> int:
    """The terminal's width, 40 to 120 columns; 100 if there is no terminal."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


def _width_of(stream: TextIO | None = None) -> int:
    """The width of the terminal behind a stream (stdout by default); 0 if it is not a terminal."""
    if stream is None or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((0, 0)).columns if (stream or sys.stdout).isatty() else 0
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or not a file
        return 0


def wrap(text: str, label: str = "", *, to: TextIO | None = None) -> str:
    """A sentence wrapped to the terminal; on a single line if the output is not a terminal.

    A ``label`` stands before the first line, and the other lines are indented by its width. ``to`` is the stream that
    the text is written to, stdout by default.
    """
    shown = show_invisible(text)
    width = _width_of(to)
    if not width:
        return neutralize_log_commands(f"{label}{shown}\n")
    lines = textwrap.wrap(
        shown,
        max(40, width),
        initial_indent=label,
        subsequent_indent=" " * len(label) or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def truncate(line: str) -> str:
    """A line cut to the width of the terminal; unchanged if the output is not a terminal."""
    width = _width_of()
    return line if not width or len(line) <= width else f"{line[: max(40, width) - 1]}…"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Long cells are cut, except in the last column.

    On a terminal that is too narrow for the table, each row becomes a block of lines.
    """
    cells = [[_cell(text, last=column == len(row) - 1) for column, text in enumerate(row)] for row in rows]
    lines_of_cells = [list(headings), *cells]
    widths = [max(len(row[column]) for row in lines_of_cells) for column in range(len(headings))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in lines_of_cells
    ]
    terminal = _width_of()
    if terminal and sum(widths[:-1]) + 2 * len(widths) > terminal:  # only the last column may exceed the edge
        return "".join(map(_block, repeat(headings), cells))
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def _block(headings: Sequence[str], cells: Sequence[str]) -> str:
    rows = zip(headings[1:], cells[1:], strict=True)
    return f"{cells[0]}\n" + "".join(wrap(f"  {heading.lower()}: {text}") for heading, text in rows)


def definition_list(rows: Mapping[str, str]) -> str:
    """Names and their meanings in two columns."""
    column = max(map(len, rows)) + 4
    width = max(column + 15, shutil.get_terminal_size((100, 24)).columns)
    lines = (
        textwrap.fill(text, width, initial_indent=f"  {name:{column - 2}}", subsequent_indent=" " * column)
        for name, text in rows.items()
    )
    return "".join(f"{line}\n" for line in lines)


def sections(parts: Iterable[Mapping[str, Any]]) -> str:
    """Headings with their lines below them, indented and wrapped."""
    width = terminal_width()
    lines: list[str] = []
    for part in parts:
        lines.append(show_invisible(part["heading"]))
        for line in part["lines"]:
            lines += textwrap.wrap(
                show_invisible(line), width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
    return neutralize_log_commands("".join(f"{line}\n" for line in lines))


def _cell(text: str, *, last: bool) -> str:
    shown = show_invisible(text)
    return shown if last or len(shown) <= _MAX_CELL else shown[: _MAX_CELL - 1] + "…"
