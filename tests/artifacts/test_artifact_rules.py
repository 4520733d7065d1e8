"""The evidence for a fetched artifact, and its differences from the pins."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.artifacts.artifact import (
    ArtifactFile,
    ArtifactProblem,
    Ecosystem,
    FetchedArtifact,
    FetchedImage,
    ListedFile,
    PackageRef,
    RegistrySignature,
    ReleaseFacts,
)
from pinwarden.artifacts.artifact_drift import (
    ARTIFACT_KINDS,
    build_registry_change,
    compare_pins,
    compare_releases,
)
from pinwarden.artifacts.evidence import build_unavailable_evidence, collect_evidence
from pinwarden.artifacts.oci_manifest import OciDescriptor
from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.lock.extension import RELEASE_FIELDS, Artifact, ImagePin, LockExtension
from pinwarden.surface.drift.changes import ABSENT, Change

NOW = "2026-11-16T00:00:00Z"
REGISTRY = "https://npm.example.com/"
FILE = "notes-1.0.0.tgz"
GOOD, EVIL = Digest.of_bytes(b"good"), Digest.of_bytes(b"evil")
GOOD_512, EVIL_512 = Digest.of_bytes(b"good", "sha512"), Digest.of_bytes(b"evil", "sha512")
PACKAGE = PackageRef(ecosystem="npm", name="notes", version="1.0.0")


def file(*digests: Digest, claims: tuple[Digest, ...] = (), name: str = FILE) -> ArtifactFile:
    return ArtifactFile(name=name, size=4, digests=digests, claims=claims)


def artifact(*files: ArtifactFile, **members: Any) -> FetchedArtifact:
    return replace(FetchedArtifact(package=PACKAGE, registry=REGISTRY, checked_at=NOW, files=files), **members)


HONEST = artifact(file(GOOD, GOOD_512, claims=(GOOD_512,)))


def image(root: Digest = GOOD, **members: Any) -> FetchedArtifact:
    """An image with one manifest."""
    platforms = {"linux/amd64": OciDescriptor(media_type="x", digest=root, size=4)}
    members = {"index": None, "platforms": platforms, "tag_digest": root, **members}
    package = PackageRef(ecosystem="oci", name="registry.example.com/notes:v1")
    made = FetchedImage(reference=package.name, root=root, **members)
    return FetchedArtifact(package=package, registry="https://registry.example.com/v2/", checked_at=NOW, image=made)


def issues(found: FetchedArtifact, **how: Any) -> list[tuple[str, str]]:
    return [(issue.severity, issue.code) for issue in collect_evidence(found, **how).issues]


def status(found: FetchedArtifact, **how: Any) -> str:
    return str(collect_evidence(found, **how).evidence[0]["status"])


class TestJudging:
    def test_bytes_that_match_the_registrys_digest_are_proof(self) -> None:
        outcome = collect_evidence(HONEST)
        assert outcome.issues == ()
        assert outcome.evidence == (
            {
                "code": "npm_integrity_verified",
                "status": "passed",
                "message": f"Pinwarden fetched and hashed npm:notes@1.0.0: {FILE}.",
                "source": "npm-registry",
                "claim": GOOD_512.sri,
                "verificationMethod": "npm-packument-sri",
                "verifiedByToolPin": True,
                "trustedAnchor": True,
                "trustAnchor": REGISTRY,
                "verifiedAt": NOW,
            },
        )

    @pytest.mark.parametrize(
        ("ecosystem", "name", "anchored"),
        [
            ("pypi", "notes", True),
            ("oci", "ghcr.io/acme/notes:1", True),
            ("oci", "acme/notes", True),
            ("oci", "notes:1", True),
            ("oci", "registry.attacker.example/acme/notes:1", False),
            ("oci", "localhost:5000/ghcr.io/notes", False),
            ("mcpb", "https://github.com/acme/notes/releases/download/1/notes.mcpb", True),
            ("mcpb", "http://github.com/acme/notes/releases/download/1/notes.mcpb", False),
            ("mcpb", "https://attacker.example/github.com/notes.mcpb", False),
            ("mcpb", "https://github.com@attacker.example/notes.mcpb", False),
            ("mcpb", "/home/user/notes.mcpb", False),
        ],
    )
    def test_bytes_from_a_place_of_the_attackers_choice_are_no_anchor(
        self, ecosystem: Ecosystem, name: str, anchored: bool
    ) -> None:
        """Attack: a bundle or image agrees with the digest that its own author published beside it."""
        package = PackageRef(ecosystem=ecosystem, name=name, version="1")
        row = collect_evidence(artifact(file(GOOD, claims=(GOOD,)), package=package)).evidence[0]
        assert row["trustedAnchor"] is anchored

    @pytest.mark.parametrize(
        ("found", "code"),
        [
            (artifact(file(EVIL, EVIL_512, claims=(GOOD_512,))), "npm_integrity_mismatch"),
            (artifact(file(GOOD, claims=(GOOD_512,))), "npm_integrity_mismatch"),  # never hashed that way: not agreed
            (artifact(), "npm_integrity_mismatch"),
            (artifact(missing="package"), "npm_package_missing"),
            (artifact(missing="version"), "npm_version_missing"),
            (
                replace(HONEST, problems=(ArtifactProblem(code="npm_archive_unsafe", message="x"),)),
                "npm_archive_unsafe",
            ),
            (
                replace(HONEST, signatures=(RegistrySignature(key_id="k", state="invalid"),)),
                "registry_signature_invalid",
            ),
            (image(mismatches=(str(EVIL),)), "oci_digest_mismatch"),
        ],
        ids=["other bytes", "unhashed claim", "no file", "no package", "no version", "problem", "signature", "image"],
    )
    def test_anything_that_does_not_agree_is_critical_and_never_passed(self, found: FetchedArtifact, code: str) -> None:
        assert issues(found) == [("critical", code)]
        row = collect_evidence(found).evidence[0]
        assert (row["status"], row["required"]) == ("failed", True)
        assert row["failureReason"] == collect_evidence(found).issues[0].message

    def test_attack_one_wrong_file_among_correct_ones_fails_the_release(self) -> None:
        two = artifact(file(GOOD, claims=(GOOD,)), file(EVIL, claims=(GOOD,), name="other.whl"))
        assert (status(two), issues(two)) == ("failed", [("critical", "npm_integrity_mismatch")])

    def test_attack_a_true_weaker_claim_does_not_excuse_a_false_strong_one(self) -> None:
        assert status(artifact(file(GOOD, GOOD_512, claims=(GOOD, EVIL_512)))) == "failed"

    def test_any_claim_of_the_strongest_algorithm_will_do(self) -> None:
        assert status(artifact(file(GOOD, GOOD_512, claims=(EVIL_512, GOOD_512)))) == "passed"

    @pytest.mark.parametrize(("claim", "expected"), [(GOOD, "passed"), (GOOD_512, "passed"), (EVIL, "failed")])
    def test_the_claim_of_the_servers_metadata_counts_too(self, claim: Digest, expected: str) -> None:
        assert status(HONEST, claim=claim) == expected
        assert collect_evidence(HONEST, claim=claim).evidence[0]["claim"] == str(claim)

    @pytest.mark.parametrize(("claim", "expected"), [(GOOD, "passed"), (EVIL, "failed")])
    def test_the_claim_about_an_image_is_its_digest(self, claim: Digest, expected: str) -> None:
        assert status(image(), claim=claim) == expected

    def test_a_missing_artifact_is_reported_once_whatever_its_claims(self) -> None:
        assert issues(artifact(missing="version"), claim=GOOD) == [("critical", "npm_version_missing")]

    def test_a_yanked_version_and_install_scripts_are_warnings_and_not_failures(self) -> None:
        found = replace(HONEST, facts=ReleaseFacts(yanked="use notes2"), install_scripts=("postinstall",))
        assert issues(found) == [("warning", "withdrawn"), ("warning", "install_scripts")]
        assert status(found) == "passed"

    @pytest.mark.parametrize(
        ("states", "expected"),
        [
            (("valid",), ("passed", True, True)),
            (("valid", "unknown-key"), ("passed", True, True)),
            (("valid", "invalid"), ("failed", True, False)),
            (("unknown-key",), ("unavailable", False, False)),
            (("expired-key",), ("unavailable", False, False)),
        ],
    )
    def test_signatures_of_the_registry_have_a_row_of_their_own(
        self, states: tuple[Any, ...], expected: tuple[str, bool, bool]
    ) -> None:
        found = replace(HONEST, signatures=tuple(RegistrySignature(key_id="k", state=state) for state in states))
        row = collect_evidence(found).evidence[1]
        assert row["code"] == "registry_signature_verified"
        assert (row["status"], row["verifiedByToolPin"], row["trustedAnchor"]) == expected

    def test_bytes_that_could_not_be_fetched_are_unavailable_and_never_ok(self) -> None:
        outcome = build_unavailable_evidence(PACKAGE, REGISTRY, "the registry does not answer")
        assert outcome.issues == ()
        assert outcome.evidence == (
            {
                "code": "npm_integrity_verified",
                "status": "unavailable",
                "message": "Pinwarden could not fetch notes: the registry does not answer.",
                "source": "npm-registry",
                "claim": "notes@1.0.0",
                "verificationMethod": "npm-packument-sri",
                "verifiedByToolPin": False,
                "trustedAnchor": False,
                "trustAnchor": REGISTRY,
                "failureReason": "the registry does not answer",
            },
        )


PINNED = LockExtension(artifacts=(Artifact(name=FILE, digest=GOOD, size=4),), registry=REGISTRY)
IMAGE_REGISTRY = "https://registry.example.com/v2/"
PINNED_IMAGE = LockExtension(image=ImagePin(index=None, platforms={"linux/amd64": GOOD}), registry=IMAGE_REGISTRY)


def change(kind: str, field: str, before: Any, after: Any) -> Change:
    row = ARTIFACT_KINDS[kind]
    return Change(
        entity="artifact",
        name="notes",
        field=field,
        path="",
        kind=kind,
        severity=row.severity,
        before=before,
        after=after,
        reason=row.reason,
    )


def manifest(digest: Digest) -> OciDescriptor:
    return OciDescriptor(media_type="x", digest=digest, size=4)


class TestPins:
    @pytest.mark.parametrize(
        ("pinned", "found"),
        [
            (PINNED, HONEST),
            (PINNED_IMAGE, image()),
            (LockExtension(), artifact(file(EVIL))),
            (LockExtension(), artifact(missing="package")),
            (PINNED, artifact(listed=(ListedFile(name=FILE, claims=(GOOD,)),))),
        ],
        ids=["file", "image", "nothing pinned", "nothing pinned, nothing there", "listed"],
    )
    def test_an_artifact_that_matches_its_pins_has_no_changes(
        self, pinned: LockExtension, found: FetchedArtifact
    ) -> None:
        assert compare_pins("notes", pinned, found) == ()

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (artifact(file(EVIL, EVIL_512)), change("bytes_changed", FILE, str(GOOD), str(EVIL))),
            (
                artifact(listed=(ListedFile(name=FILE, claims=(EVIL,)),)),
                change("bytes_changed", FILE, str(GOOD), str(EVIL)),
            ),
            (artifact(missing="version"), change("version_vanished", "version", "npm:notes@1.0.0", ABSENT)),
            (artifact(missing="package"), change("version_vanished", "version", "npm:notes@1.0.0", ABSENT)),
            (artifact(file(GOOD, name="other.tgz")), change("file_gone", FILE, str(GOOD), ABSENT)),
            (
                replace(HONEST, registry="https://evil.example.com/"),
                change("registry_changed", "registry", REGISTRY, "https://evil.example.com/"),
            ),
        ],
        ids=["bytes", "listed bytes", "no version", "no package", "no file", "registry"],
    )
    def test_every_kind_of_file_difference_is_reported(self, found: FetchedArtifact, expected: Change) -> None:
        assert compare_pins("notes", PINNED, found) == (expected,)

    def test_attack_a_registry_that_agrees_with_itself_does_not_agree_with_the_pin(self) -> None:
        lying = artifact(file(EVIL, EVIL_512, claims=(EVIL_512,)))
        assert collect_evidence(lying).issues == ()
        assert [each.kind for each in compare_pins("notes", PINNED, lying)] == ["bytes_changed"]

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (image(EVIL), change("tag_moved", "tag", str(GOOD), str(EVIL))),
            (
                image(platforms={}, tag_digest=GOOD),
                change("platform_changed", "linux/amd64", str(GOOD), ABSENT),
            ),
            (
                image(platforms={"linux/amd64": manifest(EVIL)}, tag_digest=None),
                change("platform_changed", "linux/amd64", str(GOOD), str(EVIL)),
            ),
            (
                image(platforms={"linux/amd64": manifest(GOOD), "linux/arm64": manifest(EVIL)}),
                change("platform_added", "linux/arm64", ABSENT, str(EVIL)),
            ),
            (image(mismatches=(str(GOOD),)), change("manifest_changed", "image", str(GOOD), ABSENT)),
        ],
        ids=["tag", "platform gone", "platform", "platform added", "manifest"],
    )
    def test_every_kind_of_image_difference_is_reported(self, found: FetchedArtifact, expected: Change) -> None:
        assert compare_pins("notes", PINNED_IMAGE, found) == (expected,)

    def test_a_tag_that_moved_from_an_index_is_reported_with_the_index_digest(self) -> None:
        pinned = replace(PINNED_IMAGE, image=ImagePin(index=GOOD, platforms={"linux/amd64": EVIL}))
        # The tag now has the manifest of one platform: another root, though every byte of it was locked.
        (found,) = compare_pins("notes", pinned, image(EVIL))
        assert (found.kind, found.before, found.after) == ("tag_moved", str(GOOD), str(EVIL))

    def test_a_registry_change_is_reported_without_contacting_the_registry(self) -> None:
        expected = change("registry_changed", "registry", REGISTRY, "https://evil.example.com/")
        assert build_registry_change("notes", REGISTRY, "https://evil.example.com/") == expected


def test_the_lock_keeps_facts_of_a_release_under_the_same_names() -> None:
    assert RELEASE_FIELDS == ("published_at", "publisher")
    assert {*RELEASE_FIELDS} <= {*ReleaseFacts.__slots__}


class TestReleases:
    NEXT = PackageRef(ecosystem="npm", name="notes", version="1.0.1")

    def test_a_release_by_the_same_publisher_has_no_changes(self) -> None:
        before = replace(HONEST, facts=ReleaseFacts(publisher="alice"))
        assert compare_releases("notes", before, replace(before, package=self.NEXT)) == ()

    @pytest.mark.parametrize(
        ("members", "expected"),
        [
            ({"facts": ReleaseFacts(publisher="mallory")}, ("publisher_changed", "publisher", "alice", "mallory")),
            ({"facts": ReleaseFacts()}, ("publisher_changed", "publisher", "alice", ABSENT)),
            ({"install_scripts": ("install",)}, ("scripts_added", "scripts", [], ["install"])),
            ({"missing": "version"}, ("version_vanished", "version", "npm:notes@1.0.1", ABSENT)),
            (
                {"package": PackageRef(ecosystem="npm", name="n0tes", version="1.0.1")},
                ("artifact_kind_changed", "name", "notes", "n0tes"),
            ),
        ],
    )
    def test_another_publisher_new_scripts_and_other_names_are_reported(
        self, members: Any, expected: tuple[Any, ...]
    ) -> None:
        before = replace(HONEST, facts=ReleaseFacts(publisher="alice"))
        after = replace(before, **{"package": self.NEXT, **members})
        assert compare_releases("notes", before, after) == (change(*expected),)
