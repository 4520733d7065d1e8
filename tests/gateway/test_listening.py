"""In the stateless era the gateway listens for itself, behind the client's back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.gateway.session import Session
from tests.gateway.desk import DELETE, POISONED, SEARCH, Desk, approved, refused

MODERN = "2026-07-28"
LISTEN = "subscriptions/listen"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGED = "notifications/tools/list_changed"
TELLS = {"capabilities": {"tools": {"listChanged": True}}}
HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE], "server": TELLS, "deaf": [LISTEN]}
TURNED: dict[str, Any] = {**HONEST, "tools": [POISONED, DELETE]}


def listens(desk: Desk) -> list[dict[str, Any]]:
    """The subscriptions that the server was asked for by us."""
    own = [each for each in desk.server.received if str(each.get("id")).startswith("pinwarden/")]
    return [each for each in own if each["method"] == LISTEN]


def tell(desk: Desk, method: str, number: Any, **params: Any) -> None:
    """Something that the server says on a subscription."""
    desk.say({"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {SUBSCRIPTION: number}}})


def opened(*states: dict[str, Any], **more: Any) -> tuple[Desk, str]:
    """A conversation, and the id of our subscription in it."""
    desk = Desk(*states, era=MODERN, **more)
    desk.open()
    (asked,) = listens(desk)
    return desk, asked["id"]


def lists(desk: Desk) -> int:
    return len([each for each in desk.server.received if each.get("method") == "tools/list"])


def test_the_gateway_asks_to_be_told_of_what_the_server_says_that_it_tells() -> None:
    both = {**HONEST, "server": {"capabilities": {"tools": {"listChanged": True}, "resources": {"listChanged": True}}}}
    desk, _ = opened({**both, "prompts": [{"name": "p"}]})
    asked = listens(desk)[0]["params"]
    assert asked["notifications"] == {"toolsListChanged": True, "resourcesListChanged": True}
    assert asked["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN


def test_a_notice_on_our_subscription_makes_the_next_call_wait_for_the_new_list() -> None:
    """Attack: rug pull behind a client that never asked to be told."""
    desk, number = opened(HONEST, TURNED)
    assert desk.call("search_notes")["result"]
    desk.turn()
    tell(desk, CHANGED, number)
    assert refused(desk.call("search_notes")) == "new_exfiltration"
    assert len(desk.served("search_notes")) == 1
    assert desk.call("delete_note")["result"]


def test_nothing_of_our_subscription_reaches_the_client() -> None:
    desk, number = opened(HONEST)
    desk.names()
    got = len(desk.to_client)
    tell(desk, ACKNOWLEDGED, number, notifications={"toolsListChanged": True})
    tell(desk, CHANGED, number)
    tell(desk, "notifications/resources/updated", number, uri="notes://a")
    tell(desk, "notifications/message", number, level="info", data="read this")
    desk.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    desk.say({"jsonrpc": "2.0", "id": number, "result": {"_meta": {SUBSCRIPTION: number}}})
    assert desk.to_client[got:] == []


def test_a_notice_in_the_clients_own_subscription_is_passed_on_and_counts_as_well() -> None:
    desk, _ = opened(HONEST, TURNED)
    assert desk.call("search_notes")["result"]
    desk.turn()
    tell(desk, CHANGED, 77)
    assert desk.got()[-2]["params"]["_meta"] == {SUBSCRIPTION: 77}
    assert refused(desk.call("search_notes")) == "new_exfiltration"


def test_a_subscription_of_the_client_to_something_else_is_none_to_changes() -> None:
    desk = Desk({**HONEST, "resources": [{"uri": "notes://a", "name": "a"}], "server": TELLS}, era=MODERN)
    desk.ask(LISTEN, {"notifications": {"toolsListChanged": False, "promptsListChanged": True}})
    desk.open()
    assert len(listens(desk)) == 1


def test_no_subscription_is_opened_beside_one_of_the_client() -> None:
    desk = Desk(HONEST, era=MODERN)
    desk.ask(LISTEN, {"notifications": {"toolsListChanged": True}})
    desk.open()
    assert desk.call("search_notes")["result"]
    assert listens(desk) == []
    desk.say({"jsonrpc": "2.0", "id": 1, "result": {}})  # the client's is over
    desk.tick(1)
    assert len(listens(desk)) == 1


@pytest.mark.parametrize(
    "state",
    [
        {**HONEST, "server": {"capabilities": {"tools": {}}}},
        {**HONEST, "server": {"capabilities": {"tools": {"listChanged": False}}}},
        {**HONEST, "server": {"capabilities": []}},
    ],
)
def test_a_server_that_does_not_say_that_it_tells_is_not_asked_to(state: dict[str, Any]) -> None:
    desk = Desk(state, era=MODERN)
    desk.open()
    desk.call("search_notes")
    desk.tick(31)
    assert listens(desk) == []


def test_nobody_is_asked_in_the_handshake_era() -> None:
    desk = Desk(HONEST)
    desk.open()
    assert desk.call("search_notes")["result"]
    desk.tick(31)
    assert listens(desk) == []


def test_a_server_that_is_refused_as_a_whole_is_not_asked_either() -> None:
    evil = {**HONEST, "server": {**TELLS, "serverInfo": {"name": "evil", "version": "1"}}}
    desk = Desk(evil, lock=approved(HONEST), era=MODERN)
    assert refused(desk.open()) == "identity_changed"
    desk.tick(1)
    assert listens(desk) == []


def test_a_server_that_refuses_is_not_asked_again_by_any_session() -> None:
    desk = Desk({**HONEST, "deaf": []}, era=MODERN)  # does not know the method
    desk.open()
    assert len(listens(desk)) == 1
    assert desk.call("search_notes")["result"]
    for _ in range(5):
        desk.tick(31)
    desk.session = Session(desk.guard, name="another")
    desk.open()
    assert desk.call("search_notes")["result"]
    assert len(listens(desk)) == 1
    assert not any(b"subscriptions" in frame for frame in desk.to_client)


def test_a_subscription_that_is_lost_is_opened_again_after_a_while() -> None:
    desk, number = opened(HONEST)
    tell(desk, ACKNOWLEDGED, number)
    desk.say({"jsonrpc": "2.0", "id": number, "error": {"code": -32000, "message": "the connection was lost"}})
    desk.tick(1)
    assert len(listens(desk)) == 1
    desk.tick(30)
    assert len(listens(desk)) == 2


def test_what_was_listed_before_the_subscription_is_asked_for_again_when_that_is_open() -> None:
    """Attack: the list changes between our reading it and our being told of changes."""
    desk = Desk(HONEST, TURNED, era=MODERN)
    assert desk.names() == ["search_notes", "delete_note"]
    desk.turn()
    desk.now += 1
    desk.open()
    before = lists(desk)
    tell(desk, ACKNOWLEDGED, listens(desk)[0]["id"])
    assert lists(desk) == before + 1
    assert refused(desk.call("search_notes")) == "new_exfiltration"


def test_a_server_that_ends_every_subscription_at_once_is_not_asked_for_ever() -> None:
    desk, _ = opened(HONEST)
    for _ in range(9):
        desk.say({"jsonrpc": "2.0", "id": listens(desk)[-1]["id"], "result": {}})
        desk.tick(31)
    assert len(listens(desk)) == 4  # at 0, 31, 93 and 217 seconds: each time it waits twice as long


def test_an_answer_to_our_subscription_that_cannot_be_read_ends_it() -> None:
    desk, number = opened(HONEST)
    got = len(desk.to_client)
    desk.say(f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{{"a":1,"a":2}}}}'.encode())
    desk.tick(31)
    assert len(listens(desk)) == 2
    assert desk.to_client[got:] == []


def test_lists_are_still_asked_for_again_though_the_server_promised_to_tell() -> None:
    """Attack: a server that acknowledges the subscription, and says nothing when it turns."""
    desk, number = opened(HONEST, TURNED)
    tell(desk, ACKNOWLEDGED, number)
    assert desk.call("search_notes")["result"]
    desk.turn()
    desk.now += 31
    assert refused(desk.call("search_notes")) == "new_exfiltration"


def test_our_own_requests_carry_what_is_about_the_client_and_nothing_that_is_about_its_request() -> None:
    desk = Desk(HONEST, era=MODERN)
    params = desk._params({})
    params["_meta"]["io.modelcontextprotocol/logLevel"] = "debug"
    desk.send({"jsonrpc": "2.0", "id": 9, "method": "server/discover", "params": params})
    assert "io.modelcontextprotocol/logLevel" not in listens(desk)[0]["params"]["_meta"]
