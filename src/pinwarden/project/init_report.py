"""What ``pinwarden init`` says: what was locked, what was not, and what stands out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.clients.findings import FINDING_KINDS, findings_in
from pinwarden.clients.launch.parse import parse_launch
from pinwarden.clients.table import CLIENTS, clients_looked_for
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, kind_reasons, plural, row_facts, severity_rank
from pinwarden.lock.locked_config import uncovered
from pinwarden.project.configs import located_finding_row
from pinwarden.project.init_decisions import LOCKING_KINDS
from pinwarden.surface.rows import stderr_tail
from pinwarden.system.masking import mask_name
from pinwarden.system.redaction import redact_entry, redacted_members

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.init_decisions import Discovery, Found
    from pinwarden.project.project import Project

_NONE = "no MCP servers are configured for this project or user"
_NONE_YET = (
    "a client's file names them, such as .mcp.json in this folder; pinwarden add NAME takes one from a registry, and "
    "pinwarden inspect -- COMMAND looks at one that is not configured"
)


def init_report(discovery: Discovery) -> Report:
    """What ``pinwarden init`` says of what it found and did."""
    project, found, undecided = discovery.project, discovery.found, discovery.undecided
    unread = [file for file in discovery.files if file.fault is not None]
    rows = [*_refusals(project, found), *(row for each in undecided for row in each.standing.rows)]
    rows += [*_attacks(found), *_unasked(project, found)]
    findings = [located_finding_row(project, finding) for finding in findings_in(discovery.files)]
    refused = bool(undecided) or any(each.refused for each in found)
    return Report(
        command="init",
        subject=project.lock.name,
        summary=_summary(discovery, unread, len(findings) + len(_refusals(project, found)) + len(_attacks(found))),
        exit_code=EXIT_REFUSED if refused else EXIT_UNCHECKED if unread or _unasked(project, found) else EXIT_CLEAN,
        rows=tuple(sorted([*rows, *findings], key=severity_rank)),
        notes=tuple(_notes(discovery)),
        facts={
            "clients": list(CLIENTS),
            "files": [
                {"client": file.client, "scope": file.scope, "path": project.shown(file.path)}
                for file in discovery.files
            ],
            "servers": [_facts(discovery, each) for each in found],
            "undecided": [row_facts(row) for each in undecided for row in each.standing.rows],
            "findings": [
                _row_facts(row)
                for row in (*_refusals(project, found), *_attacks(found), *_unasked(project, found), *findings)
            ],
        },
        rule_texts=kind_reasons(FINDING_KINDS, CONFIG_KINDS, LOCKING_KINDS),
    )


def _attacks(found: Sequence[Found]) -> list[Row]:
    """What looks like an attack in the texts of servers that were decided about: refused, or accepted by name."""
    return [row for each in found if not each.undecided for row in each.standing.attacks]


def _unasked(project: Project, found: Sequence[Found]) -> list[Row]:
    """Servers that were to be asked and could not be, with their last words."""
    return [
        Row(
            code=COULD_NOT_CHECK,
            severity="review",
            entity="config",
            name=mask_name(each.server.name),
            path="",
            message=f"could not be asked, so its tools are not pinned: {each.failure.message}",
            excerpt=stderr_tail(each.failure),
            file=project.shown(each.server.path),
        )
        for each in found
        if each.failure is not None
    ]


def _refusals(project: Project, found: Sequence[Found]) -> list[Row]:
    return [
        Row(
            code="not_locked",
            severity=LOCKING_KINDS["not_locked"].severity,
            entity="config",
            name=mask_name(each.server.name),
            path="",
            message=f"not locked: {each.refused}",
            file=project.shown(each.server.path),
        )
        for each in found
        if each.refused is not None
    ]


def _summary(discovery: Discovery, unread: Sequence[ConfigFile], findings: int) -> str:
    found, undecided = discovery.found, discovery.undecided
    name = discovery.project.lock.name
    broken = f"{plural(len(unread), 'configuration')} could not be read" if unread else ""
    if not found:
        return f"{broken}; no MCP servers were found in the others" if unread else _NONE
    if undecided:
        what = f"{plural(len(undecided), 'configured server')} new or different"
        saved = plural(len(discovery.saved), "server")
        told = f"{saved} locked in {name}; {what}" if discovery.saved else f"{name} was not changed: {what}"
    else:
        locked = [each for each in found if each.refused is None]
        pinned = sum(discovery.is_pinned(each) for each in locked)
        told = f"{len(locked)} of {len(found)} configured servers locked in {name}, {pinned} with their live surface"
    return "; ".join(part for part in (told, broken, plural(findings, "finding")) if part)


def _notes(discovery: Discovery) -> Iterator[str]:
    if discovery.undecided:
        names = " ".join(dict.fromkeys(each.how_to_accept for each in discovery.undecided))
        written = "what you accepted was written" if discovery.saved else "nothing was written"
        yield f"{written}; accept what is new or different with {names}"
        return
    if not discovery.found or any(file.fault for file in discovery.files):
        yield f"looked for the files of {', '.join(clients_looked_for())}"
    if not discovery.found:
        yield _NONE_YET
    for each in discovery.found:
        if each.refused is None and each.unasked and each.failure is None and not discovery.is_pinned(each):
            yield f"{each.server.name}: its tools are not pinned: {each.unasked}"
    for each in discovery.found:
        unseen = redacted_members(redact_entry(each.server.entry)) if each.refused is None else []
        if unseen:
            yield uncovered(each.server.name, unseen)


def _facts(discovery: Discovery, each: Found) -> dict[str, Any]:
    project = discovery.project
    launched = parse_launch(each.server.target) if each.server.target else None
    seen = each.surface or (discovery.approved.surface(each.key) if discovery.is_pinned(each) else None)
    facts: Mapping[str, Any] = {
        "name": mask_name(each.server.name),
        "client": each.server.client,
        "scope": each.server.scope,
        "file": project.shown(each.server.path),
        "runs": launched.purl or launched.identity if launched else None,
        "pinned": launched.pinned if launched else False,
        "state": each.standing.state,
        "locked": each.refused is None
        and (not discovery.undecided or each.standing.state == "unchanged" or each.key in discovery.saved),
        "surface": str(seen.digest) if seen else None,
        "reason": each.refused or each.unasked,
    }
    return dict(facts)


def _row_facts(row: Row) -> dict[str, Any]:
    return {
        "code": row.code,
        "severity": row.severity,
        "server": row.name,
        "file": row.file,
        "pointer": row.path,
        "message": row.message,
    }
