"""The fast path makes the same decision about a message on every transport and in every JSON formatting.

The session and HTTP pass strictly parsed messages to it; the two stdio loops pass messages parsed by orjson and are
run here over real pipes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Thread
from time import monotonic
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.session.fast_path import CallFastPath
from pinwarden.gateway.session.messages import ForwardedRequest
from pinwarden.gateway.session.output import NO_OUTPUT, SessionOutput
from pinwarden.gateway.stdio import SMALL_READ, LineWriter, StdioLoops
from tests.gateway.session_harness import SEARCH, SessionHarness

NAME = SEARCH["name"]
FROM_SESSION = b'"decided by the session"\n'
MEMBERS = some.sampled_from(
    (
        *("jsonrpc", "id", "method", "params", "result", "error", "name", "arguments", "_meta", "task", "content"),
        *("Name", "structuredContent", "isError", "resultType", "inputRequests", "x", "type", "resource_link"),
    )
)
VALUES: some.SearchStrategy[Any] = some.recursive(
    some.sampled_from(
        [None, True, False, 0, 1, 7, -1, 1.5, 7.0, 2**53, 2**70, "", "7", "2.0", "tools/call", "tools/list"]
    )
    | some.sampled_from(["complete", "task", NAME, "other", "é\n", "\ud800", "resource_link", {}, []]),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=4,
)
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": NAME, "arguments": {"query": "x"}}}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 0.5}}
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "hi"}]}}


@some.composite
def messages(draw: some.DrawFn, base: dict[str, Any], inside: str) -> bytes:
    """Generate a fast-path message with up to three deviations in its content and one in its formatting."""
    message: Any = json.loads(json.dumps(base))
    for _ in range(draw(some.integers(0, 3))):
        place = draw(some.sampled_from([message, message.get(inside)]))
        if not isinstance(place, dict):
            break
        if draw(some.booleans()) and place:
            del place[draw(some.sampled_from(sorted(place)))]
        else:
            place[draw(MEMBERS)] = draw(VALUES)
    if draw(some.integers(0, 9)) == 0:
        message = draw(some.sampled_from([[message], message.get(inside), None, 7, "x"]))
    separators = (",", ":") if draw(some.integers(0, 3)) else None
    text = json.dumps(message, separators=separators, ensure_ascii=draw(some.booleans()))
    data = text.encode("utf-8", "surrogatepass")
    how = draw(some.sampled_from(["", "", "", "", "twice", "cut", "spaces", "long", "bytes"]))
    if how == "twice":
        data = data.replace(b'"id":', b'"id":7,"id":', 1)
    elif how == "cut":
        data = data[: draw(some.integers(1, len(data)))]
    elif how == "spaces":
        data = b" " + data + b"  "
    elif how == "long":
        data = data.replace(b"}", b',"long":"' + b"y" * SMALL_READ + b'"}', 1)
    elif how == "bytes":
        data = data.replace(b"x", b"\xff").replace(b"hi", b"\t")
    return data


class Log:
    """Keeps the events that the loops record."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, int]] = []

    def record_call(self, form: Any, request_id: int) -> None:
        self.noted.append((form, request_id))

    def record_calls(self, notes: Any) -> None:
        self.noted += notes


class Loops:
    """Both stdio loops of the gateway, each between two pipes; messages for the session come out as a marker."""

    def __init__(self, harness: SessionHarness) -> None:
        self.fast_path, self.guard, self.log = harness.session.fast_path, harness.guard, Log()
        self.fast_path.max_open = 3  # a loop reads it once
        self._in: dict[str, int] = {}
        self._out: dict[str, Any] = {}
        self._threads: list[Thread] = []
        writers = {}
        for side in ("client", "server"):
            given, self._in[side] = os.pipe()
            taken, written = os.pipe()
            self._out[side] = os.fdopen(taken, "rb")
            writers[side] = given, LineWriter(written, 1 << 20, lambda: None)
        self.to_server, self.to_client = writers["client"][1], writers["server"][1]
        stdio = StdioLoops(cast("Any", self), cast("Any", self.log), self.to_server, self.to_client)
        stdio.enable_fast_path()
        for work in (
            lambda: stdio.relay_from_client(writers["client"][0], lambda _: self.to_server.write((FROM_SESSION,))),
            lambda: stdio.relay_from_server(writers["server"][0], lambda _: self.to_client.write((FROM_SESSION,))),
        ):
            self._threads.append(Thread(target=work, daemon=True))
            self._threads[-1].start()

    def on_client_message(self, *_: Any) -> SessionOutput:
        return NO_OUTPUT

    def on_server_message(self, *_: Any) -> SessionOutput:
        return NO_OUTPUT

    def send(self, side: str, line: bytes, *, together: bool = False) -> bytes:
        """Send a line at one side, alone or after another one, and return the line that arrives at the other side."""
        if together:
            os.write(self._in[side], b"[]\n" + line + b"\n")
            assert self._out[side].readline() == FROM_SESSION
        else:
            os.write(self._in[side], line + b"\n")
        return cast("bytes", self._out[side].readline())

    def close(self) -> None:
        for end in self._in.values():
            os.close(end)
        for thread in self._threads:
            thread.join(60)
        for writer in (self.to_server, self.to_client):
            writer.close()
        for stream in self._out.values():
            stream.close()


