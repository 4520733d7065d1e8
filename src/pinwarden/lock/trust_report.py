"""The trust report of an entry: what it says, and how ToolPin writes it."""

from __future__ import annotations

from typing import Any, Literal

from pinwarden.core.record import Record
from pinwarden.lock.entry import TRUST_REREAD_ORDER
from pinwarden.lock.metadata_evidence import Evidence
from pinwarden.lock.tier import Tier


class Issue(Record):
    """Something that speaks against an entry."""

    severity: Literal["critical", "warning", "info"]
    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The row of a report."""
        return {"severity": self.severity, "code": self.code, "message": self.message}


class TierCap(Record):
    """A reason why the tier is no better than ``tier``."""

    code: str
    message: str
    tier: Tier

    def to_json(self) -> dict[str, str]:
        """The row of a report."""
        return {"code": self.code, "message": self.message, "tier": self.tier}


class Pillars(Record):
    """The four parts of the overall score, 0 to 100 each."""

    provenance: int
    integrity: int
    reputation: int
    metadata_completeness: int

    def to_json(self) -> dict[str, int]:
        """The object of a report."""
        return {
            "provenance": self.provenance,
            "integrity": self.integrity,
            "reputation": self.reputation,
            "metadataCompleteness": self.metadata_completeness,
        }


class TrustReport(Record):
    """A judgement about one entry."""

    score: int
    overall_score: int
    metadata_completeness: int
    tier: Tier
    cap_reason: str | None
    vetoes: tuple[TierCap, ...]
    gates: tuple[TierCap, ...]
    gated_by: tuple[str, ...]
    verified_provenance: bool
    """ToolPin's word: a repository address is there and the registry is a known one. Nothing was verified."""
    pillars: Pillars
    evidence: tuple[Evidence, ...]
    badges: tuple[str, ...]
    issues: tuple[Issue, ...]

    def to_json(self, *, reread: bool = False) -> dict[str, Any]:
        """The report in the order ToolPin writes it first, or after it has read its own file again."""
        members = {
            "score": self.score,
            "overallScore": self.overall_score,
            "metadataCompleteness": self.metadata_completeness,
            "tier": self.tier,
            "capReason": self.cap_reason,
            "vetoes": [gate.to_json() for gate in self.vetoes],
            "gates": [gate.to_json() for gate in self.gates],
            "gatedBy": list(self.gated_by),
            "verifiedProvenance": self.verified_provenance,
            "pillars": self.pillars.to_json(),
            "evidence": [dict(row) for row in self.evidence],
            "badges": list(self.badges),
            "issues": [issue.to_json() for issue in self.issues],
        }
        order = TRUST_REREAD_ORDER if reread else tuple(members)
        return {name: members[name] for name in order if members[name] is not None}
