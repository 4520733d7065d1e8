"""SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinwarden.core.errors import CODES
from pinwarden.core.text import escape_json_for_log, show_invisible
from pinwarden.core.version import __version__

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report, Row

_LEVELS = {"critical": "error", "review": "warning", "warning": "warning", "info": "note"}


def render(report: Report) -> str:
    """Render one run with one result per row."""
    codes = sorted({row.code for row in report.rows})
    rules = [_build_rule(code, report.rule_texts.get(code)) for code in codes]
    results = [_build_result(report, row, codes.index(row.code)) for row in report.rows]
    return _render_log({"tool": _build_tool({"rules": rules}), "columnKind": "unicodeCodePoints", "results": results})


def render_error(err: PinwardenError, command: str) -> str:
    """Return a run that was not successful: no results, and a notification with the error."""
    descriptor = {"id": err.code, "shortDescription": {"text": CODES[err.code].meaning}}
    notification = {
        "descriptor": {"id": err.code, "index": 0},
        "level": "error",
        "message": {"text": show_invisible(f"{command}: {err.message} [{err.code}]; hint: {err.hint}")},
    }
    invocation = {
        "executionSuccessful": False,
        "exitCode": err.exit_code,
        "toolExecutionNotifications": [notification],
    }
    return _render_log(
        {"tool": _build_tool({"notifications": [descriptor]}), "invocations": [invocation], "results": []}
    )


def _build_rule(code: str, meaning: str | None) -> dict[str, Any]:
    """Return a rule with all members that GitHub code scanning requires."""
    words = code.replace("_", " ")
    text = meaning or f"{words.capitalize()}."
    advice = f"{text} Review the change, then undo it or approve it. Reference: docs/reference/findings.md, {code}."
    return {
        "id": code,
        "name": words.title().replace(" ", ""),
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": advice},
        "properties": {"tags": ["security", "mcp"]},
    }


def _build_tool(members: dict[str, Any]) -> dict[str, Any]:
    return {"driver": {"name": "Pinwarden", "version": __version__, **members}}


def _render_log(run: dict[str, Any]) -> str:
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return escape_json_for_log(json.dumps(log, indent=2)) + "\n"


def _build_result(report: Report, row: Row, rule: int) -> dict[str, Any]:
    location = f"{row.subject}/{row.name}{row.path}"
    identity = "\0".join((report.subject, row.code, location, row.after or row.excerpt or ""))
    return {
        "ruleId": row.code,
        "ruleIndex": rule,
        "level": _LEVELS[row.severity],
        "message": {"text": show_invisible(f"{row.subject} {row.name}: {row.message}".replace("\n", " "))},
        "locations": [
            {
                **_build_physical_location(report, row),
                "logicalLocations": [
                    {"name": show_invisible(row.name), "fullyQualifiedName": show_invisible(location), "kind": "member"}
                ],
            }
        ],
        "partialFingerprints": {"pinwardenRow/v1": sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()},
        "properties": {"severity": row.severity, "subject": report.subject, **_collect_texts(row)},
    }


def _collect_texts(row: Row) -> dict[str, str]:
    texts = {"before": row.before, "after": row.after, "excerpt": row.excerpt}
    return {name: show_invisible(text) for name, text in texts.items() if text is not None}


def _build_physical_location(report: Report, row: Row) -> dict[str, Any]:
    """Return file and line, which code scanning requires. A finding about a whole file is at line 1."""
    file = row.file or report.file
    if file is None:
        return {}
    column = {} if row.column is None else {"startColumn": row.column}
    region = {"startLine": row.line or 1, **column}
    return {"physicalLocation": {"artifactLocation": {"uri": _format_uri(file)}, "region": region}}


def _format_uri(file: str) -> str:
    """Return a relative reference, which viewers resolve against the sources; a file URI for an absolute path."""
    if file[1:3] == ":/":  # a Windows drive
        return f"file:///{file[0]}:{_percent_encode(file[2:])}"
    return f"file://{_percent_encode(file)}" if file.startswith("/") else _percent_encode(file)


def _percent_encode(path: str) -> str:
    return quote(path, safe="/", errors="backslashreplace")
