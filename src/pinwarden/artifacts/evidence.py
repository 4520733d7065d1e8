"""Derives evidence and issues from a fetched artifact.

Evidence is ``passed`` if the bytes match the digests that the registry and the server's metadata state,
``unavailable`` if Pinwarden could not fetch the bytes, and otherwise ``failed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.artifacts.artifact import ArtifactFile, FetchedArtifact, PackageRef
from pinwarden.core.digest import Digest
from pinwarden.lock.target_verification import (
    TRUSTED_IMAGE_HOSTS,
    ArtifactOutcome,
    find_bundle_anchor,
    parse_image_host,
)
from pinwarden.lock.trust_tiers import Evidence, TrustIssue

# For each ecosystem: the evidence code, source and verification method, all named as in ToolPin, and the code of the
# issue for a digest that does not match.
_EVIDENCE_FIELDS = {
    "npm": ("npm_integrity_verified", "npm-registry", "npm-packument-sri", "npm_integrity_mismatch"),
    "oci": ("oci_digest_verified", "oci-registry", "registry-manifest-digest", "oci_digest_mismatch"),
    "mcpb": ("mcpb_sha256_verified", "http-artifact", "sha256-bytes", "mcpb_sha256_mismatch"),
    "pypi": ("pypi_sha256_verified", "python-index", "index-sha256", "pypi_sha256_mismatch"),
    "nuget": ("nuget_sha512_verified", "nuget-registry", "package-sha512", "nuget_sha512_mismatch"),
    "cargo": ("cargo_checksum_verified", "cargo-registry", "index-checksum", "cargo_checksum_mismatch"),
}


def collect_evidence(artifact: FetchedArtifact, *, claim: Digest | None = None) -> ArtifactOutcome:
    """Derive evidence and issues from an artifact. ``claim`` is the digest in the server's own metadata."""
    code, source, method, mismatch_code = _EVIDENCE_FIELDS[artifact.package.ecosystem]
    issues = [
        *_find_missing_package(artifact),
        *_find_mismatches(artifact, claim, mismatch_code),
        *_find_problems(artifact),
    ]
    failures = [issue for issue in issues if issue.severity == "critical"]
    digest_evidence: dict[str, Any] = {
        "code": code,
        "status": "failed" if failures else "passed",
        "message": failures[0].message if failures else _format_success(artifact),
        "source": source,
        "claim": _format_claim(artifact, claim),
        "verificationMethod": method,
        "verifiedByToolPin": True,
        "trustedAnchor": _is_anchored(artifact),
        "trustAnchor": artifact.registry,
        "verifiedAt": artifact.checked_at,
    }
    if failures:
        digest_evidence |= {"failureReason": failures[0].message, "required": True}
    return ArtifactOutcome(
        evidence=(
            digest_evidence,
            *_build_registry_signature_evidence(artifact),
            *_build_bundle_signature_evidence(artifact),
        ),
        issues=tuple(issues),
    )


def _is_anchored(artifact: FetchedArtifact) -> bool:
    """Whether the bytes come from a source that is independent of the server's author.

    Packages come from the registry in the user's settings. An image or a bundle comes from the host in its name, which
    may belong to an attacker.
    """
    ecosystem, name = artifact.package.ecosystem, artifact.package.name
    if ecosystem == "oci":
        return parse_image_host(name) in TRUSTED_IMAGE_HOSTS
    return ecosystem != "mcpb" or find_bundle_anchor(name) is not None


def build_unavailable_evidence(package: PackageRef, registry: str, reason: str) -> ArtifactOutcome:
    """Return the evidence for an artifact that Pinwarden could not fetch. ``reason`` has no final period."""
    code, source, method, _ = _EVIDENCE_FIELDS[package.ecosystem]
    evidence = {
        "code": code,
        "status": "unavailable",
        "message": f"Pinwarden could not fetch {package.name}: {reason}.",
        "source": source,
        "claim": f"{package.name}@{package.version}" if package.version else package.name,
        "verificationMethod": method,
        "verifiedByToolPin": False,
        "trustedAnchor": False,
        "trustAnchor": registry,
        "failureReason": reason,
    }
    return ArtifactOutcome(evidence=(evidence,))


def _find_missing_package(artifact: FetchedArtifact) -> Iterator[TrustIssue]:
    if artifact.missing is not None:
        code = f"{artifact.package.ecosystem}_{artifact.missing}_missing"
        message = f"The registry does not have the {artifact.missing} {artifact.package}."
        yield TrustIssue(severity="critical", code=code, message=message)


