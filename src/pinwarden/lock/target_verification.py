"""The verification report of a launch target, in ToolPin's codes and sentences.

Other modules verify the artifact and list the live server's tools; the report includes their outcomes. Evidence about
anything that was not verified is ``unavailable``, never ``passed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pinwarden.core.javascript import parse_whatwg_host, sort_by_locale
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern
from pinwarden.lock.entry import is_capability_manifest
from pinwarden.lock.launch_choice import LaunchTarget, choose_target
from pinwarden.lock.server_entry import (
    ATTESTATIONS_META,
    CAPABILITIES_META,
    DeclaredPackage,
    Remote,
    ServerEntry,
    build_capability_manifest,
)
from pinwarden.lock.trust_explanation import TrustVerdict, VerdictInputs, compute_verdict_from
from pinwarden.lock.trust_tiers import (
    MISSING_FILE_HASH,
    Evidence,
    TrustIssue,
    TrustReport,
    VerificationResult,
    compute_trust_report,
    deduplicate_evidence,
    find_oci_pin_problem,
    format_attestation_badge,
    has_file_hash,
    has_pinned_version,
    is_loopback_http,
    list_attestation_types,
    scan_metadata,
    with_verification,
)
from pinwarden.surface.interop import (
    Advisory,
    ToolNameFinder,
    build_cross_tool_advisory,
    build_duplicate_name_advisory,
    compute_toolpin_hashes,
    find_advisories,
)

# Container registries and download hosts that ToolPin considers trust anchors.
TRUSTED_IMAGE_HOSTS = (
    "docker.io",
    "ghcr.io",
    "gcr.io",
    "mcr.microsoft.com",
    "public.ecr.aws",
    "registry.k8s.io",
    "quay.io",
)
_DOCKER_HUB = "registry-1.docker.io"  # an alias of docker.io in ToolPin
_SHA256 = lazy_pattern("sha256:[0-9a-fA-F]{64}")
TRUSTED_BUNDLE_HOSTS = (
    "registry.modelcontextprotocol.io",
    "modelcontextprotocol.io",
    "github.com",
    "objects.githubusercontent.com",
    "github-releases.githubusercontent.com",
    "raw.githubusercontent.com",
)


class LiveOutcome(Record):
    """The outcome of listing the live server's tools."""

    state: Literal["skipped", "not-executed", "failed", "listed"]
    """``skipped`` on request, ``not-executed`` without permission to run the package."""
    tools: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""
    """The reason for the state ``failed``."""


class ArtifactOutcome(Record):
    """The result of fetching the artifact: evidence with the codes of ``ARTIFACT_CODES``, and issues."""

    evidence: tuple[Evidence, ...]
    issues: tuple[TrustIssue, ...] = ()


SKIPPED = LiveOutcome(state="skipped")


class VerificationReport(Record):
    """The outcome of a verification."""

    entry: ServerEntry
    manifest: Mapping[str, Any]
    result: VerificationResult
    trust: TrustReport = field(repr=False)
    """The trust report including this verification."""
    verdict: TrustVerdict

    @property
    def ok(self) -> bool:
        """Whether there is no critical issue."""
        return not any(issue.severity == "critical" for issue in self.result.issues)

    def to_json(self) -> dict[str, Any]:
        """Return the report in ToolPin's shape."""
        rows = self.entry.find_meta(ATTESTATIONS_META)
        declared = [row for row in rows if isinstance(row, dict) and isinstance(row.get("type"), str)] if rows else []
        shape = {
            "ok": self.ok,
            "serverName": self.entry.name,
            "serverVersion": self.entry.version,
            "capabilityManifest": dict(self.manifest),
            "attestations": declared,
            "badges": list(self.result.badges),
            "evidence": [dict(row) for row in self.result.evidence],
            "issues": [issue.to_json() for issue in self.result.issues],
            "verifiedProvenance": self.result.verified_provenance,
            "verdict": self.verdict.to_json(),
        }
        return {name: member for name, member in shape.items() if member is not None}


def verify_target(
    entry: ServerEntry,
    *,
    now: str,
    live: LiveOutcome = SKIPPED,
    target: LaunchTarget | None = None,
    artifact: ArtifactOutcome | None = None,
) -> VerificationReport:
    """Verify the target that would be launched. Without ``artifact``, its bytes count as not checked.

    1. Metadata: declared evidence, and the scan of its text.
    2. Target: is the package pinned, or the URL safe to contact?
    3. Bytes of the artifact.
    4. Live server.
    """
    metadata = compute_trust_report(entry, now=now)
    findings = _Findings()
    _add_metadata_findings(findings, entry, metadata)
    chosen = choose_target(entry) if target is None else target
    manifest = build_capability_manifest(entry, now=now)
    if chosen is None:
        findings.add_issue(
            "critical", "no_install_target", f"No install target is available for {_format_name_and_version(entry)}."
        )
    elif isinstance(chosen, Remote):
        if _check_remote(findings, chosen) or live.state == "skipped":
            _check_live_server(findings, live, manifest, remote=True, now=now)
    else:
        _check_package(findings, chosen, artifact, now)
        _check_live_server(findings, live, manifest, remote=False, now=now)
    return _build_report(entry, metadata, findings, manifest, now)


