"""JUnit XML, for the test view of CI systems. The suite fails exactly when the command does.

Uses only elements and attributes in Jenkins' schema (junit-10.xsd of its xUnit plugin).
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.text import neutralize_log_commands, show_invisible

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report, Row


def render(report: Report) -> str:
    """Render one suite with one test case per row, or one for the command itself if there are no rows."""
    failing = _list_failing_levels(report)
    kind = "error" if report.exit_code == EXIT_UNCHECKED else "failure"
    cases = [
        line for row in report.rows for line in _render_row_case(report, row, kind if row.severity in failing else "")
    ]
    if not report.rows:
        cases = _render_command_case(report, kind if report.exit_code else "")
    failed = sum(row.severity in failing for row in report.rows) if report.rows else int(report.exit_code != 0)
    counts = _format_attributes(
        tests=str(max(1, len(report.rows))),
        failures=str(failed if kind == "failure" else 0),
        errors=str(failed if kind == "error" else 0),
    )
    property_attributes = _format_attributes(name="subject", value=report.subject)
    return _render_document(
        f"pinwarden {report.command}", counts, property_attributes, cases, (*report.notes, report.summary)
    )


def render_error(err: PinwardenError, command: str) -> str:
    """Render one suite with one test case. A refusal is a failure, as in a report; anything else is an error."""
    refused = err.exit_code == EXIT_REFUSED
    kind = "failure" if refused else "error"
    body = _join_lines(err.message, f"hint: {err.hint}")
    case = [
        f"<testcase{_format_attributes(classname=command.replace(' ', '.'), name=err.code)}>",
        f"  <{kind}{_format_attributes(type=err.code, message=err.message)}>{body}</{kind}>",
        "</testcase>",
    ]
    counts = _format_attributes(tests="1", failures=str(int(refused)), errors=str(int(not refused)))
    return _render_document(command, counts, _format_attributes(name="code", value=err.code), case, (err.message,))


def _render_document(
    suite: str, counts: str, property_attributes: str, cases: Iterable[str], output: Iterable[str]
) -> str:
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="pinwarden"{counts}>',
        f'  <testsuite{_format_attributes(name=suite)}{counts} skipped="0">',
        f"    <properties><property{property_attributes}/></properties>",
        *(f"    {line}" for line in cases),
        f"    <system-out>{_join_lines(*output)}</system-out>",
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _list_failing_levels(report: Report) -> tuple[str, ...]:
    """Return the levels that made the command fail: those that need a decision, else warnings, else all."""
    if report.exit_code == 0:
        return ()
    present = {row.severity for row in report.rows}
    for levels in (("critical", "review"), ("warning",)):
        if present & set(levels):
            return levels
    return tuple(present)


def _render_row_case(report: Report, row: Row, kind: str) -> list[str]:
    file = row.file or report.file
    parts = (row.subject, row.name, row.path, f"in {file}" if file else "")
    name = " ".join(part for part in parts if part) or row.code
    opening = f"<testcase{_format_attributes(classname=f'pinwarden.{report.command}.{row.code}', name=name)}>"
    line = "" if row.line is None else f":{row.line}"
    texts = (("before", row.before), ("after", row.after), ("text", row.excerpt))
    at = [f"at {file}{line}"] if file else []
    body = _join_lines(
        f"{row.severity}: {row.message}", *at, *(f"{side}: {text}" for side, text in texts if text is not None)
    )
    if not kind:
        return [opening, f"  <system-out>{body}</system-out>", "</testcase>"]
    return [
        opening,
        f"  <{kind}{_format_attributes(type=row.code, message=row.message)}>{body}</{kind}>",
        "</testcase>",
    ]


def _render_command_case(report: Report, kind: str) -> list[str]:
    case = (
        f"<testcase{_format_attributes(classname=f'pinwarden.{report.command}', name=report.subject or report.command)}"
    )
    if not kind:
        return [f"{case}/>"]
    return [f"{case}>", f"  <{kind}{_format_attributes(type=report.command, message=report.summary)}/>", "</testcase>"]


def _format_attributes(**values: str) -> str:
    return "".join(f' {name}="{_escape(value)}"' for name, value in values.items())


def _join_lines(*texts: str) -> str:
    return "\n".join(map(_escape, texts))


def _escape(text: str) -> str:
    """Escape a text for XML. ``show_invisible`` escapes the characters that XML does not allow."""
    return escape(neutralize_log_commands(show_invisible(text)))
