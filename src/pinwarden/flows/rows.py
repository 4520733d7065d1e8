"""Changes and findings as rows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.flows.report import Row
from pinwarden.rules.drift.changes import ABSENT, Change

if TYPE_CHECKING:
    from pinwarden.flows.project import Project
    from pinwarden.rules.config.findings import ConfigFinding

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


def _shown(value: Any) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    text = dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