def scan_tools(tools: Sequence[Mapping[str, Any]], *, now: str) -> dict[str, Any]:
    """Scan the names and descriptions of tools as ToolPin does."""
    names = [str(tool.get("name", "")) for tool in tools]
    siblings = ToolNameFinder(names)
    advisories: list[tuple[str, Advisory]] = []
    for name, tool in zip(names, tools, strict=True):
        description = tool.get("description")
        text = description if isinstance(description, str) else ""
        advisories += [(name, advisory) for advisory, _, _ in find_advisories(f"{name}\n{text}")]
        advisories += [
            (name, build_cross_tool_advisory(other)) for other, _, _ in siblings.find_commands(text) if other != name
        ]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    advisories += [(name, build_duplicate_name_advisory(count)) for name, count in counts.items() if count > 1]
    rows = [
        {"severity": advisory.severity, "code": advisory.code, "subject": f"tool:{name}", "message": advisory.message}
        for name, advisory in advisories
    ]
    ordered, _ = sort_by_locale(rows, lambda row: f"{row['subject']}:{row['code']}:{row['message']}")
    return {"version": 1, "generatedAt": now, "scannedDescriptions": len(tools), "findings": ordered}


class _Findings:
    def __init__(self) -> None:
        self.badges: list[str] = []
        self.evidence: list[Evidence] = []
        self.issues: list[TrustIssue] = []

    def add_issue(self, severity: Literal["critical", "warning", "info"], code: str, message: str) -> None:
        self.issues.append(TrustIssue(severity=severity, code=code, message=message))


def _add_metadata_findings(findings: _Findings, entry: ServerEntry, metadata: TrustReport) -> None:
    findings.evidence += metadata.evidence
    advisories = scan_metadata(entry)
    if advisories:
        findings.badges.append("description-scan-advisory")
        findings.issues += advisories
    if is_capability_manifest(entry.find_meta(CAPABILITIES_META)):
        findings.badges.append("capability-pinned")
    findings.badges += [format_attestation_badge(kind) for kind in list_attestation_types(entry)]


def _check_remote(findings: _Findings, remote: Remote) -> bool:
    """Add findings about the URL of a remote. Returns whether the URL may be contacted."""
    findings.badges.append("remote-target")
    address = parse_whatwg_host(remote.url)
    if address is None:
        findings.add_issue("critical", "invalid_remote_url", "Remote MCP URL is invalid: Invalid URL.")
        findings.evidence.append(
            _build_transport_evidence("failed", "Remote MCP target URL could not be parsed.", remote.url)
        )
        return False
    if address.scheme == "https":
        return True
    if is_loopback_http(address):
        message = (
            f"Remote MCP URL {remote.url} uses loopback HTTP; treat it as a local runtime target, "
            "not trusted public remote metadata."
        )
        findings.add_issue("warning", "local_http_remote", message)
        advice = "Loopback HTTP remote target is local/advisory and not trusted public remote metadata."
        findings.evidence.append(_build_transport_evidence("unavailable", advice, remote.url))
        return True
    message = f"Remote MCP URL {remote.url} must use HTTPS unless it is a loopback local fixture."
    findings.add_issue("critical", "insecure_remote", message)
    findings.evidence.append(
        _build_transport_evidence("failed", "Remote MCP target uses insecure transport.", remote.url)
    )
    return False


def _build_transport_evidence(status: str, message: str, url: str) -> Evidence:
    row: dict[str, Any] = {
        "code": "remote_transport_trust",
        "status": status,
        "message": message,
        "claim": url,
        "verificationMethod": "remote-url-scheme-check",
        "verifiedByToolPin": True,
        "trustedAnchor": False,
    }
    return {**row, "required": True} if status == "failed" else row


