"""Download the artifact of a lock entry, verify it, and compare it with the pins in the lock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef
from pinwarden.artifacts.artifact_drift import build_registry_change, compare_pins
from pinwarden.artifacts.evidence import build_unavailable_evidence, collect_evidence
from pinwarden.artifacts.newest_release import NewestRelease
from pinwarden.artifacts.provenance import Identity, ProvenanceOutcome, choose_strongest_identity, identity_from_json
from pinwarden.artifacts.provenance_check import ProvenanceVerifier, fetch_registry_keys
from pinwarden.artifacts.provenance_drift import compare_provenance
from pinwarden.clients.launchers import Launch
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FAILING_SEVERITIES, Row, is_failing
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LockExtension, read_extension
from pinwarden.lock.launch_choice import LaunchTarget
from pinwarden.lock.locked_launch import LockedLaunch, read_locked_launch
from pinwarden.lock.server_entry import DeclaredPackage, Remote
from pinwarden.lock.target_verification import ArtifactOutcome
from pinwarden.lock.trust_tiers import Evidence
from pinwarden.project.fetch_context import FetchContext
from pinwarden.project.project import load_policies
from pinwarden.surface.drift.changes import build_change_row

if TYPE_CHECKING:
    from pinwarden.artifacts.mcpb import BundleSettings

# Environment variables that npm, uv and pip obey before any settings file.
_REGISTRY_VARIABLE = re.compile(
    r"npm_config_(?:.*registry|.*userconfig|.*globalconfig)|(?:uv|pip)_.*(?:index|find_links|config_file).*",
    re.IGNORECASE,
)

_NOT_SIGSTORE = "nuget-"


class ArtifactCheck(Record):
    """What was verified about the artifact of one entry."""

    package: PackageRef
    artifact: FetchedArtifact
    outcome: ArtifactOutcome
    rows: tuple[Row, ...]
    """Problems of the artifact, and differences from the pins in the lock."""
    identity: Identity | None = None
    """The verified identity of the builder; None without verified provenance."""

    @property
    def refused(self) -> bool:
        """Whether the artifact must not be used."""
        return any(map(is_failing, self.rows))


def check_artifact(entry: Entry, context: FetchContext, now: str) -> ArtifactCheck:
    """Download and hash the artifact of an entry, and compare it with the lock. Contacts only the locked registry."""
    package, claim = find_entry_package(entry)
    if package.ecosystem not in ("mcpb", "cargo"):
        refuse_other_index(read_locked_launch(entry))
    pinned = read_extension(entry) or LockExtension()
    configured = find_registry_url(package, context)
    if pinned.registry is not None and configured is not None and configured != pinned.registry:
        return _build_registry_changed(entry.name, pinned.registry, package, configured, now)
    artifact = fetch_artifact(package, context, now=now, server=entry.name)
    outcome = collect_evidence(artifact, claim=claim)
    provenance = check_provenance(entry.name, pinned, artifact, context, now)
    return ArtifactCheck(
        package=package,
        artifact=artifact,
        outcome=replace(outcome, evidence=(*outcome.evidence, *provenance.evidence)),
        rows=(*_build_rows(entry.name, pinned, artifact, outcome, now), *provenance.rows),
        identity=provenance.identity,
    )


def find_first_refusal(check: ArtifactCheck) -> PinwardenError | None:
    """Return the error for the most severe failing row; None if no row fails."""
    for level in FAILING_SEVERITIES:
        for row in check.rows:
            if row.severity == level:
                return PinwardenError("ARTIFACT_MISMATCH", row.message, data={"code": row.code})
    return None


def fetch_artifact(
    package: PackageRef, context: FetchContext, *, now: str, server: str | None = None
) -> FetchedArtifact:
    """Fetch and hash an artifact. Transport failures raise; problems with the artifact are returned.

    ``server`` is the name of the server that the artifact belongs to; policies have bundle rules by server.
    """
    sources, fetcher = context.sources, context.fetcher
    match package.ecosystem:
        case "npm":
            from pinwarden.artifacts import npm

            return npm.fetch_artifact(package, fetcher, sources.find_npm_registry(package.name), now=now)
        case "pypi":
            from pinwarden.artifacts import pypi

            return pypi.fetch_artifact(package, fetcher, sources.find_pypi_index(), now=now)
        case "oci":
            from pinwarden.artifacts import oci

            return oci.fetch_artifact(
                package, fetcher, sources.find_image_registry(package.name, by_project=True), now=now
            )
        case "mcpb":
            from pinwarden.artifacts import mcpb

            return mcpb.fetch_artifact(package, fetcher, _load_bundle_settings(server, context), now=now)
        case "nuget":
            from pinwarden.artifacts import nuget

            return nuget.fetch_artifact(package, fetcher, sources.find_nuget_source(), now=now)
        case "cargo":
            from pinwarden.artifacts import cargo

            return cargo.fetch_artifact(package, fetcher, sources.find_cargo_index(), now=now)
        case _:
            raise PinwardenError("NOTHING_TO_RUN", f"{package.ecosystem} packages have no registry")


def find_newest_release(package: PackageRef, context: FetchContext) -> NewestRelease | None:
    """Find the newest release in the registry that the user's package client uses; None if it lists none."""
    sources, fetcher = context.sources, context.fetcher
    match package.ecosystem:
        case "npm":
            from pinwarden.artifacts import npm

            return npm.find_newest_release(package, fetcher, sources.find_npm_registry(package.name))
        case "pypi":
            from pinwarden.artifacts import pypi

            return pypi.find_newest_release(package, fetcher, sources.find_pypi_index())
        case "oci":
            from pinwarden.artifacts import oci

            return oci.find_newest_release(package, fetcher, sources.find_image_registry(package.name, by_project=True))
        case _:
            raise PinwardenError("NOTHING_TO_RUN", f"releases of {package.ecosystem} packages are not looked up")


