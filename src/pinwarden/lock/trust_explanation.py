"""Explain a trust report, compute ToolPin's verdict, and add Pinwarden's own findings about an entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pinwarden.core.record import Record, replace
from pinwarden.core.versions import is_exact, is_floating_for_toolpin
from pinwarden.lock.entry import Tier
from pinwarden.lock.server_entry import (
    ServerEntry,
)
from pinwarden.lock.trust_tiers import (
    ARTIFACT_CODES,
    INCOMPLETE,
    NO_PROVENANCE,
    Evidence,
    TrustIssue,
    TrustReport,
    find_artifact_problem,
    has_pinned_version,
)


class TierExplanation(Record):
    """The meaning of a tier, the reasons for it, and how to improve it."""

    tier: Tier
    meaning: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]


_MEANINGS: Mapping[Tier, str] = {
    "blocked": "Blocked: this server must not be installed.",
    "unverified": "Unverified: the entry does not determine what would run. Review it before you install it.",
    "conditional": "Conditional: the package is pinned, but its bytes were not verified.",
    "verified": "Verified: the artifact's bytes were verified against a trusted anchor within the last seven days.",
}
_REMEDIES = {
    "no_install_target": "Choose an entry that names a package or a remote.",
    "insecure_remote": "Use an https URL; over http, anyone on the network can replace the tools.",
    "invalid_remote_url": "Ask the author to correct the URL.",
    "mutable_oci_tag": "Name the image by digest: image@sha256:<64 hex digits>.",
    "digest_present": "Name the image by digest: image@sha256:<64 hex digits>.",
    "missing_mcpb_hash": "Ask the author to declare the bundle's fileSha256.",
    "file_hash_present": "Ask the author to declare the bundle's fileSha256.",
    "package_pin": "Ask the author for an exact version instead of a range or tag.",
}
_RELOCK = "in the client's configuration, then approve it again with pinwarden approve NAME."
_CONFIG_REMEDIES = {
    "insecure_remote": f"Use an https URL {_RELOCK}",
    "invalid_remote_url": f"Correct the URL {_RELOCK}",
    "mutable_oci_tag": f"Name the image by digest {_RELOCK}",
    "digest_present": f"Name the image by digest {_RELOCK}",
    "package_pin": f"Name an exact version {_RELOCK}",
}
"""Remedies for a server from a client's configuration, which has no registry entry."""
_PINNABLE_TARGETS = ("npm", "pypi", "oci", "nuget", "jsr", "remote")
_LOCAL_PROGRAM_REMEDY = (
    "A local program has no release to pin; keep it where every change is reviewed, such as this repository."
)


def explain_tier(report: TrustReport, *, now: str, configured: str | None = None) -> TierExplanation:
    """Explain the tier of a report.

    ``configured`` is the target type (``npm``, ``remote``, …) of a server from a client's configuration; None for a
    server from a registry.
    """
    reasons = [f"{gate.code}: {_format_sentence(gate.message)}" for gate in report.gates]
    failed = [row for row in report.evidence if row["status"] == "failed"]
    reasons += [f"{row['code']}: {_format_sentence(row['message'])}" for row in failed]
    if report.tier in ("conditional", "unverified") and not reasons:
        reasons += _list_missing_evidence(report, now)
    if report.tier == "verified":
        proofs = [row["message"] for row in report.evidence if row["code"] in ARTIFACT_CODES]
        reasons += [_format_sentence(message) for message in proofs]
    codes = dict.fromkeys([*report.gated_by, *(row["code"] for row in failed)])
    remedy_texts = _REMEDIES if configured is None else _CONFIG_REMEDIES if configured in _PINNABLE_TARGETS else {}
    remedies = dict.fromkeys(remedy_texts[code] for code in codes if code in remedy_texts)
    if configured is not None and configured not in _PINNABLE_TARGETS:
        remedies[_LOCAL_PROGRAM_REMEDY] = None
    if report.tier == "conditional" and configured is None:
        remedies["Check the artifact itself with pinwarden verify."] = None
    return TierExplanation(
        tier=report.tier,
        meaning=_MEANINGS[report.tier],
        reasons=tuple(dict.fromkeys(reasons)),
        remedies=tuple(remedies),
    )


def explain_bundle_tier(explanation: TierExplanation, version: str, *, literal: bool) -> TierExplanation:
    """Explain the tier of an installed bundle. ToolPin's tiers ignore that the install verified its bytes."""
    meaning = f"{explanation.tier.capitalize()} by ToolPin's tiers, which do not cover bundles. " + (
        "The install verified every byte against the registry's signature, but --literal skipped the log and the "
        "attesters' roles."
        if literal
        else "The install verified every byte against the registry's signature, its log and the attestations."
    )
    remedies = (f"Install it without --literal: some checks of {version} were skipped.",) if literal else ()
    return TierExplanation(tier=explanation.tier, meaning=meaning, reasons=(), remedies=remedies)


