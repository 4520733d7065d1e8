"""The report of ``pinwarden contract diff``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pinwarden.contract.costs import CostChange, compare_costs
from pinwarden.contract.diff import BREAKING, COSMETIC, RISKY, SAFE, SEVERITIES
from pinwarden.contract.extension import read_surface
from pinwarden.contract.lock_command import read_lockfile
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.server_diff import ServerChange, ServerDiff, diff_lockfiles
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons

CONTRACT_CHANGE_KINDS: FindingKinds = build_kind_table(
    critical=(
        (
            BREAKING.lower(),
            "Calls that were valid may now fail, results may lack a member, or the change looks like an attack.",
        ),
    ),
    review=((RISKY.lower(), "The model or client sees other text or schemas, or the tool may do more than before."),),
    info=(
        (SAFE.lower(), "The change does not need a review."),
        (COSMETIC.lower(), "Only the wording changed, not the meaning."),
    ),
)


def build_diff_report(before: Path, after: Path, *, compat: bool = False) -> Report:
    """Compare two lockfiles. The exit code is 1 if a difference is breaking or risky."""
    old, new = _require_lockfile(before), _require_lockfile(after)
    diff = diff_lockfiles(old, new, compat=compat)
    costs = _compare_token_costs(old, new)
    counts = Counter(finding.delta.severity for finding in diff.findings)
    notes = (*_list_notes(diff), *(costs.build_notes() if costs else ()))
    return Report(
        command="contract diff",
        subject=f"{before} -> {after}",
        summary=_summarize(counts),
        exit_code=EXIT_REFUSED if counts[BREAKING] or counts[RISKY] else EXIT_CLEAN,
        rows=tuple(_build_row(finding) for finding in diff.findings),
        notes=notes,
        facts={
            "before": _digests_to_json(old),
            "after": _digests_to_json(new),
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


def _require_lockfile(path: Path) -> Lockfile:
    lockfile = read_lockfile(path)
    if lockfile is None:
        raise PinwardenError("LOCK_MISSING", f"{path} does not exist", hint="Give the paths of two lockfiles.")
    return lockfile


def _compare_token_costs(old: Lockfile, new: Lockfile) -> CostChange | None:
    now = read_surface(new)
    return None if now is None else compare_costs(read_surface(old), now)


def _summarize(counts: Counter[str]) -> str:
    if not counts:
        return "no change"
    message = ", ".join(f"{counts[severity]} {severity.lower()}" for severity in SEVERITIES if counts[severity])
    return f"{message}: {'review needed' if counts[BREAKING] or counts[RISKY] else 'no review needed'}"


def _list_notes(diff: ServerDiff) -> tuple[str, ...]:
    notes: list[str] = []
    if diff.framework_changed:
        notes.append("the lockfiles are from different frameworks, so parts that frameworks generate were not compared")
    if diff.same_meaning:
        notes.append("only the server's framework or its version changed, not the meaning of its tools")
    if diff.digests_only:
        notes.append("a lockfile has no surface, so some changes cannot be shown; run `pinwarden contract lock` again")
    return tuple(notes)


def _build_row(finding: ServerChange) -> Row:
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


def _digests_to_json(lockfile: Lockfile) -> dict[str, Any]:
    extension = lockfile.extension or {}
    return {
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        "surfaceDigest": extension.get("surfaceDigest"),
        "normalisedDigest": extension.get("normalisedDigest"),
    }