def _check_package(findings: _Findings, package: DeclaredPackage, artifact: ArtifactOutcome | None, now: str) -> None:
    if package.registry_type == "oci":
        problem = find_oci_pin_problem(package.identifier)
        if problem is not None:
            findings.add_issue("critical", "mutable_oci_tag", f"OCI image {package.identifier} {problem}.")
            return
        findings.badges.append("digest-pinned")
    if package.registry_type == "mcpb":
        if not has_file_hash(package):
            findings.add_issue("critical", "missing_mcpb_hash", MISSING_FILE_HASH)
            return
        findings.badges.append("fileSha256")
    if package.registry_type == "npm" and not has_pinned_version(package):
        _refuse_unpinned_npm(findings, package, now)
        return
    if artifact is None:
        findings.evidence += _build_unchecked_evidence(package)
        return
    findings.evidence += artifact.evidence
    findings.issues += artifact.issues
    findings.badges += [row["code"].replace("_", "-") for row in artifact.evidence if row["status"] == "passed"]


def _refuse_unpinned_npm(findings: _Findings, package: DeclaredPackage, now: str) -> None:
    claim = f"{package.identifier}@{package.version}" if package.version else package.identifier
    failed = f"npm integrity verification failed for {claim}"
    reason = "npm package target must declare an exact version"
    findings.add_issue("critical", "npm_version_missing", f"{failed}: {reason}.")
    findings.evidence.append(
        {
            "code": "npm_integrity_verified",
            "status": "failed",
            "message": f"{failed}.",
            "source": "npm-registry",
            "claim": claim,
            "verificationMethod": "npm-packument-sri",
            "verifiedByToolPin": True,
            "trustedAnchor": True,
            "verifiedAt": now,
            "failureReason": reason,
            "required": True,
        }
    )


_NOT_FETCHED = "the bytes were not fetched"
# Per kind of package: the code of the evidence about its bytes, where they come from, and how they are checked.
_ARTIFACT_EVIDENCE = {
    "npm": ("npm_integrity_verified", "npm-registry", "npm-packument-sri"),
    "oci": ("oci_digest_verified", "oci-registry", "registry-manifest-digest"),
    "mcpb": ("mcpb_sha256_verified", "http-artifact", "sha256-bytes"),
}


def _build_unchecked_evidence(package: DeclaredPackage) -> list[Evidence]:
    """Return evidence that the artifact was not downloaded, with ToolPin's reason if ToolPin cannot download it."""
    identifier = package.identifier
    match package.registry_type:
        case "npm":
            claim = f"{identifier}@{package.version}"
            message = f"npm integrity evidence was not available for {claim}"
            return [_build_unavailable_evidence("npm", message, claim, _NOT_FETCHED)]
        case "oci":
            image = parse_image_reference(identifier)
            message = f"OCI registry bytes were not resolved for {identifier}"
            if image is None:
                return [_build_unavailable_evidence("oci", message, "", "unsupported OCI identifier")]
            host, digest = image
            anchored = host in TRUSTED_IMAGE_HOSTS
            reason = _NOT_FETCHED if anchored else f"OCI registry {host} is not a ToolPin trusted anchor"
            return [_build_unavailable_evidence("oci", message, digest, reason, anchor=host)]
        case "mcpb":
            reason = (
                _NOT_FETCHED if find_bundle_anchor(identifier) else "MCPB artifact host is not a ToolPin trusted anchor"
            )
            message = f"MCPB bytes were not available for {identifier}"
            return [_build_unavailable_evidence("mcpb", message, package.file_sha256 or "", reason)]
        case _:
            return []


def _build_unavailable_evidence(
    kind: str, message: str, claim: str, reason: str, *, anchor: str | None = None
) -> Evidence:
    code, source, method = _ARTIFACT_EVIDENCE[kind]
    row = {
        "code": code,
        "status": "unavailable",
        "message": f"{message}: {reason}.",
        "source": source,
        "claim": claim,
        "verificationMethod": method,
        "verifiedByToolPin": False,
        "trustedAnchor": False,
        "trustAnchor": anchor,
        "failureReason": reason,
    }
    return {name: value for name, value in row.items() if value is not None}


def find_bundle_anchor(identifier: str) -> str | None:
    """Return the host of a bundle's URL if ToolPin trusts it, on any port; else None."""
    address = parse_whatwg_host(identifier)
    host = "" if address is None or address.scheme != "https" else address.host.partition(":")[0]
    return host if host in TRUSTED_BUNDLE_HOSTS else None


def parse_image_reference(identifier: str) -> tuple[str, str] | None:
    """Return host and digest of an image named only by digest; as in ToolPin, None if it also has a tag."""
    name, mark, digest = identifier.rpartition("@")
    if not mark or not _SHA256.fullmatch(digest) or "://" in name:
        return None
    parts = [part for part in name.split("/") if part]
    if parts and _is_host(parts[0]):
        parts.pop(0)
    if not parts or any(mark in part for part in parts for mark in "@:"):
        return None
    return parse_image_host(name), digest.lower()


