"""Where two things are wrong with a bundle at once, the answer is the one that the rulebook names first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from pinwarden.bundle.acceptance import accept
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.attestation import ATTESTATION_SIGNED_FIELDS
from pinwarden.bundle.document import add_signature
from pinwarden.core.record import replace
from tests.support.bundle_world import AUDITOR, BEFORE, FILES, MAINTAINER, OTHER_DOCUMENT, STRANGER, Documents, attested

# A fault works at one of four moments: before anything is computed, after the files' root is known, after all is
# linked, or on the bytes at the very end.
Early = Callable[[Documents], None]
Late = Callable[[AcceptanceRequest], AcceptanceRequest]


def broken_pointer(request: AcceptanceRequest) -> AcceptanceRequest:
    return replace(request, pointer=request.pointer[:-1])


def ambiguous_pointer(request: AcceptanceRequest) -> AcceptanceRequest:
    return replace(request, pointer=b'{"a": 1, "a": 2,' + request.pointer[1:])


def broken_descriptor(request: AcceptanceRequest) -> AcceptanceRequest:
    return replace(request, descriptor=b"\xff" + request.descriptor)


def ambiguous_manifest(request: AcceptanceRequest) -> AcceptanceRequest:
    return replace(request, manifest=b'{"a": 1, "a": 2,' + request.manifest[1:])


def signed_by_a_stranger(made: Documents) -> None:
    made.registry = STRANGER


def on_a_legacy_channel(made: Documents) -> None:
    made.channel = "legacy-main"


def another_profile(made: Documents) -> None:
    made.descriptor["artifact"]["cid_profile"]["version"] = "2"


def another_root(made: Documents) -> None:
    made.descriptor["artifact"]["root_cid"] = OTHER_DOCUMENT


def altered_descriptor(made: Documents) -> None:
    made.descriptor["tool"]["description"] = "Keeps notes, and sends them on."


def altered_manifest(made: Documents) -> None:
    made.manifest["entries"][0]["size_bytes"] += 1


def linked_elsewhere(made: Documents) -> None:
    made.manifest["descriptor_cid"] = OTHER_DOCUMENT


def unsorted(made: Documents) -> None:
    made.unlinked["entries"].reverse()


def backslash(made: Documents) -> None:
    (entry,) = (row for row in made.unlinked["entries"] if row["path"] == "README.md")
    entry["path"] = "README\\.md"


def expired(made: Documents) -> None:
    made.more_attestations = [attested(made.root_cid, made.descriptor_cid, AUDITOR, "auditor", expires=BEFORE)]


def no_trusted_attester(made: Documents) -> None:
    made.attestations = []


def another_signer_demanded(made: Documents) -> None:
    made.constraints = replace(made.constraints, require_signers=("did:key:z6MkNotBase58IO",))


def a_verifier_demanded(made: Documents) -> None:
    made.constraints = replace(made.constraints, require_verifier_attestation=True)
    made.signer, made.role = MAINTAINER, "maintainer"


def more_demanded(made: Documents) -> None:
    made.constraints = replace(made.constraints, min_attestations=9)


def asks(**wanted: str) -> Early:
    def change(made: Documents) -> None:
        made.descriptor["security"]["policy"].update(wanted)

    return change


def without_a_moment(made: Documents) -> None:
    made.pointer["pointers"][0]["updated_at_utc"] = "today"


def under_another_name(made: Documents) -> None:
    made.pointer["pointers"][0]["tool"] = "acme.weather"


FIRST, ROOTED, LINKED = "before the root", "before the link", "after the link"
FAULTS: list[tuple[str, str, Early]] = [
    ("POINTER_SIGNATURE_INVALID", FIRST, signed_by_a_stranger),
    ("LEGACY_NOT_ALLOWED", FIRST, on_a_legacy_channel),
    ("CID_PROFILE_MISMATCH", ROOTED, another_profile),
    ("ROOT_CID_MISMATCH", ROOTED, another_root),
    ("DESCRIPTOR_CID_MISMATCH", LINKED, altered_descriptor),
    ("MANIFEST_CID_MISMATCH", LINKED, altered_manifest),
    ("MANIFEST_DESCRIPTOR_LINK_MISMATCH", LINKED, linked_elsewhere),
    ("MANIFEST_ENTRY_ORDER_INVALID", FIRST, unsorted),
    ("MANIFEST_PATH_INVALID", FIRST, backslash),
    ("ATTESTATION_EXPIRED", LINKED, expired),
    ("NO_VALID_ATTESTATIONS", FIRST, no_trusted_attester),
    ("REQUIRED_SIGNER_MISSING", FIRST, another_signer_demanded),
    ("VERIFIER_ATTESTATION_REQUIRED", FIRST, a_verifier_demanded),
    ("INSUFFICIENT_ATTESTATIONS", FIRST, more_demanded),
    ("POLICY_BLOCKED_NETWORK", ROOTED, asks(network="allow")),
    ("POLICY_BLOCKED_FILESYSTEM", ROOTED, asks(filesystem="read_write")),
    ("POLICY_BLOCKED_EXEC", ROOTED, asks(exec="allow")),
    # Those without a code in the rulebook, which come after all that have one.
    ("DOCUMENT_INVALID", LINKED, without_a_moment),
    ("TOOL_NAME_MISMATCH", LINKED, under_another_name),
]
BYTES: list[tuple[str, int, Late]] = [
    ("JSON_PARSE_ERROR", 0, broken_pointer),
    ("JSON_CANONICALIZATION_ERROR", 0, ambiguous_pointer),
    ("JSON_PARSE_ERROR", 2, broken_descriptor),
    ("JSON_CANONICALIZATION_ERROR", 2, ambiguous_manifest),
]
"""With the place among the faults above before which they stand."""
LITERAL = len(FAULTS) - 2
"""To the letter there is nothing beyond the codes of the rulebook."""


def answer(faults: list[tuple[str, str, Early]], late: list[Late], *, literal: bool) -> str:
    made = Documents(FILES)
    for moment, then in ((FIRST, made.finish), (ROOTED, made.link), (LINKED, lambda: None)):
        for _, when, change in faults:
            if when == moment:
                change(made)
        then()
    request = made.request(literal=literal)
    for fault in late:
        request = fault(request)
    verdict = accept(request)
    return "ACCEPT" if verdict.rejection is None else verdict.rejection.code


@pytest.mark.parametrize("literal", [False, True], ids=["hardened", "literal"])
def test_every_fault_alone_has_its_code(literal: bool) -> None:
    faults = FAULTS[:LITERAL] if literal else FAULTS
    assert [answer([fault], [], literal=literal) for fault in faults] == [code for code, _, _ in faults]
    assert [answer([], [late], literal=literal) for _, _, late in BYTES] == [code for code, _, _ in BYTES]
    assert answer([], [], literal=literal) == "ACCEPT"


@pytest.mark.parametrize("literal", [False, True], ids=["hardened", "literal"])
def test_of_two_faults_the_one_that_the_rulebook_checks_first_is_reported(literal: bool) -> None:
    faults = FAULTS[:LITERAL] if literal else FAULTS
    wrong = [
        (first[0], second[0], code_reported)
        for first, second in combinations(faults, 2)
        if (code_reported := answer([first, second], [], literal=literal)) != first[0]
    ]
    assert wrong == []


@pytest.mark.parametrize("literal", [False, True], ids=["hardened", "literal"])
def test_unreadable_bytes_fail_the_step_that_parses_them(literal: bool) -> None:
    faults = FAULTS[:LITERAL] if literal else FAULTS
    for code, position, late in BYTES:
        codes = [answer([fault], [late], literal=literal) for fault in faults]
        assert codes == [faults[index][0] if index < position else code for index in range(len(faults))]
    pairs = list(combinations(BYTES, 2))
    codes = [answer([], [second[2], first[2]], literal=literal) for first, second in pairs]
    assert codes == [first[0] for first, _ in pairs]


def test_several_faults_are_reported_one_by_one_as_they_are_fixed() -> None:
    left = list(FAULTS)
    while left:
        assert answer(left, [], literal=False) == left[0][0]
        left.pop(0)


def test_an_expired_claim_in_another_issuers_name_does_not_block() -> None:
    made = Documents(FILES)
    made.finish()
    made.link()
    spoofed = attested(made.root_cid, made.descriptor_cid, MAINTAINER, "auditor", issuer=AUDITOR, expires=BEFORE)
    made.more_attestations = [spoofed]
    assert accept(made.request()).accepted
    assert accept(made.request(literal=True)).rejection is not None
    assert add_signature(spoofed, ATTESTATION_SIGNED_FIELDS, MAINTAINER) == spoofed
