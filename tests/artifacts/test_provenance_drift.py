"""What a locked identity is worth when the next release comes: rows 2, 8 and 13 of the table of attacks."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.artifacts.provenance import Identity, ProvenanceOutcome
from pinwarden.artifacts.provenance_drift import compare_provenance, compute_slsa_level
from pinwarden.core.record import replace

GITHUB = "https://token.actions.githubusercontent.com"
REPOSITORY = "https://github.com/acme/slack-mcp"
LOCKED = Identity(
    kind="slsa-provenance/v1",
    issuer=GITHUB,
    repository=REPOSITORY,
    repository_id="1001",
    owner_id="77",
    workflow=".github/workflows/release.yml",
    ref="refs/tags/v1.0.15",
    builder=f"{REPOSITORY}/.github/workflows/release.yml",
    runner="github-hosted",
    commit="a" * 40,
)
NEXT = replace(LOCKED, ref="refs/tags/v1.0.16", commit="b" * 40)
PUBLISH = Identity(kind="npm-publish", key_id="SHA256:abc")
GENERATOR = "https://github.com/slsa/generator/.github/workflows/build.yml"


def verified(identity: Identity) -> ProvenanceOutcome:
    signer: Any = "certificate" if identity.by_certificate else "key"
    return ProvenanceOutcome(state="verified", signer=signer, method="m", identity=identity, anchor="a")


def bad(state: Any = "failed", signer: Any = "certificate", reason: str = "because") -> ProvenanceOutcome:
    return ProvenanceOutcome(state=state, signer=signer, method="m", reason=reason)


def codes(locked: Identity | None, *found: ProvenanceOutcome, **options: Any) -> list[tuple[str, str]]:
    return [(each.code, each.severity) for each in compare_provenance(locked, found, **options)]


def messages(locked: Identity, *found: ProvenanceOutcome) -> list[str]:
    return [each.message for each in compare_provenance(locked, found)]


def test_the_next_release_of_the_same_workflow_has_no_findings() -> None:
    assert codes(LOCKED, verified(PUBLISH), verified(NEXT), metadata_repository="github:acme/slack-mcp") == []


def test_no_locked_and_no_current_provenance_has_no_findings() -> None:
    assert codes(None) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "https://gitlab.com"}, f"the issuer changed from {GITHUB} to https://gitlab.com"),
        (
            {"workflow": ".github/workflows/test.yml"},
            "the workflow changed from .github/workflows/release.yml to .github/workflows/test.yml",
        ),
        (
            {"builder": GENERATOR},
            f"the builder changed from .github/workflows/release.yml to {GENERATOR}",
        ),
        ({"repository_id": "2002"}, "the repository ID changed from 1001 to 2002"),
        ({"owner_id": "88"}, "the owner ID changed from 77 to 88"),
    ],
)
def test_attack_an_identity_that_changed_is_critical(change: dict[str, Any], message: str) -> None:
    now = verified(replace(NEXT, **change))

    assert codes(LOCKED, now) == [("provenance_changed", "critical")]
    assert messages(LOCKED, now) == [message]


def test_attack_a_republished_fork_with_valid_provenance_is_critical_and_contradicts_its_metadata() -> None:
    """Row 8: a fork under a near name keeps the original's metadata and builds in a repository of its own."""
    fork = "https://github.com/iflow/slack-mcp"
    now = replace(
        NEXT,
        repository=fork,
        repository_id="2002",
        owner_id="88",
        builder=f"{fork}/.github/workflows/release.yml",
    )

    findings = compare_provenance(LOCKED, [verified(now)], metadata_repository=f"git+{REPOSITORY}.git")

    assert [(each.code, each.severity) for each in findings] == [
        ("provenance_changed", "critical"),
        ("provenance_changed", "critical"),
        ("provenance_changed", "critical"),
        ("provenance_repository_mismatch", "review"),
    ]
    assert findings[0].message == f"the repository changed from {REPOSITORY} to {fork}"
    assert findings[3].message == f"its metadata names {REPOSITORY}, but it was built in {fork}"
    assert codes(None, verified(now), metadata_repository=REPOSITORY) == [
        ("provenance_gained", "info"),
        ("provenance_repository_mismatch", "review"),
    ]


def test_attack_a_repository_that_was_deleted_and_made_again_under_its_name_is_critical() -> None:
    now = replace(NEXT, repository_id="9009", owner_id="99")

    assert codes(LOCKED, verified(now)) == [("provenance_changed", "critical")] * 2


def test_attack_repositories_on_a_host_without_owners_are_distinguished() -> None:
    locked = replace(LOCKED, repository="https://git.example/slack", repository_id="", owner_id="")
    now = replace(locked, repository="https://git.example/evil")

    assert codes(locked, verified(now)) == [("provenance_changed", "critical")]


