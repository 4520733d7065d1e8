"""The clients' configurations beside the lock: which files and entries concern this project, and which belong together.

The user's own file of Claude Code holds servers for all of their projects; those of other projects are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.drift import compare_answers, compare_entries
from pinwarden.clients.findings import proposed_inputs
from pinwarden.clients.table import CLIENTS, client_of
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_config import LockedConfig, configured_in, locked_config
from pinwarden.lock.lockfile import Lock
from pinwarden.project.config_diagnosis import DoctorIssue, IssueKind, Stranger, diagnose, repeated, strangers
from pinwarden.project.lock_documents import LockDocument, read_lock
from pinwarden.surface.drift.changes import INFO
from pinwarden.system.redaction import redact_entry

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.clients.findings import ConfigFinding
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.drift.changes import Change


class FoundEntry(Record):
    """A locked server that was found in a configuration, and where."""

    entry: Entry
    locked: LockedConfig
    client: str
    scope: str
    file: str
    """As the lock names it: relative to the project, or to the home folder."""


class ConfigView(Record):
    """What is configured and what is locked, for one scope or for all."""

    files: tuple[ConfigFile, ...]
    document: LockDocument | None
    """The lock; None if there is none."""
    installed: tuple[LockedConfig, ...]
    """Entries from a registry: they are in the file that their client installs to."""
    found: tuple[FoundEntry, ...]
    """Entries that were locked from a configuration, each in its own file."""

    @property
    def locked(self) -> tuple[LockedConfig, ...]:
        """Every locked configuration."""
        return (*self.installed, *(each.locked for each in self.found))

    @property
    def servers(self) -> tuple[ConfiguredServer, ...]:
        """Every configured server."""
        return tuple(server for file in self.files for server in file.servers)


def view_configs(project: Project, scope: str = "all") -> ConfigView:
    """Read the lock, if there is one, and every configuration of this scope."""
    document: LockDocument | None = None
    entries: tuple[Entry, ...] = ()
    if project.lock.exists() or project.lock.is_symlink():
        document = read_lock(project.lock)
        lock = document.lock
        entries = tuple(entry for entry in lock.entries if scope in ("all", entry.scope))
    return view_of(project, entries, project.configs(), document, scope)


def view_of(
    project: Project,
    entries: Sequence[Entry],
    files: Sequence[ConfigFile],
    document: LockDocument | None = None,
    scope: str = "all",
) -> ConfigView:
    """The same for what was read already."""
    installed, found = _split(entries)
    return ConfigView(files=_concerning(project, files, scope), document=document, installed=installed, found=found)


def _split(entries: Sequence[Entry]) -> tuple[tuple[LockedConfig, ...], tuple[FoundEntry, ...]]:
    installed: list[LockedConfig] = []
    found: list[FoundEntry] = []
    for entry in entries:
        locked, where = locked_config(entry.key, entry.document), configured_in(entry)
        if where is None or where.client not in CLIENTS:
            installed.append(locked)
        else:
            place = {"client": where.client, "scope": where.scope, "file": where.file}
            found.append(FoundEntry(entry=entry, locked=locked, **place))
    return tuple(installed), tuple(found)


def _concerning(project: Project, files: Sequence[ConfigFile], scope: str) -> tuple[ConfigFile, ...]:
    chosen: list[ConfigFile] = []
    for file in files:
        servers = tuple(server for server in file.servers if _is_ours(project, server) and _is_in(scope, server.scope))
        if _is_in(scope, file.scope) or servers:
            chosen.append(replace(file, servers=servers))
    return tuple(chosen)


def _is_ours(project: Project, server: ConfiguredServer) -> bool:
    if server.folder is None:
        return True
    try:
        return Path(server.folder).resolve() == project.root.resolve()
    except (ValueError, OSError, RuntimeError):  # no path, or links without an end: nobody can say whose it is
        return True


def _is_in(scope: str, found: str) -> bool:
    """``local`` is the user's own configuration for this one project."""
    return scope in ("all", "project" if found == "local" else found)


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
        answers = proposed_inputs(server, file.inputs if file else ())
        where = configured_in(each.entry)
        approved = where.answers if where is not None else {}
        changes = (
            *compare_entries(each.entry.name, each.locked.entry, redact_entry(server.entry), client_of(each.client)),
            *compare_answers(each.entry.name, approved, answers),
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


def config_rows(
    project: Project, lock: Lock, files: Sequence[ConfigFile], scope: str, policies: Policies
) -> Iterator[Row]:
    """Every client configuration that exists, against the lock."""
    from pinwarden.clients.findings import file_findings
    from pinwarden.project.configured_entry import unresolved_starts

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
    return Row(code=code, severity=level, entity="config", name=finding.name, path="", message=message, file=file)


def _change_row(change: Change, file: str) -> Row:
    from pinwarden.surface.rows import change_row

    return replace(change_row(change), file=file)


def located_finding_row(project: Project, finding: ConfigFinding) -> Row:
    """What is wrong with a configuration by itself, as a row of a report."""
    return Row(
        code=finding.code,
        severity=finding.severity,
        entity="config",
        name=finding.name,
        path=finding.pointer,
        message=finding.message,
        file=project.shown(finding.file),
    )
