"""The report of ``contract diff``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pinwarden.contract.costs import CostChange, cost_change
from pinwarden.contract.diff import BREAKING, COSMETIC, RISKY, SAFE, SEVERITIES
from pinwarden.contract.extension import surface_of
from pinwarden.contract.lock_command import read_lockfile
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.server_diff import ServerChange, ServerDiff, diff_lockfiles
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons

CONTRACT_CHANGE_KINDS: FindingKinds = build_kind_table(
    critical=(
        (
            BREAKING.lower(),
            "Correct calls or uses of results may fail, a promise was dropped, or the change looks like an attack.",
        ),
    ),
    review=((RISKY.lower(), "A model or host sees something else, or more is allowed. Review it."),),
    info=(
        (SAFE.lower(), "The review of the old version still applies."),
        (COSMETIC.lower(), "The wording changed; the meaning did not."),
    ),
)


def diff_files(before: Path, after: Path, *, compat: bool = False) -> Report:
    """Compare two lockfiles. Exit code 1 if anything is breaking or risky."""
    old, new = _read(before), _read(after)
    diff = diff_lockfiles(old, new, compat=compat)
    costs = _costs(old, new)
    counts = Counter(finding.delta.severity for finding in diff.findings)
    notes = (*_notes(diff), *(costs.notes() if costs else ()))
    return Report(
        command="contract diff",
        subject=f"{before} -> {after}",
        summary=_summary(counts),
        exit_code=EXIT_REFUSED if counts[BREAKING] or counts[RISKY] else EXIT_CLEAN,
        rows=tuple(_row(finding) for finding in diff.findings),
        notes=notes,
        facts={
            "before": _digests(old),
            "after": _digests(new),
            "changes": [finding.to_json() for finding in diff.findings],
            "maxSeverity": diff.max_severity,
            "counts": {severity: counts[severity] for severity in SEVERITIES},
            "frameworkChanged": diff.framework_changed,
            "sameMeaning": diff.same_meaning,
            "digestsOnly": diff.digests_only,
            "tokens": costs.to_json() if costs else None,
            "notes": list(notes),
        },
        rule_texts=collect_kind_reasons(CONTRACT_CHANGE_KINDS),
    )


def _read(path: Path) -> Lockfile:
    lockfile = read_lockfile(path)
    if lockfile is None:
        raise PinwardenError("LOCK_MISSING", f"{path} does not exist", hint="Give the paths of two lockfiles.")
    return lockfile


def _costs(old: Lockfile, new: Lockfile) -> CostChange | None:
    now = surface_of(new)
    return None if now is None else cost_change(surface_of(old), now)


def _summary(counts: Counter[str]) -> str:
    if not counts:
        return "no change"
    message = ", ".join(f"{counts[severity]} {severity.lower()}" for severity in SEVERITIES if counts[severity])
    return f"{message}: {'review needed' if counts[BREAKING] or counts[RISKY] else 'no review needed'}"


def _notes(diff: ServerDiff) -> tuple[str, ...]:
    notes: list[str] = []
    if diff.framework_changed:
        notes.append("the frameworks differ; parts that they generate were not compared")
    if diff.same_meaning:
        notes.append("the framework or its version changed; the meaning did not")
    if diff.digests_only:
        notes.append("a lockfile has digests without texts, so not all changes can be shown; lock the server again")
    return tuple(notes)


def _row(finding: ServerChange) -> Row:
    delta = finding.delta
    kind = CONTRACT_CHANGE_KINDS[delta.severity.lower()]
    return Row(
        code=kind.kind,
        severity=kind.severity,
        entity=finding.entity,
        name=finding.name,
        path=delta.field,
        message=delta.description,
        before=delta.before,
        after=delta.after,
    )


def _digests(lockfile: Lockfile) -> dict[str, Any]:
    extension = lockfile.extension or {}
    return {
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        "surfaceDigest": extension.get("surfaceDigest"),
        "normalisedDigest": extension.get("normalisedDigest"),
    }