def explain_configured_tier(explanation: TierExplanation, name: str, *, pinned: bool) -> TierExplanation:
    """Explain the tier of a package from a configuration. ToolPin's tiers ignore bytes that Pinwarden pinned."""
    if explanation.tier != "conditional":
        return explanation
    stays = "The tier stays conditional, because there is no registry entry"
    if pinned:
        meaning = "Conditional: its bytes are pinned, but no provenance shows who built them."
        return replace(explanation, meaning=meaning, remedies=explanation.remedies or (f"{stays}.",))
    return replace(explanation, remedies=(*explanation.remedies, f"{stays}; pinwarden prove {name} pins its bytes."))


def _list_missing_evidence(report: TrustReport, now: str) -> Iterator[str]:
    problem = find_artifact_problem(report.evidence, now=now)
    if problem is not None:
        yield _format_sentence(problem)
    if not report.verified_provenance:
        yield "The entry has no source repository, or its registry is not a known source."
    if report.tier == "unverified":
        yield f"The metadata is incomplete (score {report.score}, at least 40 is required), and nothing is pinned."


def _format_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


# The verdict: one word and a reason


WEAK_PIN_CODES = ("mutable_oci_tag", "missing_mcpb_hash")


class TrustVerdict(Record):
    """ToolPin's verdict about a server, with its reason."""

    verdict: Literal["verified", "needs-review", "blocked"]
    reason: str
    tier: Tier

    def to_json(self) -> dict[str, str]:
        """Return the verdict as a JSON object, as in reports."""
        return {"verdict": self.verdict, "reason": self.reason, "detailTier": self.tier}


class VerdictInputs(Record):
    """The parts of a report that determine ToolPin's verdict."""

    tier: Tier
    verified_provenance: bool
    evidence: Sequence[Evidence]
    issues: Sequence[TrustIssue]
    cap_reason: str | None = None
    ok: bool = True
    """False if a verification found a critical issue."""


def compute_verdict(report: TrustReport, *, now: str) -> TrustVerdict:
    """Return the verdict on a trust report."""
    grounds = VerdictInputs(
        tier=report.tier,
        verified_provenance=report.verified_provenance,
        evidence=report.evidence,
        issues=report.issues,
        cap_reason=report.cap_reason,
    )
    return compute_verdict_from(grounds, now=now)


def compute_verdict_from(grounds: VerdictInputs, *, now: str) -> TrustVerdict:
    """Return ToolPin's verdict, with the first reason that applies."""
    tier = grounds.tier
    if tier == "blocked" or not grounds.ok:
        return TrustVerdict(verdict="blocked", reason=_explain_blocked(grounds), tier=tier)
    if tier == "verified":
        return TrustVerdict(verdict="verified", reason="fresh verified artifact proof", tier=tier)
    return TrustVerdict(verdict="needs-review", reason=_explain_review(grounds, now), tier=tier)


def _explain_blocked(grounds: VerdictInputs) -> str:
    for issue in grounds.issues:
        if issue.severity == "critical":
            return f"pin is weak: {issue.message}" if issue.code in WEAK_PIN_CODES else issue.message
    for row in grounds.evidence:
        if row["status"] == "failed" and row.get("required") is True:
            return f"required evidence failed: {row['message']}"
    return "command failed"


def _explain_review(grounds: VerdictInputs, now: str) -> str:
    for issue in grounds.issues:
        if issue.severity == "critical" and issue.code in WEAK_PIN_CODES:
            return f"pin is weak: {issue.message}"
    for row in grounds.evidence:
        if row["status"] == "failed":
            return f"evidence failed: {row['message']}"
    problem = find_artifact_problem(grounds.evidence, now=now)
    if grounds.verified_provenance and problem is not None:
        return problem
    if grounds.cap_reason == NO_PROVENANCE:
        return "verified provenance missing"
    if grounds.cap_reason == INCOMPLETE:
        return "artifact proof missing"
    if any(row["status"] == "declared" for row in grounds.evidence):
        return "artifact proof declared, not verified"
    return "review required" if grounds.evidence else "automated evidence missing"


# Pinwarden's own findings


def check_metadata(entry: ServerEntry) -> tuple[TrustIssue, ...]:
    """Return Pinwarden's findings about an entry's metadata. They do not change the trust report."""
    return tuple(_check_metadata(entry))


def _check_metadata(entry: ServerEntry) -> Iterator[TrustIssue]:
    if entry.status == "deleted":
        yield TrustIssue(
            severity="critical",
            code="entry_deleted",
            message=f"The registry has deleted this version{_format_status_reason(entry)}.",
        )
    if entry.status == "deprecated":
        yield TrustIssue(
            severity="warning",
            code="entry_deprecated",
            message=f"The registry marks this version as deprecated{_format_status_reason(entry)}.",
        )
    for package in entry.packages:
        version = package.version or ""
        if version and package.registry_type != "oci" and not is_exact(version) and has_pinned_version(package):
            yield TrustIssue(
                severity="critical",
                code="version_is_a_range",
                message=f"Version {version} of {package.identifier} does not name one release.",
            )
        if version and is_exact(version) and is_floating_for_toolpin(version):
            yield TrustIssue(
                severity="info",
                code="version_is_exact",
                message=f"Version {version} of {package.identifier} names one release. ToolPin scores it as floating, "
                "because it takes every letter x for a wildcard.",
            )


def _format_status_reason(entry: ServerEntry) -> str:
    return f": {entry.status_message.rstrip('.')}" if entry.status_message else ""
