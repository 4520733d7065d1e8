"""Scan surfaces for text that looks like an attack. Findings inform; they do not fail a build by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import as_dict
from pinwarden.core.report import Report, Row
from pinwarden.surface.scan.scan import Finding, scan
from pinwarden.surface.scan.unapproved import new_warnings
from pinwarden.surface.surface import Surface


def scan_surfaces(surfaces: Mapping[str, Surface], *, fail_on_warning: bool = False) -> Report:
    """The report of ``pinwarden scan`` over one or more named servers, each also seen beside the others."""
    found: list[tuple[str, Finding]] = []
    for name, surface in surfaces.items():
        neighbours = [(other, beside) for other, beside in surfaces.items() if other != name]
        found += [(name, finding) for finding in scan(surface, neighbours)]
    warnings = sum(finding.severity == "warning" for _, finding in found)
    counts: Counter[str] = Counter(finding.severity for _, finding in found)
    several = len(surfaces) > 1
    return Report(
        command="scan",
        subject=", ".join(surfaces),
        summary=_summary(counts, len(surfaces)),
        exit_code=EXIT_REFUSED if fail_on_warning and warnings else EXIT_CLEAN,
        rows=tuple(row_of(finding, name if several else "") for name, finding in found),
        facts={
            "findings": [{"server": name, **as_dict(finding)} for name, finding in found],
            "counts": {"warning": counts["warning"], "info": counts["info"]},
        },
    )


def row_of(finding: Finding, server: str = "") -> Row:
    """A finding as a row of a report."""
    return Row(
        code=finding.code,
        level=finding.severity,
        entity=f"{server}: {finding.entity}" if server else finding.entity,
        name=finding.name,
        path=finding.path,
        message=finding.message,
        excerpt=finding.excerpt,
    )


def warning_rows(surface: Surface, server: str, approved: Iterable[Surface] = ()) -> tuple[Row, ...]:
    """What the scan warns of in text that is not in an approved surface."""
    return tuple(row_of(finding, server) for finding in new_warnings(surface, approved))


def _summary(counts: Mapping[str, int], servers: int) -> str:
    over = f" in {servers} servers" if servers > 1 else ""
    if not sum(counts.values()):
        return f"nothing suspicious found{over}"
    return f"{counts.get('warning', 0)} warnings, {counts.get('info', 0)} notes{over} (advisory)"
