"""CIDs against an independent DAG-CBOR encoder."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import dag_cbor
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import Cid, PinwardenError, blob_cid, canonicalize, document_cid, manifest_root_cid, parse_json
from pinwarden.core.digest import document_cbor

text = st.text(st.characters(codec="utf-8"), max_size=10)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_dag_cbor_equals_the_dag_cbor_package(value: Any) -> None:
    try:
        read_back = parse_json(canonicalize(value, "rulebook"))
    except PinwardenError:
        with pytest.raises(PinwardenError):
            document_cid(value)
        return
    assert document_cbor(value) == dag_cbor.encode(read_back)


def test_one_and_one_point_zero_are_one_document() -> None:
    assert document_cid(b'{"n":1.0}') == document_cid({"n": 1}) != document_cid({"n": 1.5})


def test_the_cid_of_a_manifest_covers_its_content_and_not_its_links() -> None:
    manifest = {"schema_version": "v", "cid_profile": {}, "entries": []}
    linked = {**manifest, "root_cid": "x", "descriptor_cid": "y", "created_at_utc": "z"}
    assert manifest_root_cid(linked) == manifest_root_cid(manifest) == document_cid(manifest)
    assert document_cid(linked) != manifest_root_cid(linked)


@pytest.mark.parametrize("manifest", [[], {}, {"schema_version": "v", "entries": []}, b'"x"'])
def test_a_manifest_without_its_members_has_no_root(manifest: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        manifest_root_cid(manifest)
    assert caught.value.code == "MANIFEST_INVALID"


def test_the_text_form_round_trips_and_distinguishes_blobs_from_documents() -> None:
    for cid in (blob_cid(b"x"), document_cid(None)):
        assert Cid.parse(str(cid)) == cid
    assert bytes(document_cid(None))[:4] == b"\x01\x71\x12\x20"
    assert bytes(blob_cid(b"x")) == b"\x01\x55\x12\x20" + sha256(b"x").digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        "bafy",
        str(blob_cid(b"")).upper(),
        "z" + str(blob_cid(b""))[1:],
        str(blob_cid(b"")) + "a",
        "Qm" * 23,
        None,
    ],
)
def test_another_spelling_or_kind_of_cid_is_refused(text: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        Cid.parse(text)
    assert caught.value.code == "CID_INVALID"
