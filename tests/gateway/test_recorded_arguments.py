"""The log records arguments without secrets and within a size limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.gateway.gates.results import mask_arguments

TOKEN = "ghp_" + "a1B2" * 9


def recorded(value: Any) -> Any:
    return json.loads(mask_arguments(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"query": "meeting notes of March", "limit": 20, "exact": True, "score": 0.5, "tags": ["a", "b"]},
        {"path": "/home/user/notes.md", "options": {"depth": [1, 2, {"x": None}]}},
        {"text": "Grüße aus Köln"},
    ],
)
def test_ordinary_arguments_are_recorded_unchanged(value: Any) -> None:
    assert recorded(value) == value


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"password": "hunter2"}, {"password": "<secret>"}),
        ({"login": {"api_key": ["k1", "k2"]}}, {"login": {"api_key": ["<secret>", "<secret>"]}}),
        ({"pin_token": 123456}, {"pin_token": "<secret>"}),
        ({"query": TOKEN}, {"query": "<secret>"}),
        ({"command": f"curl -H 'Authorization: Bearer {TOKEN}' x"}, None),
        ({"url": "https://me:secret@db.example/x?key=1"}, {"url": "<secret>"}),
        ({TOKEN: 1}, {"<secret>": 1}),
    ],
)
def test_keys_and_passwords_in_arguments_are_masked(value: Any, kept: Any) -> None:
    text = mask_arguments(value).decode()
    assert kept is None or json.loads(text) == kept
    assert not any(item in text for item in (TOKEN, "hunter2", "123456", "me:secret", '"k1"'))


def test_a_file_passed_as_an_argument_is_recorded_by_its_length() -> None:
    assert recorded({"content": "line\n" * 10_000}) == {"content": "<50000 characters>"}


def test_very_large_arguments_are_truncated_and_marked() -> None:
    text = mask_arguments({"all": [f"word {number}" for number in range(1_000_000)], "later": "x"})
    assert len(text) < 64 * 1024
    assert json.loads(text)["all"][-1] == "<left out>"
