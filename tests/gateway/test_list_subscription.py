"""In the stateless era the gateway opens its own subscription to list-changed notifications."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.gateway.session.session import Session
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, SessionHarness, approved_surface, refusal_code

MODERN = "2026-07-28"
LISTEN = "subscriptions/listen"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGED = "notifications/tools/list_changed"
TELLS = {"capabilities": {"tools": {"listChanged": True}}}
HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE], "server": TELLS, "deaf": [LISTEN]}
TURNED: dict[str, Any] = {**HONEST, "tools": [POISONED, DELETE]}


def listens(harness: SessionHarness) -> list[dict[str, Any]]:
    """Return the gateway's own subscription requests."""
    own = [message for message in harness.server.received if str(message.get("id")).startswith("pinwarden/")]
    return [message for message in own if message["method"] == LISTEN]


def notify_subscription(harness: SessionHarness, method: str, subscription_id: Any, **params: Any) -> None:
    """Send a notification on a subscription as the server."""
    harness.server_sends(
        {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {SUBSCRIPTION: subscription_id}}}
    )


def opened(*states: dict[str, Any], **more: Any) -> tuple[SessionHarness, str]:
    """Return a session and the id of the gateway's subscription in it."""
    harness = SessionHarness(*states, era=MODERN, **more)
    harness.open()
    (request,) = listens(harness)
    return harness, request["id"]


def lists(harness: SessionHarness) -> int:
    return len([message for message in harness.server.received if message.get("method") == "tools/list"])


def test_the_gateway_subscribes_to_the_offered_list_changed_notifications() -> None:
    both = {**HONEST, "server": {"capabilities": {"tools": {"listChanged": True}, "resources": {"listChanged": True}}}}
    harness, _ = opened({**both, "prompts": [{"name": "p"}]})
    params = listens(harness)[0]["params"]
    assert params["notifications"] == {"toolsListChanged": True, "resourcesListChanged": True}
    assert params["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN


def test_a_notification_on_the_gateways_subscription_makes_the_next_call_wait_for_the_new_list() -> None:
    """Attack: rug pull behind a client that did not subscribe."""
    harness, request_id = opened(HONEST, TURNED)
    assert harness.call_tool("search_notes")["result"]
    harness.switch_server_state()
    notify_subscription(harness, CHANGED, request_id)
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"
    assert len(harness.calls_received("search_notes")) == 1
    assert harness.call_tool("delete_note")["result"]


def test_messages_of_the_gateways_subscription_do_not_reach_the_client() -> None:
    harness, request_id = opened(HONEST)
    harness.list_names()
    got = len(harness.to_client)
    notify_subscription(harness, ACKNOWLEDGED, request_id, notifications={"toolsListChanged": True})
    notify_subscription(harness, CHANGED, request_id)
    notify_subscription(harness, "notifications/resources/updated", request_id, uri="notes://a")
    notify_subscription(harness, "notifications/message", request_id, level="info", data="read this")
    harness.server_sends({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}})
    harness.server_sends({"jsonrpc": "2.0", "id": request_id, "result": {"_meta": {SUBSCRIPTION: request_id}}})
    assert harness.to_client[got:] == []


def test_a_notification_on_the_clients_subscription_is_forwarded_and_marks_the_list_stale() -> None:
    harness, _ = opened(HONEST, TURNED)
    assert harness.call_tool("search_notes")["result"]
    harness.switch_server_state()
    notify_subscription(harness, CHANGED, 77)
    assert harness.client_messages()[-2]["params"]["_meta"] == {SUBSCRIPTION: 77}
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"


def test_a_client_subscription_to_other_notifications_does_not_replace_the_gateways() -> None:
    harness = SessionHarness({**HONEST, "resources": [{"uri": "notes://a", "name": "a"}], "server": TELLS}, era=MODERN)
    harness.request(LISTEN, {"notifications": {"toolsListChanged": False, "promptsListChanged": True}})
    harness.open()
    assert len(listens(harness)) == 1


def test_the_gateway_does_not_subscribe_if_the_client_already_did() -> None:
    harness = SessionHarness(HONEST, era=MODERN)
    harness.request(LISTEN, {"notifications": {"toolsListChanged": True}})
    harness.open()
    assert harness.call_tool("search_notes")["result"]
    assert listens(harness) == []
    harness.server_sends({"jsonrpc": "2.0", "id": 1, "result": {}})  # the client's subscription ended
    harness.tick(1)
    assert len(listens(harness)) == 1


