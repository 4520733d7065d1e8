"""Changes as rows of a report."""

from __future__ import annotations

from typing import Any

from pinwarden.flows.report import Row
from pinwarden.rules.drift.changes import ABSENT, Change

_LONGEST = 400  # characters of a value that is not text


def row_of(change: Change) -> Row:
    """A change as a row of a report."""
    return Row(
        code=change.kind,
        level=change.severity,
        entity=change.entity,
        name=change.name,
        path=change.path,
        message=change.reason,
        before=_shown(change.before),
        after=_shown(change.after),
    )


def _shown(value: Any) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    text = dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
