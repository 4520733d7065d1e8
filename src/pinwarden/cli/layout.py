"""Tables and sections for a terminal, safe to print whatever a server or a file says."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, TextIO

from pinwarden.core.visible import inert_in_log, show_invisible

_LONGEST_CELL = 60


def terminal_width() -> int:
    """How wide lines may get: as the terminal, within what can be read."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


def _seen_width(stream: TextIO | None = None) -> int:
    """The width of the terminal that a stream is, or stdout; 0 if it is none."""
    if stream is None or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((0, 0)).columns if (stream or sys.stdout).isatty() else 0
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file at all
        return 0


def told(text: str, beside: str = "", *, to: TextIO | None = None) -> str:
    """A sentence on lines that fit the terminal; on one line where another program reads it.

    With something ``beside`` it, its lines are in a column of their own. ``to`` is where it goes, if not to stdout.
    """
    shown = show_invisible(text)
    known = _seen_width(to)
    if not known:
        return inert_in_log(f"{beside}{shown}\n")
    lines = textwrap.wrap(
        shown,
        max(40, known),
        initial_indent=beside,
        subsequent_indent=" " * len(beside) or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return inert_in_log("".join(f"{line}\n" for line in lines))


def cut(line: str) -> str:
    """A line of a list, as much of it as the terminal has room for; all of it where another program reads it."""
    known = _seen_width()
    return line if not known or len(line) <= known else f"{line[: max(40, known) - 1]}…"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them; a long cell is cut with a mark, the last one is not.

    On a terminal that is too narrow for that, a block of lines for each row.
    """
    cells = [[_cell(text, last=place == len(row) - 1) for place, text in enumerate(row)] for row in rows]
    every = [list(headings), *cells]
    widths = [max(len(row[place]) for row in every) for place in range(len(headings))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in every]
    known = _seen_width()
    # The last column may run over the edge, as it does in other lists; the others would fall apart.
    if known and sum(widths[:-1]) + 2 * len(widths) > known:
        return "".join(map(_block, repeat(headings), cells))
    return inert_in_log("".join(f"{line}\n" for line in lines))


def _block(headings: Sequence[str], cells: Sequence[str]) -> str:
    rows = zip(headings[1:], cells[1:], strict=True)
    return f"{cells[0]}\n" + "".join(told(f"  {heading.lower()}: {text}") for heading, text in rows)


def definitions(rows: Mapping[str, str]) -> str:
    """Names and what they mean, in two columns; what does not fit beside its name goes on below."""
    column = max(map(len, rows)) + 4
    width = max(column + 15, shutil.get_terminal_size((100, 24)).columns)
    lines = (
        textwrap.fill(text, width, initial_indent=f"  {name:{column - 2}}", subsequent_indent=" " * column)
        for name, text in rows.items()
    )
    return "".join(f"{line}\n" for line in lines)


def sections(parts: Iterable[Mapping[str, Any]]) -> str:
    """Headings, and their lines below them, indented and wrapped."""
    width = terminal_width()
    lines: list[str] = []
    for part in parts:
        lines.append(show_invisible(part["heading"]))
        for line in part["lines"]:
            lines += textwrap.wrap(
                show_invisible(line), width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
    return inert_in_log("".join(f"{line}\n" for line in lines))


def _cell(text: str, *, last: bool) -> str:
    shown = show_invisible(text)
    return shown if last or len(shown) <= _LONGEST_CELL else shown[: _LONGEST_CELL - 1] + "…"
