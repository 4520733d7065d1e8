"""The clients' configurations, held against the lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinwarden.core.record import replace
from pinwarden.documents.lock.lockfile import Lock
from pinwarden.flows.report import Row

if TYPE_CHECKING:
    from pinwarden.flows.project import Project
    from pinwarden.rules.drift.changes import Change


def config_rows(project: Project, lock: Lock, scope: str) -> Iterator[Row]:
    """Every client configuration that exists, against the lock."""
    files = project.configs()
    if not files:
        return
    from pinwarden.flows.config.issues import config_issues, config_strangers
    from pinwarden.flows.config.view import view_of
    from pinwarden.rules.config.findings import file_findings

    entries = tuple(entry for entry in lock.entries if scope in ("all", entry.scope))
    view = view_of(project, entries, files, scope=scope)
    for issue in config_issues(project, view):
        # A locked server that is not configured starts nothing; doctor tells about it. A file that cannot be read is
        # told once, below, and not for every server that should be in it.
        for change in issue.changes if issue.kind == "drift" else ():
            yield _change_row(change, project.shown(issue.file))
    for stranger in config_strangers(project, view):
        yield _change_row(stranger.change, project.shown(stranger.server.path))
    for file in view.files:
        for finding in file_findings(file):
            yield _config_row(finding.code, finding.severity, finding.name, finding.message, project.shown(file.path))


def _config_row(code: str, level: str, name: str, message: str, file: str) -> Row:
    return Row(code=code, level=level, entity="config", name=name, path="", message=message, file=file)


def _change_row(change: Change, file: str) -> Row:
    from pinwarden.flows.rows import row_of

    return replace(row_of(change), file=file)
