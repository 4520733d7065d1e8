"""The working group's protocol fixtures for interceptors (SEP-2624), and the gateway's own gate in that form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pinwarden.core.canonical import canonicalize
from pinwarden.gateway.interceptors import Host, Interceptor, InterceptorError
from tests.conformance.vectors import cases, vectors_dir
from tests.gateway.desk import DELETE, POISONED, SEARCH, Desk

FOLDER = vectors_dir() / "interceptors/protocol"


def fixtures() -> list[Any]:
    return cases([json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))])


def test_every_fixture_of_the_manifest_is_there() -> None:
    manifest = json.loads((FOLDER.parent / "manifest.json").read_text(encoding="utf-8"))
    listed = {each["id"] for each in manifest["fixtures"] if each["kind"] == "protocol"}
    assert listed
    assert {each.values[0]["id"] for each in fixtures()} >= listed


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


def host_of(fixture: dict[str, Any]) -> Host:
    return Host(
        Interceptor(
            name=each["name"],
            kind=each["type"],
            events=tuple(each["events"]),
            phases=("request", "response") if each["phases"] == "both" else (each["phases"],),
            run=BEHAVIOURS[each["behavior"]],
            mode="audit" if each.get("mode") == "audit" else "active",
            fail_open=each.get("failOpen", False),
        )
        for each in fixture["interceptors"]
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
            done = host.apply(step["event"], step["phase"], step["payload"])
            assert ("allow" if done.allowed else "deny") == expect["decision"]
            final = canonicalize(scrubbed(done.payload, fixture["volatile"])).decode()
            assert final == expect.get("finalPayloadCanonical", final)
            assert [text for text in expect.get("forbids", ()) if text in final] == []
            assert [text for text in expect.get("requires", ()) if text not in final] == []
            continue
        result = host.list(step["event"]) if step["op"] == "list" else host.invoke(step["params"])
        assert canonicalize(scrubbed(result, fixture["volatile"])).decode() == expect["canonical"]


def test_another_gateway_can_ask_our_gates_about_a_list_and_about_a_call() -> None:
    desk = Desk({"tools": [SEARCH, DELETE]})
    desk.open()
    listed = desk.ask("interceptors/list", {"event": "tools/list"})["result"]["interceptors"]
    assert [each["name"] for each in listed] == ["pinwarden/lists"]
    about = {"name": "pinwarden/lists", "event": "tools/list", "phase": "response"}
    good = desk.ask("interceptor/invoke", {**about, "payload": {"tools": [SEARCH, DELETE]}})["result"]
    bad = desk.ask("interceptor/invoke", {**about, "payload": {"tools": [POISONED, DELETE]}})["result"]
    assert good == {"interceptor": "pinwarden/lists", "type": "validation", "phase": "response", "valid": True}
    assert (bad["valid"], bad["severity"], [each["path"] for each in bad["messages"]]) == (False, "error", ["/tools/0"])
    use = {"name": "pinwarden/uses", "event": "tools/call", "phase": "request"}
    verdicts = [
        desk.ask("interceptor/invoke", {**use, "payload": {"name": name}})["result"]["valid"]
        for name in ("search_notes", "unheard_of")
    ]
    assert verdicts == [False, False], "nothing was listed yet, so nobody can say what would be called"
    desk.names()
    verdicts = [
        desk.ask("interceptor/invoke", {**use, "payload": {"name": name}})["result"]["valid"]
        for name in ("search_notes", "unheard_of")
    ]
    assert verdicts == [True, False]
    wrong = desk.ask("interceptor/invoke", {**use, "event": "sampling/createMessage", "payload": {}})
    assert wrong["error"]["code"] == -32602
    assert desk.served("search_notes") == []


def test_a_server_with_interceptors_of_its_own_is_asked_itself() -> None:
    extension: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/interceptors": {}}, "tools": {}}
    desk = Desk({"tools": [SEARCH], "server": {"capabilities": extension}, "answers": {"interceptors/list": "{}"}})
    desk.open()
    assert desk.ask("interceptors/list")["result"] == {}
