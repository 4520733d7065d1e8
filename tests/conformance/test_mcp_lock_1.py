"""The fixtures of the mcp-lock/1 draft. They may not be copied here, so they are read where they lie."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from pinwarden import PinwardenError, PublicKey, canonicalize
from pinwarden.lock import lockfile, mcp_lock_1
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.conversion import from_neutral, to_neutral
from pinwarden.lock.signature import Envelope, RequiredSigners, verify_signatures
from pinwarden.lock.verification import verify as verify_v2
from tests.conformance.vectors import REPOSITORY, uncopied, vectors_dir
from tests.support.needs import NOT_OURS, not_ours

FOLDER = uncopied("mcp-lock-1")


def fixtures(kind: str) -> list[Any]:
    if FOLDER is None:
        absent = pytest.mark.skip(reason=f"mcp-lock-1 {NOT_OURS} and is not beside it")
        return [pytest.param(Path(kind), marks=absent)]
    return sorted((FOLDER / kind).glob("*.json"))


OURS = vectors_dir() == REPOSITORY / "tests" / "vectors"
"""Whether the fixtures are the published ones, and not another collection of their kind."""


def label(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    if FOLDER is None:
        not_ours("mcp-lock-1")
    found: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
    return found


def test_the_fixtures_are_there(vectors: dict[str, Any]) -> None:
    assert vectors
    assert fixtures("positive")
    assert fixtures("negative")


@pytest.mark.parametrize("path", fixtures("positive"), ids=label)
def test_a_good_document_is_accepted_and_comes_out_as_it_went_in(path: Path) -> None:
    lock = mcp_lock_1.parse(path.read_bytes())
    assert mcp_lock_1.verify(lock) == ()
    assert mcp_lock_1.to_bytes(lock) == path.read_bytes()


@pytest.mark.parametrize("path", fixtures("positive"), ids=label)
def test_a_good_document_survives_the_way_to_v2_and_back(path: Path) -> None:
    lock = lockfile.parse(lockfile.to_bytes(from_neutral(mcp_lock_1.parse(path.read_bytes()))))
    assert {problem.code for problem in verify_v2(lock)} <= {"no_entries"}
    assert mcp_lock_1.to_bytes(to_neutral(lock)) == path.read_bytes()


@pytest.mark.parametrize("path", fixtures("negative"), ids=label)
def test_a_bad_document_is_refused(path: Path) -> None:
    try:
        problems = mcp_lock_1.verify(mcp_lock_1.parse(path.read_bytes()))
    except PinwardenError as err:
        expected = "LOCK_VERSION_UNSUPPORTED" if "spec-version" in path.name else "LOCK_INVALID"
        unreadable = {"JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR"}  # a member twice, or no JSON at all
        assert err.code in {expected, *unreadable}
        assert not OURS or err.code == expected
    else:
        assert [problem.code for problem in problems] == ["integrity_mismatch"]


def test_canonical_bytes_are_those_of_the_draft(vectors: dict[str, Any]) -> None:
    for case in vectors["canonicalization"]:
        assert canonicalize(case["input"]).decode() == case["canonical"]


def test_the_surface_hash_is_that_of_the_draft(vectors: dict[str, Any]) -> None:
    surface = vectors["surface"]
    assert mcp_lock_1.surface_hash(surface["tools"], surface["coverage"]) == surface["hash"]


def test_the_integrity_of_an_entry_is_that_of_the_draft(vectors: dict[str, Any]) -> None:
    case = vectors["entryIntegrity"]
    entry = json.loads(case["canonicalPayload"])
    assert canonicalize(entry).decode() == case["canonicalPayload"]
    assert mcp_lock_1.integrity_of({**entry, "integrity": "anything"}) == case["integrity"]


def test_the_whole_lock_digest_is_that_of_the_draft(vectors: dict[str, Any]) -> None:
    assert FOLDER is not None
    case = vectors["wholeLockDigest"]
    assert mcp_lock_1.digest(mcp_lock_1.parse((FOLDER / case["document"]).read_bytes())) == case["digest"]


def test_the_signature_of_the_draft_is_valid_and_no_longer_so_after_a_change(vectors: dict[str, Any]) -> None:
    assert FOLDER is not None
    case = vectors["signature"]
    key = PublicKey(b64decode(case["publicKeySpkiDerBase64"])[-32:])
    data = json.dumps(case["envelope"]).encode()
    envelope = lock_signature.parse(data)
    assert isinstance(envelope, Envelope)
    assert key.fingerprint == envelope.fingerprint
    lock = (FOLDER / vectors["wholeLockDigest"]["document"]).read_bytes()
    policy = case["envelope"]["policyDigest"]
    needed = RequiredSigners(names=("draft",))
    assert verify_signatures(lock, [data], {"draft": key}, needed, policy_digest=policy).ok
    later = json.dumps({**case["envelope"], "signedAt": "2026-07-08T12:00:01.000Z"}).encode()
    assert not verify_signatures(lock, [later], {"draft": key}, needed, policy_digest=policy).ok
    assert not verify_signatures(lock, [data], {"draft": key}, needed).ok
