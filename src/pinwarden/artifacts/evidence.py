"""Turns the facts about an artifact into evidence rows and issues.

``passed``: Pinwarden hashed the bytes, and they match what the registry and the server's metadata state.
``unavailable``: the bytes could not be fetched. ``failed``: everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.artifacts.artifact import ArtifactFacts, ArtifactFile, PackageRef
from pinwarden.core.digest import Digest
from pinwarden.lock.target_verification import TRUSTED_IMAGE_HOSTS, ArtifactOutcome, bundle_anchor, image_host
from pinwarden.lock.trust_tiers import Evidence, Issue

# By ecosystem: evidence code, source of the bytes, verification method (all three as in ToolPin), and the issue code
# for a mismatch.
_KINDS = {
    "npm": ("npm_integrity_verified", "npm-registry", "npm-packument-sri", "npm_integrity_mismatch"),
    "oci": ("oci_digest_verified", "oci-registry", "registry-manifest-digest", "oci_digest_mismatch"),
    "mcpb": ("mcpb_sha256_verified", "http-artifact", "sha256-bytes", "mcpb_sha256_mismatch"),
    "pypi": ("pypi_sha256_verified", "python-index", "index-sha256", "pypi_sha256_mismatch"),
    "nuget": ("nuget_sha512_verified", "nuget-registry", "package-sha512", "nuget_sha512_mismatch"),
    "cargo": ("cargo_checksum_verified", "cargo-registry", "index-checksum", "cargo_checksum_mismatch"),
}


def evaluate_artifact(facts: ArtifactFacts, *, claim: Digest | None = None) -> ArtifactOutcome:
    """Evaluate the facts. ``claim`` is the digest in the server's own metadata."""
    code, source, method, mismatch = _KINDS[facts.package.ecosystem]
    issues = [*_missing_issues(facts), *_mismatch_issues(facts, claim, mismatch), *_problem_issues(facts)]
    failures = [issue for issue in issues if issue.severity == "critical"]
    row: dict[str, Any] = {
        "code": code,
        "status": "failed" if failures else "passed",
        "message": failures[0].message if failures else _summary(facts),
        "source": source,
        "claim": _claim_text(facts, claim),
        "verificationMethod": method,
        "verifiedByToolPin": True,
        "trustedAnchor": _is_anchored(facts),
        "trustAnchor": facts.registry,
        "verifiedAt": facts.checked_at,
    }
    if failures:
        row |= {"failureReason": failures[0].message, "required": True}
    return ArtifactOutcome(evidence=(row, *_signature_rows(facts), *_signer_rows(facts)), issues=tuple(issues))


def _is_anchored(facts: ArtifactFacts) -> bool:
    """Whether the source of the bytes is independent of the server's author, so that a match counts as evidence.

    Packages come from the registry that the user's client is configured for. An image or a bundle comes from the host
    in its name, which may belong to an attacker.
    """
    ecosystem, name = facts.package.ecosystem, facts.package.name
    if ecosystem == "oci":
        return image_host(name) in TRUSTED_IMAGE_HOSTS
    return ecosystem != "mcpb" or bundle_anchor(name) is not None


def unavailable_artifact(package: PackageRef, registry: str, reason: str) -> ArtifactOutcome:
    """The evidence for bytes that could not be fetched."""
    code, source, method, _ = _KINDS[package.ecosystem]
    row = {
        "code": code,
        "status": "unavailable",
        "message": f"The bytes of {package.name} could not be fetched: {reason}.",
        "source": source,
        "claim": f"{package.name}@{package.version}" if package.version else package.name,
        "verificationMethod": method,
        "verifiedByToolPin": False,
        "trustedAnchor": False,
        "trustAnchor": registry,
        "failureReason": reason,
    }
    return ArtifactOutcome(evidence=(row,))


def _missing_issues(facts: ArtifactFacts) -> Iterator[Issue]:
    if facts.missing is not None:
        problem = "no such package" if facts.missing == "package" else "no such version"
        code = f"{facts.package.ecosystem}_{facts.missing}_missing"
        yield Issue(severity="critical", code=code, message=f"The registry has {problem}: {facts.package}.")


