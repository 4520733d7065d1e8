"""Digest of a tool: ours covers every member, Hangar's covers four."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden import PinwardenError, tool_digest

TOOL: dict[str, Any] = {"name": "t", "description": "d", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    "extra",
    [
        {"title": "x"},
        {"annotations": {"readOnlyHint": True}},
        {"outputSchema": {}},
        {"icons": []},
        {"_meta": None},
        {"unknownToAnySdk": 1},
        {"description": ""},
    ],
)
def test_every_member_counts_in_our_digest_even_empty_or_unknown_ones(extra: dict[str, Any]) -> None:
    assert tool_digest({**TOOL, **extra}) != tool_digest(TOOL)


def test_member_order_and_number_form_do_not_count() -> None:
    one = b'{"name":"t","inputSchema":{"minimum":1,"maximum":2.0}}'
    other = b'{ "inputSchema": {"maximum": 2, "minimum": 1.0}, "name": "\\u0074" }'
    assert tool_digest(one) == tool_digest(other)


def test_hangar_does_not_see_what_it_does_not_cover() -> None:
    assert tool_digest({**TOOL, "annotations": {"readOnlyHint": True}}, "hangar") == tool_digest(TOOL, "hangar")


@pytest.mark.parametrize("tool", [None, [], "t", {}, {"name": ""}, {"name": 1}, {"description": "d"}, b"[]", b"{}"])
def test_a_tool_without_a_usable_name_is_refused(tool: Any) -> None:
    with pytest.raises(PinwardenError) as caught:
        tool_digest(tool)
    assert caught.value.code == "TOOL_INVALID"


@pytest.mark.parametrize(
    "text",
    [
        b'{"name":"t","description":"\\ud800"}',
        b'{"name":"t","inputSchema":{"maximum":' + b"9" * 400 + b"}}",
        b'{"name":"t","name":"t"}',
    ],
)
def test_a_tool_without_a_canonical_form_is_refused(text: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        tool_digest(text)
    assert caught.value.code == "JSON_CANONICALIZATION_ERROR"


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(PinwardenError, match=r"known: pinwarden, hangar-1\.2, hangar") as caught:
        tool_digest(TOOL, "jcs")
    assert caught.value.code == "PROFILE_UNKNOWN"
