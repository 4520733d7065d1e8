"""The sentence about one difference: what changed, with the values, and no name that can end its quotation."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.surface.drift.change_words import describe_in_words
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import surface_from_listing


def words(before: Any, after: Any) -> list[str]:
    """The sentences about the change from one input schema to another."""
    old, new = (
        surface_from_listing(
            {"capabilities": {"tools": {}}, "tools": [{"name": "search", "inputSchema": {"type": "object", **schema}}]}
        )
        for schema in (before, after)
    )
    return describe_in_words(compare(old, new))


def parameter(**schema: Any) -> dict[str, Any]:
    return {"properties": {"q": schema}}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (parameter(maximum=50), parameter(maximum=1000), '"q" may now be at most 1000, was at most 50.'),
        (parameter(maxLength=5), parameter(), '"q" no longer has to be at most 5 characters long.'),
        (parameter(), parameter(minItems=2), '"q" must now be a list of at least 2 entries.'),
        (parameter(enum=["a"]), parameter(enum=["a", "b"]), '"q" now also accepts "b".'),
        (parameter(enum=["a", "b", "c"]), parameter(enum=["a", "b"]), '"q" no longer accepts "c".'),
        (parameter(type="integer"), parameter(type=["integer", "string"]), '"q" now also accepts the type "string".'),
        (parameter(default=5), parameter(default=50), '"q" now defaults to 50, was 5.'),
        (parameter(), parameter(default="x"), '"q" now defaults to "x"; it had no default.'),
        ({}, parameter(type="string"), 'New optional parameter "q" ("string").'),
        ({}, {**parameter(type="string"), "required": ["q"]}, 'New required parameter "q" ("string").'),
        (parameter(type="string"), {}, 'Parameter "q" was removed.'),
        (parameter(), {**parameter(), "required": ["q"]}, '"q" is now required.'),
        ({**parameter(), "required": ["q"]}, parameter(), '"q" is no longer required.'),
        (parameter(description="a b"), parameter(description="a c"), 'The description of "q" was reworded.'),
        (
            {"additionalProperties": False},
            {"additionalProperties": True},
            "Arguments that the schema does not name are now accepted.",
        ),
        (
            parameter(properties={"r": {"items": {"maximum": 1}}}),
            parameter(properties={"r": {"items": {"maximum": 2}}}),
            '"q.r[]" may now be at most 2, was at most 1.',
        ),
    ],
)
def test_a_sentence_says_what_changed(before: Any, after: Any, sentence: str) -> None:
    assert sentence in words(before, after)


def test_attack_a_name_cannot_end_its_quotation() -> None:
    name = 'q" was removed. Nothing else changed. "x'
    (sentence,) = words({}, {"properties": {name: {"type": "string"}}})
    assert sentence == r'New optional parameter "q\" was removed. Nothing else changed. \"x" ("string").'


def test_a_long_value_is_shortened_and_an_unknown_change_has_its_reason() -> None:
    (sentence,) = words(parameter(default="a"), parameter(default="b" * 10_000))
    assert len(sentence) < 200
    assert words(parameter(**{"x-unknown": 1}), parameter(**{"x-unknown": 2})) == [
        "A keyword changed, and Pinwarden does not know which values it accepts."
    ]
