"""The clients' configurations, held against the lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinwarden.core.record import replace
from pinwarden.core.report import Row
from pinwarden.lock.lockfile import Lock

if TYPE_CHECKING:
    from pinwarden.clients.findings import ConfigFinding
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.drift.changes import Change


def config_rows(project: Project, lock: Lock, scope: str, policies: Policies) -> Iterator[Row]:
    """Every client configuration that exists, against the lock."""
    files = project.configs()
    if not files:
        return
    from pinwarden.clients.findings import file_findings
    from pinwarden.project.config_issues import config_issues, config_strangers
    from pinwarden.project.config_view import view_of
    from pinwarden.project.enforced import unresolved_starts

    entries = tuple(entry for entry in lock.entries if scope in ("all", entry.scope))
    view = view_of(project, entries, files, scope=scope)
    for issue in config_issues(project, view):
        # A locked server that is not configured starts nothing; doctor tells about it. A file that cannot be read is
        # told once, below, and not for every server that should be in it.
        for change in issue.changes if issue.kind == "drift" else ():
            yield _change_row(change, project.shown(issue.file))
    for stranger in config_strangers(project, view):
        yield _change_row(stranger.change, project.shown(stranger.server.path))
    for finding in unresolved_starts(project, lock.entries, view.servers):
        yield finding_row(finding, project.shown(finding.file), policies)
    for file in view.files:
        for finding in file_findings(file):
            yield finding_row(finding, project.shown(file.path), policies)


def finding_row(finding: ConfigFinding, file: str, policies: Policies) -> Row:
    """What stands out in a file. What its settings do may be what a team wants, and says so by a waiver."""
    from pinwarden.lock.policy import SETTING_CODES
    from pinwarden.lock.policy_rules import waived

    code, level, message = finding.code, finding.severity, finding.message
    if policies.own is not None and code in SETTING_CODES:
        answer = waived(policies.own, file, code, message, policies.today)
        level, message = level if answer.refuses else "info", answer.told
    return Row(code=code, level=level, entity="config", name=finding.name, path="", message=message, file=file)


def _change_row(change: Change, file: str) -> Row:
    from pinwarden.surface.rows import row_of

    return replace(row_of(change), file=file)
