"""How far a registry entry can be trusted, by the rules of ToolPin 0.5.4, number for number and word for word.

The report is part of what lockfiles hash, so its sentences are ToolPin's, and so are its defects; each is marked.
Pinwarden's own findings are in ``trust_explanation.py``, under their own codes; they never change these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import floor
from typing import Any, Literal

from pinwarden.core.javascript import parse_whatwg_host
from pinwarden.core.record import Record, replace
from pinwarden.core.timestamps import parse_timestamp
from pinwarden.lock.launch_choice import PACKAGE_TYPES
from pinwarden.lock.server_entry import CAPABILITIES_META, Package, Remote, ServerEntry
from pinwarden.lock.shape import Tier, is_manifest
from pinwarden.lock.trust_report import (
    Evidence,
    Issue,
    Pillars,
    TierCap,
    TrustReport,
    attestation_badge,
    attestation_row,
    attestations,
    has_file_hash,
    oci_pin_problem,
    package_rows,
    pinned_version,
    registry_rows,
    unique_evidence,
    unpinned,
)
from pinwarden.surface.scan.toolpin import advisories_of

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


def with_verification(report: TrustReport, result: Verified, *, now: str) -> TrustReport:
    """The report after a verification: its rows follow those from metadata, nothing is listed twice, pillars stay."""
    merged = replace(
        report,
        evidence=unique_evidence([*report.evidence, *result.evidence]),
        issues=tuple(dict.fromkeys([*report.issues, *result.issues])),
        badges=tuple(dict.fromkeys([*report.badges, *result.badges])),
        verified_provenance=result.verified_provenance,
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


VETO_CODES = ("no_install_target", "insecure_remote", "invalid_remote_url")
_INTEGRITY_BADGES = ("pinned version", "digest-pinned", "fileSha256", "https remote")
# Registries that ToolPin takes for sources of provenance: pillar of provenance, pillar of reputation.
_KNOWN_SOURCES = {"official": (85, 80), "toolpin": (82, 78), "docker": (80, 75)}


class Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self.points = 50
        self.issues: list[Issue] = []
        self.badges: list[str] = []
        self.evidence: list[Evidence] = []

    @property
    def score(self) -> int:
        """The points, within 0 and 100."""
        return max(0, min(100, self.points))

    def flaw(self, points: int, severity: Literal["critical", "warning", "info"], code: str, message: str) -> None:
        """Something that speaks against the entry."""
        self.points += points
        self.issues.append(Issue(severity=severity, code=code, message=message))

    def merit(self, points: int, badge: str) -> None:
        """Something that speaks for it."""
        self.points += points
        self.badges.append(badge)


def collect(entry: ServerEntry) -> Tally:
    """All that the entry's metadata says for and against it, member by member."""
    tally = Tally()
    if entry.repository_url:
        tally.merit(8, "source repo")
    else:
        tally.flaw(-8, "warning", "missing_repository", "No source repository is declared.")
    if "/" in entry.name:
        tally.merit(6, "namespaced")
    if not entry.packages and not entry.remotes:
        tally.flaw(-35, "critical", "no_install_target", "No package or remote endpoint is declared.")
    for package in entry.packages:
        _collect_package(tally, package)
    for remote in entry.remotes:
        _collect_remote(tally, remote)
    if entry.requires_secrets:
        tally.badges.append("requires secrets")
        tally.flaw(-6, "info", "requires_secrets", "This server declares secret configuration inputs.")
    if "sse" in entry.transports:
        message = "SSE transport appears in the manifest; streamable HTTP is preferred for remote servers."
        tally.flaw(-4, "info", "legacy_transport", message)
    if entry.is_latest:
        tally.badges.append("latest")
    if is_manifest(entry.extension(CAPABILITIES_META)):
        tally.badges.append("capability-pinned")
    for kind in attestations(entry):
        tally.badges.append(attestation_badge(kind))
        tally.evidence.append(attestation_row(kind))
    tally.evidence += registry_rows(entry)
    advisories = metadata_advisories(entry)
    if advisories:
        tally.badges.append("description-scan-advisory")
        tally.issues += advisories
    return tally


