"""The judgement about an entry in one word, with the first reason that applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pinwarden.core.record import Record
from pinwarden.lock.metadata_evidence import Evidence
from pinwarden.lock.tier import Tier
from pinwarden.lock.trust_report import Issue, TrustReport
from pinwarden.lock.trust_tiers import INCOMPLETE, NO_PROVENANCE, artifact_problem

WEAK_PIN_CODES = ("mutable_oci_tag", "missing_mcpb_hash")


class Verdict(Record):
    """The judgement in one word, with its reason."""

    verdict: Literal["verified", "needs-review", "blocked"]
    reason: str
    tier: Tier

    def to_json(self) -> dict[str, str]:
        """The object of a report."""
        return {"verdict": self.verdict, "reason": self.reason, "detailTier": self.tier}


class Grounds(Record):
    """What a verdict is based on."""

    tier: Tier
    verified_provenance: bool
    evidence: Sequence[Evidence]
    issues: Sequence[Issue]
    cap_reason: str | None = None
    ok: bool = True
    """The outcome of a verification, if there was one."""


def verdict_of(report: TrustReport, *, now: str) -> Verdict:
    """The verdict on a trust report."""
    grounds = Grounds(
        tier=report.tier,
        verified_provenance=report.verified_provenance,
        evidence=report.evidence,
        issues=report.issues,
        cap_reason=report.cap_reason,
    )
    return decide(grounds, now=now)


def decide(grounds: Grounds, *, now: str) -> Verdict:
    """One word and the first reason that applies."""
    tier = grounds.tier
    if tier == "blocked" or not grounds.ok:
        return Verdict(verdict="blocked", reason=_why_blocked(grounds), tier=tier)
    if tier == "verified":
        return Verdict(verdict="verified", reason="fresh verified artifact proof", tier=tier)
    return Verdict(verdict="needs-review", reason=_why_review(grounds, now), tier=tier)


def _why_blocked(grounds: Grounds) -> str:
    for issue in grounds.issues:
        if issue.severity == "critical":
            return f"pin is weak: {issue.message}" if issue.code in WEAK_PIN_CODES else issue.message
    for row in grounds.evidence:
        if row["status"] == "failed" and row.get("required") is True:
            return f"required evidence failed: {row['message']}"
    return "command failed"


def _why_review(grounds: Grounds, now: str) -> str:
    for issue in grounds.issues:
        if issue.severity == "critical" and issue.code in WEAK_PIN_CODES:
            return f"pin is weak: {issue.message}"
    for row in grounds.evidence:
        if row["status"] == "failed":
            return f"evidence failed: {row['message']}"
    problem = artifact_problem(grounds.evidence, now=now)
    if grounds.verified_provenance and problem is not None:
        return problem
    if grounds.cap_reason == NO_PROVENANCE:
        return "verified provenance missing"
    if grounds.cap_reason == INCOMPLETE:
        return "artifact proof missing"
    if any(row["status"] == "declared" for row in grounds.evidence):
        return "artifact proof declared, not verified"
    return "review required" if grounds.evidence else "automated evidence missing"
