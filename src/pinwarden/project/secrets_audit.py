"""Secrets that lie open: in the clients' configurations, and in the lock itself. No value is ever part of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import configured_server
from pinwarden.clients.table import client_of
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.report import FindingKinds, Report, Row, kind_reasons, kind_table, severity_rank
from pinwarden.project.config_secrets import SecretFinding, audit_inputs, audit_locked, audit_servers
from pinwarden.project.configs import ConfigView, view_configs

if TYPE_CHECKING:
    from pinwarden.project.project import Project

SECRET_KINDS: FindingKinds = kind_table(
    critical=(
        ("plaintext_secret", "A secret stands in a file in plain text."),
        ("secret_prefix", "A value has the form of a key that a service gives out."),
    ),
    review=(("unreadable_config", "A configuration could not be read, so nobody looked for secrets in it."),),
    info=(
        ("invalid_scope", "The client has no file in this scope."),
        ("missing_config", "The server is not configured, so there is nothing to look at."),
    ),
)


def audit_secrets(project: Project, scope: str = "all") -> Report:
    """The report of ``pinwarden secrets audit``.

    1. The secrets that the lock declares, in the files of its clients, as ToolPin looks for them.
    2. Every configured server, locked or not, what users are asked for, and what the lock itself keeps.
    3. Files that could not be looked at.
    """
    view = view_configs(project, scope)
    by_path = {file.path: file for file in view.files}
    declared = audit_locked(view.installed, by_path, project.config_paths()).findings
    configured = (*audit_servers(view.servers).findings, *audit_inputs(view.files))
    findings = _unique((*declared, *configured, *_lock_findings(project, view)))
    findings += _unreadable_findings(view, findings)
    rows = [_row(project, finding) for finding in findings]
    open_secrets = sum(row.severity == "critical" for row in rows)
    unread = sum(row.severity == "review" for row in rows)
    return Report(
        command="secrets audit",
        subject=project.lock.name,
        summary=_summary(view, open_secrets, unread),
        exit_code=EXIT_REFUSED if open_secrets else EXIT_UNCHECKED if unread else EXIT_CLEAN,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=() if view.document else (f"there is no {project.lock.name}; only configurations were looked at",),
        facts={
            "ok": not open_secrets and not unread,
            "checked": len(view.locked),
            "servers": len(view.servers),
            "findings": [_facts(project, finding) for finding in findings],
        },
        rule_texts=kind_reasons(SECRET_KINDS),
    )


def _lock_findings(project: Project, view: ConfigView) -> tuple[SecretFinding, ...]:
    """The lock is committed: a secret in it is a published secret."""
    places = [(locked, locked.client) for locked in view.installed]
    places += [(located.locked, located.client) for located in view.located]
    servers = [
        configured_server(locked.name, locked.entry, client_of(client), path=str(project.lock))
        for locked, client in places
        if locked.entry is not None
    ]
    return audit_servers(servers).findings


def _unique(findings: Iterable[SecretFinding]) -> list[SecretFinding]:
    """Each place once: ToolPin's words for it come first."""
    unique: dict[tuple[Any, ...], SecretFinding] = {}
    for finding in findings:
        place = (finding.file, finding.name, finding.secret_source, finding.secret_name)
        unique.setdefault(place if finding.secret_name else (*place, finding.kind, finding.key), finding)
    return list(unique.values())


def _unreadable_findings(view: ConfigView, findings: Iterable[SecretFinding]) -> Iterator[SecretFinding]:
    reported = {finding.file for finding in findings if finding.kind == "unreadable_config"}
    for file in view.files:
        if file.fault and file.path not in reported:
            yield SecretFinding(
                kind="unreadable_config",
                key="",
                client=file.client,
                name="",
                file=file.path,
                scope=file.scope,
                message=f"could not be looked at: {file.problem}",
            )


def _row(project: Project, finding: SecretFinding) -> Row:
    several = ", " in finding.file
    return Row(
        code=finding.kind,
        severity=SECRET_KINDS[finding.kind].severity,
        entity="config",
        name=finding.name,
        path="",
        message=finding.message,
        file=project.shown(finding.file) if finding.file and not several else None,
    )


def _facts(project: Project, finding: SecretFinding) -> dict[str, Any]:
    shown = finding.to_json()
    shown["file"] = ", ".join(project.shown(path) for path in finding.file.split(", ")) if finding.file else ""
    return shown


def _summary(view: ConfigView, found: int, unread: int) -> str:
    looked = f"{len(view.locked)} locked and {len(view.servers)} configured servers"
    if found:
        return f"{looked}: {found} secret{'' if found == 1 else 's'} in plain text"
    return f"{looked}: {unread} files could not be looked at" if unread else f"{looked}: no secret in plain text"
