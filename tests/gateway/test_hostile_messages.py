"""Messages that other parsers read differently than the gateway, or that are expensive to process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.guard import SessionLimits
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.server import INTERCEPTORS as EXTENSION
from tests.gateway.http_gateway import InMemoryRecorder, RecordingStream
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, SessionHarness, refusal_code
from tests.gateway.test_drift_sequences_stdio import gateway

HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}
ERAS = ("2025-11-25", "2026-07-28")
POISON = json.dumps(POISONED)
SECRET = b"id_rsa"  # only the poisoned tool mentions it
EVIL_URL = {"mode": "url", "url": "https://evil.example/id_rsa", "message": "x", "elicitationId": "1"}


def open_list(era: str = ERAS[0]) -> SessionHarness:
    """A harness whose client waits for a list that the test answers by hand."""
    harness = SessionHarness(HONEST, {**HONEST, "deaf": ["tools/list"]}, HONEST, era=era)
    harness.open()
    harness.list_names()
    harness.switch_server_state()
    assert harness.request("tools/list") == {}
    harness.server.place = 2
    return harness


def open_call(method: str, params: dict[str, Any]) -> SessionHarness:
    """A harness whose client waits for the answer to a request."""
    state = {**HONEST, "prompts": [{"name": "p"}]}
    harness = SessionHarness(state, {**state, "deaf": [method]})
    harness.open()
    harness.list_names()
    harness.switch_server_state()
    assert harness.request(method, params) == {}
    return harness


def poison_seen(harness: SessionHarness) -> bool:
    return any(SECRET in frame for frame in harness.to_client)


# Answers


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "body",
    [
        '"Result":{"tools":[POISON]}',
        '"result":{"tools":[]},"Result":{"tools":[POISON]}',
        '"result":{"tools":[],"Tools":[POISON]}',
        '"result":{"tools":[],"tool\u017f":[POISON]}',
        '"result":{"tools":[{"name":"\\ud800"}],"TOOLS":[POISON]}',
        '"result":{"tools":[{"name":"\\ud800"}]},"RESULT":{"tools":[POISON]}',
        '"result":{"tools":[]},"error":{"code":1,"message":"POISON"}'.replace("POISON", "id_rsa"),
    ],
)
def test_attack_a_second_list_that_a_lenient_parser_could_read_is_not_forwarded(era: str, body: str) -> None:
    """Attack: a case-insensitive JSON parser, or one that uses the last duplicate, reads another list."""
    harness = open_list(era)
    harness.server_sends(f'{{"jsonrpc":"2.0","id":{harness._last},{body.replace("POISON", POISON)}}}'.encode())
    assert not poison_seen(harness)
    assert refusal_code(harness.response_to(harness._last)) in ("JSON_CANONICALIZATION_ERROR", "PROBE_FAILED")
    assert "blocked" in [fact.kind for fact in harness.events if fact.method == "tools/list" and not fact.item]


def test_attack_the_gateways_own_list_request_rejects_ambiguous_lists_too() -> None:
    """Attack: the list for the gateway differs from parser to parser."""
    double = {**HONEST, "hints": {"Tools": [POISONED]}}
    harness = SessionHarness(HONEST, double)
    harness.open()
    harness.server.place = 1
    assert refusal_code(harness.call_tool("search_notes")) == "list_failed"
    assert harness.calls_received("search_notes") == []


@pytest.mark.parametrize("extra", ['"method":"ping"', '"method":"sampling/createMessage","params":{}'])
def test_attack_a_result_disguised_as_a_server_request_is_not_forwarded(extra: str) -> None:
    """Attack: a client that checks ``result`` first takes the message for the response to its list request."""
    harness = open_list()
    harness.server_sends(f'{{"jsonrpc":"2.0","id":{harness._last},{extra},"result":{{"tools":[{POISON}]}}}}'.encode())
    assert not poison_seen(harness)
    assert [fact.code for fact in harness.events if fact.kind == "blocked"] == ["message_doubtful"]


@pytest.mark.parametrize("extra", ["", '"Id":{number},', '"ID":{number},"Method":null,'])
def test_attack_a_result_disguised_as_a_notification_is_not_forwarded(extra: str) -> None:
    harness = open_list()
    clothes = extra.replace("{number}", str(harness._last))
    result = f'"result":{{"tools":[{POISON}]}}'
    harness.server_sends(f'{{"jsonrpc":"2.0",{clothes}"method":"notifications/message",{result}}}'.encode())
    assert not poison_seen(harness)


@pytest.mark.parametrize("id_member", ['"id":null,', "", '"id":null,"Id":2,'])
def test_attack_an_error_without_an_id_cannot_carry_a_result(id_member: str) -> None:
    harness = open_list()
    error = '"error":{"code":1,"message":"x"}'
    harness.server_sends(f'{{"jsonrpc":"2.0",{id_member}{error},"result":{{"tools":[{POISON}]}}}}'.encode())
    assert not poison_seen(harness)


BOTH = {"result": {"content": []}, "error": {"code": -32042, "message": "", "data": {"elicitations": [EVIL_URL]}}}


ASKING = {"a": {"method": "elicitation/create", "params": EVIL_URL}}
SPELT = {"result": {"content": [], "ResultType": "input_required", "InputRequests": ASKING}}


@pytest.mark.parametrize("body", [BOTH, SPELT])
def test_attack_a_result_that_also_requests_input_is_judged_as_a_server_request(body: dict[str, Any]) -> None:
    """Attack: the policy checks one reading, and the client acts on the other."""
    harness = open_call("prompts/get", {"name": "p"})
    harness.server_sends({"jsonrpc": "2.0", "id": harness._last, **body})
    assert not poison_seen(harness)
    assert refusal_code(harness.response_to(harness._last)) == "JSON_CANONICALIZATION_ERROR"


@pytest.mark.parametrize("body", [BOTH, SPELT])
def test_attack_a_fast_path_result_that_also_requests_input_is_judged_as_a_server_request(body: dict[str, Any]) -> None:
    harness = open_call("tools/call", {"name": "search_notes"})
    harness.server_sends({"jsonrpc": "2.0", "id": harness._last, **body})
    assert not poison_seen(harness)


@pytest.mark.parametrize("era", ERAS)
def test_attack_a_server_cannot_request_input_in_its_discovery_response(era: str) -> None:
    """Attack: ``input_required`` where the protocol does not allow it."""
    asks = {"a": {"method": "elicitation/create", "params": EVIL_URL}}
    greedy = {**HONEST, "server": {"resultType": "input_required", "inputRequests": asks}}
    harness = SessionHarness(HONEST, greedy, era=era)
    harness.server.place = 1
    assert refusal_code(harness.open()) == "PROBE_FAILED"
    assert not poison_seen(harness)


def test_attack_a_url_under_a_misspelled_member_is_not_shown_to_the_user() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    params = {"mode": "form", "message": "x", "requestedSchema": {}, "Mode": "url", "Url": EVIL_URL["url"]}
    harness.server_sends({"jsonrpc": "2.0", "id": "s", "method": "elicitation/create", "params": params})
    assert not poison_seen(harness)
    assert json.loads(harness.to_server[-1])["error"]["data"]["pinwarden"] == {"code": "message_doubtful"}


def test_attack_endless_requests_for_input_are_refused_after_the_limit() -> None:
    """Attack: endless sampling requests during one call."""
    harness = SessionHarness(HONEST, {**HONEST, "deaf": ["tools/call"]})
    harness.open()
    harness.list_names()
    harness.switch_server_state()
    harness.call_tool("search_notes")
    for request_id in range(30):
        harness.server_sends({"jsonrpc": "2.0", "id": request_id, "method": "sampling/createMessage", "params": {}})
        harness.client_sends({"jsonrpc": "2.0", "id": request_id, "result": {}})
    assert sum(b"sampling/createMessage" in frame for frame in harness.to_client) == 10


def test_the_limit_on_requests_for_input_restarts_after_a_result() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    harness.list_names()
    for request_id in range(30):
        harness.server_sends({"jsonrpc": "2.0", "id": request_id, "method": "sampling/createMessage", "params": {}})
        if request_id % 10 == 9:
            assert "result" in harness.call_tool("search_notes")
    assert sum(b"sampling/createMessage" in frame for frame in harness.to_client) == 30


# The server's description of itself


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("value", [None, 5, True, 1.5, "tools", ["tools"]])
def test_attack_malformed_capabilities_are_refused_and_the_session_continues(era: str, value: Any) -> None:
    """Attack: crash the thread that reads from the client."""
    harness = SessionHarness(HONEST, {**HONEST, "server": {"capabilities": value}}, era=era)
    harness.server.place = 1
    assert harness.open()["result"]["capabilities"] == {}
    assert refusal_code(harness.call_tool("search_notes")) == "capability_changed"
    assert harness.request("ping")["result"] == {}
    assert harness.calls_received("search_notes") == []


def test_attack_an_unapproved_interceptor_of_the_server_does_not_replace_the_gateways() -> None:
    """Attack: an unapproved interceptor of the server answers instead of the gateway's own."""
    own: dict[str, Any] = {"capabilities": {"tools": {}, "extensions": {EXTENSION: {}}}}
    greedy = {**HONEST, "server": own, "answers": {"interceptor/invoke": '{"valid":true}'}}
    harness = SessionHarness(HONEST, greedy)
    harness.server.place = 1
    harness.open()
    harness.list_names()
    params = {"name": "pinwarden/uses", "event": "tools/call", "phase": "request", "payload": {"name": "evil"}}
    answer = harness.request("interceptor/invoke", params)["result"]
    assert (answer["interceptor"], answer["valid"]) == ("pinwarden/uses", False)
    assert [message for message in harness.server.received if message.get("method") == "interceptor/invoke"] == []
    approved_one = SessionHarness(greedy)
    approved_one.open()
    assert approved_one.request("interceptor/invoke", params)["result"] == {"valid": True}


