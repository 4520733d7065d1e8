"""A held change as a person sees it who has to decide: why it is held, what it would change, and all that it says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinwarden.cli.definitions import definition_lines
from pinwarden.cli.layout import told
from pinwarden.cli.output import colour_wanted
from pinwarden.cli.render.text import render_rows
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report, Row

_COLUMN = 9  # so that a digest beside a name fits a terminal of eighty columns


def print_review(report: Report, *, heading: str = "", definition: bool = False) -> None:
    """Print the report of one review; the definition always where no difference says it all."""
    rows = _rows(report)
    sys.stdout.write(told(f"{heading}{report.subject}"))
    sys.stdout.write("".join(told(text, beside=f"{name:{_COLUMN}}") for name, text in _about(report)))
    sys.stdout.write(render_rows(rows, colour=colour_wanted()))
    if definition or rows != report.rows or report.facts["approval_goes_to"] is None:
        print_definition(report)
    sys.stdout.write(told(report.summary))
    sys.stdout.flush()


def print_definition(report: Report) -> None:
    """All that was served under the name, with nothing invisible in it."""
    sys.stdout.write(f"  definition, as it was served:\n{definition_lines(report.facts['definition'])}")
    sys.stdout.flush()


def _about(report: Report) -> list[tuple[str, str]]:
    review = report.facts["review"]
    why = f"{review['level']}: " if review["level"] else ""
    return [
        ("held", f"{why}{review['reason'] or 'it is not what was approved'} ({review['code']})"),
        ("approved", ", ".join(review["expected"]) or "nothing of this name"),
        ("served", review["digest"] or "cannot be digested"),
        ("seen", f"first {review['opened']}, last {review['last_seen']}"),
        ("approval", report.facts["approval_goes_to"] or "is not possible: nobody can say what it is"),
    ]


def _rows(report: Report) -> tuple[Row, ...]:
    """What is new as a whole is shown as its definition, which can be read; the row would say it on one line."""
    return tuple(replace(row, after=None) if row.before is None and not row.path else row for row in report.rows)