@contextmanager
def loops() -> Iterator[Loops]:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    assert "result" in harness.call_tool(NAME)
    made = Loops(harness)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def at() -> Iterator[Loops]:
    with loops() as made:
        yield made


def reset(at: Loops, state: str) -> CallFastPath:
    fast_path = at.fast_path
    fast_path.open.clear()
    fast_path.remaining, fast_path.until, fast_path.relays_unchecked_results = 5, inf, True
    fast_path.generation = at.guard.generation
    if state == "open":
        fast_path.open[7] = NAME
    elif state == "open otherwise":
        fast_path.open[7] = ForwardedRequest(7, "tools/call", NAME)
    elif state == "full":
        fast_path.open.update({101: NAME, 102: NAME, 103: NAME})
    elif state == "spent":
        fast_path.remaining = 0
    elif state == "late":
        fast_path.until = -inf
    elif state == "changed":
        fast_path.generation = -1
    elif state == "looked at":
        fast_path.relays_unchecked_results = False
    at.log.noted.clear()
    return fast_path


def read(data: bytes) -> Any:
    try:
        return strict_json.parse_json(data)
    except PinwardenError:
        return None


def left_behind(fast_path: CallFastPath) -> tuple[int, list[Any]]:
    return fast_path.remaining, [(request_id, type(call)) for request_id, call in fast_path.open.items()]


FEW = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NORMAL = ["", "", "", "", ""]


@FEW
@given(
    data=messages(CALL, "params"),
    state=some.sampled_from([*NORMAL, "open", "open otherwise", "full", "spent", "late", "changed"]),
    together=some.booleans(),
)
def test_stdio_and_the_session_agree_on_which_calls_take_the_fast_path(
    at: Loops, data: bytes, state: str, *, together: bool
) -> None:
    message = read(data)
    fast_path = reset(at, state)
    event = fast_path.admit(message, monotonic())
    if event is not None and type(message["id"]) is int and message["id"].bit_length() > 63:
        return  # orjson has no such numbers, so stdio leaves it to the session
    outcome = left_behind(fast_path)
    fast_path = reset(at, state)
    line = at.send("client", data, together=together)
    assert line == (FROM_SESSION if event is None else data + b"\n")
    assert at.log.noted == ([] if event is None else [(event, message["id"])])
    assert left_behind(fast_path) == outcome


@FEW
@given(
    data=messages(ANSWER, "result"),
    state=some.sampled_from(["open"] * 6 + ["", "open otherwise", "changed", "looked at"]),
    together=some.booleans(),
)
def test_stdio_and_the_session_agree_on_which_results_take_the_fast_path(
    at: Loops, data: bytes, state: str, *, together: bool
) -> None:
    message = read(data)
    fast_path = reset(at, state)
    passes = fast_path.take_relayable(data, message)
    outcome = left_behind(fast_path)
    fast_path = reset(at, state)
    assert at.send("server", data, together=together) == (data + b"\n" if passes else FROM_SESSION)
    assert left_behind(fast_path) == outcome


@FEW
@given(data=messages(PROGRESS, "params"), state=some.sampled_from(["", "", "changed", "looked at"]))
def test_stdio_and_the_session_agree_on_which_progress_takes_the_fast_path(at: Loops, data: bytes, state: str) -> None:
    fast_path = reset(at, state)
    passes = fast_path.take_relayable(data, read(data))
    assert at.send("server", data) == (data + b"\n" if passes else FROM_SESSION)


def call(params: bytes, request_id: bytes = b"7") -> bytes:
    """A compact call; the tool's name is a placeholder."""
    return b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"%%b"%b}}' % (request_id, params)