# Requests of a client

CHANGED: dict[str, Any] = {"tools": [SEARCH, {**DELETE, "description": "Delete all notes."}]}


def passed(harness: SessionHarness, frame: bytes) -> bool:
    """Whether the frame reached the server."""
    before = len(harness.to_server)
    harness.client_sends(frame)
    return len(harness.to_server) > before


def harness_with_a_blocked_tool() -> SessionHarness:
    harness = SessionHarness(HONEST, CHANGED)
    harness.open()
    harness.server.place = 1
    assert harness.list_names() == ["search_notes"]
    return harness


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"search_notes","Name":"delete_note"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping","Method":"tools/call","params":{"name":"delete_note"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{},"PARAMS":{"name":"delete_note"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}',
        b'{"jsonrpc":"2.0","id":7,"method":"completion/complete","params":{"ref":'
        b'{"type":"ref/prompt","name":"p","Name":"q"}}}',
    ],
)
def test_attack_an_ambiguous_request_is_not_forwarded(frame: bytes) -> None:
    """Attack: the gateway judges one name, and the server uses another."""
    harness = harness_with_a_blocked_tool()
    assert not passed(harness, frame)
    answer = json.loads(harness.to_client[-1])
    assert (refusal_code(answer), answer["error"]["code"]) == ("message_doubtful", -32600)
    assert harness.events[-1].code == "message_doubtful"


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search_notes","Name":"delete_note"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search_notes"},"Params":{}}',
    ],
)
def test_attack_an_ambiguous_call_on_the_fast_path_is_not_forwarded(frame: bytes) -> None:
    assert not passed(harness_with_a_blocked_tool(), frame)


