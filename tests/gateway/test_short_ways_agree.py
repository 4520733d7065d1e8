"""What a plain call is, and its answer, stands in several places for speed: they decide the same about any message.

The places are `PlainCalls.call` (which the session asks), `PlainCalls.form` (several lines at once, and HTTP),
`PlainCalls.answers`, and both loops of `Express`, which are run here over real pipes.
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
from pinwarden.gateway.asked import Asked
from pinwarden.gateway.express import SHORT, Express
from pinwarden.gateway.outlet import Outlet
from pinwarden.gateway.plain import PlainCalls
from pinwarden.gateway.step import NOTHING, Step
from tests.gateway.desk import SEARCH, Desk

NAME = SEARCH["name"]
NOT_PLAIN = b'"not plain"\n'
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
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "hi"}]}}


@some.composite
def messages(draw: some.DrawFn, base: dict[str, Any], inside: str) -> bytes:
    """A plain message with up to three deviations in what it has, and one in how it is written."""
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
        data = data.replace(b"}", b',"long":"' + b"y" * SHORT + b'"}', 1)
    elif how == "bytes":
        data = data.replace(b"x", b"\xff").replace(b"hi", b"\t")
    return data


class Log:
    """What the loops note."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, int]] = []

    def note(self, form: Any, number: int) -> None:
        self.noted.append((form, number))

    def note_all(self, notes: Any) -> None:
        self.noted += notes


class Loops:
    """Both loops of the gateway, each between two pipes; what is not plain comes out as a word that says so."""

    def __init__(self, desk: Desk) -> None:
        self.plain, self.guard, self.log = desk.session.plain, desk.guard, Log()
        self.plain.most = 3  # a loop looks at it once
        self._in: dict[str, int] = {}
        self._out: dict[str, Any] = {}
        self._threads: list[Thread] = []
        outlets = {}
        for side in ("client", "server"):
            given, self._in[side] = os.pipe()
            taken, written = os.pipe()
            self._out[side] = os.fdopen(taken, "rb")
            outlets[side] = given, Outlet(written, 1 << 20, lambda: None)
        self.to_server, self.to_client = outlets["client"][1], outlets["server"][1]
        express = Express(cast("Any", self), cast("Any", self.log), self.to_server, self.to_client)
        express.prepare()
        for work in (
            lambda: express.from_client(outlets["client"][0], lambda _: self.to_server.write((NOT_PLAIN,))),
            lambda: express.from_server(
                outlets["server"][0], lambda _: self.to_client.write((NOT_PLAIN,)), lambda: None
            ),
        ):
            self._threads.append(Thread(target=work, daemon=True))
            self._threads[-1].start()

    def client_frame(self, *_: Any) -> Step:
        return NOTHING

    def server_frame(self, *_: Any) -> Step:
        return NOTHING

    def says(self, side: str, line: bytes) -> bytes:
        """Put a line in at one side, and take the line that comes out at the other."""
        os.write(self._in[side], line + b"\n")
        return cast("bytes", self._out[side].readline())

    def close(self) -> None:
        for end in self._in.values():
            os.close(end)
        for thread in self._threads:
            thread.join(60)
        for outlet in (self.to_server, self.to_client):
            outlet.close()
        for stream in self._out.values():
            stream.close()


@contextmanager
def loops() -> Iterator[Loops]:
    desk = Desk({"tools": [SEARCH]})
    desk.open()
    assert "result" in desk.call(NAME)
    made = Loops(desk)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def at() -> Iterator[Loops]:
    with loops() as made:
        yield made


def reset(at: Loops, state: str) -> PlainCalls:
    plain = at.plain
    plain.open.clear()
    plain.left, plain.until, plain.relays = 5, inf, True
    plain.stamp = at.guard.stamp
    if state == "open":
        plain.open[7] = NAME
    elif state == "open otherwise":
        plain.open[7] = Asked(7, "tools/call", NAME)
    elif state == "full":
        plain.open.update({101: NAME, 102: NAME, 103: NAME})
    elif state == "spent":
        plain.left = 0
    elif state == "late":
        plain.until = -inf
    elif state == "changed":
        plain.stamp = -1
    elif state == "looked at":
        plain.relays = False
    at.log.noted.clear()
    return plain


def read(data: bytes) -> Any:
    try:
        return strict_json.parse(data)
    except PinwardenError:
        return None


def left_behind(plain: PlainCalls) -> tuple[int, list[Any]]:
    return plain.left, [(number, type(asked)) for number, asked in plain.open.items()]


FEW = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NORMAL = ["", "", "", "", ""]


@FEW
@given(
    data=messages(CALL, "params"),
    state=some.sampled_from([*NORMAL, "open", "open otherwise", "full", "spent", "late", "changed"]),
    quick=some.booleans(),
)
def test_whether_a_call_is_plain_is_decided_the_same_in_every_place(
    at: Loops, data: bytes, state: str, *, quick: bool
) -> None:
    message = read(data)
    plain = reset(at, state)
    step = plain.call(data, message, monotonic())
    outcome = left_behind(plain)
    plain = reset(at, state)
    form = plain.form(message, monotonic())
    assert (form is not None) == (step is not None)
    assert left_behind(plain) == outcome
    reset(at, "changed")
    # Behind a line that is not short, the next one is read with all others that wait.
    assert at.says("client", b"[]" + (b"" if quick else b" " * SHORT)) == NOT_PLAIN
    plain = reset(at, state)
    line = at.says("client", data)
    assert line == (NOT_PLAIN if step is None else data + b"\n")
    if step is not None:
        assert step.to_server == (data,)
        assert at.log.noted == [(form, message["id"])]
    assert left_behind(plain) == outcome


@FEW
@given(
    data=messages(ANSWER, "result"),
    state=some.sampled_from(["open"] * 6 + ["", "open otherwise", "changed", "looked at"]),
    quick=some.booleans(),
)
def test_whether_an_answer_is_plain_is_decided_the_same_in_every_place(
    at: Loops, data: bytes, state: str, *, quick: bool
) -> None:
    message = read(data)
    plain = reset(at, state)
    passes = message is not None and plain.answers(data, message)
    outcome = left_behind(plain)
    assert at.says("server", b"[]" + (b"" if quick else b" " * SHORT)) == NOT_PLAIN
    plain = reset(at, state)
    assert at.says("server", data) == (data + b"\n" if passes else NOT_PLAIN)
    assert left_behind(plain) == outcome
