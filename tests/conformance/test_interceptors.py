"""The working group's protocol fixtures for interceptors (SEP-2624), and the gateway's own gate in that form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.interceptors import Interceptor, InterceptorError, InterceptorHost
from tests.conformance.vectors import cases, vectors_dir
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, SessionHarness, approved_surface, policy

FOLDER = vectors_dir() / "interceptors/protocol"


def fixtures() -> list[Any]:
    return cases([json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))])


def test_every_fixture_of_the_manifest_is_there() -> None:
    manifest = json.loads((FOLDER.parent / "manifest.json").read_text(encoding="utf-8"))
    listed = {row["id"] for row in manifest["fixtures"] if row["kind"] == "protocol"}
    assert listed
    assert {row.values[0]["id"] for row in fixtures()} >= listed


def note_of(payload: Any) -> str | None:
    arguments = payload.get("arguments") if isinstance(payload, dict) else None
    note = arguments.get("note") if isinstance(arguments, dict) else None
    return note if isinstance(note, str) else None


def rejection(text: str) -> dict[str, Any]:
    return {"valid": False, "severity": "error", "messages": [{"message": text, "severity": "error"}]}


def require_uppercase(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
    del event, phase
    note = note_of(payload)
    return {"valid": True} if note is not None and note == note.upper() else rejection("note must be uppercase")


def require_note(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
    del event, phase
    return {"valid": True} if note_of(payload) else rejection("note is required")


def uppercase(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
    del event, phase
    note = note_of(payload)
    if note is None:
        return {"modified": False, "payload": payload}
    return {"modified": True, "payload": {**payload, "arguments": {**payload["arguments"], "note": note.upper()}}}


def crash(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
    raise ValueError(event, phase, payload)


BEHAVIOURS: dict[str, Any] = {
    "allow-all": lambda *_: {"valid": True},
    "deny-all": lambda *_: rejection("denied by policy"),
    "require-uppercase-note": require_uppercase,
    "uppercase-note": uppercase,
    "require-note": require_note,
    "crash": crash,
}


def host_of(fixture: dict[str, Any]) -> InterceptorHost:
    return InterceptorHost(
        Interceptor(
            name=row["name"],
            kind=row["type"],
            events=tuple(row["events"]),
            phases=("request", "response") if row["phases"] == "both" else (row["phases"],),
            run=BEHAVIOURS[row["behavior"]],
            mode="audit" if row.get("mode") == "audit" else "active",
            fail_open=row.get("failOpen", False),
        )
        for row in fixture["interceptors"]
    )


def scrubbed(value: Any, volatile: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: scrubbed(item, volatile) for name, item in value.items() if name not in volatile}
    return [scrubbed(item, volatile) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("fixture", fixtures())
def test_a_host_does_what_the_fixture_says(fixture: dict[str, Any]) -> None:
    host = host_of(fixture)
    for step in fixture["steps"]:
        expect = step["expect"]
        if "errorCode" in expect:
            with pytest.raises(InterceptorError) as caught:
                host.invoke(step["params"])
            assert caught.value.code == expect["errorCode"]
            continue
        if step["op"] in ("apply", "chain"):
            continue  # a client that applies interceptors, which the gateway is not
        result = host.list_interceptors(step["event"]) if step["op"] == "list" else host.invoke(step["params"])
        assert canonicalize(scrubbed(result, fixture["volatile"])).decode() == expect["canonical"]


def test_another_gateway_can_ask_our_gates_about_a_list_and_about_a_call() -> None:
    harness = SessionHarness({"tools": [SEARCH, DELETE]})
    harness.open()
    listed = harness.request("interceptors/list", {"event": "tools/list"})["result"]["interceptors"]
    assert [row["name"] for row in listed] == ["pinwarden/lists"]
    about = {"name": "pinwarden/lists", "event": "tools/list", "phase": "response"}
    good = harness.request("interceptor/invoke", {**about, "payload": {"tools": [SEARCH, DELETE]}})["result"]
    bad = harness.request("interceptor/invoke", {**about, "payload": {"tools": [POISONED, DELETE]}})["result"]
    assert good == {"interceptor": "pinwarden/lists", "type": "validation", "phase": "response", "valid": True}
    assert (bad["valid"], bad["severity"], [row["path"] for row in bad["messages"]]) == (False, "error", ["/tools/0"])
    use = {"name": "pinwarden/uses", "event": "tools/call", "phase": "request"}
    verdicts = [
        harness.request("interceptor/invoke", {**use, "payload": {"name": name}})["result"]["valid"]
        for name in ("search_notes", "unheard_of")
    ]
    assert verdicts == [True, False], "the server was asked for its list, which was not known"
    wrong = harness.request("interceptor/invoke", {**use, "event": "sampling/createMessage", "payload": {}})
    assert wrong["error"]["code"] == -32602
    assert harness.calls_received("search_notes") == []


def test_a_gate_answers_when_the_server_has_listed_what_it_is_asked_about() -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    asked = {"name": "pinwarden/uses", "event": "tools/call", "phase": "request", "payload": {"name": "search_notes"}}
    message = {"jsonrpc": "2.0", "id": "i", "method": "interceptor/invoke", "params": asked}
    step = harness.session.on_client_message(json.dumps(message).encode(), 0.0)
    assert (step.to_client, [json.loads(frame)["method"] for frame in step.to_server]) == ((), ["tools/list"])
    harness.deliver(step)
    assert harness.response_to("i")["result"]["valid"] is True


@pytest.mark.parametrize("event", ["resources/read", "resources/subscribe"])
def test_another_gateway_can_ask_about_an_address(event: str) -> None:
    listed = {"resources": [{"uri": "note://a", "name": "a"}]}
    harness = SessionHarness(
        {"resources": [*listed["resources"], {"uri": "note://new", "name": "n"}]}, lock=approved_surface(listed)
    )
    harness.open()
    use = {"name": "pinwarden/uses", "event": event, "phase": "request"}
    results = {
        uri: harness.request("interceptor/invoke", {**use, "payload": {"uri": uri}})["result"]["valid"]
        for uri in ("note://a", "note://new", "note://nowhere")
    }
    assert results == {"note://a": True, "note://new": False, "note://nowhere": False}


@pytest.mark.parametrize(
    ("event", "payload", "code"),
    [
        ("roots/list", {}, ""),
        ("sampling/createMessage", {"messages": []}, "sampling_denied"),
        ("elicitation/create", {"message": "Your name?", "requestedSchema": {}}, ""),
        ("elicitation/create", {"mode": "url", "url": "https://evil.example/"}, "url_host_denied"),
    ],
)
def test_another_gateway_can_ask_about_what_a_server_asks(event: str, payload: dict[str, Any], code: str) -> None:
    harness = SessionHarness({"tools": [SEARCH]}, rules=policy(sampling="deny"))
    harness.open()
    asked = {"name": "pinwarden/questions", "event": event, "phase": "request", "payload": payload}
    result = harness.request("interceptor/invoke", asked)["result"]
    assert result["valid"] is (not code)
    assert [row["message"].endswith(f"({code})") for row in result.get("messages", ())] == ([True] if code else [])


def test_a_server_with_interceptors_of_its_own_is_asked_itself() -> None:
    extension: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/interceptors": {}}, "tools": {}}
    harness = SessionHarness(
        {"tools": [SEARCH], "server": {"capabilities": extension}, "answers": {"interceptors/list": "{}"}}
    )
    harness.open()
    assert harness.request("interceptors/list")["result"] == {}


EXTENSION = "io.modelcontextprotocol/interceptors"
EVENTS = [
    *("tools/list", "prompts/list", "resources/list", "resources/templates/list"),
    *("tools/call", "prompts/get", "resources/read", "resources/subscribe"),
    *("sampling/createMessage", "elicitation/create", "roots/list"),
]
ERAS = ("2025-11-25", "2026-07-28")


def opened(era: str, capabilities: Any, **more: Any) -> tuple[dict[str, Any], bytes]:
    """What the opening answer says of capabilities, and the bytes of it."""
    harness = SessionHarness({"tools": [SEARCH], "server": {"capabilities": capabilities}}, era=era, **more)
    results: dict[str, Any] = harness.open()["result"]["capabilities"]
    return results, next(frame for frame in harness.to_client if b'"capabilities"' in frame)


@pytest.mark.parametrize("era", ERAS)
def test_the_gates_are_named_among_the_capabilities_only_where_the_policy_wants_it(era: str) -> None:
    capabilities = {"tools": {"listChanged": False}}
    plain, as_it_came = opened(era, capabilities)
    assert plain == capabilities
    named, edited = opened(era, capabilities, rules=policy(interceptors="announce"))
    assert named == {**capabilities, "extensions": {EXTENSION: {"supportedEvents": EVENTS}}}
    added = json.dumps({"extensions": named["extensions"]}, separators=(",", ":")).encode()[1:-1] + b","
    assert edited.replace(added, b"") == as_it_came, "no other byte changed"


def test_the_gates_are_named_to_the_clients_that_a_rule_speaks_of() -> None:
    rules = policy(enforcement="block", rules=[{"client": "test-*", "interceptors": "announce"}])
    assert EXTENSION in opened(ERAS[0], {"tools": {}}, rules=rules)[0]["extensions"]
    other = policy(enforcement="block", rules=[{"client": "another", "interceptors": "announce"}])
    assert "extensions" not in opened(ERAS[0], {"tools": {}}, rules=other)[0]


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ({}, {EXTENSION: {"supportedEvents": EVENTS}}),
        ({"a/b": {}}, {"a/b": {}, EXTENSION: {"supportedEvents": EVENTS}}),
        (None, {EXTENSION: {"supportedEvents": EVENTS}}),
        ({EXTENSION: {"supportedEvents": ["x"]}}, {EXTENSION: {"supportedEvents": ["x"]}}),
    ],
)
def test_the_extensions_of_the_server_stay_as_they_are(extensions: Any, expected: dict[str, Any]) -> None:
    results, _ = opened(ERAS[1], {"tools": {}, "extensions": extensions}, rules=policy(interceptors="announce"))
    assert results["extensions"] == expected


def test_unapproved_interceptors_of_the_server_are_replaced_by_ours() -> None:
    """Attack: a server that judges itself."""
    results, _ = opened(
        ERAS[0],
        {"tools": {}, "extensions": {EXTENSION: {"supportedEvents": ["*"]}}},
        lock=approved_surface({"tools": [SEARCH]}),
        rules=policy(interceptors="announce"),
    )
    assert results == {"tools": {}, "extensions": {EXTENSION: {"supportedEvents": EVENTS}}}


def test_a_policy_with_an_unknown_value_for_interceptors_is_invalid() -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(interceptors="always")
    assert caught.value.code == "POLICY_INVALID"
