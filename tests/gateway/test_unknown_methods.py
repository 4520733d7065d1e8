"""Methods that no revision of MCP defines follow the unknown policy, and are always recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.gateway.session.requests import CLIENT_NOTIFICATIONS, MAX_UNKNOWN_METHODS
from pinwarden.gateway.session.server_requests import SERVER_NOTIFICATIONS
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from tests.gateway.session_harness import DELETE, SEARCH, SessionHarness, policy, refusal_code

STATE: dict[str, Any] = {"tools": [SEARCH], "answers": {"acme/run": '{"done":true}'}}
SECRET = {"argument": "s3cret"}


def harness(**rules: Any) -> SessionHarness:
    opened = SessionHarness(STATE, rules=policy(**rules) if rules else DEFAULT_GATEWAY_POLICY)
    opened.open()
    return opened


def events(at: SessionHarness) -> list[tuple[str, str, str]]:
    """Return the audit events about methods."""
    return [(fact.kind, fact.method, fact.item) for fact in at.events if fact.code == "method_unknown"]


def test_attack_an_undefined_method_does_not_bypass_tool_approval() -> None:
    """Attack: the server offers an unapproved tool under a method of its own."""
    at = harness()
    answer = at.request("acme/run", {"tool": "evil", **SECRET})
    assert refusal_code(answer) == "method_unknown"
    assert answer["error"]["code"] == -32601
    assert [message for message in at.server.received if message.get("method") == "acme/run"] == []
    assert events(at) == [("blocked", "acme/run", "acme/run")]
    (fact,) = (event for event in at.events if event.code == "method_unknown")
    assert fact.call == answer["error"]["data"]["pinwarden"]["call"]
    assert "s3cret" not in repr(at.events)


@pytest.mark.parametrize(("word", "kind"), [("allow_degraded", "allowed"), ("warn", "warned")])
def test_a_lenient_policy_records_every_undefined_method_once(word: str, kind: str) -> None:
    at = harness(unknown=word)
    for _ in range(3):
        result = at.request("acme/run", SECRET)["result"]
        assert result.pop("_meta", {}).keys() == ({"pinwarden/warnings"} if word == "warn" else set())
        assert result == {"done": True}
        at.notify("notifications/acme/changed", SECRET)
        at.server_sends({"jsonrpc": "2.0", "method": "notifications/acme/heard", "params": SECRET})
    assert events(at) == [
        (kind, "acme/run", "acme/run"),
        (kind, "notifications/acme/changed", "notifications/acme/changed"),
        (kind, "notifications/acme/heard", "notifications/acme/heard"),
    ]
    assert (
        len([message for message in at.server.received if message.get("method") == "notifications/acme/changed"]) == 3
    )
    heard = [message for message in at.client_messages() if message.get("method") == "notifications/acme/heard"]
    assert [("_meta" in message["params"]) for message in heard] == [word == "warn"] * 3
    assert "s3cret" not in repr(at.events)


def test_attack_an_undefined_notification_does_not_reach_the_client() -> None:
    """Attack: some clients pass undefined notifications to the model, and no list is judged for them."""
    at = harness()
    got = len(at.to_client)
    for _ in range(5):
        at.server_sends({"jsonrpc": "2.0", "method": "notifications/acme/channel", "params": {"content": "Obey."}})
    assert at.to_client[got:] == []
    assert events(at) == [("blocked", "notifications/acme/channel", "notifications/acme/channel")]


def test_an_undefined_client_notification_is_dropped_and_recorded_once() -> None:
    at = harness()
    for _ in range(5):
        at.notify("notifications/acme/do", SECRET)
    assert [message for message in at.server.received if message.get("method") == "notifications/acme/do"] == []
    assert events(at) == [("blocked", "notifications/acme/do", "notifications/acme/do")]


def test_a_policy_rule_allows_the_methods_of_one_extension() -> None:
    at = harness(rules=[{"item": "acme/*", "unknown": "allow_degraded"}])
    assert at.request("acme/run")["result"] == {"done": True}
    assert refusal_code(at.request("other/run")) == "method_unknown"


def test_a_method_of_the_other_direction_counts_as_undefined() -> None:
    """Attack: a server that answers requests meant for clients."""
    at = harness()
    assert refusal_code(at.request("sampling/createMessage", {"messages": []})) == "method_unknown"
    at.server_sends({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert [fact[1] for fact in events(at)] == ["sampling/createMessage", "notifications/initialized"]


@pytest.mark.parametrize("word", ["allow_degraded", "block"])
def test_attack_many_undefined_methods_do_not_flood_the_log_and_none_is_allowed_silently(word: str) -> None:
    """Attack: the important method comes after more undefined methods than are logged singly."""
    at = harness(unknown=word)
    for number in range(MAX_UNKNOWN_METHODS + 50):
        at.notify(f"notifications/acme/{number}")
        at.server_sends({"jsonrpc": "2.0", "method": f"notifications/acme/{number}"})
    recorded = events(at)
    assert len(recorded) == 2 * (MAX_UNKNOWN_METHODS + 1)
    assert recorded.count(("blocked", "", "")) == 2
    passed = {message["method"] for message in at.server.received if "acme" in message.get("method", "")}
    assert len(passed) == (MAX_UNKNOWN_METHODS if word == "allow_degraded" else 0)
    assert refusal_code(at.request("acme/run")) == "method_unknown"
    assert events(at)[-1][:2] == ("blocked", "acme/run")


def test_attack_rules_match_the_whole_method_name_not_its_truncated_form() -> None:
    """Attack: the part of the name that a rule matches comes after the part that is logged."""
    forbids = harness(unknown="allow_degraded", rules=[{"item": "**/delete", "unknown": "block"}])
    permits = harness(rules=[{"item": "acme/**/read", "unknown": "allow_degraded"}])
    for at, method in ((forbids, f"acme/{'x' * 100}/delete"), (permits, f"acme/{'x' * 90}/read/delete")):
        assert refusal_code(at.request(method)) == "method_unknown"
        assert [message for message in at.server.received if message.get("method") == method] == []
        assert events(at) == [("blocked", method[:100], method[:100])]


def test_attack_a_long_list_does_not_suppress_the_record_of_an_undefined_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attack: fill the memory of recorded items with definitions, and then send the message."""
    monkeypatch.setattr("pinwarden.gateway.session.output._MAX_REMEMBERED", 1)
    at = harness(unknown="allow_degraded")
    at.request("tools/list")
    for _ in range(2):
        at.request("acme/run")
        at.notify("notifications/acme/changed")
    expected = [("allowed", "acme/run", "acme/run")]
    assert events(at) == expected + [("allowed", "notifications/acme/changed", "notifications/acme/changed")] * 2


