"""SARIF 2.1.0: for code scanning views."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

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
                "logicalLocations": [
                    {"name": show_invisible(row.name), "fullyQualifiedName": show_invisible(place), "kind": "member"}
                ]
            }
        ],
        "partialFingerprints": {"pinwardenRow/v1": sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()},
        "properties": {"severity": row.level, "subject": report.subject},
    }
