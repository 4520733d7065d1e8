"""Builds the reports of ``diff``, ``scan`` and ``inspect`` from surfaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.record import Record, as_dict
from pinwarden.core.report import COULD_NOT_CHECK, Report, ReportTable, Row, collect_kind_reasons
from pinwarden.core.text import plural
from pinwarden.surface.drift.changes import CHANGE_KINDS, build_change_row
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.drift.summary import group_decisions
from pinwarden.surface.interop import compute_surface_digests
from pinwarden.surface.scan.scan import ScanFinding, build_scan_row, scan
from pinwarden.surface.surface import ITEM_KINDS, TOOL, Surface, encode_surface


def compare_surfaces(
    before: Surface,
    after: Surface,
    subject: str,
    *,
    whole: bool = False,
    neighbours: Sequence[tuple[str, Surface]] = (),
) -> Report:
    """Return the report of ``pinwarden diff``. With ``whole``, values are not shortened, as an approval needs them."""
    changes = compare(before, after, neighbours)
    blocked = blocked_by_default(changes)
    counts = Counter(change.severity for change in changes)
    return Report(
        command="diff",
        subject=subject,
        summary=_summarize_changes(counts, blocked),
        exit_code=EXIT_REFUSED if blocked else EXIT_CLEAN,
        rows=tuple(build_change_row(change, whole=whole) for change in changes),
        notes=_build_diff_notes(before, after),
        facts={
            "changes": [change.to_json() for change in changes],
            "decisions": [decision.to_json() for decision in group_decisions(changes)],
            "blocked_by_default": blocked,
            "counts": {level: counts[level] for level in ("critical", "review", "info")},
            "digests": {"before": _format_digest(before), "after": _format_digest(after)},
            "notes": list(_build_diff_notes(before, after)),
        },
        rule_texts=collect_kind_reasons(CHANGE_KINDS),
    )


class UnscannedServer(Record):
    """A server that was not scanned: it could not be read, or the user did not allow a start or connection."""

    name: str
    reason: str
    failed: bool


def scan_surfaces(surfaces: Mapping[str, Surface], unscanned: Sequence[UnscannedServer] = ()) -> Report:
    """Return the report of ``pinwarden scan``. If there are several servers, each is also compared with the others."""
    findings: list[tuple[str, ScanFinding]] = []
    for name, surface in surfaces.items():
        neighbours = [(other, surface) for other, surface in surfaces.items() if other != name]
        findings += [(name, finding) for finding in scan(surface, neighbours)]
    counts: Counter[str] = Counter(finding.severity for _, finding in findings)
    failed = [server for server in unscanned if server.failed]
    has_several = len(surfaces) + len(unscanned) > 1
    servers = [*_count_findings(surfaces, findings), *map(_unscanned_to_json, unscanned)]
    return Report(
        command="scan",
        subject=", ".join(surfaces),
        summary=_summarize_scan(findings, len(surfaces), unscanned),
        exit_code=EXIT_REFUSED if counts["warning"] else EXIT_UNCHECKED if failed else EXIT_CLEAN,
        rows=(
            *(_build_unscanned_row(server) for server in failed),
            *(build_scan_row(finding, name if has_several else "") for name, finding in findings),
        ),
        table=_build_scan_table(servers) if has_several else None,
        facts={
            "findings": [{"server": name, **as_dict(finding)} for name, finding in findings],
            "counts": {"warning": counts["warning"], "info": counts["info"]},
            "servers": servers,
        },
    )


def _count_findings(
    surfaces: Mapping[str, Surface], findings: Sequence[tuple[str, ScanFinding]]
) -> Iterator[dict[str, Any]]:
    for name, surface in surfaces.items():
        severities = [finding.severity for server, finding in findings if server == name]
        yield {
            "server": name,
            "state": "scanned",
            "tools": len(surface.items_of_kind(TOOL)),
            "warnings": severities.count("warning"),
            "notes": severities.count("info"),
        }


def _unscanned_to_json(server: UnscannedServer) -> dict[str, Any]:
    return {"server": server.name, "state": "failed" if server.failed else "skipped", "reason": server.reason}


def _build_unscanned_row(server: UnscannedServer) -> Row:
    return Row(
        code=COULD_NOT_CHECK, severity="review", entity="server", name=server.name, path="", message=server.reason
    )


def _build_scan_table(servers: Sequence[Mapping[str, Any]]) -> ReportTable:
    results = {"failed": "could not be scanned", "skipped": "skipped"}
    return ReportTable(
        headings=("server", "tools", "warnings", "result"),
        rows=tuple(
            (
                server["server"],
                str(server.get("tools", "-")),
                str(server.get("warnings", "-")),
                results.get(server["state"]) or ("see the warnings" if server["warnings"] else "nothing suspicious"),
            )
            for server in servers
        ),
    )


def inspect_surface(surface: Surface, subject: str) -> Report:
    """Return the report of ``pinwarden inspect``, with a row for each item that has no digest."""
    undigestable_rows = tuple(
        Row(
            code="undigestable",
            severity="critical",
            entity=item.kind.entity,
            name=item.name,
            path="",
            message=f"this item has no digest: {item.problem}",
        )
        for item in surface.undigestable
    )
    return Report(
        command="inspect",
        subject=subject,
        summary=_summarize_surface(surface),
        exit_code=EXIT_REFUSED if undigestable_rows else EXIT_CLEAN,
        rows=undigestable_rows,
        facts={"surface": surface_to_json(surface), "digests": compute_surface_digests(surface)},
    )


def compare_surfaces_of_clients(first: Surface, second: Surface, subject: str) -> Report:
    """Compare the surfaces that a server shows to two clients. They should be equal."""
    changes = compare(first, second)
    same = "the server shows both clients the same surface"
    return Report(
        command="inspect",
        subject=subject,
        summary=f"the server shows the two clients different surfaces: {len(changes)} differences" if changes else same,
        exit_code=EXIT_REFUSED if changes else EXIT_CLEAN,
        rows=tuple(build_change_row(change) for change in changes),
        facts={"differs_per_client": bool(changes), "changes": [change.to_json() for change in changes]},
    )


def surface_to_json(surface: Surface) -> Any:
    """Return the surface as a JSON value."""
    return strict_json.parse_json(encode_surface(surface))


def _summarize_changes(counts: Counter[str], blocked: bool) -> str:
    if not counts:
        return "no change"
    counts_text = ", ".join(f"{counts[level]} {level}" for level in ("critical", "review", "info") if counts[level])
    return f"{counts_text}: {'blocked until a person approves the changes' if blocked else 'nothing needs a decision'}"


def _build_diff_notes(before: Surface, after: Surface) -> tuple[str, ...]:
    notes: list[str] = []
    if before.server is None or after.server is None:
        notes.append("one of the two surfaces has no server information, so only instructions are compared")
    return tuple(notes)


def _format_digest(surface: Surface) -> str | None:
    return str(surface.digest) if surface.digest else None


def _summarize_scan(
    findings: Sequence[tuple[str, ScanFinding]], servers: int, unscanned: Sequence[UnscannedServer]
) -> str:
    over = f" in {plural(servers, 'server')}" if servers != 1 or unscanned else ""
    failed = sum(server.failed for server in unscanned)
    skipped = len(unscanned) - failed
    missing = [f"{failed} could not be scanned"] * bool(failed) + [f"{skipped} skipped"] * bool(skipped)
    warned = [(name, finding) for name, finding in findings if finding.severity == "warning"]
    if not findings:
        return "; ".join([f"nothing suspicious found{over}", *missing])
    texts = len({(name, finding.entity, finding.name, finding.path) for name, finding in warned})
    notes = plural(len(findings) - len(warned), "note")
    about = f"{plural(len(warned), 'warning')} about {plural(texts, 'text')}, {notes}" if warned else notes
    return "; ".join([f"{about}{over} (advisory)", *missing])


def _summarize_surface(surface: Surface) -> str:
    item_counts = ", ".join(
        f"{len(surface.items_of_kind(kind))} {kind.entity}{'' if len(surface.items_of_kind(kind)) == 1 else 's'}"
        for kind in ITEM_KINDS
        if kind.member in surface.items
    )
    digest = surface.digest or "without a digest, because an item has none"
    return f"{item_counts or 'no lists offered'}; surface {digest}"
