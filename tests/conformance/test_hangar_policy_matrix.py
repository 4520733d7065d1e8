"""MCP Hangar's digest policy: what its gateway lists and lets call.

Where Hangar's gateway is wrong, ours is held to what is right: audit and warn are not the same, and every refused call
has an event and a reason of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.core.digest import tool_digest
from pinwarden.surface.surface import Surface
from tests.conformance.vectors import cases, load
from tests.gateway.session_harness import SessionHarness, policy, refusal_code

MATRIX = load("hangar/policy-matrix.json")
VALIDATOR = MATRIX["validator"]
ECHO: dict[str, Any] = {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}}
MUTATE: dict[str, Any] = {"name": "mutate", "description": "Change the other.", "inputSchema": {"type": "object"}}
NOTHING = Surface(server=None, items={}, observed={})


def gateway_rows() -> list[Any]:
    members = ("topology", "digest_enforcement", "new_tools", "case")
    return cases([{"id": " ".join(str(r[m]) for m in members), **r} for r in MATRIX["gateway"]["rows"]])


@pytest.mark.parametrize("row", gateway_rows())
def test_the_gateway_lists_and_calls_what_hangar_would_and_always_says_why_not(row: dict[str, Any]) -> None:
    pinned, pin = {
        "match": (ECHO, tool_digest(ECHO, "hangar").hex),
        "mismatch": (ECHO, VALIDATOR["mismatch_pin"]),
        "unpinned": (MUTATE, tool_digest(MUTATE, "hangar").hex),
    }[row["case"]]
    harness = SessionHarness(
        {"tools": [ECHO, MUTATE]},
        lock=NOTHING,
        rules=policy(
            enforcement=row["digest_enforcement"] or "block",
            unknown="block" if row["new_tools"] == "withhold" else "allow_degraded",
            allow=[{"tool": pinned["name"], "digest": pin, "profile": "hangar"}],
        ),
    )
    harness.open()
    assert ("echo" in harness.list_names()) == row["listed"]
    answer = harness.call_tool("echo")
    assert ("result" in answer) == row["called"]
    assert bool(harness.calls_received("echo")) == row["called"]
    if not row["called"]:
        assert refusal_code(answer) == ("digest_not_allowed" if row["case"] == "mismatch" else "item_added")
        hangar = f"As hangar computes it: sha256:{tool_digest(ECHO, 'hangar').hex}."
        assert (hangar in answer["error"]["message"]) == (row["case"] == "mismatch")
        assert harness.event_kinds("echo") == ["blocked", "blocked"]
    elif row["case"] == "mismatch":
        word = {"audit": "allowed", "warn": "warned"}[row["digest_enforcement"]]
        assert harness.event_kinds("echo") == [word, word]
        assert ("_meta" in answer["result"]) == (word == "warned")
    else:
        assert harness.event_kinds("echo") == ["observed", "called"]
