"""Compare an approved surface with another: what changed, how much it matters, and whether it is blocked."""

from __future__ import annotations

from collections import Counter

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.finding_kinds import reasons_of
from pinwarden.core.report import Report
from pinwarden.surface.drift.changes import CHANGE_KINDS
from pinwarden.surface.drift.surface import blocked_by_default, compare
from pinwarden.surface.rows import row_of
from pinwarden.surface.surface import Surface


def compare_surfaces(before: Surface, after: Surface, subject: str, *, whole: bool = False) -> Report:
    """The report of ``pinwarden diff``; with ``whole`` no value in it is cut, for those who approve by it."""
    changes = compare(before, after)
    blocked = blocked_by_default(changes)
    counts = Counter(change.severity for change in changes)
    return Report(
        command="diff",
        subject=subject,
        summary=_summary(counts, blocked),
        exit_code=EXIT_REFUSED if blocked else EXIT_CLEAN,
        rows=tuple(row_of(change, whole=whole) for change in changes),
        notes=_notes(before, after),
        facts={
            "changes": [change.to_json() for change in changes],
            "blocked_by_default": blocked,
            "counts": {level: counts[level] for level in ("critical", "review", "info")},
            "digests": {"before": _text(before), "after": _text(after)},
            "notes": list(_notes(before, after)),
        },
        rule_texts=reasons_of(CHANGE_KINDS),
    )


def _summary(counts: Counter[str], blocked: bool) -> str:
    if not counts:
        return "no change"
    told = ", ".join(f"{counts[level]} {level}" for level in ("critical", "review", "info") if counts[level])
    return f"{told}: {'blocked until someone approves it' if blocked else 'nothing that needs a decision'}"


def _notes(before: Surface, after: Surface) -> tuple[str, ...]:
    notes: list[str] = []
    if before.server is None or after.server is None:
        notes.append("server information was not recorded on both sides; only new instructions are looked at")
    return tuple(notes)


def _text(surface: Surface) -> str | None:
    return str(surface.digest) if surface.digest else None
