"""Drift of provenance: the locked identity compared with what an artifact's attestations prove now.

A release from another repository, workflow or issuer, or with weaker or no proof, may come from a stolen token, a
hijacked repository or a republished fork.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.artifacts.provenance import Identity, ProvenanceOutcome, repository_uri, strongest_identity
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, kind_table
from pinwarden.surface.drift.changes import INFO, REVIEW

CHANGED = "provenance_changed"
WEAKER = "provenance_weaker"
VANISHED = "provenance_vanished"
GAINED = "provenance_gained"
UNCHECKED = "provenance_unchecked"
FAILED = "provenance_failed"
RENAMED = "provenance_renamed"
REPOSITORY_MISMATCH = "provenance_repository_mismatch"
PROVENANCE_KINDS: FindingKinds = kind_table(
    critical=(
        (CHANGED, "The artifact now comes from another builder than the locked one."),
        (WEAKER, "The provenance is weaker than the locked one, or does not verify."),
        (VANISHED, "The artifact had provenance when it was locked and has none now."),
    ),
    review=(
        (UNCHECKED, "The provenance could not be checked."),
        (FAILED, "An attestation does not verify; info if another one proves the locked identity."),
        (RENAMED, "The source repository was renamed."),
        (REPOSITORY_MISMATCH, "The metadata names another repository than the one it was built in."),
    ),
    info=((GAINED, "The artifact now has provenance, which is not locked."),),
)

# From weakest to strongest: anyone can open a pull request, a branch moves, a tag should not.
_REF_RANKS = ("pull-request", "other", "branch", "tag")
# From weakest to strongest: the registry saw an upload; the signer had a key or an account; the publisher's build
# uploaded it; a build platform states what it was built from.
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
    best = strongest_identity(tuple(outcomes))
    verified = [
        outcome.identity for outcome in outcomes if outcome.state == "verified" and outcome.identity is not None
    ]
    if locked is None:
        findings = _unlocked(best, outcomes)
    elif same := [identity for identity in verified if not _differences(locked, identity)]:
        findings = [*_renamed(locked, same[0]), *_gained(locked, best), *_failures(outcomes, INFO)]
        best = same[0] if same[0].repository else best
    elif best is None or not any(_same_signer_kind(locked, identity) for identity in verified):
        findings = [_unproven(locked, outcomes, best), *_failures(outcomes, REVIEW)]
    else:
        findings = [*_differences(locked, _nearest(locked, verified)), *_failures(outcomes, REVIEW)]
    return (*findings, *_mismatch(best, metadata_repository))


def slsa_level(identity: Identity) -> int:
    """The highest SLSA build level (https://slsa.dev/spec/v1.0/levels) that an identity supports.

    3 needs a build that the repository's own workflow cannot influence: one that another repository defines and signs.
    2 needs a hosted build platform. A statement without either is 1, anything else 0.
    """
    if not identity.kind.startswith("slsa-provenance/"):
        return 0
    if not identity.by_certificate or not identity.runner.endswith("-hosted") or identity.runner == "self-hosted":
        return 1
    builder, source = repository_uri(identity.builder), repository_uri(identity.repository)
    return 3 if builder and source and builder != source else 2


def _unlocked(best: Identity | None, outcomes: Sequence[ProvenanceOutcome]) -> list[ProvenanceFinding]:
    findings = [*_gained(None, best), *_failures(outcomes, REVIEW)]
    unchecked = [outcome for outcome in outcomes if outcome.state == "unavailable"]
    return [*findings, _unchecked(unchecked[0])] if unchecked and best is None else findings


def _gained(locked: Identity | None, best: Identity | None) -> list[ProvenanceFinding]:
    if best is None or (locked is not None and _KIND_RANKS[best.kind] <= _KIND_RANKS[locked.kind]):
        return []
    message = f"it now has provenance that is not locked: {best}"
    return [_finding(GAINED, message)]


def _unproven(locked: Identity, outcomes: Sequence[ProvenanceOutcome], best: Identity | None) -> ProvenanceFinding:
    """The finding if no verified attestation is signed in the same way (certificate or key) as the locked one."""
    signer = "certificate" if locked.by_certificate else "key"
    was = f"its locked provenance is {locked}"
    for outcome in outcomes:
        if outcome.state == "failed" and outcome.signer in (signer, "unknown"):
            return _finding(WEAKER, f"{was}, but it does not verify now: {outcome.reason}")
    for outcome in outcomes:
        if outcome.state == "unavailable" and outcome.signer == signer:
            return _unchecked(outcome)
    if best is None:
        return _finding(VANISHED, f"{was}, and it has none now")
    if _KIND_RANKS[best.kind] < _KIND_RANKS[locked.kind]:
        return _finding(WEAKER, f"{was}; now there is only {best.kind} by {best}")
    return _finding(CHANGED, f"{was}; now it is signed by {best}")


def _same_signer_kind(locked: Identity, now: Identity) -> bool:
    return locked.by_certificate == now.by_certificate


def _finding(code: str, message: str) -> ProvenanceFinding:
    return ProvenanceFinding(code=code, severity=PROVENANCE_KINDS[code].severity, message=message)


def _unchecked(outcome: ProvenanceOutcome) -> ProvenanceFinding:
    message = f"its provenance could not be checked: {outcome.reason}"
    return _finding(UNCHECKED, message)


def _failures(outcomes: Sequence[ProvenanceOutcome], severity: str) -> list[ProvenanceFinding]:
    """Failed attestations, in addition to the deciding one."""
    reasons = dict.fromkeys(outcome.reason for outcome in outcomes if outcome.state == "failed")
    messages = [f"an attestation does not verify: {reason}" for reason in reasons]
    return [ProvenanceFinding(code=FAILED, severity=severity, message=message) for message in messages]


def _nearest(locked: Identity, verified: Sequence[Identity]) -> Identity:
    """The identity that differs least, so that the report names what really changed."""
    return min(
        (identity for identity in verified if _same_signer_kind(locked, identity)),
        key=lambda identity: len(_differences(locked, identity)),
    )


def _differences(locked: Identity, now: Identity) -> list[ProvenanceFinding]:
    changed = [
        _finding(CHANGED, f"the {field} changed from {before or 'none'} to {after or 'none'}")
        for field, before, after in _changes(locked, now)
    ]
    weaker = [
        _finding(WEAKER, f"the {field} is weaker: {after} instead of {before}")
        for field, before, after in _weakenings(locked, now)
    ]
    return [*changed, *weaker]


def _changes(locked: Identity, now: Identity) -> list[tuple[str, str, str]]:
    if locked.kind == now.kind == "npm-publish":
        return []  # registries rotate their keys; the registry itself is locked elsewhere
    compared = [
        ("issuer", locked.issuer, now.issuer),
        ("signer", locked.signer, now.signer),
        ("key", locked.key_id, now.key_id),
        ("workflow", locked.workflow, now.workflow),
        ("builder", _builder(locked), _builder(now)),
    ]
    if not _is_renamed(locked, now):
        compared.append(("repository", _repository(locked), _repository(now)))
    # Old certificates have no numeric IDs, so there is nothing to compare.
    if locked.repository_id and now.repository_id:
        compared.append(("repository's number", locked.repository_id, now.repository_id))
    if locked.owner_id and now.owner_id:
        compared.append(("owner's number", locked.owner_id, now.owner_id))
    return [(field, before, after) for field, before, after in compared if before != after]


def _repository(identity: Identity) -> str:
    """A normalised form, if the value is a URL."""
    return repository_uri(identity.repository) or identity.repository


def _builder(identity: Identity) -> str:
    """A workflow in its own repository by path alone, so that renaming the repository does not change it."""
    own = f"{identity.repository}/"
    return identity.builder.removeprefix(own) if identity.repository else identity.builder


def _weakenings(locked: Identity, now: Identity) -> list[tuple[str, str, str]]:
    weakenings: list[tuple[str, str, str]] = []
    if _REF_RANKS.index(now.ref_class) < _REF_RANKS.index(locked.ref_class):
        weakenings.append(("kind of ref", locked.ref_class, now.ref_class))
    if _KIND_RANKS[now.kind] < _KIND_RANKS[locked.kind]:
        weakenings.append(("kind of proof", locked.kind, now.kind))
    elif (level := slsa_level(now)) < (old := slsa_level(locked)):
        weakenings.append(("build level", f"SLSA {old}", f"SLSA {level}"))
    return weakenings


def _is_renamed(locked: Identity, now: Identity) -> bool:
    """Whether it is the same repository and owner under another name, by the forge's numeric IDs."""
    return (
        _repository(locked) != _repository(now)
        and locked.issuer == now.issuer
        and bool(locked.repository_id and locked.owner_id)
        and (locked.repository_id, locked.owner_id) == (now.repository_id, now.owner_id)
    )


def _renamed(locked: Identity, now: Identity) -> list[ProvenanceFinding]:
    if not _is_renamed(locked, now):
        return []
    message = f"its repository was renamed from {locked.repository} to {now.repository}"
    return [_finding(RENAMED, message)]


def _mismatch(best: Identity | None, metadata_repository: str | None) -> list[ProvenanceFinding]:
    """The finding if the verified repository is not the one in the metadata, as in a fork that kept the metadata."""
    stated = repository_uri(metadata_repository or "")
    proven = repository_uri(best.repository) if best is not None else ""
    if not stated or not proven or stated == proven:
        return []
    message = f"its metadata names {stated}, but it was built in {proven}"
    return [_finding(REPOSITORY_MISMATCH, message)]