def resolve_floating_release(
    package: Launch, context: FetchContext, preferred: Sequence[str] = ()
) -> NewestRelease | None:
    """Find the release that a command without an exact version starts now; None if the registry lists none.

    If the registry lists a release of ``preferred`` that the command allows, the first of these is returned instead.
    """
    sources, fetcher, wanted = context.sources, context.fetcher, package.version or ""
    if package.kind == "npm":
        from pinwarden.artifacts import npm

        ref = PackageRef(ecosystem="npm", name=package.identity)
        return npm.find_newest_release(ref, fetcher, sources.find_npm_registry(ref.name), wanted or "latest", preferred)
    if package.kind == "pypi":
        from pinwarden.artifacts import pypi

        ref = PackageRef(ecosystem="pypi", name=package.identity, version="0")
        constraint = "" if wanted == "latest" else wanted
        return pypi.find_newest_release(ref, fetcher, sources.find_pypi_index(), constraint, preferred)
    if package.kind == "oci":
        from pinwarden.artifacts import oci

        tag = f":{wanted}" if wanted else ""
        ref = PackageRef(ecosystem="oci", name=f"{package.identity}{tag}")
        return oci.find_tagged_image(ref, fetcher, sources.find_image_registry(ref.name, by_project=True))
    raise PinwardenError("NOTHING_TO_RUN", f"releases of {package.kind} packages are not looked up")


def find_registry_url(package: PackageRef, context: FetchContext) -> str | None:
    """Return the registry that is configured for a package; None for MCPB bundles, which have their own URL."""
    sources = context.sources
    match package.ecosystem:
        case "npm":
            return sources.find_npm_registry(package.name).url
        case "pypi":
            return sources.find_pypi_index().url
        case "oci":
            return sources.find_image_registry(package.name, by_project=True).url
        case "nuget":
            return sources.find_nuget_source().url
        case "cargo":
            return sources.find_cargo_index().url
        case _:
            return None


def parse_package_of_launch(runs: Launch) -> PackageRef:
    """Return the package that a command starts. Raises if it starts no package, or if the version is not exact."""
    package = runs.via or runs
    if package.kind == "oci":
        tag = f":{package.version}" if package.version else ""
        return PackageRef(
            ecosystem="oci", name=f"{package.identity}{tag}{f'@{package.digest}' if package.digest else ''}"
        )
    if package.kind not in ("npm", "pypi", "nuget"):
        raise PinwardenError("NOTHING_TO_RUN", f"it starts {package.identity[:120]!a}, which is not from a registry")
    if not package.pinned or package.version is None:
        raise PinwardenError("VERSION_FLOATS", f"{package.identity[:120]} is not locked at an exact version")
    version = package.version.removeprefix("v") if package.kind == "npm" else package.version
    return PackageRef(ecosystem=package.kind, name=package.identity, version=version)


