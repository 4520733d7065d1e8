"""Which artifact an entry of the lock stands for, and what the signature inside a bundle proves."""

from __future__ import annotations

import pytest

from pinwarden.artifacts.artifact import ArtifactFile, FetchedArtifact, FileSignature, PackageRef
from pinwarden.artifacts.evidence import collect_evidence
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.entry import Entry
from pinwarden.project.artifact_check import find_entry_package

BYTES = Digest.of_bytes(b"bundle")
BUNDLE = PackageRef(ecosystem="mcpb", name="https://files.example/a.mcpb")


def entry(**target: str) -> Entry:
    return Entry(key="x:claude", document={"name": "x", "client": "claude", "selectedTarget": target})


def test_a_bundle_is_its_address_with_the_digest_that_its_metadata_claims() -> None:
    locked = entry(kind="package", registryType="mcpb", identifier=BUNDLE.name, fileSha256=BYTES.hex)
    assert find_entry_package(locked) == (BUNDLE, BYTES)


def test_a_crate_is_its_name_and_version() -> None:
    locked = entry(kind="package", registryType="cargo", identifier="notes", version="1.0.0")
    assert find_entry_package(locked) == (PackageRef(ecosystem="cargo", name="notes", version="1.0.0"), None)


def test_a_claim_that_is_not_a_digest_is_an_error() -> None:
    with pytest.raises(PinwardenError) as caught:
        find_entry_package(entry(kind="package", registryType="mcpb", identifier=BUNDLE.name, fileSha256="00"))
    assert caught.value.code == "DIGEST_INVALID"


@pytest.mark.parametrize(
    ("state", "status"), [("valid", "passed"), ("valid-untrusted", "unavailable"), ("invalid", "failed")]
)
def test_only_a_trusted_signature_is_evidence(state: str, status: str) -> None:
    signer = FileSignature(state=state, subject="CN=Ada", fingerprint=Digest.of_bytes(b"certificate"))  # type: ignore[arg-type]
    artifact = FetchedArtifact(
        package=BUNDLE,
        registry="https://files.example/",
        checked_at="2026-11-16T00:00:00Z",
        files=(ArtifactFile(name="a.mcpb", size=6, digests=(BYTES,)),),
        signer=signer,
    )
    rows = {row["code"]: row["status"] for row in collect_evidence(artifact, claim=BYTES).evidence}
    assert rows == {"mcpb_sha256_verified": "passed", "bundle_signature_verified": status}
