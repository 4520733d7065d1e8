"""Identities, statements and the addresses of repositories."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.artifacts.artifact import ArtifactFile, PackageRef
from pinwarden.artifacts.provenance import (
    ExpectedSubject,
    Identity,
    ProvenanceOutcome,
    ProvenanceStatement,
    Subject,
    choose_strongest_identity,
    classify_ref,
    expect_file,
    expect_image,
    identity_from_json,
    identity_to_json,
    normalize_repository_url,
    parse_registry_keys,
    parse_simple_signing,
    parse_statement,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError

DIGEST = Digest.of_bytes(b"x")
RECORD: dict[str, Any] = {
    "kind": "slsa-provenance/v1",
    "issuer": "https://token.actions.githubusercontent.com",
    "repository": "https://github.com/acme/slack",
    "repositoryId": "1",
    "ownerId": "2",
    "workflow": ".github/workflows/release.yml",
    "ref": "refs/tags/v1",
    "builder": "https://github.com/acme/slack/.github/workflows/release.yml",
    "runner": "github-hosted",
    "commit": "c" * 40,
    "refClass": "tag",
}


def test_a_locked_identity_is_read_as_it_was_written() -> None:
    assert identity_to_json(identity_from_json(RECORD)) == RECORD


def test_empty_fields_of_an_identity_are_not_written() -> None:
    assert identity_to_json(Identity(kind="npm-publish", key_id="SHA256:abc")) == {
        "kind": "npm-publish",
        "keyId": "SHA256:abc",
    }


def test_members_that_a_later_version_adds_are_passed_over() -> None:
    assert identity_from_json({**RECORD, "level": 4}) == identity_from_json(RECORD)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "slsa"}, "/kind"),
        ({"kind": None}, "/kind"),
        ({"issuer": 5}, "/issuer"),
        ({"workflow": "a\nb"}, "/workflow"),
        ({"repository": "https://github.com/acme/slack\u202e"}, "/repository"),
        ({"commit": "c" * 5000}, "/commit"),
        ({"refClass": "branch"}, "/refClass"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_its_place(change: dict[str, Any], path: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        identity_from_json({**RECORD, **change}, "p")

    assert caught.value.code == "LOCK_INVALID"
    assert f"p{path}" in str(caught.value)


def test_a_record_without_a_signer_is_refused() -> None:
    with pytest.raises(PinwardenError) as caught:
        identity_from_json({"kind": "in-toto", "issuer": "https://accounts.example"})

    assert caught.value.code == "LOCK_INVALID"


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/tags/v1", "tag"),
        ("refs/heads/main", "branch"),
        ("refs/pull/5/merge", "pull-request"),
        ("refs/merge-requests/5/head", "pull-request"),
        ("main", "other"),
        ("", "other"),
    ],
)
def test_the_class_of_a_ref_follows_from_its_full_name(ref: str, expected: str) -> None:
    assert classify_ref(ref) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/Acme/Slack",
        "git+https://github.com/acme/slack.git",
        "git+ssh://git@github.com/acme/slack.git",
        "ssh://git@github.com:22/acme/slack",
        "git@github.com:acme/slack.git",
        "git://github.com/acme/slack.git#v1",
        "github:acme/slack",
        "acme/slack",
        "https://www.github.com/acme/slack/",
        "https://user:secret@github.com/acme/slack?x=1#readme",
        "https://github.com/acme/slack/tree/main/packages/server",
    ],
)
def test_every_spelling_of_a_repository_has_the_same_address(text: str) -> None:
    assert normalize_repository_url(text) == "https://github.com/acme/slack"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://gitlab.com/group/sub/project/-/tree/main", "https://gitlab.com/group/sub/project"),
        ("https://git.example:8443/a/B.git", "https://git.example:8443/a/B"),
        ("", ""),
        ("https://github.com/acme", ""),
        ("https://[bad/a/b", ""),
        ("https://host:port/a/b", ""),
        ("none of your business", ""),
    ],
)
def test_other_hosts_keep_their_paths_and_invalid_addresses_are_empty(text: str, expected: str) -> None:
    assert normalize_repository_url(text) == expected


@pytest.mark.parametrize(
    ("predicate_type", "kind"),
    [
        ("https://slsa.dev/provenance/v1", "slsa-provenance/v1"),
        ("https://slsa.dev/provenance/v0.2", "slsa-provenance/v0.2"),
        ("https://github.com/npm/attestation/tree/main/specs/publish/v0.1", "npm-publish"),
        ("https://docs.example/attestations/publish/v1", "pypi-publish"),
        ("https://sigstore.dev/cosign/sign/v1", "cosign-signature"),
        ("https://slsa.dev/provenance/v1/else", "in-toto"),
        ("https://spdx.dev/Document", "in-toto"),
    ],
)
def test_the_kind_of_a_statement_follows_from_its_predicate(predicate_type: str, kind: str) -> None:
    text = f"""{{"_type": "https://in-toto.io/Statement/v0.1", "predicateType": "{predicate_type}",
        "subject": [{{"name": "a", "digest": {{"sha256": "{DIGEST.hex}", "gitCommit": "abc"}}}}]}}"""

    statement = parse_statement(text.encode())

    assert statement == ProvenanceStatement(
        predicate_type=predicate_type, subjects=(Subject(name="a", digests=(DIGEST,)),), predicate={}
    )
    assert statement.kind == kind


def test_a_payload_that_is_not_an_image_signature_is_refused() -> None:
    good = f"""{{"critical": {{"type": "cosign container image signature", "identity": {{}},
        "image": {{"docker-manifest-digest": "{DIGEST}"}}}}}}"""

    assert parse_simple_signing(good.encode()) == DIGEST
    for text in ("{}", "[]", good.replace("cosign container", "atomic container"), good.replace("manifest-", "")):
        with pytest.raises(PinwardenError) as caught:
            parse_simple_signing(text.encode())
        assert caught.value.code == "PROVENANCE_INVALID"


def test_a_key_document_without_a_list_of_keys_is_refused() -> None:
    assert parse_registry_keys(b'{"keys": [{"keyid": "a", "key": "*"}]}') == ()
    for text in (b"[]", b"{}", b'{"keys": {}}'):
        with pytest.raises(PinwardenError) as caught:
            parse_registry_keys(text)
        assert caught.value.code == "PROVENANCE_INVALID"


def test_a_file_is_known_by_its_own_name_on_pypi_and_by_its_package_elsewhere() -> None:
    file = ArtifactFile(name="a-1.tgz", size=1, digests=(DIGEST,))

    def about(ecosystem: Any) -> ExpectedSubject:
        return expect_file(PackageRef(ecosystem=ecosystem, name="a", version="1"), file)

    assert about("pypi") == ExpectedSubject(ecosystem="pypi", name="a-1.tgz", version="1", digests=(DIGEST,))
    assert about("npm") == ExpectedSubject(ecosystem="npm", name="a", version="1", digests=(DIGEST,))
    image = PackageRef(ecosystem="oci", name="host/a:1")
    assert expect_image(image, DIGEST) == ExpectedSubject(ecosystem="oci", name="host/a:1", digests=(DIGEST,))


def test_the_strongest_verified_identity_is_pinned() -> None:
    publish = Identity(kind="npm-publish", key_id="k")
    build = identity_from_json(RECORD)

    def outcome(state: Any, identity: Identity | None) -> ProvenanceOutcome:
        return ProvenanceOutcome(state=state, signer="certificate", method="m", identity=identity)

    assert choose_strongest_identity((outcome("verified", publish), outcome("verified", build))) == build
    assert choose_strongest_identity((outcome("verified", publish), outcome("failed", None))) == publish
    assert choose_strongest_identity((outcome("failed", None), outcome("unavailable", None))) is None
