"""The report of ``pinwarden status``: every server, what needs attention, and one next command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row, collect_kind_reasons
from pinwarden.core.text import plural
from pinwarden.lock.lockfile import PROBLEMS
from pinwarden.project.ci_workflow import is_checked_in_ci
from pinwarden.project.config_secrets import audit_inputs
from pinwarden.project.configs import ConfigView, describe_obstacles, read_config_view
from pinwarden.project.doctor import ISSUE_KINDS
from pinwarden.project.explain import entry_to_json
from pinwarden.project.last_checked import read_last_checked
from pinwarden.project.lock_documents import build_problem_rows, problems_to_json
from pinwarden.project.scopes import describe_own_locks
from pinwarden.project.status import (
    STEPS,
    BlockedItems,
    PlainSecret,
    ServerStatus,
    Step,
    describe_secret,
    server_statuses,
)
from pinwarden.system.repository import find_repository_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinwarden.project.project import Project

_COUNTED = ("pinned", "approved", "verified", "enforced")
_FOR_ALL: Mapping[Step, str] = {
    "setup": "pinwarden setup",
    "pin": "pinwarden pin",
    "verify": "pinwarden prove",
    "fetch": "pinwarden fetch",
    "approve": "pinwarden approve --all",
    "enforce": "pinwarden enforce",
}
"""The command that takes a step for every server that needs it."""


class StatusReport(Record):
    """The servers, and the report about them."""

    servers: tuple[ServerStatus, ...]
    secrets: tuple[PlainSecret, ...]
    report: Report


def report_status(
    projects: Sequence[Project], *, blocked: BlockedItems | None = None, notes: Sequence[str] = (), check: bool = False
) -> StatusReport:
    """Build the report. The exit code is 1 if a lock was tampered with, and with ``check`` if there is anything to do.

    ``blocked`` is what the gateway blocked; ``notes`` are remarks about how it was found.
    """
    views = {project.lock: read_config_view(project, parse_files=False) for project in projects}
    last_checked = read_last_checked(projects[0])
    servers = server_statuses(projects, views=views, last_checked=last_checked, blocked=blocked)
    documents = [view.document for view in views.values() if view.document is not None]
    broken = any(document.critical_problems for document in documents)
    secrets = (
        *(secret for server in servers for secret in server.plain_secrets),
        *(secret for project in projects for secret in _find_input_secrets(project, views[project.lock])),
    )
    rows = [row for document in documents for row in build_problem_rows(document)]
    rows += (row for project in projects for row in _report_unreadable(project, views[project.lock]))
    attention = bool(rows) or bool(secrets) or any(server.needs_attention for server in servers)
    report = Report(
        command="status",
        subject=projects[0].lock.name,
        summary=_summarize(servers, secrets, broken=broken),
        exit_code=EXIT_REFUSED if broken or (check and attention) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=(*notes, *((last_checked.problem,) if last_checked.problem else ()), *_describe_scopes(projects)),
        facts={
            "ok": not broken,
            "attention": attention,
            "servers": [server.to_json() for server in servers],
            "secrets": [_secret_to_json(secret) for secret in secrets],
            "unreadable": [row.file for row in rows if row.code == "config_unreadable"],
            "entries": [entry_to_json(entry) for document in documents for entry in document.lock.entries],
            "problems": [problem for document in documents for problem in problems_to_json(document.problems)],
        },
        rule_texts={**PROBLEMS, **collect_kind_reasons(ISSUE_KINDS)},
        next_command="pinwarden doctor" if rows else choose_next_command(servers, projects),
    )
    return StatusReport(servers=servers, secrets=secrets, report=report)


def choose_next_command(servers: Iterable[ServerStatus], projects: Sequence[Project]) -> str | None:
    """Return the one command to run next, which takes the first step that is needed, for all servers that need it.

    What changed since its approval comes first. It and changed configurations are decided one server at a time. If
    nothing is left to do and no CI workflow checks the project, it is ``init-ci``.
    """
    listed = tuple(servers)
    drifted = [server for server in listed if server.blocked or (server.drift and server.next_step == "approve")]
    if drifted:
        return drifted[0].next_command
    for step in STEPS:
        waiting = [server for server in listed if server.next_step == step]
        changed = [server for server in waiting if server.changed]
        if changed:
            return changed[0].next_command
        if waiting:
            return _FOR_ALL[step] if len(waiting) > 1 else waiting[0].next_command
    is_used = any(server.scope == "project" and server.locked == "yes" and server.clients for server in listed)
    return "pinwarden init-ci" if is_used and _lacks_ci(projects) else None


def choose_command_in_scope(project: Project) -> str | None:
    """Return the command to run next for the servers of one scope, as their files are now."""
    return choose_next_command(server_statuses((project,)), (project,))


def _lacks_ci(projects: Sequence[Project]) -> bool:
    """Whether no CI workflow in the project's repository mentions Pinwarden."""
    roots = [project.root for project in projects if project.scope == "project"]
    return not any(is_checked_in_ci(find_repository_root(root) or root) for root in roots)


def _summarize(servers: Sequence[ServerStatus], secrets: Sequence[PlainSecret], *, broken: bool) -> str:
    """How many servers there are, how many of them are in each state, and how many secrets are in plain text."""
    if not servers:
        return "No MCP server is configured or locked here."
    states = []
    for member in _COUNTED:
        relevant = [getattr(server, member) for server in servers if _counts_for(server, member)]
        if relevant:
            states.append(f"{relevant.count('yes')} of {len(relevant)} {member}")
    obstacles = {server.name: server.enforcement_obstacle for server in servers if server.enforcement_obstacle}
    entries = sum(server.entries for server in servers)
    in_entries = f" ({plural(entries, 'entry', 'entries')})" if entries > len(servers) else ""
    counted = ", ".join(states) or "nothing to pin or verify"
    shown = f"{plural(len(servers), 'server')}{in_entries}: {counted}{describe_obstacles(obstacles)}"
    shown += f"; {plural(len(secrets), 'secret')} in plain text" if secrets else ""
    return f"{shown}. The lock is not what was approved." if broken else f"{shown}."


def _counts_for(server: ServerStatus, member: str) -> bool:
    """Whether a server is one of those that should be in a state. One that cannot be enforced is counted visibly."""
    return getattr(server, member) != "n/a" or (member == "enforced" and server.enforcement_obstacle is not None)


def _describe_scopes(projects: Sequence[Project]) -> Iterator[str]:
    """Say where the user's own locks are. With the project's servers in the same board, this is not obvious."""
    return describe_own_locks(project for project in projects if project.lock.exists())


def _find_input_secrets(project: Project, view: ConfigView) -> Iterator[PlainSecret]:
    return (describe_secret(project, finding) for finding in audit_inputs(view.files))


def _report_unreadable(project: Project, view: ConfigView) -> Iterator[Row]:
    for file in view.files:
        if file.fault:
            yield Row(
                code="config_unreadable",
                severity=ISSUE_KINDS["config_unreadable"].severity,
                entity="config",
                name=file.client,
                path="",
                message=f"could not be read, so its servers are unknown: {file.problem}",
                file=project.display_path(file.path),
            )


def _secret_to_json(secret: PlainSecret) -> dict[str, Any]:
    return {
        "server": secret.server,
        "client": secret.client,
        "file": secret.file,
        "source": secret.source,
        "name": secret.name,
        "fix": secret.fix,
    }
