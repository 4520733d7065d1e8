"""The shape that a lockfile entry must have to be read: what ToolPin 0.5.4 demands, member by member."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn

from pinwarden.core.canonical import is_number
from pinwarden.core.errors import PinwardenError

Tier = Literal["verified", "conditional", "unverified", "blocked"]
TIERS_WORST_FIRST: tuple[Tier, ...] = ("blocked", "unverified", "conditional", "verified")


def tier_rank(tier: object) -> int:
    """Higher is better; what is no tier at all is below the worst."""
    return next((rank for rank, known in enumerate(TIERS_WORST_FIRST) if known == tier), -1)


LOCK_CLIENTS = (
    "claude",
    "cursor",
    "vscode",
    "codex",
    "opencode",
    "windsurf",
    "cline",
    "continue",
    "gemini",
    "zed",
    "roo",
    "generic",
)
LOCK_SCOPES = ("project", "global")
TOOL_HASHES = {
    "toolDescriptionHash": ("algorithm", "value", "toolCount"),
    "toolSurfaceHash": ("algorithm", "coverage", "value", "toolCount"),
    "toolManifestHash": ("algorithm", "value", "toolCount"),
}
"""Which parts of the three tool hashes in a manifest are hashed."""


def check_shape(document: Any, path: str) -> None:
    """Raise LOCK_INVALID, naming the place, if an entry could not be read."""
    if not isinstance(document, dict):
        invalid(path, "is not an object")
    for member in ("name", "version"):
        _demand(isinstance(document.get(member), str), f"{path}/{member}", "is not text")
    client = document.get("client")
    if client not in LOCK_CLIENTS:
        known = ", ".join(LOCK_CLIENTS)
        invalid(f"{path}/client", f"names the unknown client {str(client)[:40]!a}; known: {known}")
    if "scope" in document and document["scope"] not in LOCK_SCOPES:
        invalid(f"{path}/scope", "is neither project nor global")
    _demand(isinstance(document.get("selectedTarget"), dict), f"{path}/selectedTarget", "is not an object")
    _check_trust(document.get("trust"), f"{path}/trust")
    _demand(isinstance(document.get("notes"), list), f"{path}/notes", "is not a list")
    if "capabilityManifest" in document:
        _check_manifest(document["capabilityManifest"], f"{path}/capabilityManifest")
    if "integrity" in document:
        _demand(isinstance(document["integrity"], str), f"{path}/integrity", "is not text")


TRUST_SHAPE = {
    "score": "number",
    "overallScore": "number",
    "metadataCompleteness": "number",
    "tier": "tier",
    "capReason": "text",
    "verifiedProvenance": "truth",
    "vetoes": "gates",
    "gates": "gates",
    "gatedBy": "texts",
    "badges": "texts",
    "pillars": "pillars",
    "evidence": "rows",
    "issues": "rows",
}
EVIDENCE_SHAPE = {
    "verifiedByToolPin": "truth",
    "trustedAnchor": "truth",
    "required": "truth",
    **dict.fromkeys(("source", "claim", "verificationMethod", "trustAnchor", "verifiedAt", "failureReason"), "text"),
}
PILLARS = ("provenance", "integrity", "reputation", "metadataCompleteness")


def _check_trust(trust: Any, path: str) -> None:
    if not isinstance(trust, dict):
        invalid(path, "is not an object")
    for member in ("score", "badges", "issues"):
        _demand(member in trust, f"{path}/{member}", "is missing")
    for member, kind in TRUST_SHAPE.items():
        if member in trust and not _is_kind(trust[member], kind):
            invalid(f"{path}/{member}", f"is not what a trust report holds there ({kind})")
    for place, row in enumerate(trust["issues"]):
        good = all_text(row, ("code", "message")) and row.get("severity") in ("info", "warning", "critical")
        _demand(good, f"{path}/issues/{place}", "is not an issue")
    for place, row in enumerate(trust.get("evidence", [])):
        statuses = ("passed", "declared", "failed", "unavailable")
        good = all_text(row, ("code", "message")) and row.get("status") in statuses
        good = good and all(_is_kind(row[member], kind) for member, kind in EVIDENCE_SHAPE.items() if member in row)
        _demand(good, f"{path}/evidence/{place}", "is not evidence")


def _is_kind(value: Any, kind: str) -> bool:
    match kind:
        case "number":
            return is_number(value)
        case "tier":
            return value in TIERS_WORST_FIRST
        case "text":
            return isinstance(value, str)
        case "truth":
            return isinstance(value, bool)
        case "texts":
            return isinstance(value, list) and all(isinstance(text, str) for text in value)
        case "rows":
            return isinstance(value, list)
        case "pillars":
            return isinstance(value, dict) and all(is_number(value.get(pillar)) for pillar in PILLARS)
        case _:
            return isinstance(value, list) and all(
                all_text(gate, ("code", "message")) and gate.get("tier") in ("unverified", "blocked") for gate in value
            )


def _check_manifest(manifest: Any, path: str) -> None:
    if not isinstance(manifest, dict):
        invalid(path, "is not an object")
    wrong = _wrong_in_manifest(manifest)
    if wrong is not None:
        invalid(f"{path}/{wrong}", "is not what a capability manifest of version 1 holds there")


def is_manifest(manifest: Any) -> bool:
    """Whether a value is a capability manifest as ToolPin reads it."""
    return isinstance(manifest, dict) and _wrong_in_manifest(manifest) is None


def _wrong_in_manifest(manifest: dict[str, Any]) -> str | None:
    """The first member of a manifest that is not as it should be."""
    if not is_number(manifest.get("version")) or manifest["version"] != 1:
        return "version"
    for member in ("serverName", "serverVersion", "registrySource", "generatedAt"):
        if not isinstance(manifest.get(member), str):
            return member
    for member in ("packageTypes", "transports", "remoteHosts", "secrets"):
        if not isinstance(manifest.get(member), list):
            return member
    for member, parts in TOOL_HASHES.items():
        if member in manifest and not _is_tool_hash(manifest[member], parts):
            return member
    scanned = "toolDescriptionScan"
    return scanned if scanned in manifest and not _is_scan(manifest[scanned]) else None


def _is_scan(scan: Any) -> bool:
    return (
        all_text(scan, ("generatedAt",))
        and is_number(scan.get("version"))
        and scan["version"] == 1
        and is_number(scan.get("scannedDescriptions"))
        and isinstance(scan.get("findings"), list)
    )


def _is_tool_hash(value: Any, parts: Sequence[str]) -> bool:
    if not all_text(value, ("algorithm", "value", "generatedAt")) or value["algorithm"] != "sha256":
        return False
    coverage = value.get("coverage", []) if "coverage" in parts else []
    fields = ("name", "description", "inputSchema")
    covered = isinstance(coverage, list) and all(field in fields for field in coverage)
    return is_number(value.get("toolCount")) and covered and ("coverage" in value or "coverage" not in parts)


def all_text(value: Any, members: Iterable[str]) -> bool:
    """Whether a value is an object whose named members are all text."""
    return isinstance(value, dict) and all(isinstance(value.get(member), str) for member in members)


def _demand(holds: bool, path: str, why: str) -> None:
    if not holds:
        invalid(path, why)


def invalid(path: str, why: str) -> NoReturn:
    """Raise LOCK_INVALID about one place of a lockfile."""
    raise PinwardenError("LOCK_INVALID", f"{path[:300]!a} {why}", data={"path": path})