def parse_image_host(name: str) -> str:
    """Return the registry host of an image name, which may have a tag."""
    first, _, path = name.lstrip("/").partition("/")
    host = first.lower() if path and _is_host(first) else "docker.io"
    return "docker.io" if host == _DOCKER_HUB else host


def _is_host(part: str) -> bool:
    return part == "localhost" or "." in part or ":" in part


def _check_live_server(
    findings: _Findings, live: LiveOutcome, manifest: dict[str, Any], *, remote: bool, now: str
) -> None:
    match live.state:
        case "listed":
            _pin_tools(findings, live.tools, manifest, now)
        case "failed":
            kind, code = ("Remote", "remote_probe_failed") if remote else ("Package", "package_probe_failed")
            findings.add_issue("critical", code, f"{kind} capability verification failed: {live.reason}")
            message = f"Live tools/list descriptions were not hashed: {live.reason}"
            findings.evidence.append(
                {"code": "tool_description_hash", "status": "failed", "message": message, "required": True}
            )
        case "skipped" if remote:
            message = "Remote tool-description hashing was skipped; capability pin is metadata-only."
            findings.add_issue("warning", "remote_probe_skipped", message)
            findings.evidence.append(_build_tools_evidence("unavailable", "Remote tools/list hashing was skipped."))
        case "not-executed":
            message = (
                "Live package probe skipped: ToolPin does not execute server packages during verification without "
                "--allow-execute. Network artifact checks still ran."
            )
            findings.add_issue("warning", "package_execution_skipped", message)
            advice = (
                "Package tools/list hashing requires executing the package; "
                "rerun with --allow-execute to capture live capability pins."
            )
            findings.evidence.append(_build_tools_evidence("unavailable", advice))


def _build_tools_evidence(status: str, message: str) -> Evidence:
    return {"code": "tool_description_hash", "status": status, "message": message}


def _pin_tools(findings: _Findings, tools: Sequence[Mapping[str, Any]], manifest: dict[str, Any], now: str) -> None:
    hashes = compute_toolpin_hashes(tools)
    counted = {"toolCount": len(tools), "generatedAt": now}
    coverage = ["name", "description", "inputSchema"]
    surface = {"algorithm": "sha256", "coverage": coverage, "value": hashes.tool_surface_hash.hex, **counted}
    scan = scan_tools(tools, now=now)
    manifest |= {
        "toolDescriptionHash": {"algorithm": "sha256", "value": hashes.tool_description_hash.hex, **counted},
        "toolSurfaceHash": surface,
        "toolManifestHash": {"algorithm": "sha256", "value": hashes.tool_manifest_hash.hex, **counted},
        "toolDescriptionScan": scan,
    }
    findings.badges += ["tool-description-pinned", "tool-surface-pinned", "tool-manifest-pinned"]
    findings.evidence.append(
        _build_tools_evidence("passed", "Live tools/list descriptions were hashed into the capability manifest.")
    )
    message = "Live tools/list names, descriptions, and input schemas were hashed into the capability manifest."
    findings.evidence.append({"code": "tool_surface_hash", "status": "passed", "message": message})
    if scan["findings"]:
        findings.badges.append("tool-description-scan-advisory")
    for row in scan["findings"]:
        severity: Literal["warning", "info"] = "warning" if row["severity"] == "warning" else "info"
        findings.add_issue(severity, row["code"], f"{row['subject']}: {row['message']}")


def _build_report(
    entry: ServerEntry, metadata: TrustReport, findings: _Findings, manifest: dict[str, Any], now: str
) -> VerificationReport:
    verified = VerificationResult(
        evidence=deduplicate_evidence(findings.evidence),
        issues=tuple(dict.fromkeys(findings.issues)),
        badges=tuple(dict.fromkeys(findings.badges)),
        verified_provenance=metadata.verified_provenance,
    )
    trust = with_verification(metadata, verified, now=now)
    # ToolPin's verdict uses the evidence of the verification, not the caps of the metadata's score.
    grounds = VerdictInputs(
        tier=trust.tier,
        verified_provenance=trust.verified_provenance,
        evidence=verified.evidence,
        issues=verified.issues,
        ok=not any(issue.severity == "critical" for issue in verified.issues),
    )
    return VerificationReport(
        entry=entry, manifest=manifest, result=verified, trust=trust, verdict=compute_verdict_from(grounds, now=now)
    )


def _format_name_and_version(entry: ServerEntry) -> str:
    return f"{entry.name}@{'undefined' if entry.version is None else entry.version}"
