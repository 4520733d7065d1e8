"""The trust report of an entry: what it says, and how ToolPin writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pinwarden.core.record import Record
from pinwarden.core.versions import is_floating_for_toolpin
from pinwarden.lock.entry import TRUST_REREAD_ORDER
from pinwarden.lock.server_entry import ATTESTATIONS_META, EVIDENCE_META, Package, ServerEntry
from pinwarden.lock.shape import Tier

Evidence = Mapping[str, Any]
"""One row of evidence, as it stands in a report: ``code``, ``status`` and ``message``, and where it came from."""

MISSING_FILE_HASH = "MCPB package is missing a valid 64-character fileSha256."
_HEX_64 = re.compile(r"[0-9a-fA-F]{64}")
_OCI_DIGEST = re.compile(r"@sha256:[0-9a-fA-F]{64}\Z")


def unique_evidence(rows: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Each row once; rows are the same if code, status, message and claim are."""
    unique: dict[tuple[Any, ...], Evidence] = {}
    for row in rows:
        unique.setdefault((row["code"], row["status"], row["message"], row.get("claim", "")), row)
    return tuple(unique.values())


def package_rows(package: Package) -> list[Evidence]:
    """What the metadata of a package claims about how it is pinned. Nothing of it has been checked."""
    identifier, version = package.identifier, package.version
    rows: list[Evidence] = []
    if pinned_version(package):
        message = f"Package {identifier} declares exact version {version}."
        rows.append(_metadata_row("package_pin", "declared", message, f"{identifier}@{version}"))
    elif package.registry_type != "oci":
        rows.append(_metadata_row("package_pin", "failed", unpinned(identifier), identifier, "missing exact version"))
    if package.registry_type == "oci":
        rows += _oci_rows(identifier)
    if package.registry_type == "mcpb":
        if has_file_hash(package):
            message = "MCPB package declares fileSha256; package bytes were not hashed by ToolPin in metadata scoring."
            rows.append(_metadata_row("file_hash_present", "declared", message, package.file_sha256 or ""))
        else:
            reason = "missing valid 64-character fileSha256"
            rows.append(_metadata_row("file_hash_present", "failed", MISSING_FILE_HASH, identifier, reason))
    return rows


def _oci_rows(identifier: str) -> list[Evidence]:
    problem = oci_pin_problem(identifier)
    if problem is not None:
        message = f"OCI image {identifier} {problem}."
        return [_metadata_row("digest_present", "failed", message, identifier, problem)]
    declared = f"OCI image {identifier} declares a digest pin; image bytes were not resolved by ToolPin."
    return [
        _metadata_row("digest_present", "declared", declared, identifier),
        _metadata_row("package_pin", "declared", f"OCI image {identifier} is pinned by digest.", identifier),
    ]


def _metadata_row(code: str, status: str, message: str, claim: str, failure: str | None = None) -> Evidence:
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


def pinned_version(package: Package) -> bool:
    """Whether ToolPin holds the package for pinned by its version."""
    return bool(package.version) and not is_floating_for_toolpin(package.version or "")


def oci_pin_problem(identifier: str) -> str | None:
    """What is wrong with the digest of an image, None if it has a valid one."""
    if _OCI_DIGEST.search(identifier):
        return None
    return "does not contain a valid sha256 digest pin" if "@sha256:" in identifier else "is not pinned by digest"


def has_file_hash(package: Package) -> bool:
    """Whether a bundle declares the SHA-256 of its file."""
    return _HEX_64.fullmatch(package.file_sha256 or "") is not None


def unpinned(identifier: str) -> str:
    """What is said about a package without an exact version."""
    return f"Package {identifier} does not declare an exact package version."


def attestations(entry: ServerEntry) -> list[str]:
    """The kinds of attestations that the entry says exist. None of them is fetched or checked here."""
    rows = entry.extension(ATTESTATIONS_META)
    if not isinstance(rows, list):
        return []
    return [row["type"] for row in rows if isinstance(row, dict) and isinstance(row.get("type"), str)]


def attestation_badge(kind: str) -> str:
    """The badge of a declared attestation."""
    return f"{kind}-declared"


def attestation_row(kind: str) -> Evidence:
    """The evidence of a declared attestation."""
    message = f"{kind} attestation metadata is declared but not cryptographically verified."
    return _metadata_row("attestation_declared", "declared", message, kind)


_STATUSES = ("passed", "declared", "failed", "unavailable", "skipped")
_CARRIED = ("source", "claim", "verificationMethod", "trustedAnchor", "trustAnchor", "verifiedAt", "failureReason")


def registry_rows(entry: ServerEntry) -> list[Evidence]:
    """Evidence that ToolPin's own registry claims; a claim of proof counts as a declaration."""
    rows = entry.extension(EVIDENCE_META)
    if entry.source != "toolpin" or not isinstance(rows, list):
        return []
    return [_registry_row(row) for row in rows if _is_row(row)]


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("code"), str)
        and row.get("status") in _STATUSES
        and isinstance(row.get("message"), str)
    )


def _registry_row(row: Mapping[str, Any]) -> Evidence:
    claimed = row["status"] == "passed"
    message = f"{row['message']} (registry-declared, not locally recomputed)" if claimed else row["message"]
    kept: dict[str, Any] = {
        "code": row["code"],
        "status": "declared" if claimed else row["status"],
        "message": message,
        "verifiedByToolPin": False,
    }
    for member in _CARRIED:
        if member == "trustedAnchor" and isinstance(row.get(member), bool):
            kept[member] = False
        elif isinstance(row.get(member), str):
            kept[member] = row[member]
    if isinstance(row.get("required"), bool):
        kept["required"] = row["required"]
    return kept


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
