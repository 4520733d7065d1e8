"""The schemas of bundle documents and of the author's lock agree with their readers about every spoilt member."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pinwarden.bundle.attestation import attestation_from_json
from pinwarden.bundle.bundle_documents import descriptor_from_json, manifest_from_json
from pinwarden.bundle.log_documents import Constraints, pointers_from_json
from pinwarden.contract.lockfile import generate_lockfile, parse_lockfile, serialize_lockfile
from tests.docs.schemas import problems
from tests.docs.test_schemas import accepted, spoilt_copies
from tests.support.bundle_world import documents
from tests.support.contracts import MADE_AT, extension_of, listing, locked, wire_tool


def read_contract(value: Any) -> None:
    parse_lockfile(json.dumps(value).encode())


def build_documents() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """A valid document of each kind, and its reader."""
    made = documents()
    made.constraints = Constraints(
        require_signers=("did:key:z",), require_verifier_attestation=True, min_attestations=2
    )
    made.link()
    request = made.request()
    plain = generate_lockfile("notes", extension_of(listing(wire_tool("read"))).contracts, generated_at=MADE_AT)
    return {
        "bundle-descriptor": (json.loads(request.descriptor), descriptor_from_json),
        "bundle-manifest": (json.loads(request.manifest), manifest_from_json),
        "bundle-attestation": (json.loads(request.attestations[0]), attestation_from_json),
        "registry-pointer": (json.loads(request.pointer or b""), pointers_from_json),
        "contract": (json.loads(serialize_lockfile(plain)), read_contract),
    }


@pytest.mark.parametrize(
    "name", ["bundle-descriptor", "bundle-manifest", "bundle-attestation", "registry-pointer", "contract"]
)
def test_the_schema_and_the_reader_agree_on_every_spoilt_member(name: str) -> None:
    document, read = build_documents()[name]
    read(document)
    assert problems(name, document) == []
    outcomes = []
    for what, copy in spoilt_copies(document):
        good = accepted(read, copy)
        assert (problems(name, copy) == []) == good, what
        outcomes.append(good)
    assert outcomes.count(False) > 30
    assert outcomes.count(True) > 5


def test_the_schema_names_every_member_of_the_extension_of_an_authors_lock() -> None:
    document = json.loads(serialize_lockfile(locked(listing(wire_tool("read_note"), prompts=[{"name": "hello"}]))))
    assert problems("contract", document) == []
    document["pinwarden"]["surface"]["initialize"] = {}
    assert len(problems("contract", document)) == 1
