"""How far a registry entry can be trusted, by the rules of ToolPin 0.5.4, number for number and word for word.

The report is part of what lockfiles hash, so its sentences are ToolPin's, and so are its defects; each is marked.
What we hold against an entry beyond that is in ``explanation``, under our own codes, and never changes these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import floor
from typing import Any

from pinwarden.core.record import Record, replace
from pinwarden.core.timestamps import parse_timestamp
from pinwarden.lock.metadata_evidence import Evidence, unique_evidence
from pinwarden.lock.server_entry import ServerEntry
from pinwarden.lock.tier import Tier
from pinwarden.lock.trust_points import VETO_CODES, collect, has_provenance, pillars
from pinwarden.lock.trust_report import Issue, TierCap, TrustReport

PIN_CODES = ("package_pin", "digest_present", "file_hash_present")
ARTIFACT_CODES = (
    *("oci_digest_verified", "mcpb_sha256_verified", "npm_integrity_verified"),
    # Ours, for kinds that ToolPin cannot verify.
    *("pypi_sha256_verified", "nuget_sha512_verified", "cargo_checksum_verified"),
)
INCOMPLETE = "automated evidence incomplete"
NO_PROVENANCE = "no verified provenance"
_FRESH_FOR = timedelta(days=7)
_CLOCK_SKEW = timedelta(seconds=60)


def judge(entry: ServerEntry, *, now: str) -> TrustReport:
    """The trust report of an entry from its metadata alone.

    1. Points, issues, badges and evidence are collected member by member.
    2. The pillars are computed from them.
    3. Gates decide the tier, and the tier caps the overall score.
    """
    tally = collect(entry)
    ungated = TrustReport(
        score=tally.score,
        overall_score=0,
        metadata_completeness=tally.score,
        tier="unverified",
        cap_reason=None,
        vetoes=(),
        gates=(),
        gated_by=(),
        verified_provenance=has_provenance(entry),
        pillars=pillars(entry, tally),
        evidence=unique_evidence(tally.evidence),
        badges=tuple(dict.fromkeys(tally.badges)),
        issues=tuple(tally.issues),
    )
    return gated(ungated, now=now)


class Verified(Record):
    """What a verification adds to a trust report."""

    evidence: tuple[Evidence, ...]
    issues: tuple[Issue, ...]
    badges: tuple[str, ...]
    verified_provenance: bool


def with_verification(report: TrustReport, found: Verified, *, now: str) -> TrustReport:
    """The report after a verification: its rows follow those from metadata, nothing is listed twice, pillars stay."""
    merged = replace(
        report,
        evidence=unique_evidence([*report.evidence, *found.evidence]),
        issues=tuple(dict.fromkeys([*report.issues, *found.issues])),
        badges=tuple(dict.fromkeys([*report.badges, *found.badges])),
        verified_provenance=found.verified_provenance,
    )
    return gated(merged, now=now)


def with_evidence(report: TrustReport, row: Evidence, *, now: str) -> TrustReport:
    """The report with one more row of evidence."""
    return gated(replace(report, evidence=unique_evidence([*report.evidence, row])), now=now)


def gated(report: TrustReport, *, now: str) -> TrustReport:
    """The report with tier, gates and overall score that follow from its issues and evidence."""
    gates = _gates(report)
    vetoes = tuple(gate for gate in gates if gate.tier == "blocked")
    failed = tuple(row["code"] for row in report.evidence if row["status"] == "failed")
    tier = _tier(report, gates, failed, now)
    overall, reason = _capped(report, gates, vetoes, tier)
    return replace(
        report,
        overall_score=overall,
        tier=tier,
        cap_reason=reason,
        vetoes=vetoes,
        gates=gates,
        gated_by=tuple(gate.code for gate in gates) or failed,
    )


def _gates(report: TrustReport) -> tuple[TierCap, ...]:
    from_issues = tuple(
        TierCap(code=issue.code, message=issue.message, tier="blocked" if issue.code in VETO_CODES else "unverified")
        for issue in report.issues
        if issue.severity == "critical"
    )
    if any(gate.tier == "blocked" for gate in from_issues):
        return from_issues
    from_evidence = tuple(
        TierCap(code=row["code"], message=row["message"], tier="blocked")
        for row in report.evidence
        if row["status"] == "failed" and row.get("required") is True
    )
    return from_issues + from_evidence


def _tier(report: TrustReport, gates: Sequence[TierCap], failed: Sequence[str], now: str) -> Tier:
    if any(gate.tier == "blocked" for gate in gates):
        return "blocked"
    if gates or failed:
        return "unverified"
    pinned = any(row["code"] in PIN_CODES and row["status"] in ("declared", "passed") for row in report.evidence)
    if report.verified_provenance and pinned and artifact_problem(report.evidence, now=now) is None:
        return "verified"
    return "conditional" if report.score >= 40 or pinned else "unverified"


def _capped(
    report: TrustReport, gates: Sequence[TierCap], vetoes: Sequence[TierCap], tier: Tier
) -> tuple[int, str | None]:
    pillars = report.pillars
    weighted = (
        pillars.provenance * 0.25
        + pillars.integrity * 0.3
        + pillars.reputation * 0.15
        + pillars.metadata_completeness * 0.3
    )
    overall = floor(weighted + 0.5)
    if vetoes:
        return min(overall, 20), "veto: " + ", ".join(gate.code for gate in vetoes)
    if tier == "verified":
        return 100, None
    if gates:
        return min(overall, 45), ", ".join(gate.code for gate in gates)
    if report.verified_provenance:
        return min(overall, 69), INCOMPLETE
    return min(overall, 59), NO_PROVENANCE


def artifact_problem(evidence: Iterable[Evidence], *, now: str) -> str | None:
    """Why the evidence is no proof that the artifact's bytes were checked lately; None if it is."""
    checked = [
        row
        for row in evidence
        if row["code"] in ARTIFACT_CODES and row["status"] == "passed" and row.get("verifiedByToolPin") is True
    ]
    if not checked:
        return "missing trusted artifact evidence"
    anchored = [row for row in checked if row.get("trustedAnchor") is True]
    if not anchored:
        return "artifact evidence used an untrusted anchor"
    moment = parse_timestamp(now)
    if not any(_is_fresh(row.get("verifiedAt"), moment) for row in anchored):
        return "trusted artifact evidence is stale"
    return None


def _is_fresh(verified_at: Any, now: datetime | None) -> bool:
    then = parse_timestamp(verified_at)
    return then is not None and now is not None and now - _FRESH_FOR <= then <= now + _CLOCK_SKEW
