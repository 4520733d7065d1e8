"""Cutting a JSON text at its outermost level."""

from __future__ import annotations

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_array

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "text",
    [b'"]"', rb'"\"]"', rb'"\\"', b'""', rb'"a\n\"b\""', b'"' + rb"\"" * 10_000 + b'"', b'"' + b"a" * 9000 + b'"'],
)
def test_values_nested_too_deeply_are_skipped_to_their_closing_bracket(text: bytes) -> None:
    deep = b"[" + text + b",{" + text + b":" + DEEP + b"}]"
    assert split_array(b"[1," + deep + b", 2 ]") == [b"1", deep, b"2"]


@pytest.mark.parametrize("end", [b'"', b'"' + rb"\"" * 50_000, b'"' + b"\\" * 50_001, b"[", b'"a'])
def test_hostile_text_without_an_end_is_refused_in_one_pass(end: bytes) -> None:
    """A parser that restarts at every quote of an unterminated string takes hours for this."""
    with pytest.raises(PinwardenError) as caught:
        split_array(b"[" + b"[" * 100_000 + end)
    assert caught.value.code == "JSON_PARSE_ERROR"
