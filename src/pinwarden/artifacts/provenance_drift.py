"""The identity that was locked against what the attestations of an artifact prove now.

A version that comes from another repository, workflow or issuer, that is proven less well, or no longer, is how a
stolen token, a taken-over repository and a republished fork look from outside.
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
        (CHANGED, "It was proven to come from one builder, and now it comes from another."),
        (WEAKER, "It was proven where it comes from, and now less is proven, or the proof is not good."),
        (VANISHED, "It was proven where it comes from, and now nothing proves it."),
    ),
    review=(
        (UNCHECKED, "Where it comes from could not be checked."),
        (FAILED, "An attestation that came with it is not good; info, if another one proves what is locked."),
        (RENAMED, "The repository that it comes from has another name now."),
        (REPOSITORY_MISMATCH, "Its metadata names another repository than the one that it was built in."),
    ),
    info=((GAINED, "It is now proven where it comes from, and that is not locked."),),
)

# From worst to best. A pull request is anybody's; a branch moves; a tag is meant to stay.
_REF_RANKS = ("pull-request", "other", "branch", "tag")
# What a kind of statement is worth, from worst to best: the registry saw an upload; somebody held a key or an account;
# the publisher's own build uploaded it; a build platform says what it was built from.
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
    """One difference."""

    code: str
    severity: str
    message: str


def compare_provenance(
    locked: Identity | None, found: Sequence[ProvenanceOutcome], *, metadata_repository: str | None = None
) -> tuple[ProvenanceFinding, ...]:
    """What differs between the lock and the attestations as they were checked now.

    ``metadata_repository`` is where the package's own metadata says that it comes from.
    """
    best = strongest_identity(tuple(found))
    verified = [each.identity for each in found if each.state == "verified" and each.identity is not None]
    if locked is None:
        findings = _unlocked(best, found)
    elif same := [each for each in verified if not _differences(locked, each)]:
        findings = [*_renamed(locked, same[0]), *_gained(locked, best), *_failures(found, INFO)]
        best = same[0] if same[0].repository else best
    elif best is None or not any(_same_way(locked, each) for each in verified):
        findings = [_unproven(locked, found, best), *_failures(found, REVIEW)]
    else:
        findings = [*_differences(locked, _nearest(locked, verified)), *_failures(found, REVIEW)]
    return (*findings, *_mismatch(best, metadata_repository))


def slsa_level(identity: Identity) -> int:
    """The build level of https://slsa.dev/spec/v1.0/levels that an identity can stand for, as far as it tells.

    3 needs a build that the repository's own workflow cannot reach into: one that another repository defines and
    signs. 2 needs a platform that runs builds for others. A statement without either is 1, anything else 0.
    """
    if not identity.kind.startswith("slsa-provenance/"):
        return 0
    if not identity.by_certificate or not identity.runner.endswith("-hosted") or identity.runner == "self-hosted":
        return 1
    builder, source = repository_uri(identity.builder), repository_uri(identity.repository)
    return 3 if builder and source and builder != source else 2


def _unlocked(best: Identity | None, found: Sequence[ProvenanceOutcome]) -> list[ProvenanceFinding]:
    findings = [*_gained(None, best), *_failures(found, REVIEW)]
    unchecked = [each for each in found if each.state == "unavailable"]
    return [*findings, _unchecked(unchecked[0])] if unchecked and best is None else findings


def _gained(locked: Identity | None, best: Identity | None) -> list[ProvenanceFinding]:
    if best is None or (locked is not None and _KIND_RANKS[best.kind] <= _KIND_RANKS[locked.kind]):
        return []
    message = f"it is now proven where it comes from, and that is not locked: {best}"
    return [_finding(GAINED, message)]


def _unproven(locked: Identity, found: Sequence[ProvenanceOutcome], best: Identity | None) -> ProvenanceFinding:
    """Nothing is verified that is signed in the locked way; only what is could be the locked proof."""
    way = "certificate" if locked.by_certificate else "key"
    was = f"it was proven to come from {locked}"
    for each in found:
        if each.state == "failed" and each.signer in (way, "unknown"):
            return _finding(WEAKER, f"{was}, and now its proof is not good: {each.reason}")
    for each in found:
        if each.state == "unavailable" and each.signer == way:
            return _unchecked(each)
    if best is None:
        return _finding(VANISHED, f"{was}, and now nothing proves it")
    if _KIND_RANKS[best.kind] < _KIND_RANKS[locked.kind]:
        return _finding(WEAKER, f"{was}, and now there is no more than {best.kind} by {best}")
    return _finding(CHANGED, f"{was}, and now it is signed by {best}")


def _same_way(locked: Identity, now: Identity) -> bool:
    return locked.by_certificate == now.by_certificate


def _finding(code: str, message: str) -> ProvenanceFinding:
    return ProvenanceFinding(code=code, severity=PROVENANCE_KINDS[code].severity, message=message)


def _unchecked(outcome: ProvenanceOutcome) -> ProvenanceFinding:
    message = f"where it comes from could not be checked: {outcome.reason}"
    return _finding(UNCHECKED, message)


def _failures(found: Sequence[ProvenanceOutcome], severity: str) -> list[ProvenanceFinding]:
    """What came with the artifact and is not good, beside what decides."""
    reasons = dict.fromkeys(each.reason for each in found if each.state == "failed")
    messages = [f"an attestation that came with it is not good: {reason}" for reason in reasons]
    return [ProvenanceFinding(code=FAILED, severity=severity, message=message) for message in messages]


def _nearest(locked: Identity, verified: Sequence[Identity]) -> Identity:
    """The one that differs least, so that the report names what really changed."""
    return min((each for each in verified if _same_way(locked, each)), key=lambda each: len(_differences(locked, each)))


def _differences(locked: Identity, now: Identity) -> list[ProvenanceFinding]:
    changed = [
        _finding(CHANGED, f"the {what} changed: {one or 'none'} was locked, now it is {other or 'none'}")
        for what, one, other in _changes(locked, now)
    ]
    weaker = [
        _finding(WEAKER, f"the {what} is weaker: {one} was locked, now it is {other}")
        for what, one, other in _weakenings(locked, now)
    ]
    return [*changed, *weaker]


def _changes(locked: Identity, now: Identity) -> list[tuple[str, str, str]]:
    if locked.kind == now.kind == "npm-publish":
        return []  # the registry replaces its keys; which registry it is, the lock says elsewhere
    compared = [
        ("issuer", locked.issuer, now.issuer),
        ("signer", locked.signer, now.signer),
        ("key", locked.key_id, now.key_id),
        ("workflow", locked.workflow, now.workflow),
        ("builder", _builder(locked), _builder(now)),
    ]
    if not _is_renamed(locked, now):
        compared.append(("repository", _repository(locked), _repository(now)))
    # Where one side has no number there is nothing to compare: old certificates have none.
    if locked.repository_id and now.repository_id:
        compared.append(("repository's number", locked.repository_id, now.repository_id))
    if locked.owner_id and now.owner_id:
        compared.append(("owner's number", locked.owner_id, now.owner_id))
    return [(what, one, other) for what, one, other in compared if one != other]


def _repository(identity: Identity) -> str:
    """In one spelling, if it is an address that has several."""
    return repository_uri(identity.repository) or identity.repository


def _builder(identity: Identity) -> str:
    """Within its own repository by path alone, so that a renamed repository has the same one."""
    own = f"{identity.repository}/"
    return identity.builder.removeprefix(own) if identity.repository else identity.builder


def _weakenings(locked: Identity, now: Identity) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if _REF_RANKS.index(now.ref_class) < _REF_RANKS.index(locked.ref_class):
        found.append(("kind of ref", locked.ref_class, now.ref_class))
    if _KIND_RANKS[now.kind] < _KIND_RANKS[locked.kind]:
        found.append(("kind of proof", locked.kind, now.kind))
    elif (level := slsa_level(now)) < (old := slsa_level(locked)):
        found.append(("build level", f"SLSA {old}", f"SLSA {level}"))
    return found


def _is_renamed(locked: Identity, now: Identity) -> bool:
    """The same repository of the same owner under another name: the numbers are the forge's, and not reused."""
    return (
        _repository(locked) != _repository(now)
        and locked.issuer == now.issuer
        and bool(locked.repository_id and locked.owner_id)
        and (locked.repository_id, locked.owner_id) == (now.repository_id, now.owner_id)
    )


def _renamed(locked: Identity, now: Identity) -> list[ProvenanceFinding]:
    if not _is_renamed(locked, now):
        return []
    message = f"its repository has another name now: {locked.repository} was locked, now it is {now.repository}"
    return [_finding(RENAMED, message)]


def _mismatch(best: Identity | None, metadata_repository: str | None) -> list[ProvenanceFinding]:
    """A fork that keeps the original's metadata: the proof is good, and names another repository than the page."""
    named = repository_uri(metadata_repository or "")
    proven = repository_uri(best.repository) if best is not None else ""
    if not named or not proven or named == proven:
        return []
    message = f"its metadata says that it comes from {named}, and it was built in {proven}"
    return [_finding(REPOSITORY_MISMATCH, message)]