def find_entry_package(entry: Entry) -> tuple[PackageRef, Digest | None]:
    """Return the package of an entry, and the digest that the server's metadata declares for it, if any.

    The command of an MCPB bundle or a crate does not name the package, so its name is read from the locked target.
    """
    target = entry.selected_target
    kind, name, version = (target.get(member) for member in ("registryType", "identifier", "version"))
    if kind == "mcpb" and isinstance(name, str):
        claim = target.get("fileSha256")
        return PackageRef(ecosystem="mcpb", name=name), Digest.parse(f"sha256:{claim}") if claim else None
    if kind == "cargo" and isinstance(name, str) and isinstance(version, str):
        return PackageRef(ecosystem="cargo", name=name, version=version), None
    return parse_package_of_launch(read_locked_launch(entry).parsed), None


def refuse_other_index(launch: LockedLaunch) -> None:
    """Refuse a command that names its own registry: the user's registry may have another package of that name."""
    runs = launch.parsed
    if "other_index" in (*runs.dangers, *(runs.via.dangers if runs.via else ())):
        raise PinwardenError("REGISTRY_IN_COMMAND", "the command names the registry that the package comes from")
    named = [name for name in launch.variables if _REGISTRY_VARIABLE.fullmatch(name)]
    if named:
        raise PinwardenError("REGISTRY_IN_COMMAND", f"{named[0][:80]} says where the package comes from")


def parse_declared_package(package: DeclaredPackage) -> PackageRef | None:
    """Return the package that a server's metadata names; None for kinds that have no registry."""
    ecosystem: Any = package.registry_type
    if ecosystem in ("npm", "pypi", "nuget", "cargo"):
        return PackageRef(ecosystem=ecosystem, name=package.identifier, version=package.version or "")
    if ecosystem in ("oci", "mcpb"):
        return PackageRef(ecosystem=ecosystem, name=package.identifier)
    return None


def parse_declared_digest(package: DeclaredPackage) -> Digest | None:
    """Return the digest that a server's metadata declares for its artifact."""
    if package.registry_type == "mcpb" and package.file_sha256:
        return Digest.parse(f"sha256:{package.file_sha256.lower()}")
    if package.registry_type == "oci" and "@" in package.identifier:
        return Digest.parse(package.identifier.rpartition("@")[2])
    return None


class ProvenanceResult(Record):
    """The outcome of verifying an artifact's attestations."""

    identity: Identity | None
    rows: tuple[Row, ...]
    evidence: tuple[Evidence, ...]


def check_provenance(
    server: str, pinned: LockExtension, artifact: FetchedArtifact, context: FetchContext, now: str
) -> ProvenanceResult:
    """Verify every attestation, and compare the builder's identity with the locked one."""
    locked = identity_from_json(dict(pinned.provenance), server) if pinned.provenance else None
    outcomes = _verify_attestations(artifact, context, now)
    if locked is None and not outcomes:
        return ProvenanceResult(identity=None, rows=(), evidence=())
    findings = compare_provenance(locked, outcomes, metadata_repository=artifact.facts.repository)
    rows = tuple(
        Row(
            code=finding.code,
            severity=finding.severity if locked is not None or finding.code != "provenance_unchecked" else "info",
            entity="artifact",
            name=server,
            path="",
            message=finding.message,
        )
        for finding in findings
    )
    return ProvenanceResult(
        identity=choose_strongest_identity(outcomes),
        rows=rows,
        evidence=tuple(_build_evidence(outcome, now) for outcome in outcomes),
    )


def verify_declared_artifact(
    server: str, target: LaunchTarget | None, context: FetchContext | None, now: str
) -> ArtifactOutcome | None:
    """Download and verify the artifact that a server's metadata declares.

    Returns None without a fetch context, and for remote servers and packages without an exact version.
    """
    if context is None or target is None or isinstance(target, Remote):
        return None
    package = parse_declared_package(target)
    if package is None or not (package.version or package.ecosystem in ("oci", "mcpb")):
        return None
    try:
        artifact = fetch_artifact(package, context, now=now, server=server)
        return collect_evidence(artifact, claim=parse_declared_digest(target))
    except PinwardenError as err:
        if err.code not in _UNAVAILABLE_CODES:
            raise
        return build_unavailable_evidence(package, "", err.message)


