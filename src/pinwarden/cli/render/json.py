"""JSON: the facts of a report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pinwarden.core.text import escape_json_for_log

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report


def render(report: Report) -> str:
    """Return the facts as JSON, with invisible characters escaped so that it is safe to print."""
    facts = {**report.facts, **({"next_command": report.next_command} if report.next_command else {})}
    return escape_json_for_log(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def render_error(err: PinwardenError, _command: str) -> str:
    """Return the error in the member ``error``. No report has a member of this name."""
    report = {"error": {"code": err.code, "message": err.message, "hint": err.hint, "data": dict(err.data)}}
    return escape_json_for_log(json.dumps(report, indent=2)) + "\n"