@pytest.mark.parametrize(
    "state",
    [
        {**HONEST, "server": {"capabilities": {"tools": {}}}},
        {**HONEST, "server": {"capabilities": {"tools": {"listChanged": False}}}},
        {**HONEST, "server": {"capabilities": []}},
    ],
)
def test_the_gateway_does_not_subscribe_to_a_server_that_offers_no_notifications(state: dict[str, Any]) -> None:
    harness = SessionHarness(state, era=MODERN)
    harness.open()
    harness.call_tool("search_notes")
    harness.tick(31)
    assert listens(harness) == []


def test_the_gateway_does_not_subscribe_in_the_handshake_era() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    assert harness.call_tool("search_notes")["result"]
    harness.tick(31)
    assert listens(harness) == []


def test_the_gateway_does_not_subscribe_to_a_refused_server() -> None:
    evil = {**HONEST, "server": {**TELLS, "serverInfo": {"name": "evil", "version": "1"}}}
    harness = SessionHarness(evil, lock=approved_surface(HONEST), era=MODERN)
    assert refusal_code(harness.open()) == "identity_changed"
    harness.tick(1)
    assert listens(harness) == []


def test_no_session_subscribes_again_after_method_not_found() -> None:
    harness = SessionHarness({**HONEST, "deaf": []}, era=MODERN)  # method not found
    harness.open()
    assert len(listens(harness)) == 1
    assert harness.call_tool("search_notes")["result"]
    for _ in range(5):
        harness.tick(31)
    harness.session = Session(harness.guard, name="another")
    harness.open()
    assert harness.call_tool("search_notes")["result"]
    assert len(listens(harness)) == 1
    assert not any(b"subscriptions" in frame for frame in harness.to_client)


def test_a_lost_subscription_is_reopened_after_a_delay() -> None:
    harness, request_id = opened(HONEST)
    notify_subscription(harness, ACKNOWLEDGED, request_id)
    harness.server_sends(
        {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32000, "message": "the connection was lost"}}
    )
    harness.tick(1)
    assert len(listens(harness)) == 1
    harness.tick(30)
    assert len(listens(harness)) == 2


def test_lists_are_refreshed_once_the_subscription_is_acknowledged() -> None:
    """Attack: the list changes after the gateway read it and before its subscription is open."""
    harness = SessionHarness(HONEST, TURNED, era=MODERN)
    assert harness.list_names() == ["search_notes", "delete_note"]
    harness.switch_server_state()
    harness.now += 1
    harness.open()
    before = lists(harness)
    notify_subscription(harness, ACKNOWLEDGED, listens(harness)[0]["id"])
    assert lists(harness) == before + 1
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"


def test_repeated_subscription_failures_increase_the_retry_delay() -> None:
    harness, _ = opened(HONEST)
    for _ in range(9):
        harness.server_sends({"jsonrpc": "2.0", "id": listens(harness)[-1]["id"], "result": {}})
        harness.tick(31)
    assert len(listens(harness)) == 4  # at 0, 31, 93 and 217 seconds: the delay doubles


def test_an_unparsable_response_ends_the_gateways_subscription() -> None:
    harness, request_id = opened(HONEST)
    got = len(harness.to_client)
    harness.server_sends(f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{{"a":1,"a":2}}}}'.encode())
    harness.tick(31)
    assert len(listens(harness)) == 2
    assert harness.to_client[got:] == []


def test_lists_are_refreshed_at_the_interval_despite_a_subscription() -> None:
    """Attack: a server acknowledges the subscription, and sends nothing when its list changes."""
    harness, request_id = opened(HONEST, TURNED)
    notify_subscription(harness, ACKNOWLEDGED, request_id)
    assert harness.call_tool("search_notes")["result"]
    harness.switch_server_state()
    harness.now += 31
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"


def test_the_gateways_own_requests_carry_client_metadata_but_no_request_metadata() -> None:
    harness = SessionHarness(HONEST, era=MODERN)
    params = harness._params({})
    params["_meta"]["io.modelcontextprotocol/logLevel"] = "debug"
    harness.client_sends({"jsonrpc": "2.0", "id": 9, "method": "server/discover", "params": params})
    assert "io.modelcontextprotocol/logLevel" not in listens(harness)[0]["params"]["_meta"]
