"""MCP Hangar's digest policy: every row of its validator exactly, and what its gateway lists and lets call.

Where Hangar's gateway is wrong, ours is held to what is right: audit and warn are not the same, and every refused call
has an event and a reason of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.core.digest import Digest
from pinwarden.core.tool_digest import tool_digest
from pinwarden.gateway.gates.digests import validate_tool
from pinwarden.lock.gateway_policy import AllowedDigest, DigestPolicy
from pinwarden.surface.surface import Surface
from tests.conformance.vectors import cases, load
from tests.gateway.desk import Desk, policy, refused

MATRIX = load("hangar/policy-matrix.json")
VALIDATOR = MATRIX["validator"]
UNKNOWN = {"allow_unverified": "allow_degraded"}
ECHO: dict[str, Any] = {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}}
MUTATE: dict[str, Any] = {"name": "mutate", "description": "Change the other.", "inputSchema": {"type": "object"}}
NOTHING = Surface(server=None, items={}, observed={})


def validator_rows() -> list[Any]:
    return cases([{"id": " ".join((r["enforcement"], r["unknown"], r["case"])), **r} for r in VALIDATOR["rows"]])


@pytest.mark.parametrize("row", validator_rows())
def test_a_tool_is_validated_as_hangar_validates_it(row: dict[str, Any]) -> None:
    tool = VALIDATOR["tool"]
    pins = {
        "match": (tool_digest(tool, "hangar"),),
        "mismatch": (Digest.parse(f"sha256:{VALIDATOR['mismatch_pin']}"),),
        "unknown": (),
    }[row["case"]]
    rules = DigestPolicy(
        enforcement=row["enforcement"],
        unknown=UNKNOWN.get(row["unknown"], row["unknown"]),
        allowlist=tuple(AllowedDigest(tool=tool["name"], digest=pin, profile="hangar") for pin in pins),
    )
    found = validate_tool(tool, rules, "hangar")
    assert (found.tool_name, found.valid, found.blocked) == (tool["name"], row["valid"], row["blocked"])
    if row["event"] is None:
        assert found.enforcement is None
        return
    assert found.enforcement == row["event"]["enforcement"]
    assert found.observed is not None
    assert found.observed.hex == row["event"]["observed_digest"]
    assert [pin.hex for pin in found.expected] == [pin for pin in [row["event"]["expected_digest"]] if pin]


def test_of_several_pins_of_one_tool_each_is_enough() -> None:
    tool = VALIDATOR["tool"]
    wrong = AllowedDigest(tool=tool["name"], digest=Digest.parse(f"sha256:{VALIDATOR['mismatch_pin']}"))
    right = AllowedDigest(tool=tool["name"], digest=tool_digest(tool))
    for allowlist in ((wrong, right), (right, wrong)):
        assert validate_tool(tool, DigestPolicy(allowlist=allowlist)).valid


def test_a_tool_without_a_digest_is_blocked_where_either_word_of_the_policy_says_so() -> None:
    odd = {"name": "t", "description": "\ud800"}
    for words, blocked in ((("audit", "allow_degraded"), False), (("audit", "block"), True), (("block", "warn"), True)):
        found = validate_tool(odd, DigestPolicy(enforcement=words[0], unknown=words[1]))
        assert (found.valid, found.blocked, found.observed) == (False, blocked, None)


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
    desk = Desk(
        {"tools": [ECHO, MUTATE]},
        lock=NOTHING,
        rules=policy(
            enforcement=row["digest_enforcement"] or "block",
            unknown="block" if row["new_tools"] == "withhold" else "allow_degraded",
            allow=[{"tool": pinned["name"], "digest": pin, "profile": "hangar"}],
        ),
    )
    desk.open()
    assert ("echo" in desk.names()) == row["listed"]
    answer = desk.call("echo")
    assert ("result" in answer) == row["called"]
    assert bool(desk.served("echo")) == row["called"]
    if not row["called"]:
        assert refused(answer) == ("digest_not_allowed" if row["case"] == "mismatch" else "item_added")
        hangar = f"As hangar computes it: sha256:{tool_digest(ECHO, 'hangar').hex}."
        assert (hangar in answer["error"]["message"]) == (row["case"] == "mismatch")
        assert desk.kinds("echo") == ["blocked", "blocked"]
    elif row["case"] == "mismatch":
        word = {"audit": "allowed", "warn": "warned"}[row["digest_enforcement"]]
        assert desk.kinds("echo") == [word, word]
        assert ("_meta" in answer["result"]) == (word == "warned")
    else:
        assert desk.kinds("echo") == ["observed", "called"]
