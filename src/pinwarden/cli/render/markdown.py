"""Markdown, for a comment on a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pinwarden.core.text import neutralize_log_commands, show_invisible
from pinwarden.surface.drift.text_diff import diff_texts, shorten_middle

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report, Row

_SEVERITY_LABELS = {"critical": "🛑 critical", "review": "🔍 review", "warning": "⚠️ warning", "info": "ℹ️ info"}  # noqa: RUF001
_WWW_PREFIX = re.compile(r"(www)\.", re.IGNORECASE)  # GitHub turns www.example.org into a link
_MAX_ROWS = 200  # further rows are only counted, because comments have a size limit
_MAX_COMMENT = 60_000  # in characters; GitHub refuses comments with more than 65,536
_MAX_TABLE = 40_000
_MAX_CELL = 600
_MAX_NOTES = 20
_MAX_PIECE = 2000  # longer unchanged, removed or added texts are shortened to this many characters before escaping


def render(report: Report) -> str:
    """Return a heading, a table of the rows, and the changed texts below it."""
    lines = [
        f"### Pinwarden {report.command}: {_escape(_format_cell(report.subject))}",
        "",
        f"**{_escape(_format_cell(report.summary))}**",
        "",
    ]
    table = _render_rows(report.rows[:_MAX_ROWS])
    displayed_rows = report.rows[: len(table)]
    if displayed_rows:
        lines += ["| | what | where | why |", "|---|---|---|---|", *table, ""]
    if len(report.rows) > len(displayed_rows):
        lines += [f"…and {len(report.rows) - len(displayed_rows)} more.", ""]
    notes = [f"> {_escape(_format_cell(note))}" for note in report.notes[:_MAX_NOTES]]
    if len(report.notes) > _MAX_NOTES:
        notes.append(f"> …and {len(report.notes) - _MAX_NOTES} more notes.")
    return (
        "\n".join([*_fit_comment(lines, [_render_texts(row) for row in displayed_rows], notes), *notes]).rstrip() + "\n"
    )


def render_error(err: PinwardenError, command: str) -> str:
    """Return a section with the error in place of a report."""
    heading = f"### {command.capitalize()} did not finish"
    return f"{heading}\n\n**{_escape(err.message)}** (`{err.code}`)\n\n> {_escape(err.hint)}\n"


def _render_rows(rows: tuple[Row, ...]) -> list[str]:
    """Return as many rows as fit into the budget of the table."""
    lines: list[str] = []
    budget = _MAX_TABLE
    for row in rows:
        label = f"{_escape(_format_cell(row.subject))} {_format_code_span(_format_cell(row.name))}"
        reason = f"{_escape(_format_cell(row.message))} (`{row.code}`)"
        line = f"| {_SEVERITY_LABELS[row.severity]} | {label} | {_locate(row)} | {reason} |"
        budget -= len(line) + 1
        if budget < 0:
            break
        lines.append(line)
    return lines


def _format_cell(text: str) -> str:
    return shorten_middle(text, _MAX_CELL)


def _fit_comment(lines: list[str], texts: list[list[str]], notes: list[str]) -> list[str]:
    """Return the lines, followed by as many texts as fit into a comment."""
    budget = _MAX_COMMENT - sum(len(line) + 1 for line in (*lines, *notes))
    omitted = 0
    for text in filter(None, texts):
        budget -= sum(len(line) + 1 for line in text)
        if budget < 0 or omitted:
            omitted += 1
        else:
            lines += text
    return [*lines, f"…and {omitted} more texts, which are too long for a comment.", ""] if omitted else lines


def _locate(row: Row) -> str:
    """Return the file with its line, and the location in it or in the item."""
    file = "" if row.file is None else row.file if row.line is None else f"{row.file}:{row.line}"
    return " ".join(_format_code_span(_format_cell(location)) for location in (file, row.path) if location)


def _format_code_span(text: str) -> str:
    return f"`{_escape_code(text)}`" if text else ""


def _render_texts(row: Row) -> list[str]:
    """Return the difference between two texts, or the only text there is."""
    if row.before is None and row.after is None:
        return []
    marks = {"equal": ("", ""), "delete": ("<del>", "</del>"), "insert": ("<ins>", "</ins>")}
    if row.before is not None and row.after is not None:
        pieces = [
            (operation, shorten_middle(text, _MAX_PIECE)) for operation, text in diff_texts(row.before, row.after)
        ]
        body = "".join(_escape(text).join(marks[operation]) for operation, text in pieces)
    elif row.before is not None:
        body = _escape(shorten_middle(row.before, _MAX_PIECE)).join(marks["delete"])
    else:
        body = _escape(shorten_middle(row.after or "", _MAX_PIECE)).join(marks["insert"])
    locations = "".join(f" <code>{_escape(_format_cell(text))}</code>" for text in (row.name, row.path) if text)
    return [f"<details><summary>{_escape(row.subject)}{locations}</summary>", "", body, "", "</details>", ""]


def _escape(text: str) -> str:
    """Escape text from a server, so that it cannot become markup, a link, a mention or an image."""
    return _WWW_PREFIX.sub(r"\1&#46;", show_invisible(text).translate(_ESCAPES))


_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{mark: f"&#{ord(mark)};" for mark in "|@#\\`*_[]()!~:"}}
)


def _escape_code(text: str) -> str:
    return neutralize_log_commands(show_invisible(text)).replace("`", "'").replace("|", "\\|")
