"""Expressions that are compiled when they are used."""

from __future__ import annotations

import re

import pytest

from pinwarden.core.text import lazy_pattern


def test_a_lazy_pattern_matches_like_a_compiled_one() -> None:
    mine, other = lazy_pattern(r"(a+)(b)?", re.IGNORECASE), re.compile(r"(a+)(b)?", re.IGNORECASE)
    text = "xAAb aB c"
    assert [match.groups() for match in mine.finditer(text)] == [match.groups() for match in other.finditer(text)]
    assert (mine.sub("-", text), mine.split(text), mine.findall(text)) == (
        "x- - c",
        other.split(text),
        other.findall(text),
    )
    assert mine.fullmatch("aab") is not None
    assert mine.match(text) is None
    assert mine.pattern == other.pattern
    assert lazy_pattern(rb"\d+").search(b"a12").group() == b"12"  # type: ignore[union-attr]


def test_a_pattern_that_is_never_used_is_never_compiled() -> None:
    broken = lazy_pattern("(")
    with pytest.raises(re.error):
        broken.match("")
