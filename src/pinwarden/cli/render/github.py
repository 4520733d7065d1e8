"""GitHub workflow annotations: one workflow command per row, which GitHub shows next to the file.

GitHub treats an output line as a command if it begins with ``::`` or contains ``##[``. Text from servers is always
inside one of our commands, on a single line, so it cannot start another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.text import show_invisible
from pinwarden.surface.drift.text_diff import omit_common_text, shorten_middle

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report, Row

_COMMANDS = {"critical": "error", "review": "warning", "warning": "warning", "info": "notice"}
_MAX_TEXT = 2000  # longer texts are shortened to this many characters; an annotation may have 64 KiB


def render(report: Report) -> str:
    """Render summary, rows and notes. The summary is first because GitHub shows only ten commands of each kind."""
    title = f"pinwarden {report.command}"
    lines = [_format_command("error" if report.exit_code else "notice", {"title": title}, report.summary)]
    lines += [_render_row(report, row) for row in report.rows]
    lines += [_format_command("notice", {"title": title}, note) for note in report.notes]
    return "\n".join(lines) + "\n"


def render_error(err: PinwardenError, command: str) -> str:
    """Render one command with the error code as its title."""
    return (
        _format_command("error", {"title": err.code}, f"{command}: {_shorten(err.message)}", f"hint: {err.hint}") + "\n"
    )


def _render_row(report: Report, row: Row) -> str:
    properties: dict[str, str] = {}
    file = row.file or report.file
    if file is not None:
        properties["file"] = file
        if row.line is not None:
            properties["line"] = str(row.line)
            if row.column is not None:
                properties["col"] = str(row.column)
    properties["title"] = " ".join(part for part in (row.severity + ":", row.subject, row.name, row.path) if part)
    before, after = row.before, row.after
    if before is not None and after is not None:
        before, after = omit_common_text(before, after, _MAX_TEXT)
    texts = (("before", before), ("after", after), ("text", row.excerpt))
    details = [f"{name}: {_shorten(text)}" for name, text in texts if text]
    return _format_command(_COMMANDS[row.severity], properties, f"{row.message} ({row.code})", *details)


def _format_command(name: str, properties: dict[str, str], *lines: str) -> str:
    property_list = ",".join(f"{key}={_escape_property(value)}" for key, value in properties.items())
    return f"::{name} {property_list}::" + "%0A".join(map(_escape, lines))


def _escape(text: str) -> str:
    """Escape a text. ``show_invisible`` already escapes line breaks, so only the percent sign is left."""
    return show_invisible(text).replace("%", "%25")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def _shorten(text: str) -> str:
    return shorten_middle(text, _MAX_TEXT)
