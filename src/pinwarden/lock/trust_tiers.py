"""The trust report of a registry entry: tier, score and evidence, by the rules of ToolPin 0.5.4.

Lockfiles hash the report, so its numbers and sentences are exactly ToolPin's. Comments mark the defects that Pinwarden
repeats for this reason. Pinwarden's own findings have other codes (``trust_explanation.py``) and do not change the
report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import floor
from typing import Any, Literal

from pinwarden.core.javascript import RemoteHost, parse_whatwg_host
from pinwarden.core.record import Record, replace
from pinwarden.core.text import parse_timestamp
from pinwarden.core.versions import is_floating_for_toolpin
from pinwarden.lock.entry import TRUST_REREAD_ORDER, Tier, is_capability_manifest
from pinwarden.lock.launch_choice import PACKAGE_TYPES
from pinwarden.lock.server_entry import (
    ATTESTATIONS_META,
    CAPABILITIES_META,
    EVIDENCE_META,
    DeclaredPackage,
    Remote,
    ServerEntry,
)
from pinwarden.surface.interop import find_advisories

Evidence = Mapping[str, Any]
"""One row of evidence in a report: ``code``, ``status``, ``message``, and its source."""
PIN_CODES = ("package_pin", "digest_present", "file_hash_present")
ARTIFACT_CODES = (
    *("oci_digest_verified", "mcpb_sha256_verified", "npm_integrity_verified"),
    # Pinwarden's, for package types that ToolPin cannot verify.
    *("pypi_sha256_verified", "nuget_sha512_verified", "cargo_checksum_verified"),
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
VETO_CODES = ("no_install_target", "insecure_remote", "invalid_remote_url")
INCOMPLETE = "automated evidence incomplete"
NO_PROVENANCE = "no verified provenance"
MISSING_FILE_HASH = "MCPB package is missing a valid 64-character fileSha256."
_FRESH_FOR = timedelta(days=7)
_TOOLPIN_CLOCK_SKEW = timedelta(seconds=60)


# The report


class TrustIssue(Record):
    """A problem of an entry."""

    severity: Literal["critical", "warning", "info"]
    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Return the issue as a JSON object, as in reports."""
        return {"severity": self.severity, "code": self.code, "message": self.message}


class TierCap(Record):
    """A problem that limits the tier of an entry to ``tier``."""

    code: str
    message: str
    tier: Tier

    def to_json(self) -> dict[str, str]:
        """Return the cap as a JSON object, as in reports."""
        return {"code": self.code, "message": self.message, "tier": self.tier}


class Pillars(Record):
    """The four parts of the overall score, 0 to 100 each."""

    provenance: int
    integrity: int
    reputation: int
    metadata_completeness: int

    def to_json(self) -> dict[str, int]:
        """Return the pillars as a JSON object, as in reports."""
        return {
            "provenance": self.provenance,
            "integrity": self.integrity,
            "reputation": self.reputation,
            "metadataCompleteness": self.metadata_completeness,
        }


class TrustReport(Record):
    """The trust report of one entry."""

    score: int
    overall_score: int
    metadata_completeness: int
    tier: Tier
    cap_reason: str | None
    vetoes: tuple[TierCap, ...]
    gates: tuple[TierCap, ...]
    gated_by: tuple[str, ...]
    verified_provenance: bool
    """ToolPin's term for an entry with a repository URL from a known registry. No provenance was verified."""
    pillars: Pillars
    evidence: tuple[Evidence, ...]
    badges: tuple[str, ...]
    issues: tuple[TrustIssue, ...]

    def to_json(self, *, reread: bool = False) -> dict[str, Any]:
        """Return the report as ToolPin writes a new one; with ``reread``, in the order of one that it has read."""
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


