"""What a server tells the model, as a person reads it: JSON over several lines, with nothing invisible in it."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pinwarden.cli.layout import told
from pinwarden.cli.output import colour_wanted
from pinwarden.cli.render.text import render_rows
from pinwarden.core.record import replace
from pinwarden.core.visible import printed_json

if TYPE_CHECKING:
    from pinwarden.core.report import Report, Row

_MARGIN = "    "


def definition_lines(value: Any) -> str:
    """A definition, indented."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return printed_json("".join(f"{_MARGIN}{line}\n" for line in text.split("\n")))


def print_changes(report: Report) -> None:
    """A report of changes for a terminal. What is new as a whole is shown as its definition, which can be read; as a
    row it would stand on one line."""
    changes = report.facts["changes"]
    sides = list(zip(report.rows[: len(changes)], changes, strict=True))
    for is_new, group in groupby(sides, key=lambda side: _is_new(side[1])):
        several = list(group)
        if not is_new:
            _print_rows(tuple(row for row, _ in several))
            continue
        for row, change in several:
            _print_rows((replace(row, after=None),))
            sys.stdout.write(definition_lines(change["after"]))
    _print_rows(report.rows[len(changes) :])  # what the scan warns of in them
    sys.stdout.write("".join(map(told, (*(f"note: {note}" for note in report.notes), report.summary))))
    sys.stdout.flush()


def _print_rows(rows: tuple[Row, ...]) -> None:
    sys.stdout.write(render_rows(rows, colour=colour_wanted()))


def _is_new(change: Any) -> bool:
    return not change["path"] and "before" not in change and isinstance(change.get("after"), dict)
