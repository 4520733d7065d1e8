"""The facts of a report as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pinwarden.core.visible import json_for_log

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report


def render(report: Report) -> str:
    """JSON with invisible characters spelt out, so that it is safe to look at."""
    return json_for_log(json.dumps(report.facts, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def render_error(err: PinwardenError, _command: str) -> str:
    """The error under its own member, so that it cannot be taken for the facts of a report."""
    report = {"error": {"code": err.code, "message": err.message, "hint": err.hint, "data": dict(err.data)}}
    return json_for_log(json.dumps(report, indent=2)) + "\n"