def compute_trust_report(entry: ServerEntry, *, now: str) -> TrustReport:
    """Return the trust report of an entry from its metadata alone.

    1. Collect points, issues, badges and evidence, member by member.
    2. Compute the pillars.
    3. Apply the gates, which decide the tier; the tier caps the overall score.
    """
    tally = collect_tally(entry)
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
        pillars=compute_pillars(entry, tally),
        evidence=deduplicate_evidence(tally.evidence),
        badges=tuple(dict.fromkeys(tally.badges)),
        issues=tuple(tally.issues),
    )
    return apply_gates(ungated, now=now)


class VerificationResult(Record):
    """The result of a verification, to be added to a trust report."""

    evidence: tuple[Evidence, ...]
    issues: tuple[TrustIssue, ...]
    badges: tuple[str, ...]
    verified_provenance: bool


def with_verification(report: TrustReport, result: VerificationResult, *, now: str) -> TrustReport:
    """Return the report with the rows of a verification added, without duplicates. The pillars do not change."""
    merged = replace(
        report,
        evidence=deduplicate_evidence([*report.evidence, *result.evidence]),
        issues=tuple(dict.fromkeys([*report.issues, *result.issues])),
        badges=tuple(dict.fromkeys([*report.badges, *result.badges])),
        verified_provenance=result.verified_provenance,
    )
    return apply_gates(merged, now=now)


def with_evidence(report: TrustReport, row: Evidence, *, now: str) -> TrustReport:
    """Return the report with one more row of evidence."""
    return apply_gates(replace(report, evidence=deduplicate_evidence([*report.evidence, row])), now=now)