def _collect_package(tally: Tally, package: Package) -> None:
    kind, identifier = package.registry_type, package.identifier
    if kind in PACKAGE_TYPES:
        tally.merit(9 if kind in ("oci", "mcpb") else 5, kind)
    else:
        tally.flaw(-8, "warning", "unknown_package_type", f"Unknown package registry type: {kind}.")
    if pinned_version(package):
        tally.merit(5, "pinned version")
    elif kind != "oci":
        tally.flaw(-6, "warning", "unpinned_package", unpinned(identifier))
    if kind == "oci":
        problem = oci_pin_problem(identifier)
        if problem is None:
            tally.merit(8, "digest-pinned")
        else:
            tally.flaw(-10, "critical", "mutable_oci_tag", f"OCI image {identifier} {problem}.")
    if kind == "mcpb":
        if has_file_hash(package):
            tally.merit(8, "fileSha256")
        else:
            message = "MCPB packages should include a valid 64-character fileSha256."
            tally.flaw(-12, "critical", "missing_mcpb_hash", message)
    tally.evidence += package_rows(package)


def _collect_remote(tally: Tally, remote: Remote) -> None:
    tally.merit(6, remote.type)
    address = parse_whatwg_host(remote.url)
    if address is None:
        message = f"Remote MCP endpoint is not a valid URL: {remote.url}"
        tally.flaw(-15, "critical", "invalid_remote_url", message)
    elif address.scheme == "https":
        tally.merit(6, "https remote")
    else:
        tally.flaw(-15, "critical", "insecure_remote", f"Remote MCP endpoint is not HTTPS: {remote.url}")
    if remote.type == "streamable-http":
        tally.points += 4


def metadata_advisories(entry: ServerEntry) -> list[Issue]:
    """ToolPin's scan of the entry's own name and description; it advises and never fails anything."""
    advisories = {advisory.code: advisory for advisory, _, _ in advisories_of(f"{entry.name}\n{entry.description}")}
    return [
        Issue(
            severity="warning" if advisory.severity == "warning" else "info",
            code=code,
            message=f"server:{entry.name}: {advisory.message}",
        )
        for code, advisory in sorted(advisories.items())
    ]


def has_provenance(entry: ServerEntry) -> bool:
    """ToolPin's word: a repository address is there and the registry is a known one. Nothing was verified."""
    return bool(entry.repository_url) and entry.source in _KNOWN_SOURCES


def pillars(entry: ServerEntry, tally: Tally) -> Pillars:
    """The four parts of the overall score."""
    return Pillars(
        provenance=_provenance(entry),
        integrity=_integrity(tally),
        reputation=_reputation(entry),
        metadata_completeness=tally.score,
    )


def _provenance(entry: ServerEntry) -> int:
    if has_provenance(entry):
        return _KNOWN_SOURCES[entry.source][0]
    return 55 if entry.repository_url else 20


def _integrity(tally: Tally) -> int:
    """By badges, where the same badge of two packages counts twice, less a penalty for critical issues."""
    criticals = [issue.code for issue in tally.issues if issue.severity == "critical"]
    penalty = 60 if any(code in VETO_CODES for code in criticals) else 35 if criticals else 0
    count = sum(badge in _INTEGRITY_BADGES for badge in tally.badges)
    return max(0, min(100, 35 + 15 * count - penalty))


def _reputation(entry: ServerEntry) -> int:
    # ToolPin also means to lower this for instructions hidden in descriptions, but looks for codes that its scan never
    # emits. The rule never fires there and is omitted here.
    if entry.source in _KNOWN_SOURCES:
        return _KNOWN_SOURCES[entry.source][1]
    return 45 if entry.discovery_only else 60


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
