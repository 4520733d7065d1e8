"""Findings about configurations as rows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.report import Row

if TYPE_CHECKING:
    from pinwarden.clients.findings import ConfigFinding
    from pinwarden.project.project import Project


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