def deduplicate_evidence(rows: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the rows without duplicates. Rows with equal code, status, message and claim are duplicates."""
    unique: dict[tuple[Any, ...], Evidence] = {}
    for row in rows:
        unique.setdefault((row["code"], row["status"], row["message"], row.get("claim", "")), row)
    return tuple(unique.values())


# Tier and score


def apply_gates(report: TrustReport, *, now: str) -> TrustReport:
    """Return the report with its gates, tier and overall score computed from issues and evidence."""
    gates = _list_gates(report)
    vetoes = tuple(gate for gate in gates if gate.tier == "blocked")
    failed = tuple(row["code"] for row in report.evidence if row["status"] == "failed")
    tier = _compute_tier(report, gates, failed, now)
    overall, reason = _cap_score(report, gates, vetoes, tier)
    return replace(
        report,
        overall_score=overall,
        tier=tier,
        cap_reason=reason,
        vetoes=vetoes,
        gates=gates,
        gated_by=tuple(gate.code for gate in gates) or failed,
    )


def _list_gates(report: TrustReport) -> tuple[TierCap, ...]:
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


def _compute_tier(report: TrustReport, gates: Sequence[TierCap], failed: Sequence[str], now: str) -> Tier:
    if any(gate.tier == "blocked" for gate in gates):
        return "blocked"
    if gates or failed:
        return "unverified"
    pinned = any(row["code"] in PIN_CODES and row["status"] in ("declared", "passed") for row in report.evidence)
    if report.verified_provenance and pinned and find_artifact_problem(report.evidence, now=now) is None:
        return "verified"
    return "conditional" if report.score >= 40 or pinned else "unverified"


def _cap_score(
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


def find_artifact_problem(evidence: Iterable[Evidence], *, now: str) -> str | None:
    """Return why the evidence does not show a recent verification of the artifact's bytes; None if it does."""
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
    return then is not None and now is not None and now - _FRESH_FOR <= then <= now + _TOOLPIN_CLOCK_SKEW


# Pillars


_INTEGRITY_BADGES = ("pinned version", "digest-pinned", "fileSha256", "https remote")
# Registries that ToolPin considers sources of provenance, with their scores for the provenance and reputation pillars.
_KNOWN_SOURCES = {"official": (85, 80), "toolpin": (82, 78), "docker": (80, 75)}


def compute_pillars(entry: ServerEntry, tally: Tally) -> Pillars:
    """Return the four parts of the overall score."""
    return Pillars(
        provenance=_score_provenance(entry),
        integrity=_score_integrity(tally),
        reputation=_score_reputation(entry),
        metadata_completeness=tally.score,
    )


def has_provenance(entry: ServerEntry) -> bool:
    """Whether an entry has a repository URL and comes from a known registry. ToolPin calls this provenance."""
    return bool(entry.repository_url) and entry.source in _KNOWN_SOURCES


def _score_provenance(entry: ServerEntry) -> int:
    if has_provenance(entry):
        return _KNOWN_SOURCES[entry.source][0]
    return 55 if entry.repository_url else 20


def _score_integrity(tally: Tally) -> int:
    """Give 15 points for each badge of a package or remote, minus a penalty for critical issues."""
    criticals = [issue.code for issue in tally.issues if issue.severity == "critical"]
    penalty = 60 if any(code in VETO_CODES for code in criticals) else 35 if criticals else 0
    count = sum(badge in _INTEGRITY_BADGES for badge in tally.badges)
    return max(0, min(100, 35 + 15 * count - penalty))


def _score_reputation(entry: ServerEntry) -> int:
    # ToolPin intends to lower this for hidden instructions, but its scan never emits the codes it looks for.
    if entry.source in _KNOWN_SOURCES:
        return _KNOWN_SOURCES[entry.source][1]
    return 45 if entry.is_discovery_only else 60


# Points, issues and badges


class Tally:
    """The points, issues, badges and evidence collected so far."""

    def __init__(self) -> None:
        self.points = 50
        self.issues: list[TrustIssue] = []
        self.badges: list[str] = []
        self.evidence: list[Evidence] = []

    @property
    def score(self) -> int:
        """The points, limited to the range from 0 to 100."""
        return max(0, min(100, self.points))

    def add_issue(self, points: int, severity: Literal["critical", "warning", "info"], code: str, message: str) -> None:
        """Add an issue; ``points`` is negative."""
        self.points += points
        self.issues.append(TrustIssue(severity=severity, code=code, message=message))

    def add_badge(self, points: int, badge: str) -> None:
        """Add points and a badge."""
        self.points += points
        self.badges.append(badge)


def collect_tally(entry: ServerEntry) -> Tally:
    """Collect points, issues, badges and evidence from the entry's metadata."""
    tally = Tally()
    if entry.repository_url:
        tally.add_badge(8, "source repo")
    else:
        tally.add_issue(-8, "warning", "missing_repository", "No source repository is declared.")
    if "/" in entry.name:
        tally.add_badge(6, "namespaced")
    if not entry.packages and not entry.remotes:
        tally.add_issue(-35, "critical", "no_install_target", "No package or remote endpoint is declared.")
    for package in entry.packages:
        _collect_package(tally, package)
    for remote in entry.remotes:
        _collect_remote(tally, remote)
    if entry.requires_secrets:
        tally.badges.append("requires secrets")
        tally.add_issue(-6, "info", "requires_secrets", "This server declares secret configuration inputs.")
    if "sse" in entry.transports:
        message = "SSE transport appears in the manifest; streamable HTTP is preferred for remote servers."
        tally.add_issue(-4, "info", "legacy_transport", message)
    if entry.is_latest:
        tally.badges.append("latest")
    if is_capability_manifest(entry.find_meta(CAPABILITIES_META)):
        tally.badges.append("capability-pinned")
    for kind in list_attestation_types(entry):
        tally.badges.append(format_attestation_badge(kind))
        tally.evidence.append(build_attestation_evidence(kind))
    tally.evidence += build_registry_evidence(entry)
    advisories = scan_metadata(entry)
    if advisories:
        tally.badges.append("description-scan-advisory")
        tally.issues += advisories
    return tally


def _collect_package(tally: Tally, package: DeclaredPackage) -> None:
    kind, identifier = package.registry_type, package.identifier
    if kind in PACKAGE_TYPES:
        tally.add_badge(9 if kind in ("oci", "mcpb") else 5, kind)
    else:
        tally.add_issue(-8, "warning", "unknown_package_type", f"Unknown package registry type: {kind}.")
    if has_pinned_version(package):
        tally.add_badge(5, "pinned version")
    elif kind != "oci":
        tally.add_issue(-6, "warning", "unpinned_package", format_unpinned_message(identifier))
    if kind == "oci":
        problem = find_oci_pin_problem(identifier)
        if problem is None:
            tally.add_badge(8, "digest-pinned")
        else:
            tally.add_issue(-10, "critical", "mutable_oci_tag", f"OCI image {identifier} {problem}.")
    if kind == "mcpb":
        if has_file_hash(package):
            tally.add_badge(8, "fileSha256")
        else:
            message = "MCPB packages should include a valid 64-character fileSha256."
            tally.add_issue(-12, "critical", "missing_mcpb_hash", message)
    tally.evidence += build_package_evidence(package)


def _collect_remote(tally: Tally, remote: Remote) -> None:
    tally.add_badge(6, remote.type)
    address = parse_whatwg_host(remote.url)
    if address is None:
        message = f"Remote MCP endpoint is not a valid URL: {remote.url}"
        tally.add_issue(-15, "critical", "invalid_remote_url", message)
    elif address.scheme == "https":
        tally.add_badge(6, "https remote")
    elif is_loopback_http(address):
        tally.add_issue(-15, "warning", "local_http_remote", f"Remote MCP endpoint is on this machine: {remote.url}")
    else:
        tally.add_issue(-15, "critical", "insecure_remote", f"Remote MCP endpoint is not HTTPS: {remote.url}")
    if remote.type == "streamable-http":
        tally.points += 4


def is_loopback_http(address: RemoteHost) -> bool:
    """Whether the address is one of this machine, reached over http, which nothing on the network can change."""
    host = address.host if address.host in _LOOPBACK else address.host.rpartition(":")[0]
    return address.scheme == "http" and host in _LOOPBACK


def scan_metadata(entry: ServerEntry) -> list[TrustIssue]:
    """Scan the entry's name and description as ToolPin does. The findings are advisory."""
    advisories = {advisory.code: advisory for advisory, _, _ in find_advisories(f"{entry.name}\n{entry.description}")}
    return [
        TrustIssue(
            severity="warning" if advisory.severity == "warning" else "info",
            code=code,
            message=f"server:{entry.name}: {advisory.message}",
        )
        for code, advisory in sorted(advisories.items())
    ]


# Evidence from metadata


_HEX_64 = re.compile(r"[0-9a-fA-F]{64}")
_OCI_DIGEST = re.compile(r"@sha256:[0-9a-fA-F]{64}\Z")


def build_package_evidence(package: DeclaredPackage) -> list[Evidence]:
    """Return evidence of how the registry metadata pins a package. The artifact is not verified."""
    identifier, version = package.identifier, package.version
    rows: list[Evidence] = []
    if has_pinned_version(package):
        message = f"Package {identifier} declares exact version {version}."
        rows.append(_build_metadata_evidence("package_pin", "declared", message, f"{identifier}@{version}"))
    elif package.registry_type != "oci":
        rows.append(
            _build_metadata_evidence(
                "package_pin", "failed", format_unpinned_message(identifier), identifier, "missing exact version"
            )
        )
    if package.registry_type == "oci":
        rows += _build_oci_evidence(identifier)
    if package.registry_type == "mcpb":
        if has_file_hash(package):
            message = "MCPB package declares fileSha256; package bytes were not hashed by ToolPin in metadata scoring."
            rows.append(_build_metadata_evidence("file_hash_present", "declared", message, package.file_sha256 or ""))
        else:
            reason = "missing valid 64-character fileSha256"
            rows.append(_build_metadata_evidence("file_hash_present", "failed", MISSING_FILE_HASH, identifier, reason))
    return rows


def _build_oci_evidence(identifier: str) -> list[Evidence]:
    problem = find_oci_pin_problem(identifier)
    if problem is not None:
        message = f"OCI image {identifier} {problem}."
        return [_build_metadata_evidence("digest_present", "failed", message, identifier, problem)]
    declared = f"OCI image {identifier} declares a digest pin; image bytes were not resolved by ToolPin."
    return [
        _build_metadata_evidence("digest_present", "declared", declared, identifier),
        _build_metadata_evidence("package_pin", "declared", f"OCI image {identifier} is pinned by digest.", identifier),
    ]


def _build_metadata_evidence(code: str, status: str, message: str, claim: str, failure: str | None = None) -> Evidence:
    row: dict[str, Any] = {
        "code": code,
        "status": status,
        "message": message,
        "source": "registry-metadata",
        "claim": claim,
        "verificationMethod": "metadata-presence",
        "verifiedByToolPin": False,
    }
    return row if failure is None else {**row, "failureReason": failure}


def has_pinned_version(package: DeclaredPackage) -> bool:
    """Whether ToolPin considers the package pinned by its version."""
    return bool(package.version) and not is_floating_for_toolpin(package.version or "")


def find_oci_pin_problem(identifier: str) -> str | None:
    """Return the problem of an image's digest pin; None if it has a valid one."""
    if _OCI_DIGEST.search(identifier):
        return None
    return "does not contain a valid sha256 digest pin" if "@sha256:" in identifier else "is not pinned by digest"


def has_file_hash(package: DeclaredPackage) -> bool:
    """Whether a bundle declares the SHA-256 of its file."""
    return _HEX_64.fullmatch(package.file_sha256 or "") is not None


def format_unpinned_message(identifier: str) -> str:
    """Return the message for a package without an exact version."""
    return f"Package {identifier} does not declare an exact package version."


def list_attestation_types(entry: ServerEntry) -> list[str]:
    """Return the kinds of attestations that the entry declares. None of them is verified here."""
    rows = entry.find_meta(ATTESTATIONS_META)
    if not isinstance(rows, list):
        return []
    return [row["type"] for row in rows if isinstance(row, dict) and isinstance(row.get("type"), str)]


def format_attestation_badge(kind: str) -> str:
    """Return the badge of a declared attestation."""
    return f"{kind}-declared"


def build_attestation_evidence(kind: str) -> Evidence:
    """Return the evidence of a declared attestation."""
    message = f"{kind} attestation metadata is declared but not cryptographically verified."
    return _build_metadata_evidence("attestation_declared", "declared", message, kind)


_STATUSES = ("passed", "declared", "failed", "unavailable", "skipped")
_CARRIED = ("source", "claim", "verificationMethod", "trustedAnchor", "trustAnchor", "verifiedAt", "failureReason")


def build_registry_evidence(entry: ServerEntry) -> list[Evidence]:
    """Return the evidence in ToolPin's registry. ``passed`` becomes ``declared``: Pinwarden did not verify it."""
    rows = entry.find_meta(EVIDENCE_META)
    if entry.source != "toolpin" or not isinstance(rows, list):
        return []
    return [_downgrade_registry_evidence(row) for row in rows if _is_registry_evidence(row)]


def _is_registry_evidence(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("code"), str)
        and row.get("status") in _STATUSES
        and isinstance(row.get("message"), str)
    )


def _downgrade_registry_evidence(row: Mapping[str, Any]) -> Evidence:
    claimed = row["status"] == "passed"
    message = f"{row['message']} (registry-declared, not locally recomputed)" if claimed else row["message"]
    evidence: dict[str, Any] = {
        "code": row["code"],
        "status": "declared" if claimed else row["status"],
        "message": message,
        "verifiedByToolPin": False,
    }
    for member in _CARRIED:
        if member == "trustedAnchor" and isinstance(row.get(member), bool):
            evidence[member] = False
        elif isinstance(row.get(member), str):
            evidence[member] = row[member]
    if isinstance(row.get("required"), bool):
        evidence["required"] = row["required"]
    return evidence
