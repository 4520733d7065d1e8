"""The facts of a report as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pinwarden.core.visible import escape_in_json

if TYPE_CHECKING:
    from pinwarden.flows.report import Report


def render(report: Report) -> str:
    """JSON with invisible characters spelt out, so that it is safe to look at."""
    return escape_in_json(json.dumps(report.facts, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"