def test_attack_a_call_disguised_as_a_notification_is_not_forwarded() -> None:
    frame = b'{"jsonrpc":"2.0","method":"notifications/x","Id":7,"Method":"tools/call","params":{"name":"delete_note"}}'
    assert not passed(harness_with_a_blocked_tool(), frame)


# Bytes

# Reads lines as Windows, Java, C# and Node's readline do: a carriage return ends a line.
UNIVERSAL = """
import json
called = []
for line in open(0, newline=None):
    try:
        message = json.loads(line)
    except ValueError:
        continue
    method, request_id = message.get("method"), message.get("id")
    if method == "tools/call":
        called.append(message["params"]["name"])
    if request_id is None:
        continue
    result = {"tools": [{"name": "echo", "inputSchema": {}}], "called": called}
    if method == "initialize":
        about = {"serverInfo": {"name": "u", "version": "1"}, "capabilities": {"tools": {}}}
        result = {"protocolVersion": "2025-11-25", **about}
    print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), flush=True)
"""
HIDDEN_CALL = (
    b'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":\r'
    b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"never_approved"}}\r}}\n'
)


def test_attack_a_message_hidden_between_carriage_returns_is_not_forwarded(tmp_path: Path) -> None:
    """Attack: JSON white space that ends a line for many readers."""
    with gateway(tmp_path, sys.executable, "-c", UNIVERSAL) as (client, _):
        assert client.names() == ["echo"]
        client._in.write(HIDDEN_CALL)
        called = client.ask("tools/call", {"name": "echo"})["result"]["called"]
    assert called == ["echo"]


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \t\n"])
def test_empty_lines_are_ignored(line: bytes) -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    before = len(harness.events)
    harness.client_sends(line)
    assert (len(harness.events), harness.client_messages()[-1]["id"]) == (before, 1)


