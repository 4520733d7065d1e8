"""What the members of an entry are worth: points, issues, badges and evidence, and the pillars made of them."""

from __future__ import annotations

from typing import Literal

from pinwarden.core.javascript import parse_whatwg_host
from pinwarden.lock.launch_choice import PACKAGE_TYPES
from pinwarden.lock.metadata_evidence import (
    Evidence,
    attestation_badge,
    attestation_row,
    attestations,
    has_file_hash,
    oci_pin_problem,
    package_rows,
    pinned_version,
    registry_rows,
    unpinned,
)
from pinwarden.lock.server_entry import CAPABILITIES_META, Package, Remote, ServerEntry
from pinwarden.lock.shape import is_manifest
from pinwarden.lock.trust_report import Issue, Pillars
from pinwarden.surface.scan.toolpin import advisories_of

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
    found = {advisory.code: advisory for advisory, _, _ in advisories_of(f"{entry.name}\n{entry.description}")}
    return [
        Issue(
            severity="warning" if advisory.severity == "warning" else "info",
            code=code,
            message=f"server:{entry.name}: {advisory.message}",
        )
        for code, advisory in sorted(found.items())
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
    # emits. The rule is dead there, so it is not here.
    if entry.source in _KNOWN_SOURCES:
        return _KNOWN_SOURCES[entry.source][1]
    return 45 if entry.discovery_only else 60
