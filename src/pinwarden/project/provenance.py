"""Who stands behind an artifact: attestations that came with it, verified here, held against what was locked."""

from __future__ import annotations

from typing import Any

from pinwarden.artifacts.artifact import ArtifactFacts
from pinwarden.artifacts.provenance import Identity, ProvenanceOutcome, identity_from_json, strongest
from pinwarden.artifacts.provenance_check import ProvenanceVerifier, registry_keys
from pinwarden.artifacts.provenance_drift import compare_provenance
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.lock.extension import Extension
from pinwarden.lock.metadata_evidence import Evidence
from pinwarden.project.fetch_context import Workshop

_NOT_SIGSTORE = "nuget-"


class Provenance(Record):
    """What the attestations of an artifact came to."""

    identity: Identity | None
    rows: tuple[Row, ...]
    evidence: tuple[Evidence, ...]


def provenance_of(server: str, pinned: Extension, facts: ArtifactFacts, shop: Workshop, now: str) -> Provenance:
    """Verify every attestation, and compare the identity behind them with the locked one."""
    locked = identity_from_json(dict(pinned.provenance), server) if pinned.provenance else None
    outcomes = _checked(facts, shop, now)
    if locked is None and not outcomes:
        return Provenance(identity=None, rows=(), evidence=())
    findings = compare_provenance(locked, outcomes, metadata_repository=facts.repository)
    rows = tuple(
        Row(
            code=finding.code,
            level=finding.severity if locked is not None or finding.code != "provenance_unchecked" else "info",
            entity="artifact",
            name=server,
            path="",
            message=finding.message,
        )
        for finding in findings
    )
    return Provenance(
        identity=strongest(outcomes), rows=rows, evidence=tuple(_evidence(each, now) for each in outcomes)
    )


def _checked(facts: ArtifactFacts, shop: Workshop, now: str) -> tuple[ProvenanceOutcome, ...]:
    attested = [each for each in facts.attestations if not each.kind.startswith(_NOT_SIGSTORE)]
    if not attested:
        return ()
    npm = facts.package.ecosystem == "npm"
    keys = registry_keys(shop.fetcher, shop.sources.npm(facts.package.name)) if npm else ()
    verifier = ProvenanceVerifier(now=now, trust_root=shop.trust_root, registry_keys=keys)
    return verifier.check_all(replace(facts, attestations=tuple(attested)))


def _evidence(outcome: ProvenanceOutcome, now: str) -> dict[str, Any]:
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