def _mismatch_issues(facts: ArtifactFacts, claim: Digest | None, code: str) -> Iterator[Issue]:
    for file in facts.files:
        stated = _contradicted_claim(file)
        if stated is not None:
            computed = _digest_to_compare(file, stated)
            message = f"{file.name} does not match its registry's digest: {computed} instead of {stated}."
            yield Issue(severity="critical", code=code, message=message)
    if facts.image is not None:
        for digest in facts.image.mismatches:
            message = f"The registry serves content that does not match the digest {digest}."
            yield Issue(severity="critical", code=code, message=message)
    if claim is not None and facts.missing is None and not _has_digest(facts, claim):
        message = f"The bytes of {facts.package.name} do not match the digest in the server's metadata: {claim}."
        yield Issue(severity="critical", code=code, message=message)
    if facts.missing is None and not facts.files and facts.image is None:
        yield Issue(severity="critical", code=code, message=f"{facts.package} has no file that could be hashed.")


def _contradicted_claim(file: ArtifactFile) -> Digest | None:
    """A claim that the bytes contradict: one with the strongest algorithm, if no claim with it matches."""
    strongest = max((claim.algorithm for claim in file.claims), default="")
    claims = [claim for claim in file.claims if claim.algorithm == strongest]
    return claims[0] if claims and not set(claims) & set(file.digests) else None


def _digest_to_compare(file: ArtifactFile, claim: Digest) -> Digest:
    return next((digest for digest in file.digests if digest.algorithm == claim.algorithm), file.sha256)


def _has_digest(facts: ArtifactFacts, claim: Digest) -> bool:
    if facts.image is not None:
        manifests = [facts.image.index, *facts.image.platforms.values()]
        return claim == facts.image.root or claim in [manifest.digest for manifest in manifests if manifest is not None]
    return any(claim in file.digests for file in facts.files)


def _problem_issues(facts: ArtifactFacts) -> Iterator[Issue]:
    for problem in facts.problems:
        yield Issue(severity="critical", code=problem.code, message=problem.message)
    for signature in facts.signatures:
        if signature.state == "invalid":
            message = f"The registry's signature over {facts.package} is invalid (key {signature.key_id[:80]})."
            yield Issue(severity="critical", code="registry_signature_invalid", message=message)
    if facts.yanked is not None:
        message = f"{facts.package} was yanked or deprecated by its publisher: {facts.yanked[:200]}"
        yield Issue(severity="warning", code="withdrawn", message=message)
    if facts.install_scripts:
        names = ", ".join(facts.install_scripts[:5])
        message = f"{facts.package} would run scripts on installation ({names}); Pinwarden does not run them."
        yield Issue(severity="warning", code="install_scripts", message=message)


def _signature_rows(facts: ArtifactFacts) -> Iterator[Evidence]:
    states = [signature.state for signature in facts.signatures]
    if not states:
        return
    status = "failed" if "invalid" in states else "passed" if "valid" in states else "unavailable"
    yield {
        "code": "registry_signature_verified",
        "status": status,
        "message": f"The registry's signature over {facts.package}: {', '.join(sorted(set(states)))}.",
        "source": _KINDS[facts.package.ecosystem][1],
        "verificationMethod": "ecdsa-registry-signature",
        "verifiedByToolPin": status != "unavailable",
        "trustedAnchor": status == "passed",
        "trustAnchor": facts.registry,
        "verifiedAt": facts.checked_at,
    }


def _signer_rows(facts: ArtifactFacts) -> Iterator[Evidence]:
    """The signature inside a bundle. A correct signature by an unknown signer is ``unavailable``, not ``passed``."""
    signer = facts.signer
    if signer is None or signer.state == "unsigned":
        return
    status = {"valid": "passed", "invalid": "failed"}.get(signer.state, "unavailable")
    yield {
        "code": "bundle_signature_verified",
        "status": status,
        "message": f"The signature of the bundle is {signer.state}: {signer.subject or 'no signer name'}.",
        "source": "http-artifact",
        "verificationMethod": "cms-signed-data",
        "verifiedByToolPin": status != "unavailable",
        "trustedAnchor": status == "passed",
        "trustAnchor": "" if signer.fingerprint is None else str(signer.fingerprint),
        "verifiedAt": facts.checked_at,
    }


def _summary(facts: ArtifactFacts) -> str:
    if facts.image is not None:
        return f"The image {facts.image.reference} was fetched and hashed: {facts.image.root}."
    count = f"{len(facts.files)} files" if len(facts.files) != 1 else facts.files[0].name
    return f"The bytes of {facts.package} were fetched and hashed: {count}."


def _claim_text(facts: ArtifactFacts, claim: Digest | None) -> str:
    if claim is not None:
        return str(claim)
    if facts.image is not None:
        return str(facts.image.root)
    first = facts.files[0] if facts.files else None
    return (first.claims[0] if first.claims else first.sha256).sri if first else str(facts.package)
