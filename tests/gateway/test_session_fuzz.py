"""Whatever either side sends, a session neither raises nor forwards a call of a blocked tool."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, SessionHarness, approved_surface, policy

LOCK = approved_surface({"tools": [SEARCH, DELETE], "server": {"capabilities": {"tools": {}, "resources": {}}}})
STRICT = policy(results={"hidden-characters": "strip", "max-bytes": 600}, interceptors="announce")
METHODS: list[Any] = [
    *("initialize", "server/discover", "ping", "tools/list", "tools/list", "tools/call", "tools/call", "prompts/get"),
    *("prompts/list", "resources/read", "resources/templates/list", "completion/complete", "notifications/cancelled"),
    *("notifications/tools/list_changed", "elicitation/create", "sampling/createMessage", "interceptors/list"),
    *("interceptor/invoke", "subscriptions/listen", "tasks/get", "tasks/result", "notifications/tasks"),
    *("notifications/subscriptions/acknowledged", "", "x", 7, None, []),
]
IDS = [*range(7), "a", "pinwarden/test/1", "pinwarden/test/2", None, True, 1.5, [], {}]
SCALARS = [None, True, 0, -1, 1.5, "", "x", "search_notes", "delete_note", "https://a.example/", "é\u200b"]
NAMES = [
    *("name", "uri", "cursor", "requestId", "ref", "type", "arguments", "event", "phase", "payload", "x"),
    *("taskId", "notifications", "resourceSubscriptions", "result", "error", "status"),
]
MEMBERS = [
    *("tools", "nextCursor", "resultType", "inputRequests", "capabilities", "serverInfo", "instructions", "_meta"),
    *("task", "taskId", "content", "messages", "contents"),
]
TELLS = {"capabilities": {"tools": {"listChanged": True}, "resources": {"listChanged": True}}}


def anything(dice: Random, depth: int = 3) -> Any:
    if depth == 0 or dice.random() < 0.5:
        return dice.choice(SCALARS)
    if dice.random() < 0.4:
        return [anything(dice, depth - 1) for _ in range(dice.randrange(3))]
    return {dice.choice([*NAMES, *MEMBERS]): anything(dice, depth - 1) for _ in range(dice.randrange(4))}


def params(dice: Random) -> Any:
    if dice.random() < 0.2:
        return anything(dice)
    params = {"name": dice.choice(["search_notes", "delete_note", "other"]), "uri": "notes://a"}
    if dice.random() < 0.3:
        params["_meta"] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}  # type: ignore[assignment]
    return {**params, **{dice.choice(NAMES): anything(dice) for _ in range(dice.randrange(2))}}


def result(dice: Random) -> Any:
    if dice.random() < 0.3:
        return anything(dice)
    tools = [dice.choice([SEARCH, DELETE, POISONED, anything(dice)]) for _ in range(dice.randrange(4))]
    return {"tools": tools, **{dice.choice(MEMBERS): anything(dice) for _ in range(dice.randrange(3))}}


def message(dice: Random) -> bytes:
    if dice.random() < 0.1:
        return dice.choice([b"", b"{", b"[]", b"\xff", b'{"id":1,"id":2}', b'[{"jsonrpc":"2.0"}]', b"null", b"{}"])
    parts: dict[str, Any] = {"jsonrpc": "2.0"}
    if dice.random() < 0.85:
        parts["id"] = dice.choice(IDS)
    if dice.random() < 0.6:
        parts |= {"method": dice.choice(METHODS), "params": params(dice)}
    else:
        parts[dice.choice(["result", "result", "result", "error"])] = result(dice)
    return json.dumps(parts).encode()


@pytest.mark.parametrize("seed", range(8))
def test_no_sequence_of_messages_makes_a_session_raise_or_call_a_blocked_tool(seed: int) -> None:
    dice = Random(seed)
    for _ in range(40):
        first_use = dice.random() < 0.3
        rules = dice.choice([DEFAULT_GATEWAY_POLICY, STRICT])
        era = dice.choice(["2025-11-25", "2026-07-28"])
        state = {"tools": [POISONED, DELETE], "server": TELLS, "deaf": dice.choice([[], ["subscriptions/listen"]])}
        harness = SessionHarness(state, lock=LOCK, first_use=first_use, rules=rules, era=era)
        if dice.random() < 0.7:
            harness.open()
        for _ in range(dice.randrange(20)):
            (harness.client_sends if dice.random() < 0.5 else harness.server_sends)(message(dice))
            if harness.steps and harness.steps[-1].events and dice.random() < 0.2:
                harness.deliver(
                    harness.session.replace_unrecorded(harness.steps[-1], PinwardenError("AUDIT_UNAVAILABLE", "away"))
                )
            if dice.random() < 0.2:
                harness.tick(dice.choice([1.0, 25.0, 50.0]))
        harness.tick(50)
        for frame in (*harness.to_client, *harness.to_server):
            json.loads(frame)
        answers = [
            frame for frame in harness.to_client if b'"id":"pinwarden/test/' in frame and b'"method"' not in frame
        ]
        to_itself = (
            b"is invalid or in use",
            b"the method of a message is a text",
        )  # a client that used an id of the gateway
        assert all(any(entry in frame for entry in to_itself) for frame in answers), (
            "responses to the gateway's own requests are not forwarded"
        )
        calls = [entry for entry in harness.server.received if entry.get("method") == "tools/call"]
        assert first_use or all(call["params"]["name"] in listed_as_approved(harness) for call in calls)


def listed_as_approved(harness: SessionHarness) -> set[str]:
    """Return the tools that may be called: fuzzed lists can contain the approved text of the other tool."""
    forged = any(fact.item == "search_notes" and fact.kind == "observed" for fact in harness.events)
    return {"delete_note", "search_notes"} if forged else {"delete_note"}
