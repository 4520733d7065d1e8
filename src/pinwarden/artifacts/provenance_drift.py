"""Compares the locked identity of an artifact's builder with the identities in its current attestations.

A release from another repository, workflow or issuer, or with weaker provenance or none, may have been published with a
stolen token, from a hijacked repository, or as a fork.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.artifacts.provenance import (
    Identity,
    ProvenanceOutcome,
    choose_strongest_identity,
    normalize_repository_url,
)
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, build_kind_table
from pinwarden.surface.drift.changes import INFO, REVIEW

CHANGED = "provenance_changed"
WEAKER = "provenance_weaker"
VANISHED = "provenance_vanished"
GAINED = "provenance_gained"
UNCHECKED = "provenance_unchecked"
FAILED = "provenance_failed"
RENAMED = "provenance_renamed"
REPOSITORY_MISMATCH = "provenance_repository_mismatch"
PROVENANCE_KINDS: FindingKinds = build_kind_table(
    critical=(
        (CHANGED, "The signer, builder or repository of the artifact changed."),
        (WEAKER, "The provenance is weaker than the locked one, or does not verify."),
        (VANISHED, "The artifact had provenance when it was locked and has none now."),
    ),
    review=(
        (UNCHECKED, "The provenance could not be checked."),
        (
            FAILED,
            "An attestation does not verify. The severity is info if another attestation proves the locked identity.",
        ),
        (RENAMED, "The source repository was renamed."),
        (REPOSITORY_MISMATCH, "The metadata names another repository than the one that the artifact was built in."),
    ),
    info=((GAINED, "The artifact now has provenance, which is not locked."),),
)

# From weakest to strongest. Anyone can open a pull request; branches move; tags should not move.
_REF_RANKS = ("pull-request", "other", "branch", "tag")
# From weakest (0) to strongest (3). 0: the registry signed that it received the upload. 1: the signer had a key or an
# account. 2: the publisher's workflow uploaded the artifact. 3: a build platform signed which source it built.
_KIND_RANKS = {
    "npm-publish": 0,
    "signature": 1,
    "cosign-signature": 1,
    "in-toto": 1,
    "pypi-publish": 2,
    "slsa-provenance/v0.2": 3,
    "slsa-provenance/v1": 3,
}


class ProvenanceFinding(Record):
    """One difference between locked and current provenance."""

    code: str
    severity: str
    message: str


def compare_provenance(
    locked: Identity | None, outcomes: Sequence[ProvenanceOutcome], *, metadata_repository: str | None = None
) -> tuple[ProvenanceFinding, ...]:
    """Compare the locked identity with the outcomes of checking the current attestations.

    ``metadata_repository`` is the repository named in the package's own metadata.
    """
    best = choose_strongest_identity(tuple(outcomes))
    verified = [
        outcome.identity for outcome in outcomes if outcome.state == "verified" and outcome.identity is not None
    ]
    if locked is None:
        findings = _find_without_lock(best, outcomes)
    elif same := [identity for identity in verified if not _compare_identities(locked, identity)]:
        findings = [
            *_find_rename(locked, same[0]),
            *_find_gained_provenance(locked, best),
            *_find_failures(outcomes, INFO),
        ]
        best = same[0] if same[0].repository else best
    elif best is None or not any(_have_same_signer_kind(locked, identity) for identity in verified):
        findings = [_find_lost(locked, outcomes, best), *_find_failures(outcomes, REVIEW)]
    else:
        findings = [*_compare_identities(locked, _choose_nearest(locked, verified)), *_find_failures(outcomes, REVIEW)]
    return (*findings, *_find_repository_mismatch(best, metadata_repository))


def compute_slsa_level(identity: Identity) -> int:
    """Return the highest SLSA build level (https://slsa.dev/spec/v1.0/levels) that an identity supports.

    Level 3 requires a build workflow that is defined in another repository, so that the built repository cannot change
    it. Level 2 requires a hosted build platform. All other SLSA provenance has level 1, and other identities level 0.
    """
    if not identity.kind.startswith("slsa-provenance/"):
        return 0
    if not identity.by_certificate or not identity.runner.endswith("-hosted") or identity.runner == "self-hosted":
        return 1
    builder, source = normalize_repository_url(identity.builder), normalize_repository_url(identity.repository)
    return 3 if builder and source and builder != source else 2


def _find_without_lock(best: Identity | None, outcomes: Sequence[ProvenanceOutcome]) -> list[ProvenanceFinding]:
    findings = [*_find_gained_provenance(None, best), *_find_failures(outcomes, REVIEW)]
    unchecked = [outcome for outcome in outcomes if outcome.state == "unavailable"]
    return [*findings, _build_unchecked_finding(unchecked[0])] if unchecked and best is None else findings


def _find_gained_provenance(locked: Identity | None, best: Identity | None) -> list[ProvenanceFinding]:
    if best is None or (locked is not None and _KIND_RANKS[best.kind] <= _KIND_RANKS[locked.kind]):
        return []
    message = f"it now has provenance that is not locked: {best}"
    return [_build_finding(GAINED, message)]


def _find_lost(locked: Identity, outcomes: Sequence[ProvenanceOutcome], best: Identity | None) -> ProvenanceFinding:
    """Return the finding for the case that no verified attestation has the locked kind of signer.

    The kind of signer is a certificate or a key.
    """
    signer = "certificate" if locked.by_certificate else "key"
    locked_text = f"its locked provenance is {locked}"
    for outcome in outcomes:
        if outcome.state == "failed" and outcome.signer in (signer, "unknown"):
            return _build_finding(WEAKER, f"{locked_text}, but it does not verify now: {outcome.reason}")
    for outcome in outcomes:
        if outcome.state == "unavailable" and outcome.signer == signer:
            return _build_unchecked_finding(outcome)
    if best is None:
        return _build_finding(VANISHED, f"{locked_text}, but it has no provenance now")
    if _KIND_RANKS[best.kind] < _KIND_RANKS[locked.kind]:
        return _build_finding(WEAKER, f"{locked_text}; now there is only {best.kind} by {best}")
    return _build_finding(CHANGED, f"{locked_text}; now it is signed by {best}")


def _have_same_signer_kind(locked: Identity, current: Identity) -> bool:
    return locked.by_certificate == current.by_certificate


def _build_finding(code: str, message: str) -> ProvenanceFinding:
    return ProvenanceFinding(code=code, severity=PROVENANCE_KINDS[code].severity, message=message)


def _build_unchecked_finding(outcome: ProvenanceOutcome) -> ProvenanceFinding:
    message = f"its provenance could not be checked: {outcome.reason}"
    return _build_finding(UNCHECKED, message)


def _find_failures(outcomes: Sequence[ProvenanceOutcome], severity: str) -> list[ProvenanceFinding]:
    """Return a finding for each reason why an attestation failed."""
    reasons = dict.fromkeys(outcome.reason for outcome in outcomes if outcome.state == "failed")
    messages = [f"an attestation does not verify: {reason}" for reason in reasons]
    return [ProvenanceFinding(code=FAILED, severity=severity, message=message) for message in messages]


def _choose_nearest(locked: Identity, verified: Sequence[Identity]) -> Identity:
    """Return the verified identity with the fewest differences from the locked one."""
    return min(
        (identity for identity in verified if _have_same_signer_kind(locked, identity)),
        key=lambda identity: len(_compare_identities(locked, identity)),
    )


def _compare_identities(locked: Identity, current: Identity) -> list[ProvenanceFinding]:
    changed = [
        _build_finding(CHANGED, f"the {field} changed from {before or 'none'} to {after or 'none'}")
        for field, before, after in _find_changes(locked, current)
    ]
    weaker = [
        _build_finding(WEAKER, f"the {field} is weaker: {after} instead of {before}")
        for field, before, after in _find_weakenings(locked, current)
    ]
    return [*changed, *weaker]


def _find_changes(locked: Identity, current: Identity) -> list[tuple[str, str, str]]:
    if locked.kind == current.kind == "npm-publish":
        return []  # the key may differ: registries rotate their keys, and the lock pins the registry itself
    compared = [
        ("issuer", locked.issuer, current.issuer),
        ("signer", locked.signer, current.signer),
        ("key", locked.key_id, current.key_id),
        ("workflow", locked.workflow, current.workflow),
        ("builder", _get_builder(locked), _get_builder(current)),
    ]
    if not _is_renamed(locked, current):
        compared.append(("repository", _get_repository(locked), _get_repository(current)))
    # Old certificates have no numeric IDs, so there is nothing to compare.
    if locked.repository_id and current.repository_id:
        compared.append(("repository ID", locked.repository_id, current.repository_id))
    if locked.owner_id and current.owner_id:
        compared.append(("owner ID", locked.owner_id, current.owner_id))
    return [(field, before, after) for field, before, after in compared if before != after]


def _get_repository(identity: Identity) -> str:
    """Return the repository, normalised if it is a URL."""
    return normalize_repository_url(identity.repository) or identity.repository


def _get_builder(identity: Identity) -> str:
    """Return the builder's URL, or only its path if the builder is in the built repository.

    If the repository is renamed, this path stays the same.
    """
    prefix = f"{identity.repository}/"
    return identity.builder.removeprefix(prefix) if identity.repository else identity.builder


def _find_weakenings(locked: Identity, current: Identity) -> list[tuple[str, str, str]]:
    weakenings: list[tuple[str, str, str]] = []
    if _REF_RANKS.index(current.ref_class) < _REF_RANKS.index(locked.ref_class):
        weakenings.append(("kind of ref", locked.ref_class, current.ref_class))
    if _KIND_RANKS[current.kind] < _KIND_RANKS[locked.kind]:
        weakenings.append(("kind of proof", locked.kind, current.kind))
    elif (level := compute_slsa_level(current)) < (old := compute_slsa_level(locked)):
        weakenings.append(("build level", f"SLSA {old}", f"SLSA {level}"))
    return weakenings


def _is_renamed(locked: Identity, current: Identity) -> bool:
    """Whether the repository was renamed: the numeric IDs of repository and owner are equal, the names differ."""
    return (
        _get_repository(locked) != _get_repository(current)
        and locked.issuer == current.issuer
        and bool(locked.repository_id and locked.owner_id)
        and (locked.repository_id, locked.owner_id) == (current.repository_id, current.owner_id)
    )


def _find_rename(locked: Identity, current: Identity) -> list[ProvenanceFinding]:
    if not _is_renamed(locked, current):
        return []
    message = f"its repository was renamed from {locked.repository} to {current.repository}"
    return [_build_finding(RENAMED, message)]


def _find_repository_mismatch(best: Identity | None, metadata_repository: str | None) -> list[ProvenanceFinding]:
    """Return a finding if the metadata names another repository than the verified one, as metadata of forks does."""
    stated = normalize_repository_url(metadata_repository or "")
    proven = normalize_repository_url(best.repository) if best is not None else ""
    if not stated or not proven or stated == proven:
        return []
    message = f"its metadata names {stated}, but it was built in {proven}"
    return [_build_finding(REPOSITORY_MISMATCH, message)]
