"""SARIF 2.1.0: for code scanning views."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinwarden import __version__
from pinwarden.core.visible import show_invisible

if TYPE_CHECKING:
    from pinwarden.flows.report import Report, Row

_LEVELS = {"critical": "error", "review": "warning", "warning": "warning", "info": "note"}


def render(report: Report) -> str:
    """One run with one result per row."""
    codes = sorted({row.code for row in report.rows})
    driver = {
        "name": "Pinwarden",
        "version": __version__,
        "rules": [
            {"id": code, "shortDescription": {"text": report.rule_texts.get(code, code.replace("_", " "))}}
            for code in codes
        ],
    }
    results = [_result(report, row, codes.index(row.code)) for row in report.rows]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }
    return json.dumps(log, indent=2) + "\n"


def _result(report: Report, row: Row, rule: int) -> dict[str, Any]:
    place = f"{row.entity}/{row.name}{row.path}"
    identity = "\0".join((report.subject, row.code, place, row.after or row.excerpt or ""))
    return {
        "ruleId": row.code,
        "ruleIndex": rule,
        "level": _LEVELS[row.level],
        "message": {"text": show_invisible(f"{row.entity} {row.name}: {row.message}".replace("\n", " "))},
        "locations": [
            {
                **_physical(row),
                "logicalLocations": [
                    {"name": show_invisible(row.name), "fullyQualifiedName": show_invisible(place), "kind": "member"}
                ],
            }
        ],
        "partialFingerprints": {"pinwardenRow/v1": sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()},
        "properties": {"severity": row.level, "subject": report.subject},
    }


def _physical(row: Row) -> dict[str, Any]:
    if row.file is None:
        return {}
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(row.file)}}
    if row.line is not None:
        column = {} if row.column is None else {"startColumn": row.column}
        location["region"] = {"startLine": row.line, **column}
    return {"physicalLocation": location}


def _uri(file: str) -> str:
    """A relative reference, which viewers resolve against the sources; a file URI where the path has a root."""
    if file[1:3] == ":/":  # a drive
        return f"file:///{file[0]}:{_encoded(file[2:])}"
    return f"file://{_encoded(file)}" if file.startswith("/") else _encoded(file)


def _encoded(path: str) -> str:
    return quote(path, safe="/", errors="backslashreplace")