def _find_mismatches(artifact: FetchedArtifact, claim: Digest | None, code: str) -> Iterator[TrustIssue]:
    for file in artifact.files:
        stated = _find_wrong_claim(file)
        if stated is not None:
            computed = next((digest for digest in file.digests if digest.algorithm == stated.algorithm), file.sha256)
            message = f"{file.name} has the digest {computed}, but the registry states {stated}."
            yield TrustIssue(severity="critical", code=code, message=message)
    if artifact.image is not None:
        for digest in artifact.image.mismatches:
            message = f"The bytes that the registry serves for {digest} have another digest."
            yield TrustIssue(severity="critical", code=code, message=message)
    if claim is not None and artifact.missing is None and not _has_digest(artifact, claim):
        message = f"The bytes of {artifact.package.name} do not match the digest in the server's metadata: {claim}."
        yield TrustIssue(severity="critical", code=code, message=message)
    if artifact.missing is None and not artifact.files and artifact.image is None:
        yield TrustIssue(severity="critical", code=code, message=f"The registry lists no files for {artifact.package}.")


def _find_wrong_claim(file: ArtifactFile) -> Digest | None:
    """Return a digest stated by the registry that does not match the file; None if there is none.

    Only the strongest algorithm counts. If the registry states several digests with it, one match is enough.
    """
    strongest = max((claim.algorithm for claim in file.claims), default="")
    claims = [claim for claim in file.claims if claim.algorithm == strongest]
    return claims[0] if claims and not set(claims) & set(file.digests) else None


def _has_digest(artifact: FetchedArtifact, claim: Digest) -> bool:
    if artifact.image is not None:
        manifests = [artifact.image.index, *artifact.image.platforms.values()]
        return claim == artifact.image.root or claim in [
            manifest.digest for manifest in manifests if manifest is not None
        ]
    return any(claim in file.digests for file in artifact.files)


def _find_problems(artifact: FetchedArtifact) -> Iterator[TrustIssue]:
    for problem in artifact.problems:
        yield TrustIssue(severity="critical", code=problem.code, message=problem.message)
    for signature in artifact.signatures:
        if signature.state == "invalid":
            message = f"The registry's signature over {artifact.package} is invalid (key {signature.key_id[:80]})."
            yield TrustIssue(severity="critical", code="registry_signature_invalid", message=message)
    if artifact.facts.yanked is not None:
        message = f"The publisher yanked or deprecated {artifact.package}: {artifact.facts.yanked[:200]}"
        yield TrustIssue(severity="warning", code="withdrawn", message=message)
    if artifact.install_scripts:
        names = ", ".join(artifact.install_scripts[:5])
        message = f"{artifact.package} has install scripts ({names}). Pinwarden does not run them."
        yield TrustIssue(severity="warning", code="install_scripts", message=message)


def _build_registry_signature_evidence(artifact: FetchedArtifact) -> Iterator[Evidence]:
    states = [signature.state for signature in artifact.signatures]
    if not states:
        return
    status = "failed" if "invalid" in states else "passed" if "valid" in states else "unavailable"
    yield {
        "code": "registry_signature_verified",
        "status": status,
        "message": f"The registry's signature over {artifact.package}: {', '.join(sorted(set(states)))}.",
        "source": _EVIDENCE_FIELDS[artifact.package.ecosystem][1],
        "verificationMethod": "ecdsa-registry-signature",
        "verifiedByToolPin": status != "unavailable",
        "trustedAnchor": status == "passed",
        "trustAnchor": artifact.registry,
        "verifiedAt": artifact.checked_at,
    }


def _build_bundle_signature_evidence(artifact: FetchedArtifact) -> Iterator[Evidence]:
    """Yield evidence about the signature of an MCPB bundle. It is ``unavailable`` if the signer is not trusted."""
    signer = artifact.signer
    if signer is None or signer.state == "unsigned":
        return
    status = {"valid": "passed", "invalid": "failed"}.get(signer.state, "unavailable")
    yield {
        "code": "bundle_signature_verified",
        "status": status,
        "message": f"The signature of the bundle is {signer.state}. Signer: {signer.subject or 'unknown'}.",
        "source": "http-artifact",
        "verificationMethod": "cms-signed-data",
        "verifiedByToolPin": status != "unavailable",
        "trustedAnchor": status == "passed",
        "trustAnchor": "" if signer.fingerprint is None else str(signer.fingerprint),
        "verifiedAt": artifact.checked_at,
    }


def _format_success(artifact: FetchedArtifact) -> str:
    if artifact.image is not None:
        return f"Pinwarden fetched and hashed the image {artifact.image.reference}: {artifact.image.root}."
    files = f"{len(artifact.files)} files" if len(artifact.files) != 1 else artifact.files[0].name
    return f"Pinwarden fetched and hashed {artifact.package}: {files}."


def _format_claim(artifact: FetchedArtifact, claim: Digest | None) -> str:
    if claim is not None:
        return str(claim)
    if artifact.image is not None:
        return str(artifact.image.root)
    first = artifact.files[0] if artifact.files else None
    return (first.claims[0] if first.claims else first.sha256).sri if first else str(artifact.package)