# Cost


def test_attack_a_list_above_the_item_limit_is_refused_before_it_is_judged() -> None:
    """Attack: three bytes of the server cost the gateway a kilobyte."""
    many = {"tools": ["{}"] * 51}
    harness = SessionHarness(HONEST, many, limits=SessionLimits(max_items=50))
    harness.open()
    harness.server.place = 1
    assert refusal_code(harness.request("tools/list")) == "PROBE_LIMIT"
    assert refusal_code(harness.call_tool("search_notes")) == "list_failed"
    assert harness.sightings == [sighting for sighting in harness.sightings if sighting.entity == "server"]


def test_attack_the_item_limit_includes_the_last_page() -> None:
    many = {"tools": [{"name": f"t{number}", "inputSchema": {}} for number in range(60)], "page": 40}
    harness = SessionHarness(HONEST, many, limits=SessionLimits(max_items=50))
    harness.open()
    harness.server.place = 1
    assert refusal_code(harness.call_tool("t1")) == "list_failed"


def test_attack_a_list_above_the_total_size_limit_is_refused() -> None:
    large = {"tools": [{"name": f"t{number}", "description": "x" * 10_000} for number in range(20)], "page": 1}
    harness = SessionHarness(large, limits=SessionLimits(max_list_bytes=100_000))
    harness.open()
    assert refusal_code(harness.call_tool("t1")) == "list_failed"
    assert len([message for message in harness.server.received if message.get("method") == "tools/list"]) == 10


def test_attack_a_long_malformed_list_is_not_parsed_item_by_item() -> None:
    """Attack: deep nesting that makes parsing item by item slow."""
    deep = '{"name":"d","x":' + "[" * 3000 + "]" * 3000 + "}"
    harness = SessionHarness(HONEST, {"tools": [SEARCH, deep]}, limits=SessionLimits(max_unparsable_bytes=6000))
    harness.open()
    harness.server.place = 1
    assert refusal_code(harness.request("tools/list")) == "PROBE_LIMIT"
    short = SessionHarness(HONEST, {"tools": [SEARCH, deep]})
    short.open()
    short.server.place = 1
    assert short.list_names() == ["search_notes"]


