"""Run a command for the servers of several scopes, each with its own lock, and combine the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, EXIT_USAGE, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report
from pinwarden.project.project import SCOPES, LockScope, Project, project_in_scope

SCOPE_LABELS: Mapping[LockScope, str] = {
    "project": "this project",
    "local": "you, in this project",
    "user": "you, in every project",
}


def list_used_scopes(project: Project) -> tuple[Project, ...]:
    """Return the project in each scope that has a lock or a client configuration; in its own scope, if none has."""
    used = tuple(scoped for scope in SCOPES if _is_used(scoped := project_in_scope(project, scope)))
    return used or (project,)


def report_in_scopes(
    scopes: Sequence[tuple[Project, tuple[str, ...]]], make_report: Callable[[Project, tuple[str, ...]], Report]
) -> Report:
    """Run a command in several scopes, each with the names of its servers, and combine the reports.

    A missing lock or server in one scope is raised only if no other scope has a report: it must not hide the findings
    in another. Other errors are raised at once.
    """
    reports: list[tuple[Project, Report]] = []
    errors: list[PinwardenError] = []
    for project, names in scopes:
        try:
            reports.append((project, make_report(project, names)))
        except PinwardenError as err:
            if err.exit_code == EXIT_USAGE or err.code not in ("LOCK_MISSING", "SERVER_NOT_LOCKED"):
                raise
            errors.append(err)
    if not reports:
        raise errors[0]
    return combine_reports(reports)


def combine_reports(reports: Sequence[tuple[Project, Report]]) -> Report:
    """Combine the reports of several scopes. Lists in their facts are joined and numbers added."""
    if len(reports) == 1:
        return reports[0][1]
    first = reports[0][1]
    return replace(
        first,
        summary="; ".join(f"{SCOPE_LABELS[project.scope]}: {report.summary}" for project, report in reports),
        exit_code=_combine_exit_codes([report.exit_code for _, report in reports]),
        rows=tuple(row for _, report in reports for row in report.rows),
        notes=tuple(dict.fromkeys(note for _, report in reports for note in report.notes)),
        details=tuple(dict.fromkeys(note for _, report in reports for note in report.details)),
        next_command=_choose_next_command([report for _, report in reports]),
        facts=_combine_facts([report.facts for _, report in reports]),
        rule_texts={code: text for _, report in reports for code, text in report.rule_texts.items()},
    )


def describe_own_locks(projects: Iterable[Project]) -> Iterator[str]:
    """Yield one sentence that says where the locks of a user's own servers are, and that ``ci`` does not check them."""
    places = {project.scope: _display_own_lock(project) for project in projects if project.scope != "project"}
    if not places:
        return
    if "local" not in places:
        where = f"Your own servers are locked in {places['user']}"
    elif "user" not in places:
        where = f"Your own servers for this project are locked in {places['local']}"
    else:
        where = f"Your own servers are locked in {places['user']}, those for this project in {places['local']}"
    yield f"{where}, outside the repository. pinwarden ci checks only the project's servers."


def _display_own_lock(project: Project) -> str:
    try:
        return f"~/{project.lock.resolve().relative_to(project.home.resolve()).as_posix()}"
    except (ValueError, OSError, RuntimeError):  # outside the home folder, or a loop of links
        return str(project.lock)


def _is_used(project: Project) -> bool:
    return project.lock.exists() or bool(project.find_configs()) or project.has_skills()


def _combine_exit_codes(codes: Sequence[int]) -> int:
    """Return the exit code of all scopes. A finding takes precedence over a check that could not be completed."""
    return next((code for code in (EXIT_REFUSED, EXIT_UNCHECKED) if code in codes), max(codes))


def _choose_next_command(reports: Sequence[Report]) -> str | None:
    """Return the next command of the first scope that fails, or else of the first that has one."""
    by_need = sorted(reports, key=lambda report: report.exit_code == EXIT_CLEAN)
    return next((report.next_command for report in by_need if report.next_command), None)


def _combine_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    combined = dict(facts[0])
    for other in facts[1:]:
        for name, value in other.items():
            known = combined.get(name)
            if isinstance(known, bool) and isinstance(value, bool):
                combined[name] = known and value
            elif isinstance(known, list) and isinstance(value, list):
                combined[name] = [*known, *(item for item in value if item not in known)]
            elif isinstance(known, int) and isinstance(value, int):
                combined[name] = known + value
            elif isinstance(known, dict) and isinstance(value, dict):
                combined[name] = _combine_facts([known, value])
            else:
                combined.setdefault(name, value)
    return combined
