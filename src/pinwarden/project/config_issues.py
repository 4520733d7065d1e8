"""The clients' configurations against the lock: what differs, what is missing, and what nobody approved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinwarden.clients.answers import proposed_answers
from pinwarden.clients.drift import compare_answers, compare_entries
from pinwarden.clients.table import client_of
from pinwarden.core.record import replace
from pinwarden.lock.configured import approved_answers
from pinwarden.project.config_diagnosis import DoctorIssue, IssueKind, Stranger, diagnose, repeated, strangers
from pinwarden.project.config_view import ConfigView, FoundEntry
from pinwarden.surface.drift.changes import INFO
from pinwarden.system.masking import lockable_entry

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.project.project import Project


def config_issues(project: Project, view: ConfigView) -> tuple[DoctorIssue, ...]:
    """Every locked server against the file of its client."""
    return (*_installed_issues(project, view), *_found_issues(project, view))


def _installed_issues(project: Project, view: ConfigView) -> tuple[DoctorIssue, ...]:
    by_path = {file.path: file for file in view.files}
    return diagnose(view.installed, by_path, project.config_paths(), lockfile=project.lock.name).issues


def _found_issues(project: Project, view: ConfigView) -> Iterator[DoctorIssue]:
    """Entries that came from a configuration: their values were replaced by placeholders, so filled ones are right."""
    by_name = {project.shown(file.path): file for file in view.files}
    for each in view.found:
        file = by_name.get(each.file)
        if file is not None and file.fault:
            yield _issue(each, "unreadable", f"{each.file}: {file.problem}")
            continue
        server = _configured(each, file)
        if server is None:
            yield _issue(each, "missing", f"missing {each.client} config entry for {each.entry.name}")
            continue
        answers = proposed_answers(server, file.inputs if file else ())
        changes = (
            *compare_entries(each.entry.name, each.locked.entry, lockable_entry(server.entry), client_of(each.client)),
            *compare_answers(each.entry.name, approved_answers(each.entry), answers),
        )
        if any(change.severity != INFO for change in changes):
            message = f"client config entry differs from {project.lock.name}"
            yield replace(_issue(each, "drift", message), changes=changes)


def _configured(each: FoundEntry, file: ConfigFile | None) -> ConfiguredServer | None:
    servers = file.servers if file else ()
    return next((one for one in servers if (one.name, one.scope) == (each.entry.name, each.scope)), None)


def _issue(each: FoundEntry, kind: IssueKind, message: str) -> DoctorIssue:
    return DoctorIssue(
        key=each.entry.key,
        kind=kind,
        client=each.client,
        name=each.entry.name,
        file=each.file,
        scope=each.scope,
        message=message,
    )


def config_strangers(project: Project, view: ConfigView) -> tuple[Stranger, ...]:
    """Every configured server that the lock does not know where it was found."""
    known = {(each.entry.name, each.scope, each.file) for each in view.found}
    elsewhere = [each.locked for each in view.found]  # approved for one file only, and that need not be the usual one
    unknown = strangers(view.installed, view.files, project.config_paths(), found_elsewhere=elsewhere)
    return (
        *repeated(view.files),
        *(
            each
            for each in unknown
            if (each.server.name, each.server.scope, project.shown(each.server.path)) not in known
        ),
    )
