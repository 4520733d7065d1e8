"""Approve a server: probe it, compare its surface with the approved one, and record the decision of a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, row_to_json
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.project.approval_candidate import (
    APPROVE_WARNINGS_OPTION,
    CONFIGURATION_ONLY,
    ApprovalCandidate,
    is_reviewed,
    read_neighbours,
    scan_for_approval,
    warnings_to_json,
    was_shown,
)
from pinwarden.project.init import write_approvals
from pinwarden.project.init_decisions import NOT_LOCKED_KINDS, ApprovedServers
from pinwarden.project.last_checked import record_entries_checked, record_entries_compared
from pinwarden.project.locked_servers import LockedServer
from pinwarden.project.servers_to_approve import ServerToApprove, find_earlier_release
from pinwarden.project.surface_reports import compare_surfaces
from pinwarden.surface.drift.changes import CRITICAL, build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.drift.summary import group_decisions
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, Surface
from pinwarden.system.masking import mask_url, mask_words
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.lock import Approver
    from pinwarden.project.server_start import PreparedProbe
    from pinwarden.surface.drift.changes import Change
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import Target


class Approval(Record):
    """A surface that a person is asked to approve, with everything to show before that."""

    server: ServerToApprove
    candidate: ApprovalCandidate
    changes: tuple[Change, ...]
    """Changes of the configuration, then of the surface since it was approved or recorded."""
    is_first: bool
    """Whether no person approved a surface of the server before."""

    @property
    def surface(self) -> Surface:
        """The surface to approve."""
        return self.candidate.surface

    @property
    def is_unchanged(self) -> bool:
        """Whether exactly this surface is approved for every client, for the release that the client starts now."""
        return not any(part.configured for part in self.server.parts) and all(
            is_reviewed(entry) and _is_approved_for(part.discovery.approved.surface(entry.key), self.surface)
            for part in self.server.parts
            for entry in part.entries
        )

    @property
    def looks_like_attack(self) -> bool:
        """Whether a change or a text looks like an attack, so that only an approval by name may cover it."""
        serious = (change for change in self.changes if change.severity == CRITICAL)
        return bool(self.candidate.warnings) or any(change.kind not in NOT_LOCKED_KINDS for change in serious)


class PreparedServer(Record):
    """A server that is ready to be probed, and what a person is asked before that."""

    probe: PreparedProbe
    description: str
    """The command or address of the server, with secrets masked."""
    is_started: bool
    """Whether Pinwarden starts a command; otherwise it contacts an address."""


def prepare_server(server: ServerToApprove, options: ProbeOptions) -> PreparedServer:
    """Prepare the probe of a server, from its verified bytes if these are on this machine."""
    from pinwarden.project.server_start import prepare_locked_probe, prepare_probe
    from pinwarden.project.server_target import find_probe_target, with_store_variables

    part = min(server.parts, key=lambda part: not part.entries and not part.configured)
    if part.configured:
        configured = min(part.configured, key=lambda server: server.configured.disabled)
        target = configured.configured.target
        if target is None:
            raise PinwardenError(
                "CONFIG_INVALID", f"{server.name[:120]!a} cannot be used: {configured.configured.problem}"
            )
        target = with_store_variables(target)
        entry = part.discovery.approved.entry(configured.key)
        probe = prepare_probe(part.project, server.name, target, options, entry)
    else:
        entry = _choose_entry(server)
        target = find_probe_target(entry, part.discovery.files)
        probe = prepare_locked_probe(part.project, entry, part.discovery.files, options)
    return PreparedServer(
        probe=probe,
        description=describe_target(target, verified=probe.is_from_bytes),
        is_started=isinstance(target, StdioTarget),
    )


def describe_target(target: Target, *, verified: bool = False) -> str:
    """Describe the command or address of a target, with secrets masked."""
    if not isinstance(target, StdioTarget):
        return mask_url(target.url)
    command = " ".join(mask_words(list(target.command)))
    return f"{command}, from verified bytes" if verified else command


def prepare_approval(server: ServerToApprove, surface: Surface, *, warnings_approved: bool = False) -> Approval:
    """Compare a probed surface with the approved ones, and scan the text that no person approved before."""
    if surface.digest is None:
        raise PinwardenError("SURFACE_INVALID", f"{server.name[:120]!a} cannot be approved: {surface.problem}")
    approved, recorded = server.reviewed_surfaces(), server.list_recorded_surfaces()
    candidate = scan_for_approval(server.name, surface, approved, warnings_approved=warnings_approved)
    neighbours = list_neighbours(server) if approved or recorded else []
    changes = {repr(change): change for known in approved or recorded for change in compare(known, surface, neighbours)}
    rows = [build_change_row(change) for change in changes.values()]
    for part in server.parts:
        record_entries_compared(part.project, ((entry, rows) for entry in part.entries))
    return Approval(
        server=server,
        candidate=candidate,
        changes=(*list_config_changes(server), *changes.values()),
        is_first=not approved,
    )


def list_neighbours(server: ServerToApprove) -> list[tuple[str, Surface]]:
    """Read the approved surfaces of the other servers in the locks that have this server, each with its name."""
    locks = dict.fromkeys(part.project.lock for part in server.parts)
    return [neighbour for lock in locks if lock.is_file() for neighbour in read_neighbours(lock, server.name)]


def list_config_changes(server: ServerToApprove) -> tuple[Change, ...]:
    """Return the changes of the configuration, without those that only say that the server is not locked yet."""
    return tuple(change for change in server.config_changes if change.kind not in NOT_LOCKED_KINDS)


def record_approval(approval: Approval, approver: Approver, now: str, *, partial: bool = False) -> ServerToApprove:
    """Write the approved surface, for every client and scope that has the server. Returns the server as locked now.

    ``partial`` means that only some changes are approved, so the current release still needs an approval.

    Raises WARNINGS_NOT_APPROVED if the scan found warnings that the approver did not approve.
    """
    candidate = approval.candidate
    candidate.refuse_if_blocked()
    for part in approval.server.parts:
        configured = [
            replace(
                server,
                surface=candidate.surface,
                accepted=True,
                warnings_approved=candidate.warnings_approved,
                status=replace(server.status, scan_warnings=candidate.warnings),
            )
            for server in part.configured
        ]
        surfaces = [(entry, candidate) for entry in part.entries]
        write_approvals(part.discovery, configured, approver, now, surfaces, partial=partial)
    approved = reload_server(approval.server)
    for part in approved.parts:
        record_entries_checked(part.project, part.entries)
    return approved


def record_configuration(server: ServerToApprove, approver: Approver, now: str) -> ServerToApprove:
    """Lock the server as it is configured now, without its tools. Returns the server as locked now."""
    for part in server.parts:
        if part.configured:
            # The lock keeps a surface that a person approved, and notes for which release that was.
            shown = any(map(was_shown, part.list_earlier_entries()))
            reason = approver if shown else replace(approver, default_reason=CONFIGURATION_ONLY, why="")
            write_approvals(part.discovery, [replace(one, accepted=True) for one in part.configured], reason, now)
    return reload_server(server)


def reload_server(server: ServerToApprove) -> ServerToApprove:
    """Read the lock entries of the server again, after a write that locked it as it is configured."""
    parts = []
    for part in server.parts:
        lock, files = lock_store.read_with_files(part.project.lock)
        keys = {entry.key for entry in part.entries} | {one.key for one in part.configured}
        discovery = replace(
            part.discovery, lock=lock, approved=ApprovedServers(part.project, lock, files, part.discovery.files)
        )
        entries = tuple(entry for entry in (lock.entries if lock else ()) if entry.key in keys)
        parts.append(replace(part, discovery=discovery, configured=(), entries=entries))
    return replace(server, parts=tuple(parts))


class ItemChange(Record):
    """One item that differs from the approved surface, and the approved surface with only this item changed."""

    title: str
    surface: Surface
    changes: tuple[Change, ...]


def split_changes(approved: Surface, served: Surface) -> Iterator[tuple[str, str]]:
    """Yield the list (such as ``tools``, or ``server``) and the key of each item that differs, in surface order."""
    for member in SERVER_MEMBERS:
        if (approved.server or {}).get(member) != (served.server or {}).get(member):
            yield "server", member
    for kind in ITEM_KINDS:
        before = {item.key: item.digest for item in approved.items_of_kind(kind)}
        after = {item.key: item.digest for item in served.items_of_kind(kind)}
        for key in before | after:
            if before.get(key) != after.get(key):
                yield kind.member, key


def build_item_change(
    approved: Surface, served: Surface, member: str, key: str, neighbours: Sequence[tuple[str, Surface]] = ()
) -> ItemChange:
    """Build the approved surface with one item as the server serves it now."""
    if member == "server":
        server = {name: value for name, value in (approved.server or {}).items() if name != key}
        if key in (served.server or {}):
            server[key] = (served.server or {})[key]
        surface = replace(approved, server=server)
        title = key
    else:
        kept = tuple(item for item in approved.items.get(member, ()) if item.key != key)
        added = tuple(item for item in served.items.get(member, ()) if item.key == key)
        surface = replace(approved, items={**approved.items, member: (*kept, *added)})
        kind = next(kind for kind in ITEM_KINDS if kind.member == member)
        title = f"{kind.entity} {key}"
    changes = compare(approved, surface, neighbours, served=served)
    return ItemChange(title=title, surface=surface, changes=changes)


def build_approval_report(approval: Approval, hint: str = "") -> Report:
    """Return the report of what would be approved. ``hint`` is the command that approves it."""
    server, surface = approval.server, approval.surface
    recorded = server.reviewed_surfaces() or server.list_recorded_surfaces()
    before = recorded[0] if recorded else Surface(server=None, items={}, observed={})
    first = compare_surfaces(before, surface, server.name, whole=True)
    changes = (
        [change for change in approval.changes if change.entity != "config"] if recorded else compare(before, surface)
    )
    rows = tuple(build_change_row(change, whole=True) for change in changes)
    if not recorded:
        rows = tuple(replace(row, message="Not approved yet.") for row in rows)
    counts = {level: sum(change.severity == level for change in changes) for level in first.facts["counts"]}
    configuration = tuple(build_change_row(change) for change in server.config_changes)
    blocked = bool(counts["critical"] or counts["review"] or configuration)
    facts: dict[str, Any] = {
        **first.facts,
        "changes": [change.to_json() for change in changes],
        "decisions": [decision.to_json() for decision in group_decisions(changes)],
        "blocked_by_default": blocked,
        "counts": counts,
    }
    if configuration:
        facts["configuration"] = [row_to_json(row) for row in configuration]
    if approval.candidate.warnings:
        facts["warnings"] = warnings_to_json(approval.candidate.warnings)
    return replace(
        first,
        command="approve",
        summary=_summarize(approval, hint),
        exit_code=EXIT_CLEAN if approval.is_unchanged else EXIT_REFUSED,
        rows=(*rows, *configuration, *approval.candidate.warnings),
        notes=first.notes if recorded else (),
        facts=facts,
    )


def approve(approval: Approval, approver: Approver, now: str) -> Report:
    """Approve the surface for every client that has the server, and report the changes.

    If the scan finds warnings that the approver did not approve, nothing is written and the exit code is 1.
    """
    shown = build_approval_report(approval)
    name, candidate = approval.server.name, approval.candidate
    if candidate.is_blocked:
        warnings_text = plural(len(candidate.warnings), "scan warning")
        summary = f"{name}: not approved because of {warnings_text}; to approve them too: {APPROVE_WARNINGS_OPTION}"
        return replace(shown, exit_code=EXIT_REFUSED, summary=summary)
    record_approval(approval, approver, now)
    return replace(
        shown,
        exit_code=EXIT_CLEAN,
        summary=summarize_approved(approval, approver),
        facts={
            **shown.facts,
            "approved": True,
            "by": approver.by,
            "why": approver.reason,
            "surface": str(approval.surface.digest),
        },
    )


def summarize_approved(approval: Approval, approver: Approver) -> str:
    """Return the sentence after an approval."""
    clients = approval.server.client_titles
    covered = f" for {', '.join(clients)}" if len(clients) > 1 else ""
    changes = f"{plural(len(approval.changes), 'change')} " if approval.changes else ""
    return f"{approval.server.name}: {changes}approved by {approver.by}{covered}"


def describe_unchanged(approval: Approval) -> str:
    """Describe what is left to approve if the surface did not change: another release, or other clients."""
    release = find_earlier_release(approval.server)
    if release is not None:
        return f"its surface is as approved for {release}; approve it for this release too"
    return f"its surface is as approved already; approve it for {', '.join(approval.server.client_titles)}"


def build_failure_report(server: str, err: PinwardenError) -> Report:
    """Return the report of a server that could not be read or approved."""
    row = Row(
        code=COULD_NOT_CHECK,
        severity="review",
        entity="server",
        name=server,
        path="",
        message=f"not approved: {err.message} [{err.code}]",
    )
    return Report(
        command="approve",
        subject=server,
        summary=f"{server}: not approved: {err.message}",
        exit_code=err.exit_code if err.exit_code == EXIT_REFUSED else EXIT_UNCHECKED,
        facts={"error": {"code": err.code, "message": err.message}},
        rows=(row,),
        notes=(f"{server}: {err.hint}",) if err.hint else (),
    )


def combine_approval_reports(reports: Sequence[Report]) -> Report:
    """Combine the reports about several servers. A single report is returned as it is."""
    if len(reports) == 1:
        return reports[0]
    approved = sum(bool(report.facts.get("approved")) for report in reports)
    codes = [report.exit_code for report in reports]
    exit_code = next((code for code in (EXIT_REFUSED, EXIT_UNCHECKED) if code in codes), EXIT_CLEAN)
    open_count = sum(code != EXIT_CLEAN for code in codes)
    summary = f"{plural(approved, 'server')} approved" + (f", {open_count} not approved" if open_count else "")
    return Report(
        command="approve",
        subject=", ".join(report.subject for report in reports),
        summary=summary if reports else "nothing to approve: everything is approved",
        exit_code=exit_code,
        facts={"servers": [{"name": report.subject, **report.facts} for report in reports]},
        rows=tuple(row for report in reports for row in report.rows),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        rule_texts={code: text for report in reports for code, text in report.rule_texts.items()},
    )


def format_approve_command(names: Sequence[str], *options: str) -> str:
    """Return the command that approves these servers, to paste."""
    return " ".join(["pinwarden approve", *(shlex.quote(name[:120]) for name in names), *filter(None, options)])


def _choose_entry(server: ServerToApprove) -> Entry:
    entries = tuple(entry for part in server.parts for entry in part.entries)
    return LockedServer(entries=entries, identity=None, pinned_bytes=None).entry


def _is_approved_for(approved: Surface | None, surface: Surface) -> bool:
    return approved is not None and approved.digest == surface.digest


def _summarize(approval: Approval, hint: str) -> str:
    name = approval.server.name
    if approval.is_unchanged:
        return f"{name}: nothing to approve, its surface is as approved"
    to_approve = f"; to approve it: {hint}" if hint else ""
    if approval.is_first:
        count = sum(1 for _ in approval.surface.all_items())
        return f"{name}: {plural(count, 'item')} to approve for the first time{to_approve}"
    if not approval.changes:
        return f"{name}: {describe_unchanged(approval)}{to_approve}"
    return f"{name}: {plural(len(approval.changes), 'change')} to approve{to_approve}"