def _build_registry_changed(server: str, locked: str, package: PackageRef, configured: str, now: str) -> ArtifactCheck:
    """Return the result when today's settings name another registry than the locked one; nothing was contacted."""
    change = build_registry_change(server, locked, configured)
    return ArtifactCheck(
        package=package,
        artifact=FetchedArtifact(package=package, registry=configured, checked_at=now),
        outcome=build_unavailable_evidence(package, configured, change.reason),
        rows=(build_change_row(change),),
    )


def _build_rows(
    server: str, pinned: LockExtension, artifact: FetchedArtifact, outcome: ArtifactOutcome, now: str
) -> Iterator[Row]:
    for change in compare_pins(server, pinned, artifact):
        yield build_change_row(change)
    if artifact.package.ecosystem == "pypi" and pinned.artifacts and artifact.missing is None:
        yield from _compare_release_files(server, pinned, artifact, now)
    for issue in outcome.issues:
        level = "critical" if issue.severity == "critical" else "info"
        yield Row(code=issue.code, severity=level, entity="artifact", name=server, path="", message=issue.message)


def _compare_release_files(server: str, pinned: LockExtension, artifact: FetchedArtifact, now: str) -> Iterator[Row]:
    """Report files that were added to a release or not checked. ``compare_pins`` reports changed and removed files."""
    from packaging.tags import sys_tags

    from pinwarden.artifacts.artifact_drift import compare_release_files

    locked = {file.name: file.digest for file in pinned.artifacts}
    for finding in compare_release_files(locked, artifact, now=now, tags=tuple(sys_tags())):
        if finding.kind in ("file_added", "file_unchecked"):
            yield Row(
                code=finding.kind,
                severity=finding.severity,
                entity="artifact",
                name=server,
                path="",
                message=finding.message,
            )


def _load_bundle_settings(server: str | None, context: FetchContext) -> BundleSettings:
    """Load the policy's requirements for a server's MCPB bundle. Raises if the policy cannot be read."""
    from pinwarden.artifacts.cms import load_anchors
    from pinwarden.artifacts.mcpb import BundleSettings

    policy = load_policies(context.project).own
    rule = policy.find_mcpb_rule(server) if policy is not None and server is not None else None
    if rule is None:
        return BundleSettings()
    return BundleSettings(manifest_name=rule.name, anchors=load_anchors(rule.anchors))


def _verify_attestations(artifact: FetchedArtifact, context: FetchContext, now: str) -> tuple[ProvenanceOutcome, ...]:
    attested = [attestation for attestation in artifact.attestations if not attestation.kind.startswith(_NOT_SIGSTORE)]
    if not attested:
        return ()
    npm = artifact.package.ecosystem == "npm"
    keys = fetch_registry_keys(context.fetcher, context.sources.find_npm_registry(artifact.package.name)) if npm else ()
    verifier = ProvenanceVerifier(now=now, trust_root=context.trust_root, registry_keys=keys)
    return verifier.verify_all(replace(artifact, attestations=tuple(attested)))


def _build_evidence(outcome: ProvenanceOutcome, now: str) -> dict[str, Any]:
    status = {"verified": "passed", "failed": "failed", "unavailable": "unavailable"}[outcome.state]
    row: dict[str, Any] = {
        "code": "provenance_verified",
        "status": status,
        "message": f"Built by {outcome.identity}." if outcome.identity else f"Provenance: {outcome.reason}.",
        "source": "attestation",
        "verificationMethod": outcome.method,
        "verifiedByToolPin": False,
        "trustedAnchor": status == "passed",
        "trustAnchor": outcome.anchor,
        "verifiedAt": now,
    }
    return row if status == "passed" else {**row, "failureReason": outcome.reason}


# Errors that prevent verification, as opposed to problems of the artifact.
_UNAVAILABLE_CODES = (
    "FETCH_FAILED",
    "FETCH_LIMIT",
    "ADDRESS_REFUSED",
    "PACKAGE_INVALID",
    "IMAGE_INVALID",
    "CONFIG_INVALID",
)
