"""A report for a pull request comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.visible import show_invisible
from pinwarden.rules.drift.text_diff import text_diff

if TYPE_CHECKING:
    from pinwarden.flows.report import Report, Row

_SIGNS = {"critical": "🛑 critical", "review": "🔍 review", "warning": "⚠️ warning", "info": "ℹ️ info"}  # noqa: RUF001
_MAX_ROWS = 200  # comments have a size limit; what is left out is said


def render(report: Report) -> str:
    """A heading, a table, and the changed texts below it."""
    lines = [f"### Pinwarden {report.command}: {_safe(report.subject)}", "", f"**{_safe(report.summary)}**", ""]
    shown = report.rows[:_MAX_ROWS]
    if shown:
        lines += ["| | what | where | why |", "|---|---|---|---|"]
        lines += [
            f"| {_SIGNS[row.level]} | {_safe(row.entity)} `{_code(row.name)}` | `{_code(row.path)}` "
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


def _texts(row: Row) -> list[str]:
    if row.before is None or row.after is None:
        return []
    marks = {"equal": ("", ""), "delete": ("<del>", "</del>"), "insert": ("<ins>", "</ins>")}
    body = "".join(_safe(text).join(marks[operation]) for operation, text in text_diff(row.before, row.after))
    title = f"{_safe(row.entity)} <code>{_safe(row.name)}</code> <code>{_safe(row.path)}</code>"
    return [f"<details><summary>{title}</summary>", "", body, "", "</details>", ""]


def _safe(text: str) -> str:
    """Text that cannot become markup, a link, a mention or an image: the server chose it."""
    text = show_invisible(text)
    for mark, shown in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("@", "&#64;"), ("#", "&#35;")):
        text = text.replace(mark, shown)
    for mark in "\\`*_[]()!~:":
        text = text.replace(mark, f"&#{ord(mark)};")
    return text


def _code(text: str) -> str:
    return show_invisible(text).replace("`", "'").replace("|", "\\|")
