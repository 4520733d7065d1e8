"""A report for a pull request comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pinwarden.core.visible import neutralize_log_commands, show_invisible
from pinwarden.surface.drift.text_diff import shorten_middle, text_diff

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report, Row

_SIGNS = {"critical": "🛑 critical", "review": "🔍 review", "warning": "⚠️ warning", "info": "ℹ️ info"}  # noqa: RUF001
_WWW = re.compile(r"(www)\.", re.IGNORECASE)  # GitHub makes a link of it without any scheme
_MAX_ROWS = 200  # comments have a size limit; what is left out is said
_MAX_COMMENT = 60_000  # GitHub takes 65,536 characters, and posts nothing of a longer comment
_MAX_TABLE = 40_000
_MAX_CELL = 600
_MAX_NOTES = 20
_MAX_PIECE = 2000  # of a text that stayed, went or came; marks take up more room than the text itself


def render(report: Report) -> str:
    """A heading, a table, and the changed texts below it."""
    lines = [
        f"### Pinwarden {report.command}: {_safe(_cell(report.subject))}",
        "",
        f"**{_safe(_cell(report.summary))}**",
        "",
    ]
    table = _rows(report.rows[:_MAX_ROWS])
    shown = report.rows[: len(table)]
    if shown:
        lines += ["| | what | where | why |", "|---|---|---|---|", *table, ""]
    if len(report.rows) > len(shown):
        lines += [f"…and {len(report.rows) - len(shown)} more.", ""]
    notes = [f"> {_safe(_cell(note))}" for note in report.notes[:_MAX_NOTES]]
    if len(report.notes) > _MAX_NOTES:
        notes.append(f"> …and {len(report.notes) - _MAX_NOTES} more notes.")
    return "\n".join([*_within_size(lines, [_texts(row) for row in shown], notes), *notes]).rstrip() + "\n"


def _rows(rows: tuple[Row, ...]) -> list[str]:
    """As many rows of the table as there is room for beside the texts."""
    lines: list[str] = []
    room = _MAX_TABLE
    for row in rows:
        what = f"{_safe(_cell(row.entity))} {_quoted(_cell(row.name))}"
        line = f"| {_SIGNS[row.severity]} | {what} | {_where(row)} | {_safe(_cell(row.message))} (`{row.code}`) |"
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return lines


def _cell(text: str) -> str:
    return shorten_middle(text, _MAX_CELL)


def _within_size(lines: list[str], texts: list[list[str]], notes: list[str]) -> list[str]:
    """The table, and as many of the texts below it as a comment has room for."""
    room = _MAX_COMMENT - sum(len(line) + 1 for line in (*lines, *notes))
    left_out = 0
    for each in filter(None, texts):
        room -= sum(len(line) + 1 for line in each)
        if room < 0 or left_out:
            left_out += 1
        else:
            lines += each
    return [*lines, f"…and {left_out} more texts, which are too long for a comment.", ""] if left_out else lines


def render_error(err: PinwardenError, command: str) -> str:
    """A section that says that there is no report, and why."""
    heading = f"### {command.capitalize()} did not finish"
    return f"{heading}\n\n**{_safe(err.message)}** (`{err.code}`)\n\n> {_safe(err.hint)}\n"


def _where(row: Row) -> str:
    """The file with its line, and the place in it or in the item."""
    file = "" if row.file is None else row.file if row.line is None else f"{row.file}:{row.line}"
    return " ".join(_quoted(_cell(place)) for place in (file, row.path) if place)


def _quoted(text: str) -> str:
    return f"`{_code(text)}`" if text else ""


def _texts(row: Row) -> list[str]:
    """The text on both sides, or on the only one there is."""
    if row.before is None and row.after is None:
        return []
    marks = {"equal": ("", ""), "delete": ("<del>", "</del>"), "insert": ("<ins>", "</ins>")}
    if row.before is not None and row.after is not None:
        pieces = [(operation, shorten_middle(text, _MAX_PIECE)) for operation, text in text_diff(row.before, row.after)]
        body = "".join(_safe(text).join(marks[operation]) for operation, text in pieces)
    elif row.before is not None:
        body = _safe(shorten_middle(row.before, _MAX_PIECE)).join(marks["delete"])
    else:
        body = _safe(shorten_middle(row.after or "", _MAX_PIECE)).join(marks["insert"])
    places = "".join(f" <code>{_safe(_cell(text))}</code>" for text in (row.name, row.path) if text)
    return [f"<details><summary>{_safe(row.entity)}{places}</summary>", "", body, "", "</details>", ""]


def _safe(text: str) -> str:
    """Text that cannot become markup, a link, a mention or an image: the server chose it."""
    return _WWW.sub(r"\1&#46;", show_invisible(text).translate(_ESCAPES))


_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{mark: f"&#{ord(mark)};" for mark in "|@#\\`*_[]()!~:"}}
)


def _code(text: str) -> str:
    return neutralize_log_commands(show_invisible(text)).replace("`", "'").replace("|", "\\|")
