"""Finds secrets in plain text in client configurations and in the lock. Reports never contain the secret itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons, severity_rank
from pinwarden.project.config_secrets import SecretFinding, audit_inputs, audit_locked, audit_servers
from pinwarden.project.configs import ConfigView, read_config_view

if TYPE_CHECKING:
    from pinwarden.project.project import Project

SECRET_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("plaintext_secret", "A secret is stored in a file as plain text."),
        ("secret_prefix", "A value looks like the key of a known service."),
    ),
    review=(("unreadable_config", "A configuration could not be read, so it was not searched for secrets."),),
    info=(
        ("invalid_scope", "The client has no file in this scope."),
        ("missing_config", "The server is not configured, so there is nothing to search."),
    ),
)


def audit_secrets(project: Project) -> Report:
    """Return the report of ``pinwarden secrets audit``.

    1. Like ToolPin, look in client configurations for the secrets that the lock declares.
    2. Check all configured servers, the inputs that configuration files declare, and the lock itself.
    3. Report files that could not be read.
    """
    view = read_config_view(project)
    by_path = {file.path: file for file in view.files}
    declared = audit_locked(view.installed, by_path, project.find_install_paths()).findings
    configured = (*audit_servers(view.servers).findings, *audit_inputs(view.files))
    findings = _remove_duplicates((*declared, *configured, *_audit_lock(project, view)))
    findings += _report_unreadable(view, findings)
    rows = [build_secret_row(project, finding) for finding in findings]
    open_secrets = sum(row.severity == "critical" for row in rows)
    unread = sum(row.severity == "review" for row in rows)
    return Report(
        command="secrets audit",
        subject=project.lock.name,
        summary=_summarize(view, open_secrets, unread),
        exit_code=EXIT_REFUSED if open_secrets else EXIT_UNCHECKED if unread else EXIT_CLEAN,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=() if view.document else (f"there is no {project.lock.name}; only client configurations were searched",),
        facts={
            "ok": not open_secrets and not unread,
            "checked": len(view.locked),
            "servers": len(view.servers),
            "findings": [secret_to_json(project, finding) for finding in findings],
        },
        rule_texts=collect_kind_reasons(SECRET_KINDS),
    )


def _audit_lock(project: Project, view: ConfigView) -> tuple[SecretFinding, ...]:
    """Find secrets in the lock, which is usually committed to a repository."""
    entries = [(locked, locked.client) for locked in view.installed]
    entries += [(located.locked, located.client) for located in view.located]
    servers = [
        parse_configured_server(locked.name, locked.approved, get_client(client), path=str(project.lock))
        for locked, client in entries
        if locked.approved is not None
    ]
    return audit_servers(servers).findings


def _remove_duplicates(findings: Iterable[SecretFinding]) -> list[SecretFinding]:
    """Keep the first finding for each location."""
    unique: dict[tuple[Any, ...], SecretFinding] = {}
    for finding in findings:
        location = (finding.file, finding.name, finding.secret_source, finding.secret_name)
        unique.setdefault(location if finding.secret_name else (*location, finding.kind, finding.key), finding)
    return list(unique.values())


def _report_unreadable(view: ConfigView, findings: Iterable[SecretFinding]) -> Iterator[SecretFinding]:
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
                message=f"could not be read: {file.problem}",
            )


def build_secret_row(project: Project, finding: SecretFinding) -> Row:
    """Report a finding of the audit."""
    has_several_files = ", " in finding.file
    return Row(
        code=finding.kind,
        severity=SECRET_KINDS[finding.kind].severity,
        entity="config",
        name=finding.name,
        path="",
        message=finding.message,
        file=project.display_path(finding.file) if finding.file and not has_several_files else None,
    )


def secret_to_json(project: Project, finding: SecretFinding) -> dict[str, Any]:
    """Convert a finding of the audit to JSON, with a short path."""
    value = finding.to_json()
    value["file"] = ", ".join(project.display_path(path) for path in finding.file.split(", ")) if finding.file else ""
    return value


def _summarize(view: ConfigView, secrets: int, unread: int) -> str:
    searched = f"{len(view.locked)} locked and {len(view.servers)} configured servers"
    if secrets:
        return f"{searched}: {secrets} secret{'' if secrets == 1 else 's'} in plain text"
    return f"{searched}: {unread} files could not be read" if unread else f"{searched}: no secret in plain text"
