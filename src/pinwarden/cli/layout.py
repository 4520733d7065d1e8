"""Tables and sections for a terminal, safe to print whatever a server or a file says."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pinwarden.core.visible import show_invisible

_LONGEST_CELL = 60


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them; a long cell is cut with a mark, the last one is not."""
    cells = [[_cell(text, last=place == len(row) - 1) for place, text in enumerate(row)] for row in rows]
    every = [list(headings), *cells]
    widths = [max(len(row[place]) for row in every) for place in range(len(headings))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in every)
    return "".join(f"{line}\n" for line in lines)


def sections(parts: Iterable[Mapping[str, Any]]) -> str:
    """Headings, and their lines below them, indented and wrapped."""
    width = max(40, min(120, shutil.get_terminal_size((100, 24)).columns))
    lines: list[str] = []
    for part in parts:
        lines.append(show_invisible(part["heading"]))
        for line in part["lines"]:
            lines += textwrap.wrap(
                show_invisible(line), width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
            )
    return "".join(f"{line}\n" for line in lines)


def _cell(text: str, *, last: bool) -> str:
    shown = show_invisible(text)
    return shown if last or len(shown) <= _LONGEST_CELL else shown[: _LONGEST_CELL - 1] + "…"