def test_a_long_method_name_is_truncated_in_the_log_and_not_cached() -> None:
    at = harness(unknown="allow_degraded")
    method = "acme/" + "x" * 1_000_000
    at.request(method)
    at.request(method + "y")
    assert [(len(method), len(item)) for _, method, item in events(at)] == [(100, 100), (100, 100)]
    assert len(json.dumps([repr(fact) for fact in at.events])) < 20_000


def test_an_event_that_could_not_be_recorded_is_recorded_the_next_time() -> None:
    from pinwarden.core.errors import PinwardenError

    at = harness(unknown="allow_degraded")
    frame = b'{"jsonrpc":"2.0","id":9,"method":"acme/run"}'
    step = at.session.on_client_message(frame, at.now)
    assert [fact.code for fact in step.events] == ["method_unknown"]
    at.session.replace_unrecorded(step, PinwardenError("AUDIT_UNAVAILABLE", "no disk"))
    assert [fact.code for fact in at.session.on_client_message(frame, at.now).events][-1] == "method_unknown"


def test_defined_methods_produce_no_such_event() -> None:
    at = SessionHarness({"tools": [SEARCH, DELETE], "resources": [], "answers": {"logging/setLevel": "{}"}})
    at.open()
    for method in sorted(CLIENT_NOTIFICATIONS - {"notifications/initialized", "notifications/roots/list_changed"}):
        at.notify(method)
        assert at.server.received[-1]["method"] == method
    for method in sorted(SERVER_NOTIFICATIONS - {"notifications/tasks", "notifications/tasks/status"}):
        at.server_sends({"jsonrpc": "2.0", "method": method})
        assert any(message.get("method") == method for message in at.client_messages())
    assert at.request("ping")["result"] == at.request("logging/setLevel", {"level": "info"})["result"] == {}
    at.request("resources/unsubscribe", {"uri": "x://y"})
    assert events(at) == []