def test_the_cache_of_list_pages_is_limited_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: a different huge list for every request."""
    from pinwarden.gateway import guard

    monkeypatch.setattr(guard, "_MAX_CACHED_BYTES", 100_000)
    states = [{"tools": [{**SEARCH, "description": str(place) * 30_000}]} for place in range(8)]
    harness = SessionHarness(HONEST, *states)
    harness.open()
    for _ in states:
        harness.switch_server_state()
        harness.request("tools/list")
    kept = harness.guard._cache.values()
    assert sum(size for _, _, size in kept) == harness.guard._cached_bytes <= 100_000
    assert len(kept) == 3


def conversation(limits: HttpLimits, recorder: InMemoryRecorder) -> Conversation:
    """Return an HTTP session without a client and a server."""
    harness = SessionHarness(HONEST)
    harness.open()
    return Conversation(harness.session, LoopRecorder(recorder), limits, lambda: 0.0, lambda _: None)


def in_a_loop(work: Callable[[], None]) -> None:
    async def made() -> None:
        work()

    asyncio.run(made())


def test_attack_messages_queued_for_a_notification_stream_stay_within_one_connections_budget() -> None:
    """Attack: a thousand messages of a hundred megabytes each before the client opens its stream."""
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * 10_000 + b'"}}'
    kept: list[int] = []

    def work() -> None:
        made = conversation(HttpLimits(max_queued_notification_bytes=100_000), InMemoryRecorder())
        for _ in range(100):
            made.on_server_message(note)
        stream = RecordingStream()
        made.listen(stream)
        kept.append(sum(map(len, stream.frames)))

    in_a_loop(work)
    assert 90_000 < kept[0] <= 100_000


def test_attack_a_server_that_causes_refusals_faster_than_they_are_recorded_is_stopped() -> None:
    """Attack: endless refused requests fill the recording queue that all servers share."""
    ended: list[bool] = []

    def work() -> None:
        made = conversation(HttpLimits(max_in_flight=100), InMemoryRecorder())
        for request_id in range(300):
            made.on_server_message(b'{"jsonrpc":"2.0","id":%d,"method":"evil/ask"}' % request_id)
        ended.append(made.closed or len(made._refusals._tasks) <= 100)

    in_a_loop(work)
    assert ended == [True]


UNREADABLE = {
    "no UTF-8": b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}',
    "no UTF-8, the id last": b'{"result":{"content":[{"type":"text","text":"caf\xe9"}]},"jsonrpc":"2.0","id":%s}',
    "a raw control character": b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"a\tb"}]}}',
    "two results": b'{"jsonrpc":"2.0","id":%s,"result":{"content":[]},"result":{"tools":[]}}',
    "a byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0", "id": %s, "result":{}}',
    "cut off": b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"te',
    "two messages": b'{"id":%s,"jsonrpc":"2.0","result":{}} {"jsonrpc":"2.0","method":"notifications/message"}',
    "a batch": b'[{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}]',
    "an error": b'{"jsonrpc":"2.0","error":{"code":1,"message":"\xff"},"id":%s,"jsonrpc":"2.0"}',
}


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "ping"])
@pytest.mark.parametrize("request_id", [b"77", b'"a \\"b\\" \\u00e9"'])
@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_client_gets_an_error_for_an_unparsable_response(text: bytes, request_id: bytes, method: str) -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    assert "result" in harness.call_tool("search_notes")
    message = {"jsonrpc": "2.0", "id": json.loads(request_id), "method": method, "params": {"name": "search_notes"}}
    harness.server.answers = lambda text: []  # type: ignore[method-assign]  # noqa: ARG005
    harness.client_sends(message)
    assert harness.response_to(message["id"]) == {}
    harness.server_sends(text % request_id)
    assert harness.response_to(message["id"])["error"]["code"] == -32603
    assert harness.session.is_idle
    assert not any(b"caf" in frame or b"\t" in frame for frame in harness.to_client)


@pytest.mark.parametrize("request_id", [b"77.0", b'"77"'])
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_attack_a_response_with_an_ambiguous_id_becomes_an_error(request_id: bytes, method: str) -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    harness.call_tool("search_notes")
    harness.server.answers = lambda text: []  # type: ignore[method-assign]  # noqa: ARG005
    harness.client_sends({"jsonrpc": "2.0", "id": 77, "method": method, "params": {"name": "search_notes"}})
    harness.server_sends(b'{"jsonrpc":"2.0","id":%s,"result":{"content":[],"tools":[]}}' % request_id)
    assert harness.response_to(77)["error"]["code"] == -32603
    assert harness.session.is_idle


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","method":"sampling/createMessage","params":{"a":"\xff"},"id":77}',
        b'{"jsonrpc":"2.0","result":{"a":"\xff","id":77}}',
        b'{"jsonrpc":"2.0","id":78,"result":{"a":"\xff","id":77}}',
        b'{"jsonrpc":"2.0","id":177,"result":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":"077x","result":{"a":1}}',
        b'{"jsonrpc":"2.0","id":77.5,"result":{"a":1}}',
        b'log: {"jsonrpc":"2.0","id":77,"result":{"a":"\xff"}}',
        b'[{"jsonrpc":"2.0","id":77,"method":"roots/list"}]',
    ],
)
def test_attack_text_that_is_not_a_response_does_not_complete_a_request(text: bytes) -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    harness.call_tool("search_notes")
    harness.server.answers = lambda text: []  # type: ignore[method-assign]  # noqa: ARG005
    harness.client_sends({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}})
    before = len(harness.to_client)
    harness.server_sends(text)
    assert len(harness.to_client) == before
    assert not harness.session.is_idle


def test_an_unparsable_response_to_the_gateways_own_list_request_fails_at_once() -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    harness.server.answers = lambda text: []  # type: ignore[method-assign]  # noqa: ARG005
    assert harness.call_tool("search_notes") == {}
    own = json.loads(harness.to_server[-1])["id"]
    harness.server_sends(b'{"jsonrpc":"2.0","id":"%s","result":{"tools":[{"name":"\xff"}]}}' % own.encode())
    assert refusal_code(harness.response_to(2)) == "list_failed"
