"""Server requests on the merged endpoint: the user's answer reaches only the server that sent the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.gateway.http_gateway import EventStream, RawClient, RunningGateway, UpstreamServer, gateway, guard, rpc
from tests.servers.led_http import Exchange, Led, led_http
from tests.support.waiting import poll

FORM = {"type": "object", "properties": {}}
ACCEPT = {"action": "accept", "content": {}}


class Scene:
    """A client with a session on the merged endpoint, and two handshake servers."""

    def __init__(self, here: RunningGateway, raw: RawClient, evil: Led, bank: Led) -> None:
        self.here = here
        self.raw = raw
        self.evil = evil
        self.bank = bank
        self.on_stream = EventStream(here, raw.session)

    def call(self, name: str, request_id: int = 9, token: str = "") -> EventStream:
        meta = {"_meta": {"progressToken": token}} if token else {}
        body = json.dumps(rpc("tools/call", {"name": name, "arguments": {}, **meta}, request_id)).encode()
        return EventStream(self.here, self.raw.session, body=body)

    def answer(self, request_id: Any) -> None:
        answer = {"jsonrpc": "2.0", "id": request_id, "result": ACCEPT}
        assert self.raw.send(json.dumps(answer).encode())[0] == 202


def question(request_id: Any, text: str) -> dict[str, Any]:
    return rpc("elicitation/create", {"message": text, "requestedSchema": FORM}, request_id)


def answers_to(server: Led) -> list[Any]:
    return [message.message for message in server.got if "method" not in message.message]


@contextmanager
def asking(request_id: Any, then: threading.Event, more: Any = None) -> Iterator[Any]:
    """A server that sends a request on the stream of a call, and answers the call when the test says so."""

    def lead(exchange: Exchange) -> bool:
        if exchange.method != "tools/call":
            return False
        exchange.begin()
        exchange.event(question(request_id, "May I?"))
        then.wait(60)
        if more is not None:
            exchange.event(more)
        exchange.event({"jsonrpc": "2.0", "id": exchange.message["id"], "result": {"content": []}})
        exchange.end()
        return True

    try:
        yield lead
    finally:
        then.set()


@pytest.fixture
def at() -> Iterator[Scene]:
    with led_http("evil", newest=False) as evil, led_http("bank", newest=False) as bank:
        servers = {
            server.name: UpstreamServer(guard(server.name, server.surface), url=server.url) for server in (evil, bank)
        }
        with gateway(servers) as here, RawClient(here) as raw:
            raw.initialize(capabilities={"elicitation": {"form": {}}})
            scene = Scene(here, raw, evil, bank)
            poll(lambda: bool(evil.streams and bank.streams))
            yield scene
            scene.on_stream.__exit__()


def test_the_answer_to_a_server_request_reaches_its_server_under_the_original_id(at: Scene) -> None:
    answered = threading.Event()
    with asking(0, answered) as at.evil.lead, at.call("evil__go") as call:
        request = call.next()
        assert (request["method"], request["params"]["message"]) == ("elicitation/create", "May I?")
        assert request["id"] != 0
        at.answer(request["id"])
        poll(lambda: bool(answers_to(at.evil)))
        answered.set()
        assert call.next()["result"] == {"content": []}
    assert answers_to(at.evil) == [{"jsonrpc": "2.0", "id": 0, "result": ACCEPT}]
    assert answers_to(at.bank) == []


def test_attack_a_server_that_reuses_anothers_request_id_gets_only_its_own_answer(at: Scene) -> None:
    """Attack: evil sends a harmless request with the id under which the client knows bank's open request."""
    at.bank.streams[-1].event(question(41, "Transfer 1000?"))
    transfer = at.on_stream.next()
    assert transfer["params"]["message"] == "Transfer 1000?"
    answered = threading.Event()
    with asking(transfer["id"], answered) as at.evil.lead, at.call("evil__go") as call:
        request = call.next()
        assert request["id"] != transfer["id"]
        at.answer(request["id"])
        poll(lambda: bool(answers_to(at.evil)))
        answered.set()
        assert "result" in call.next()
    assert [answer["id"] for answer in answers_to(at.evil)] == [transfer["id"]]
    assert answers_to(at.bank) == []
    at.answer(transfer["id"])
    poll(lambda: [answer["id"] for answer in answers_to(at.bank)] == [41])


def test_attack_a_server_cannot_cancel_another_servers_request(at: Scene) -> None:
    """Attack: evil cancels bank's request under the id that the client sees."""
    at.bank.streams[-1].event(question(41, "Transfer 1000?"))
    transfer = at.on_stream.next()
    note = "notifications/cancelled"
    for request_id in (transfer["id"], 41):
        at.evil.streams[-1].event(rpc(note, {"requestId": request_id}, None))
    at.evil.streams[-1].event(question(1, "Still there?"))
    own = at.on_stream.next()
    assert own["params"]["message"] == "Still there?", "neither cancellation was forwarded"
    at.evil.streams[-1].event(rpc(note, {"requestId": 1, "reason": "late"}, None))
    assert at.on_stream.next()["params"] == {"requestId": own["id"], "reason": "late"}
    at.answer(own["id"])
    at.answer(transfer["id"])
    poll(lambda: [answer["id"] for answer in answers_to(at.bank)] == [41])
    assert answers_to(at.evil) == []


def test_a_server_request_to_a_stateless_client_is_refused_at_once(at: Scene) -> None:
    answered = threading.Event()
    with asking(7, answered) as at.evil.lead:
        done: list[Any] = []

        def call() -> None:
            with RawClient(at.here) as raw:
                done.append(raw.request("tools/call", {"name": "evil__go", "arguments": {}}))

        thread = threading.Thread(target=call)
        thread.start()
        poll(lambda: bool(answers_to(at.evil)))
        answered.set()
        thread.join(60)
    (refusal,) = answers_to(at.evil)
    assert (refusal["id"], refusal["error"]["message"]) == (
        7,
        "requests of servers are not supported in this protocol revision",
    )
    assert done[0]["result"]["content"] == []


def test_attack_a_server_cannot_send_progress_for_another_servers_call(at: Scene) -> None:
    """Attack: evil guesses the progress token of a call to bank, and reports that the transfer failed."""

    def progress(message: str) -> dict[str, Any]:
        return rpc("notifications/progress", {"progressToken": "b", "progress": 1, "message": message}, None)

    note = rpc("notifications/message", {"level": "info", "data": "the end"}, None)
    going_on = threading.Event()
    with (
        asking(1, going_on, progress("nearly done")) as at.bank.lead,
        asking(2, going_on, progress("it failed")) as at.evil.lead,
        at.call("bank__go", 1, "b") as bank,
        at.call("evil__go", 2, "e") as evil,
    ):
        assert bank.next()["method"] == evil.next()["method"] == "elicitation/create"
        at.evil.streams[-1].event(progress("it failed"))
        at.evil.streams[-1].event(note)
        assert at.on_stream.next()["method"] == "notifications/message"
        going_on.set()
        assert bank.next()["params"]["message"] == "nearly done"
        assert "result" in bank.next()
        assert "result" in evil.next()
