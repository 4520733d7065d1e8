"""A report for a pull request comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pinwarden.core.visible import inert_in_log, show_invisible
from pinwarden.rules.drift.text_diff import text_diff

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.flows.report import Report, Row

_SIGNS = {"critical": "🛑 critical", "review": "🔍 review", "warning": "⚠️ warning", "info": "ℹ️ info"}  # noqa: RUF001
_WWW = re.compile(r"(www)\.", re.IGNORECASE)  # GitHub makes a link of it without any scheme
_MAX_ROWS = 200  # comments have a size limit; what is left out is said


def render(report: Report) -> str:
    """A heading, a table, and the changed texts below it."""
    lines = [f"### Pinwarden {report.command}: {_safe(report.subject)}", "", f"**{_safe(report.summary)}**", ""]
    shown = report.rows[:_MAX_ROWS]
    if shown:
        lines += ["| | what | where | why |", "|---|---|---|---|"]
        lines += [
            f"| {_SIGNS[row.level]} | {_safe(row.entity)} {_quoted(row.name)} | {_where(row)} "
            f"| {_safe(row.message)} (`{row.code}`) |"
            for row in shown
        ]
        lines.append("")
    if len(report.rows) > _MAX_ROWS:
        lines += [f"…and {len(report.rows) - _MAX_ROWS} more.", ""]
    for row in shown:
        lines += _texts(row)
    lines += [f"> {_safe(note)}" for note in report.notes]
    return "\n".join(lines).rstrip() + "\n"


def render_error(err: PinwardenError, command: str) -> str:
    """A section that says that there is no report, and why."""
    heading = f"### {command.capitalize()} did not finish"
    return f"{heading}\n\n**{_safe(err.message)}** (`{err.code}`)\n\n> {_safe(err.hint)}\n"


def _where(row: Row) -> str:
    """The file with its line, and the place in it or in the item."""
    file = "" if row.file is None else row.file if row.line is None else f"{row.file}:{row.line}"
    return " ".join(_quoted(place) for place in (file, row.path) if place)


def _quoted(text: str) -> str:
    return f"`{_code(text)}`" if text else ""


def _texts(row: Row) -> list[str]:
    """The text on both sides, or on the only one there is."""
    if row.before is None and row.after is None:
        return []
    marks = {"equal": ("", ""), "delete": ("<del>", "</del>"), "insert": ("<ins>", "</ins>")}
    if row.before is not None and row.after is not None:
        body = "".join(_safe(text).join(marks[operation]) for operation, text in text_diff(row.before, row.after))
    elif row.before is not None:
        body = _safe(row.before).join(marks["delete"])
    else:
        body = _safe(row.after or "").join(marks["insert"])
    places = "".join(f" <code>{_safe(text)}</code>" for text in (row.name, row.path) if text)
    return [f"<details><summary>{_safe(row.entity)}{places}</summary>", "", body, "", "</details>", ""]


def _safe(text: str) -> str:
    """Text that cannot become markup, a link, a mention or an image: the server chose it."""
    return _WWW.sub(r"\1&#46;", show_invisible(text).translate(_ESCAPES))


_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{mark: f"&#{ord(mark)};" for mark in "|@#\\`*_[]()!~:"}}
)


def _code(text: str) -> str:
    return inert_in_log(show_invisible(text)).replace("`", "'").replace("|", "\\|")
