"""Rulebook v0.1.1: canonical JSON, CIDs, preimages and signatures (sections 1, 3 and 4).

Every case counts: ``must`` and ``notes`` decide conformance, ``recommended`` is our own default behaviour.
"""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from typing import Any

import pytest

from pinwarden import (
    PinwardenError,
    PrivateKey,
    PublicKey,
    blob_cid,
    canonicalize,
    document_cid,
    manifest_root_cid,
    parse_json,
    signing_preimage,
)
from pinwarden.core.digest import document_cbor
from pinwarden.core.keys import encode_base64url, is_document_signature_valid, sign_document
from tests.conformance.vectors import cases, load, uncopied


def rulebook(category: str) -> list[Any]:
    rows = load(f"rulebook/generated/{category}.json")["cases"]
    published = uncopied("rulebook/published/published_cases.json")
    if published:
        rows = rows + json.loads(published.read_text(encoding="utf-8"))[category]
    return cases(rows)


@pytest.mark.parametrize("case", rulebook("canonical_json"))
def test_canonical_json_is_as_the_rulebook_says(case: dict[str, Any]) -> None:
    data, expect = b64decode(case["input_b64"]), case["expect"]
    if "error" in expect:
        with pytest.raises(PinwardenError) as caught:
            canonicalize(data, "rulebook")
        assert caught.value.code == expect["error"]
    else:
        canonical = canonicalize(data, "rulebook")
        assert canonical.decode() == expect["canonical"]
        assert sha256(canonical).hexdigest() == expect["sha256"]


@pytest.mark.parametrize("case", rulebook("cid"))
def test_cid_is_as_the_rulebook_says(case: dict[str, Any]) -> None:
    data, expect = input_bytes(case), case["expect"]
    compute = {"document": document_cid, "manifest-root": manifest_root_cid, "blob": blob_cid}[case["mode"]]
    if "error" in expect:
        with pytest.raises(PinwardenError) as caught:
            compute(data)
        assert caught.value.code == expect["error"]
        return
    assert str(compute(data)) == expect["cid"]
    if case["mode"] == "document":
        assert str(document_cid(parse_json(data))) == expect["cid"]
        assert sha256(document_cbor(data)).hexdigest() == expect["cbor_sha256"]
        assert document_cbor(data).hex() == expect.get("cbor_hex", document_cbor(data).hex())


def input_bytes(case: dict[str, Any]) -> bytes:
    if "input_text" in case:
        text: str = case["input_text"]
        return text.encode()
    if "input_b64" in case:
        return b64decode(case["input_b64"])
    repeat = case["input_repeat"]
    count: int = repeat["count"]
    return bytes.fromhex(repeat["byte_hex"]) * count


@pytest.mark.parametrize("case", rulebook("preimage_signature"))
def test_preimages_and_signatures_are_as_the_rulebook_says(case: dict[str, Any]) -> None:
    CHECKS[case["kind"]](case, case["expect"])


def check_preimage(case: dict[str, Any], expect: dict[str, Any]) -> None:
    document = case["document_text"].encode()
    if "error" in expect:
        with pytest.raises(PinwardenError) as caught:
            signing_preimage(document, case["signed_fields"])
        assert caught.value.code == expect["error"]
        return
    preimage = signing_preimage(document, case["signed_fields"])
    if "preimage_b64" in expect:
        assert preimage == b64decode(expect["preimage_b64"])
    assert sha256(preimage).hexdigest() == expect["sha256"]
    assert len(preimage) == expect["length"]


def check_sign_bytes(case: dict[str, Any], expect: dict[str, Any]) -> None:
    key = PrivateKey.from_seed(bytes.fromhex(case["seed_hex"]))
    assert key.public_key.raw.hex() == expect["public_key_hex"]
    assert encode_base64url(key.sign(bytes.fromhex(case["message_hex"]))) == expect["sig_b64url"]


def check_sign_document(case: dict[str, Any], expect: dict[str, Any]) -> None:
    key = PrivateKey.from_seed(bytes.fromhex(case["seed_hex"]))
    assert sign_document(case["document_text"].encode(), case["signed_fields"], key) == expect["signature"]


def check_verify_document(case: dict[str, Any], expect: dict[str, Any]) -> None:
    document = parse_json(case["document_text"].encode())
    known = [PublicKey.parse(key["public_key"]) for key in case["known_keys"]]
    assert is_document_signature_valid(document, document["signatures"][0], known) is expect["valid"]


def check_did_key(case: dict[str, Any], expect: dict[str, Any]) -> None:
    key = PublicKey.parse(case["public_key_b64url"])
    assert key.did == expect["key_id"]
    assert PublicKey.parse(key.did) == key


def check_did_key_decode(case: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["error"] is True
    with pytest.raises(PinwardenError) as caught:
        PublicKey.parse(case["key_id"])
    assert caught.value.code == "KEY_INVALID"


CHECKS = {
    "preimage": check_preimage,
    "sign-bytes": check_sign_bytes,
    "sign-document": check_sign_document,
    "verify-document": check_verify_document,
    "did-key": check_did_key,
    "did-key-decode": check_did_key_decode,
}
