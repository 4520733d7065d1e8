"""Changes as rows of a report."""

from __future__ import annotations

from typing import Any

from pinwarden.flows.report import Row
from pinwarden.rules.drift.changes import ABSENT, Change

_LONGEST = 400  # characters of a value that is not text


def row_of(change: Change, *, whole: bool = False) -> Row:
    """A change as a row of a report; ``whole`` where somebody approves by it, who has to see all of it."""
    return Row(
        code=change.kind,
        level=change.severity,
        entity=change.entity,
        name=change.name,
        path=change.path,
        message=change.reason,
        before=_shown(change.before, whole),
        after=_shown(change.after, whole),
    )


def _shown(value: Any, whole: bool) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    text = dumps(value, ensure_ascii=False)
    more = len(text) - _LONGEST
    return text if whole or more <= 0 else f"{text[:_LONGEST]}… ({more} more characters)"