SPELLED = {
    "compact": call(b',"arguments":{"query":"x"}'),
    "spaced": b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "%b", "arguments": {"a": [1]}}}',
    "string id": call(b',"arguments":{}', b'"call-7"'),
    "string id with escapes": call(b"", rb'"\u00e9:\n\u0000"'),
    "progress token": call(b',"_meta":{"progressToken":"t"}'),
    "id last": b'{"method":"tools/call","params":{"arguments":{"query":"x"},"name":"%b"},"jsonrpc":"2.0","id":7}',
    "unicode escapes": call(rb',"arguments":{"q":"\u003a\u4e16"}'),
    "nested arguments": call(b',"arguments":{"a":{"b":{"c":":"}}}'),
    "numbers": call(b',"arguments":{"a":1.50,"b":1E2,"c":123456789012345678901234567890}', b"-7"),
    "long": call(b',"arguments":{"a":"' + b"y: " * 900 + b'"}'),
    "no arguments": call(b""),
}


@pytest.mark.parametrize("spelling", SPELLED)
def test_a_call_in_any_json_formatting_takes_the_fast_path(at: Loops, spelling: str) -> None:
    fast_path = reset(at, "")
    data = SPELLED[spelling] % NAME.encode()
    assert at.send("client", data) == data + b"\n"
    request_id = json.loads(data)["id"]
    assert [noted for _, noted in at.log.noted] == [request_id]
    answer = json.dumps({"result": {"content": [{"type": "text", "text": "a: b"}]}, "id": request_id, "jsonrpc": "2.0"})
    assert at.send("server", answer.encode()) == answer.encode() + b"\n"
    assert not fast_path.open


@pytest.mark.parametrize(
    "attack",
    [
        call(b',"arguments":"x"', b'7,"id":8'),
        call(b',"arguments":[1]', b'7,"id":8'),
        call(b',"arguments":{}').replace(b'"name":', b'"name":"evil","name":'),
        call(b',"arguments":{"a":{"b":1,"b":2}}'),
        call(rb',"arguments":{"a":1,"a":"\u003a"}'),
        call(rb',"arguments":{"a" :1,"\u0061":"\u003A"}'),
        call(b',"arguments":{"a":1e999}'),
        call(b',"arguments":{"a":' + b"[" * 200 + b"]" * 200 + b"}"),
        call(b',"arguments":{"a":0.' + b"1" * 1001 + b"}"),
        call(b',"arguments":{"a":"\xff"}'),
        b"\xef\xbb\xbf" + call(b',"arguments":{}'),
        call(b',"arguments":{}', b"true"),
        call(b',"arguments":{}', b'"pinwarden/s1/1"'),
        call(b',"arguments":{}', b'"' + b"x" * 300 + b'"'),
    ],
)
def test_attack_an_ambiguous_call_does_not_take_the_fast_path(at: Loops, attack: bytes) -> None:
    fast_path = reset(at, "")
    line = attack.replace(b"pinwarden/s1/", fast_path._id_prefix.encode()) % NAME.encode()
    assert at.send("client", line) == FROM_SESSION
    assert at.send("client", line, together=True) == FROM_SESSION
    assert (fast_path.open, at.log.noted) == ({}, [])


@pytest.mark.parametrize(
    "attack",
    [
        b'{"jsonrpc":"2.0","id":7,"id":7,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a","text":"b"}]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"resource_link"}]}}',
        rb'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"resource\u005flink"}]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"inputRequests":{}}}',
        b'{"jsonrpc":"2.0","id":7.0,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":"7","result":{"content":[]}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progressToken":2}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"Progress":2}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"message":' + b"[" * 200 + b"]" * 200 + b"}}",
        b'{"jsonrpc":"2.0","id":7,"method":"notifications/progress","params":{}}',
    ],
)
def test_attack_a_server_message_that_needs_a_decision_does_not_take_the_fast_path(at: Loops, attack: bytes) -> None:
    fast_path = reset(at, "open")
    assert at.send("server", attack) == FROM_SESSION
    assert at.send("server", attack, together=True) == FROM_SESSION
    assert fast_path.open == {7: NAME}


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_carriage_return_between_two_members_is_not_forwarded(at: Loops, side: str) -> None:
    """Attack: some line readers split there and would take a nested object for a message."""
    reset(at, "open" if side == "server" else "")
    line = json.dumps(CALL if side == "client" else ANSWER).encode().replace(b", ", b",\r")
    assert at.send(side, line) == line.replace(b"\r", b" ") + b"\n"


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_line_that_ends_with_crlf_takes_the_fast_path(at: Loops, side: str) -> None:
    fast_path = reset(at, "open" if side == "server" else "")
    line = json.dumps(CALL if side == "client" else ANSWER).encode() + b"\r"
    assert at.send(side, line) == line + b"\n"
    assert len(fast_path.open) == (1 if side == "client" else 0)
