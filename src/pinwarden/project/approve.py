"""Approve the surface of a live server: show the difference from the approved surface, then pin the new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report, plural
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension
from pinwarden.project.approval_candidate import (
    APPROVE_WARNINGS_OPTION,
    ApprovalCandidate,
    read_approved_surfaces,
    scan_for_approval,
    warnings_to_json,
)
from pinwarden.project.lock import Approver, approve_surfaces
from pinwarden.project.locked_servers import LockedServer, find_locked_server
from pinwarden.project.surface_reports import compare_surfaces
from pinwarden.surface.surface import Surface, parse_surface

if TYPE_CHECKING:
    from pinwarden.project.project import Project


def find_server_to_approve(project: Project, name: str, client: str | None = None) -> LockedServer:
    """Find the locked server of that name, with the entries of all clients. Raises if it is ambiguous."""
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name}")
    return find_locked_server(lock.entries, name, client, "approve")


def read_approved_surface(project: Project, entry: Entry) -> Surface | None:
    """Read the approved surface of an entry; None if none is approved."""
    _, pinned_files = lock_store.read_with_files(project.lock)
    extension = read_extension(entry)
    pin = extension.surface if extension else None
    return parse_surface(pinned_files[pin.path]) if pin is not None and pin.path in pinned_files else None


def build_approval_report(project: Project, server: LockedServer, surface: Surface) -> Report:
    """Compare a surface with the approved surface. If clients have different approved surfaces, compare with each."""
    baselines = {_read_approved_digest(project, entry): entry for entry in reversed(server.entries)}
    if len(baselines) > 1:
        baselines.pop(None, None)  # another client's approval of the same server was reviewed
    reports = [_compare_entry(project, entry, surface) for entry in reversed(baselines.values())]
    return reports[0] if len(reports) == 1 else _join_reports(reports)


def is_already_approved(project: Project, server: LockedServer, surface: Surface) -> bool:
    """Whether every client has approved exactly this surface, for the release that it starts now."""
    return all(
        _read_approved_digest(project, entry) == str(surface.digest) and _find_earlier_release(entry) is None
        for entry in server.entries
    )


def is_first_approval(project: Project, server: LockedServer) -> bool:
    """Whether no client has an approved surface of the server."""
    return all(_read_approved_digest(project, entry) is None for entry in server.entries)


def add_scan_warnings(report: Report, project: Project, server: LockedServer, surface: Surface) -> Report:
    """Add scan warnings about text that is not approved yet, so that the user reads them before deciding."""
    return _add_warnings(report, _scan_server(project, server, surface))


def approve(project: Project, server: LockedServer, surface: Surface, approver: Approver, now: str) -> Report:
    """Approve the surface for every client that has the server, and report the changes.

    If the scan finds warnings that the approver did not approve, nothing is written and the exit code is 1.
    """
    candidate = _scan_server(project, server, surface, warnings_approved=approver.approves_warnings)
    changed = build_approval_report(project, server, surface)
    shown = _add_warnings(changed, candidate)
    name = server.entry.name
    if candidate.is_blocked:
        warnings_text = plural(len(candidate.warnings), "scan warning")
        summary = f"{name}: not approved because of {warnings_text}; to approve them too: {APPROVE_WARNINGS_OPTION}"
        return replace(shown, exit_code=EXIT_REFUSED, summary=summary)
    approve_surfaces(project, [(entry, candidate) for entry in server.entries], approver, now)
    clients = f" for {', '.join(server.clients)}" if len(server.entries) > 1 else ""
    changes = plural(len(changed.rows), "change")
    return replace(
        shown,
        exit_code=EXIT_CLEAN,
        summary=f"{name}: {changes} approved by {approver.by}{clients}; surface {surface.digest}",
        facts={
            **shown.facts,
            "approved": True,
            "by": approver.by,
            "why": approver.reason,
            "surface": str(surface.digest),
        },
    )


def _join_reports(reports: Sequence[Report]) -> Report:
    """Merge the reports about several approved surfaces. A change that occurs in several is shown once."""
    shown = {
        row: change for report in reports for row, change in zip(report.rows, report.facts["changes"], strict=True)
    }
    first = reports[0]
    facts = {
        **first.facts,
        "changes": list(shown.values()),
        "blocked_by_default": any(report.facts["blocked_by_default"] for report in reports),
        "counts": {level: sum(row.severity == level for row in shown) for level in first.facts["counts"]},
    }
    exit_code = max(report.exit_code for report in reports)
    return replace(first, rows=tuple(shown), facts=facts, exit_code=exit_code)


def _read_approved_digest(project: Project, entry: Entry) -> str | None:
    approved = read_approved_surface(project, entry)
    return None if approved is None else str(approved.digest)


def _compare_entry(project: Project, entry: Entry, surface: Surface) -> Report:
    approved = read_approved_surface(project, entry)
    if approved is not None:
        report = replace(compare_surfaces(approved, surface, entry.name, whole=True), command="approve")
        return _summarize_unchanged(report, entry) if approved.digest == surface.digest else report
    report = compare_surfaces(Surface(server=None, items={}, observed={}), surface, entry.name, whole=True)
    notes = ("nothing of this server's surface is approved yet, so everything is new",)
    return replace(
        report,
        command="approve",
        summary=f"{entry.name}: {plural(len(report.rows), 'item')} to approve for the first time",
        rows=tuple(replace(row, message="Not approved yet.") for row in report.rows),
        notes=notes,
        facts={**report.facts, "notes": list(notes)},
    )


def _find_earlier_release(entry: Entry) -> str | None:
    """The release that the surface was approved for, if the entry now starts another release; else None."""
    extension = read_extension(entry)
    return extension.surface_of[:200] if extension is not None and extension.surface_of is not None else None


def _summarize_unchanged(report: Report, entry: Entry) -> Report:
    release = _find_earlier_release(entry)
    if release is None:
        return replace(report, summary=f"{entry.name}: nothing to approve, its surface is as approved")
    summary = f"{entry.name}: its surface is as approved for {release}; approve it for this release too"
    return replace(report, summary=summary)


def _scan_server(
    project: Project, server: LockedServer, surface: Surface, *, warnings_approved: bool = False
) -> ApprovalCandidate:
    name = server.entry.name
    return scan_for_approval(name, surface, read_approved_surfaces(project, name), warnings_approved=warnings_approved)


def _add_warnings(report: Report, candidate: ApprovalCandidate) -> Report:
    if not candidate.warnings:
        return report
    facts = {**report.facts, "warnings": warnings_to_json(candidate.warnings)}
    return replace(report, rows=(*report.rows, *candidate.warnings), facts=facts)
