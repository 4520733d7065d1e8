"""The report of ``pinwarden init``: locked servers, refused servers, and findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import parse_launch
from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.clients.findings import FINDING_KINDS, check_files
from pinwarden.clients.table import CLIENTS, list_client_titles
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, collect_kind_reasons, row_to_json, severity_rank
from pinwarden.core.text import plural
from pinwarden.lock.locked_config import describe_uncovered_members
from pinwarden.project.configs import build_finding_row
from pinwarden.project.init_decisions import LOCKING_KINDS
from pinwarden.project.next_step import quote_name
from pinwarden.project.scopes import describe_own_locks
from pinwarden.project.status_report import choose_command_in_scope
from pinwarden.system.masking import mask_name
from pinwarden.system.probe_budget import get_probe_stderr
from pinwarden.system.redaction import list_redacted_members, redact_entry

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.init_decisions import DiscoveredServer, Discovery
    from pinwarden.project.project import Project

_NO_SERVERS = "no MCP servers are configured for this project or user"
_NO_SERVERS_HINT = (
    "servers are configured in a client's file, such as .mcp.json in this folder; pinwarden add NAME adds a server "
    "from a registry, and pinwarden inspect -- COMMAND inspects a server that is not configured"
)


def build_init_report(discovery: Discovery, written_policy: str | None = None) -> Report:
    """Build the report. The exit code is 1 if a server was refused or needs a decision.

    ``written_policy`` is the name of the policy file that was written with the lock.
    """
    project, servers, undecided = discovery.project, discovery.servers, discovery.undecided
    unread = [file for file in discovery.files if file.fault is not None]
    rows = [*_build_refusal_rows(project, servers), *(row for server in undecided for row in server.status.rows)]
    rows += [*_list_scan_warnings(servers), *_build_unprobed_rows(project, servers)]
    findings = [build_finding_row(project, finding) for finding in check_files(discovery.files)]
    refused = bool(undecided) or any(server.refused for server in servers)
    return Report(
        command="init",
        subject=project.lock.name,
        summary=_summarize(
            discovery,
            unread,
            len(findings) + len(_build_refusal_rows(project, servers)) + len(_list_scan_warnings(servers)),
        ),
        exit_code=EXIT_REFUSED
        if refused
        else EXIT_UNCHECKED
        if unread or _build_unprobed_rows(project, servers)
        else EXIT_CLEAN,
        rows=tuple(sorted([*rows, *findings], key=severity_rank)),
        notes=(*_build_notes(discovery), *_describe_policy(written_policy), *_describe_scope(discovery)),
        details=tuple(_build_details(discovery)),
        next_command=_choose_next_command(discovery),
        facts={
            "clients": list(CLIENTS),
            "files": [
                {"client": file.client, "scope": file.scope, "path": project.display_path(file.path)}
                for file in discovery.files
            ],
            "servers": [_server_to_json(discovery, server) for server in servers],
            "policy": written_policy,
            "undecided": [row_to_json(row) for server in undecided for row in server.status.rows],
            "findings": [
                _finding_to_json(row)
                for row in (
                    *_build_refusal_rows(project, servers),
                    *_list_scan_warnings(servers),
                    *_build_unprobed_rows(project, servers),
                    *findings,
                )
            ],
        },
        rule_texts=collect_kind_reasons(FINDING_KINDS, CONFIG_KINDS, LOCKING_KINDS),
    )


def _list_scan_warnings(servers: Sequence[DiscoveredServer]) -> list[Row]:
    """Return the scan warnings about servers that were refused or accepted."""
    return [row for server in servers if not server.is_undecided for row in server.status.scan_warnings]


def _build_unprobed_rows(project: Project, servers: Sequence[DiscoveredServer]) -> list[Row]:
    """Report servers whose probe failed, with the end of their stderr."""
    return [
        Row(
            code=COULD_NOT_CHECK,
            severity="review",
            entity="config",
            name=mask_name(server.configured.name),
            path="",
            message=f"could not be probed, so its tools are not pinned: {server.probe_error.message}",
            excerpt=get_probe_stderr(server.probe_error),
            file=project.display_path(server.configured.path),
        )
        for server in servers
        if server.probe_error is not None
    ]


def _build_refusal_rows(project: Project, servers: Sequence[DiscoveredServer]) -> list[Row]:
    return [
        Row(
            code="not_locked",
            severity=LOCKING_KINDS["not_locked"].severity,
            entity="config",
            name=mask_name(server.configured.name),
            path="",
            message=f"not locked: {server.refused}",
            file=project.display_path(server.configured.path),
        )
        for server in servers
        if server.refused is not None
    ]


def _summarize(discovery: Discovery, unread: Sequence[ConfigFile], findings: int) -> str:
    servers, undecided = discovery.servers, discovery.undecided
    name = discovery.project.lock.name
    broken = f"{plural(len(unread), 'configuration')} could not be read" if unread else ""
    if not servers:
        return f"{broken}; no MCP servers were found in the others" if unread else _NO_SERVERS
    if undecided:
        pending = f"{plural(len(undecided), 'configured server')} new or different"
        saved = plural(len(discovery.written_keys), "server")
        summary = (
            f"{saved} locked in {name}; {pending}" if discovery.written_keys else f"{name} was not changed: {pending}"
        )
    else:
        locked = [server for server in servers if server.refused is None]
        pinned = sum(discovery.is_pinned(server) for server in locked)
        names = len({server.configured.name for server in servers})
        noun = f"entries of {plural(names, 'server')}" if names < len(servers) else "servers"
        summary = (
            f"{len(locked)} of {len(servers)} configured {noun} locked in {name}, {pinned} with their live surface"
        )
    return "; ".join(part for part in (summary, broken, plural(findings, "finding")) if part)


def _build_notes(discovery: Discovery) -> Iterator[str]:
    if discovery.undecided:
        written = "only what you agreed to was written" if discovery.written_keys else "nothing was written"
        yield f"{written}; to see what is new or different, and decide: {_format_approve_command(discovery)}"
        return
    if not discovery.servers or any(file.fault for file in discovery.files):
        yield f"searched the configuration files of {', '.join(list_client_titles())}"
    if not discovery.servers:
        yield _NO_SERVERS_HINT
    yield from _describe_unrecorded(server for server in discovery.servers if server.status.state != "unchanged")
    for server in discovery.servers:
        if server.status.state != "unchanged":
            yield from _describe_redacted(server)


def _describe_policy(written: str | None) -> Iterator[str]:
    if written is not None:
        yield f"{written} written: ci fails on servers without an exact release (exact-releases = false only warns)"


def _describe_scope(discovery: Discovery) -> Iterator[str]:
    if not discovery.undecided and discovery.servers:
        yield from describe_own_locks((discovery.project,))


def _build_details(discovery: Discovery) -> Iterator[str]:
    """Return notes about servers that are configured as before, which the last run printed too."""
    if discovery.undecided:
        return
    unchanged = [server for server in discovery.servers if server.status.state == "unchanged"]
    yield from _describe_unrecorded(server for server in unchanged if not discovery.is_pinned(server))
    for server in unchanged:
        yield from _describe_redacted(server)


def _describe_unrecorded(servers: Iterable[DiscoveredServer]) -> Iterator[str]:
    """Name the servers whose tools are not recorded, once for each reason."""
    names_by_reason: dict[str, dict[str, None]] = {}
    for server in servers:
        if server.refused is None and server.surface is None and server.not_probed_reason and not server.probe_error:
            names_by_reason.setdefault(server.not_probed_reason, {})[mask_name(server.configured.name)] = None
    for reason, names in names_by_reason.items():
        count = f"{plural(len(names), 'server')} ({', '.join(names)})" if len(names) > 1 else next(iter(names))
        yield f"{count}: tools not recorded: {reason}"


def _describe_redacted(server: DiscoveredServer) -> Iterator[str]:
    unseen = list_redacted_members(redact_entry(server.configured.entry)) if server.refused is None else []
    if unseen:
        yield describe_uncovered_members(server.configured.name, unseen)


def _choose_next_command(discovery: Discovery) -> str | None:
    if discovery.undecided:
        return _format_approve_command(discovery)
    locked = [server for server in discovery.servers if server.refused is None]
    if any(file.fault for file in discovery.files):
        return "pinwarden doctor"
    return choose_command_in_scope(discovery.project) if locked else None


def _format_approve_command(discovery: Discovery) -> str:
    """Return the command that asks about every server that needs a decision."""
    names = dict.fromkeys(quote_name(server.configured.name) for server in discovery.undecided)
    return " ".join(["pinwarden approve", *names])


def _server_to_json(discovery: Discovery, server: DiscoveredServer) -> dict[str, Any]:
    project = discovery.project
    launched = parse_launch(server.configured.target) if server.configured.target else None
    surface = server.surface or (discovery.approved.surface(server.key) if discovery.is_pinned(server) else None)
    facts: Mapping[str, Any] = {
        "name": mask_name(server.configured.name),
        "client": server.configured.client,
        "scope": server.configured.scope,
        "file": project.display_path(server.configured.path),
        "runs": launched.purl or launched.identity if launched else None,
        "pinned": launched.pinned if launched else False,
        "state": server.status.state,
        "locked": server.refused is None
        and (not discovery.undecided or server.status.state == "unchanged" or server.key in discovery.written_keys),
        "surface": str(surface.digest) if surface else None,
        "reason": server.refused or server.not_probed_reason,
    }
    return dict(facts)


def _finding_to_json(row: Row) -> dict[str, Any]:
    return {
        "code": row.code,
        "severity": row.severity,
        "server": row.name,
        "file": row.file,
        "pointer": row.path,
        "message": row.message,
    }
