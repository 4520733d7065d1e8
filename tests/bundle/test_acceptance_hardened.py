"""What the letter of the rulebook lets through and we do not, beyond the cases of the vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.bundle import attestation, log_documents, trust
from pinwarden.bundle.acceptance import accept, check_documents, result_to_json
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.bundle_documents import (
    build_unlinked_manifest,
    descriptor_from_json,
    descriptor_to_json,
    link_manifest,
)
from pinwarden.bundle.document import add_signature, build_default_profile
from pinwarden.bundle.log_documents import POINTER_SIGNED_FIELDS
from pinwarden.core.record import replace
from tests.support.bundle_world import (
    AUDITOR,
    BEFORE,
    FILES,
    MAINTAINER,
    OTHER_DOCUMENT,
    REGISTRY,
    STRANGER,
    TRUST,
    VERIFIER,
    Documents,
    attested,
    documents,
    encoded,
    entries_of,
)


def code_of(request: AcceptanceRequest) -> str:
    verdict = accept(request)
    return "ACCEPT" if verdict.rejection is None else verdict.rejection.code


def codes(made: Documents, **changes: Any) -> tuple[str, str]:
    """Hardened, and by the letter."""
    return code_of(made.request(**changes)), code_of(made.request(literal=True, **changes))


def test_an_accepted_bundle_comes_with_its_documents() -> None:
    made = documents()
    verdict = accept(made.request())
    assert verdict.documents == check_documents(encoded(made.descriptor), encoded(made.manifest))
    assert result_to_json(verdict)["provenance"]["attestations_used"] == [VERIFIER.public_key.did]
    assert accept(made.request(literal=True)).documents is None


def test_swapped_manifest_of_another_bundle_is_refused() -> None:
    made = documents()
    foreign = build_unlinked_manifest(entries_of({**FILES, "main.py": b"evil"}))
    made.manifest = link_manifest(foreign, made.descriptor_cid)
    assert codes(made) == ("MANIFEST_CID_MISMATCH", "ACCEPT")


def test_attestation_of_the_same_files_under_a_tighter_policy_does_not_count() -> None:
    made = documents()
    made.attestations = [attested(made.root_cid, OTHER_DOCUMENT)]
    assert codes(made) == ("NO_VALID_ATTESTATIONS", "ACCEPT")
    made.attestations = [attested(made.root_cid, made.descriptor_cid, verified_descriptor_cid=OTHER_DOCUMENT)]
    assert codes(made) == ("NO_VALID_ATTESTATIONS", "ACCEPT")


def test_unsupported_cid_profile_is_refused_even_if_all_documents_agree() -> None:
    made = Documents()
    weak = {**build_default_profile(), "hash": "md5"}
    made.unlinked["cid_profile"] = weak
    made.finish()
    made.descriptor["artifact"]["cid_profile"] = weak
    made.link()
    made.pointer["pointers"][0]["cid_profile"] = weak
    assert codes(made) == ("CID_PROFILE_MISMATCH", "ACCEPT")


@pytest.mark.parametrize("value", [1, "yes", False, None])
def test_other_normalization_is_refused(value: Any) -> None:
    made = Documents()
    profile = build_default_profile()
    profile["normalization"]["reject_symlinks"] = value
    made.finish()
    made.descriptor["artifact"]["cid_profile"] = profile
    made.link()
    made.pointer["pointers"][0]["cid_profile"] = profile
    assert code_of(made.request()) == "CID_PROFILE_MISMATCH"


def test_true_is_not_one_where_profiles_are_compared() -> None:
    made = Documents()
    made.finish()
    made.descriptor["artifact"]["cid_profile"]["normalization"]["sort_entries"] = 1
    made.link()
    assert codes(made) == ("CID_PROFILE_MISMATCH", "CID_PROFILE_MISMATCH")


def test_a_second_signature_counts_if_the_first_is_by_an_unknown_key() -> None:
    made = documents()
    twice = add_signature(add_signature(made.pointer, POINTER_SIGNED_FIELDS, STRANGER), POINTER_SIGNED_FIELDS, REGISTRY)
    assert codes(made, pointer=encoded(twice)) == ("ACCEPT", "POINTER_SIGNATURE_INVALID")


def test_only_a_limited_number_of_signatures_is_verified() -> None:
    made = documents()
    good = add_signature(made.pointer, POINTER_SIGNED_FIELDS, REGISTRY)
    padded = {**good, "signatures": [{}] * 1000 + good["signatures"]}
    assert code_of(made.request(pointer=encoded(padded))) == "POINTER_SIGNATURE_INVALID"


def test_forged_attestation_with_a_known_key_s_name_does_not_count() -> None:
    made = documents()
    forged = attested(made.root_cid, made.descriptor_cid, STRANGER, issuer=VERIFIER)
    forged["signatures"][0]["key_id"] = VERIFIER.public_key.did
    made.attestations = [forged]
    assert codes(made) == ("NO_VALID_ATTESTATIONS", "NO_VALID_ATTESTATIONS")


def test_a_key_without_roles_cannot_attest() -> None:
    made = documents()
    known = tuple(replace(key, roles=()) for key in TRUST.known_keys)
    assert codes(made, trust=replace(TRUST, known_keys=known)) == ("NO_VALID_ATTESTATIONS", "ACCEPT")


def test_an_attestation_that_is_not_json_is_skipped_and_reported() -> None:
    made = documents()
    assert code_of(made.request(attestations=(b"{", encoded((made.attestations or [])[0])))) == "ACCEPT"
    refusal = accept(made.request(attestations=(b"{",))).rejection
    assert refusal is not None
    assert refusal.why["not_counted"][0].startswith("attestation 1: the attestation ")


def test_signers_are_counted_once_and_different_ones_together() -> None:
    made = Documents()
    made.constraints = replace(made.constraints, min_attestations=2)
    made.finish()
    made.link()
    made.more_attestations = [attested(made.root_cid, made.descriptor_cid)]
    assert codes(made) == ("INSUFFICIENT_ATTESTATIONS", "ACCEPT")
    made.more_attestations = [attested(made.root_cid, made.descriptor_cid, AUDITOR, "auditor")]
    assert codes(made) == ("ACCEPT", "ACCEPT")


@pytest.mark.parametrize(
    ("constraints", "code"),
    [
        ({"require_signers": "did:key:z6Mk"}, "REQUIRED_SIGNER_MISSING"),
        ({"min_attestations": "1"}, "INSUFFICIENT_ATTESTATIONS"),
        ({"min_attestations": True}, "INSUFFICIENT_ATTESTATIONS"),
        ({"min_attestations": 0}, "DOCUMENT_INVALID"),
        ({"require_verifier_attestation": "no"}, "DOCUMENT_INVALID"),
        ([], "DOCUMENT_INVALID"),
    ],
)
def test_an_invalid_requirement_is_not_met(constraints: Any, code: str) -> None:
    made = documents()
    made.pointer["pointers"][0]["constraints"] = constraints
    assert code_of(made.request()) == code


@pytest.mark.parametrize(
    "path", ["../evil", "/etc/evil", "a/./b", "a//b", "con", "a\x00b", "b/", "lib:x", "MAIN.py", "main.py/x"]
)
def test_unportable_path_is_refused(path: str) -> None:
    made = Documents({**FILES, path: b""})
    made.finish()
    made.link()
    assert codes(made) == ("MANIFEST_PATH_INVALID", "ACCEPT")


def test_any_permission_other_than_deny_counts_as_requested() -> None:
    for name, code in (("network", "POLICY_BLOCKED_NETWORK"), ("exec", "POLICY_BLOCKED_EXEC")):
        made = Documents()
        made.finish()
        made.descriptor["security"]["policy"][name] = "some"
        made.link()
        assert codes(made) == (code, "ACCEPT")


def test_only_the_requested_pointer_is_checked() -> None:
    made = documents()
    first = {**made.pointer["pointers"][0], "channel": "legacy-main"}
    made.pointer["pointers"].insert(0, first)
    assert codes(made) == ("LEGACY_NOT_ALLOWED", "LEGACY_NOT_ALLOWED")
    assert codes(made, tool="acme.notes", channel="stable") == ("ACCEPT", "ACCEPT")
    assert codes(made, tool="acme.weather") == ("POINTER_NOT_FOUND", "POINTER_NOT_FOUND")
    made.pointer["pointers"] = []
    assert codes(made) == ("POINTER_NOT_FOUND", "POINTER_NOT_FOUND")


@pytest.mark.parametrize("value", [None, [], 1, "x", {}, {"pointers": 1, "signatures": {}}])
def test_documents_of_any_other_shape_are_refused_without_a_crash(value: Any) -> None:
    made = documents()
    data = encoded(value)
    for literal in (False, True):
        whole = made.request(literal=literal)
        codes = [
            code_of(replace(whole, pointer=data)),
            code_of(replace(whole, descriptor=data)),
            code_of(replace(whole, manifest=data)),
            code_of(replace(whole, attestations=(data,))),
        ]
        assert codes[0] == "POINTER_SIGNATURE_INVALID"
        assert codes[1] == "CID_PROFILE_MISMATCH"
        assert codes[2] == ("MANIFEST_CID_MISMATCH" if literal else "CID_PROFILE_MISMATCH")
        assert codes[3] == "NO_VALID_ATTESTATIONS"


def test_an_entry_point_that_is_not_in_the_bundle_is_refused() -> None:
    made = Documents()
    made.described = {"target": "other.py:main"}
    made.finish()
    made.link()
    assert codes(made) == ("DOCUMENT_INVALID", "ACCEPT")


# Documents


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"trusted_registry_keys": {}},
        {"known_keys": [1]},
        {"known_keys": [{"key_id": VERIFIER.public_key.did, "public_key": AUDITOR.public_key.base64url}]},
        {"known_keys": [{"key_id": "did:key:z6Mk", "public_key": "AAAA"}]},
        {"known_keys": [{"key_id": VERIFIER.public_key.did, "roles": "verifier"}]},
        {"known_keys": [{"key_id": VERIFIER.public_key.did, "alg": "rsa"}]},
        {"known_keys": [{"key_id": VERIFIER.public_key.did}] * 2},
    ],
)
def test_an_ambiguous_trust_file_is_an_error_and_is_not_treated_as_empty(document: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        trust.trust_from_json(document)
    assert caught.value.code == "TRUST_INVALID"


@pytest.mark.parametrize(
    "document", [[], {"network": "some"}, {"networks": "deny"}, {"allow_legacy": 1}, {"exec": None}]
)
def test_an_invalid_installer_policy_is_an_error(document: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        trust.installer_policy_from_json(document)
    assert caught.value.code == "POLICY_INVALID"


def test_documents_survive_a_round_trip() -> None:
    made = documents()
    assert descriptor_to_json(descriptor_from_json(made.descriptor)) == made.descriptor
    envelope = (made.attestations or [])[0]
    read = attestation.attestation_from_json(envelope)
    value = attestation.build_unsigned_attestation(read.root_cid, read.descriptor_cid, read.cid_profile, read.claims)
    assert {**value, "signatures": envelope["signatures"]} == envelope


def test_a_log_event_survives_a_round_trip() -> None:
    event = log_documents.LogEvent(
        log_id="acme",
        seq=0,
        tool="acme.notes",
        channel="stable",
        prev_root_cid=None,
        new_root_cid=OTHER_DOCUMENT,
        descriptor_cid=OTHER_DOCUMENT,
        cid_profile=build_default_profile(),
        reason="publish",
        issued_at_utc=BEFORE,
        issuer_key_id=MAINTAINER.public_key.did,
        issuer_name="acme",
    )
    document = add_signature(
        log_documents.build_unsigned_log_event(event), log_documents.LOG_EVENT_SIGNED_FIELDS, MAINTAINER
    )
    read = log_documents.log_event_from_json(json.loads(log_documents.encode_leaf(document)))
    assert replace(read, signatures=()) == event
    assert read.document == document