def test_a_renamed_repository_is_reported_as_renamed() -> None:
    moved = "https://github.com/acme/mcp-slack"
    now = replace(NEXT, repository=moved, builder=f"{moved}/.github/workflows/release.yml")

    assert codes(LOCKED, verified(now)) == [("provenance_renamed", "review")]


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/pull/7/merge", ""])
def test_attack_a_release_that_was_not_built_from_a_tag_any_more_is_critical(ref: str) -> None:
    assert codes(LOCKED, verified(replace(NEXT, ref=ref))) == [("provenance_weaker", "critical")]


def test_a_release_from_a_tag_instead_of_a_branch_has_no_findings() -> None:
    assert codes(replace(LOCKED, ref="refs/heads/main"), verified(NEXT)) == []


def test_attack_a_build_on_the_attackers_own_machine_is_critical() -> None:
    now = verified(replace(NEXT, runner="self-hosted"))

    assert codes(LOCKED, now) == [("provenance_weaker", "critical")]
    assert messages(LOCKED, now) == ["the build level is weaker: SLSA 1 instead of SLSA 2"]


def test_attack_a_build_proof_that_became_a_mere_signature_is_critical() -> None:
    assert codes(LOCKED, verified(replace(NEXT, kind="signature"))) == [("provenance_weaker", "critical")]


def test_the_build_level_follows_from_who_defines_and_who_runs_the_build() -> None:
    assert compute_slsa_level(replace(LOCKED, builder=GENERATOR)) == 3
    assert compute_slsa_level(LOCKED) == 2
    assert compute_slsa_level(replace(LOCKED, runner="self-hosted")) == 1
    assert compute_slsa_level(replace(LOCKED, kind="pypi-publish")) == 0


def test_attack_a_release_pushed_with_a_stolen_token_has_only_a_registry_signature_and_is_critical() -> None:
    """Rows 2 and 13: the registry still signs the publication."""
    assert codes(LOCKED, verified(PUBLISH)) == [("provenance_weaker", "critical")]


def test_attack_proof_that_vanished_is_critical() -> None:
    assert codes(LOCKED) == [("provenance_vanished", "critical")]
    assert messages(LOCKED) == [
        f"its locked provenance is {REPOSITORY} (.github/workflows/release.yml, tag), but it has no provenance now"
    ]


def test_attack_provenance_that_no_longer_verifies_is_critical() -> None:
    assert codes(LOCKED, bad()) == [("provenance_weaker", "critical"), ("provenance_failed", "review")]
    assert codes(LOCKED, bad(), bad("unavailable")) == [
        ("provenance_weaker", "critical"),
        ("provenance_failed", "review"),
    ]


def test_proof_that_could_not_be_checked_is_for_review_even_beside_lesser_proof() -> None:
    assert codes(LOCKED, bad("unavailable")) == [("provenance_unchecked", "review")]
    assert codes(LOCKED, verified(PUBLISH), bad("unavailable")) == [("provenance_unchecked", "review")]
    assert codes(None, bad("unavailable")) == [("provenance_unchecked", "review")]


@pytest.mark.parametrize("signer", ["key", "unknown"])
def test_attack_uncheckable_provenance_instead_of_the_locked_one_is_still_critical(signer: str) -> None:
    assert codes(LOCKED, bad("unavailable", signer)) == [("provenance_vanished", "critical")]


def test_attack_a_key_instead_of_a_certificate_is_critical() -> None:
    by_key = Identity(kind="slsa-provenance/v1", key_id="sha256:ab")

    assert codes(LOCKED, verified(by_key)) == [("provenance_changed", "critical")]
    assert codes(by_key, verified(NEXT)) == [("provenance_changed", "critical")]


def test_another_key_than_the_locked_one_is_critical_unless_it_is_the_registrys() -> None:
    locked = Identity(kind="cosign-signature", key_id="sha256:ab")

    assert codes(locked, verified(replace(locked, key_id="sha256:cd"))) == [("provenance_changed", "critical")]
    assert codes(PUBLISH, verified(replace(PUBLISH, key_id="SHA256:new"))) == []


def test_new_provenance_is_reported_and_not_pinned() -> None:
    assert codes(None, verified(NEXT)) == [("provenance_gained", "info")]
    assert codes(PUBLISH, verified(PUBLISH), verified(NEXT)) == [("provenance_gained", "info")]


def test_an_invalid_attestation_next_to_a_valid_one_is_reported() -> None:
    assert codes(LOCKED, verified(NEXT), bad()) == [("provenance_failed", "info")]
    assert codes(None, bad()) == [("provenance_failed", "review")]


def test_a_missing_repository_in_provenance_or_metadata_is_not_a_contradiction() -> None:
    account = Identity(kind="pypi-publish", issuer="https://accounts.google.com", signer="a@b.example")

    assert codes(account, verified(account), metadata_repository=REPOSITORY) == []
    assert codes(LOCKED, verified(NEXT), metadata_repository="https://acme.example") == []
    assert codes(LOCKED, verified(NEXT), metadata_repository=None) == []
