"""Changes and findings as rows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.flows.report import Row
from pinwarden.rules.drift.changes import ABSENT, Change

if TYPE_CHECKING:
    from pinwarden.flows.project import Project
    from pinwarden.rules.config.findings import ConfigFinding

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


def finding_row(project: Project, finding: ConfigFinding) -> Row:
    """What is wrong with a configuration by itself, as a row of a report."""
    return Row(
        code=finding.code,
        level=finding.severity,
        entity="config",
        name=finding.name,
        path=finding.pointer,
        message=finding.message,
        file=project.shown(finding.file),
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
