"""Responses of remote servers are parsed the same however they are split, with and without a cached head."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.upstream_connection import GeneralRequest, UpstreamConnection
from pinwarden.system.target import HttpAddress

BODY = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """The server's end of one connection, and what the gateway gets of its responses."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.address = HttpAddress.parse("https://mcp.example/mcp")
        self.heads: dict[bytes, Any] = {}
        self.budget: MemoryBudget | None = None
        self.outcomes: list[Any] = []
        self.ways: list[str] = []
        self.aborted = self.closed = False
        self.paused: bool | None = None
        self.freed = 0
        self.connection = UpstreamConnection(self, limits or HttpLimits())
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def answer(self, *parts: bytes) -> list[Any]:
        self.outcomes = []
        self.connection.start(GeneralRequest(b"POST", self))
        for part in parts:
            self.connection.data_received(part)
        return self.outcomes

    # The pool.
    def on_connection_made(self, connection: object) -> None: ...
    def on_connection_lost(self, connection: object) -> None: ...
    def release(self, connection: object) -> None:
        del connection
        self.freed += 1

    # The transport.
    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    # The request.
    def on_response(self, status: int, session: str, body: bytes) -> None:
        self.ways.append("short")
        self.outcomes += [(status, session), body, ("end",)]

    def on_challenge(self, challenge: str) -> None:
        """Not part of these tests."""

    def on_head(self, status: int, session: str) -> None:
        self.outcomes.append((status, session))

    def on_message(self, frame: bytes) -> None:
        self.ways.append("general")
        self.outcomes.append(frame)

    def on_end(self) -> None:
        self.outcomes.append(("end",))

    def on_lost(self, why: str, *, was_sent: bool) -> None:
        self.outcomes.append(("lost", why, was_sent))


@pytest.fixture
def wire() -> Wire:
    async def create() -> Wire:
        return Wire()

    return asyncio.run(create())


WHOLE = [(200, ""), BODY, ("end",)]


@given(cuts=st.lists(st.lists(st.integers(1, len(HEAD + BODY) - 1), max_size=5, unique=True), min_size=1, max_size=4))
def test_a_response_is_parsed_the_same_however_it_is_split(cuts: list[list[int]]) -> None:
    async def talk() -> None:
        wire = Wire()
        for places in cuts:
            bounds = [0, *sorted(places), len(HEAD + BODY)]
            assert wire.answer(*((HEAD + BODY)[a:b] for a, b in pairwise(bounds))) == WHOLE
        assert not wire.aborted

    asyncio.run(talk())


def test_a_response_head_that_arrived_before_its_body_is_cached(wire: Wire) -> None:
    for _ in range(3):
        assert wire.answer(HEAD, BODY) == WHOLE
    assert wire.ways == ["general", "short", "short"]


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
EVENT = b"%x\r\ndata: %b\n\n\r\n0\r\n\r\n" % (len(BODY) + 8, BODY)
SURPLUS = ("lost", "the server sent data after its response", True)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("surplus", [HEAD + BODY, HEAD, HEAD[:1], b"\r\n" + HEAD, b"H" + b"x" * 100_000])
@pytest.mark.parametrize("answer", [HEAD + BODY, CHUNKED + CHUNK, EVENTS + EVENT])
def test_attack_a_response_with_surplus_data_is_refused_and_its_connection_is_not_reused(
    wire: Wire, known: bool, surplus: bytes, answer: bytes
) -> None:
    """Attack: answer one client twice, so that the next client gets the second response."""
    if known:
        wire.answer(HEAD, BODY)
    before = wire.freed
    outcomes = wire.answer(answer + surplus)
    assert outcomes[-1] == SURPLUS or (surplus[:3] == b"Hxx" and outcomes[-1][0] == "lost")
    assert BODY not in outcomes
    assert (wire.aborted, wire.freed) == (True, before)


def test_attack_the_start_of_a_second_response_after_a_cached_head_is_refused_at_once(wire: Wire) -> None:
    wire.answer(HEAD, BODY)
    assert wire.answer(HEAD, BODY + HEAD) == [(200, ""), SURPLUS]
    assert (wire.aborted, wire.freed) == (True, 1)


def test_line_breaks_after_a_response_are_ignored(wire: Wire) -> None:
    for _ in range(2):
        assert wire.answer(HEAD + BODY + b"\r\n") == WHOLE
    assert (wire.aborted, wire.freed) == (False, 2)


def test_an_interim_1xx_response_is_not_the_final_response(wire: Wire) -> None:
    assert wire.answer(b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + HEAD + BODY) == WHOLE
    assert (wire.aborted, wire.freed) == (False, 1)


ENDLESS = {
    "a_header": (b"HTTP/1.1 200 OK\r\nx: ", b"a" * 4096),
    "the_name_of_a_header": (b"HTTP/1.1 200 OK\r\n", b"a" * 4096),
    "a_reason": (b"HTTP/1.1 200 ", b"a" * 4096),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "one_header_again_and_again": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 600),
    "interim_answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "a_trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nx: ", b"a" * 4096),
    "a_trailer_of_a_stream": (EVENTS + b"9\r\ndata: 1\n\n\r\n0\r\nx: ", b"a" * 4096),
    "an_extension_of_a_chunk": (CHUNKED + b"2;x=", b"a" * 4096),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_attack_an_endless_header_trailer_or_chunk_is_refused_after_64_kib(wire: Wire, kind: str) -> None:
    """Attack: a header of a hundred megabytes, which is copied again with every part."""
    first, more = ENDLESS[kind]
    wire.answer(first)
    sent = len(first)
    while not wire.aborted and sent < 1 << 20:
        wire.connection.data_received(more)
        sent += len(more)
    assert wire.outcomes[-1][0] == "lost"
    assert sent <= 64 * 1024 + len(first) + len(more)
    assert wire.freed == 0


def test_attack_a_long_head_in_one_read_with_its_body_is_refused() -> None:
    async def talk() -> list[Any]:
        wire = Wire(HttpLimits(max_upstream_head_bytes=1000))
        return wire.answer(HEAD.replace(b"\r\n\r\n", b"\r\nx: " + b"a" * 1000 + b"\r\n\r\n") + BODY)

    assert asyncio.run(talk()) == [("lost", "the head of the server's response is too long", True)]


def test_attack_a_flood_of_events_is_processed_in_batches_while_reading_is_paused() -> None:
    """Attack: thousands of tiny events in one read, which are judged while other clients wait."""

    async def talk() -> None:
        wire = Wire(HttpLimits(max_messages_at_once=4))
        flood = b"data: 1\n\n" * 50
        wire.answer(EVENTS + b"%x\r\n%b\r\n0\r\n\r\n" % (len(flood), flood))
        for turn in range(1, 13):
            assert wire.outcomes == [(200, ""), *[b"1"] * (4 * turn)]
            assert (wire.paused, wire.freed) == (True, 0)
            await asyncio.sleep(0)
        assert wire.outcomes == [(200, ""), *[b"1"] * 50, ("end",)]
        assert (wire.paused, wire.freed, wire.aborted) == (False, 1, False)

    asyncio.run(talk())


def test_attack_a_long_response_in_one_read_is_processed_in_batches() -> None:
    async def talk() -> None:
        wire = Wire(HttpLimits(max_bytes_at_once=1 << 16))
        body = b"1" * 300_000
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        wire.answer(head + body)
        turns = 0
        while ("end",) not in wire.outcomes:
            assert wire.paused
            await asyncio.sleep(0)
            turns += 1
        assert wire.outcomes == [(200, ""), body, ("end",)]
        assert (turns, wire.paused, wire.freed) == (4, False, 1)

    asyncio.run(talk())


def test_a_cancelled_request_gets_no_more_events_of_a_flood() -> None:
    async def talk() -> None:
        wire = Wire(HttpLimits(max_messages_at_once=4))
        outgoing = GeneralRequest(b"POST", wire)
        wire.connection.start(outgoing)
        wire.connection.data_received(EVENTS + b"%x\r\n%b\r\n" % (450, b"data: 1\n\n" * 50))
        outgoing.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert wire.outcomes == [(200, ""), *[b"1"] * 4]
        assert (wire.aborted, wire.freed) == (True, 0)

    asyncio.run(talk())


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_response_without_a_length_ends_with_the_connection(wire: Wire, pieces: int) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    size = len(head + BODY) // pieces + 1
    assert BODY not in wire.answer(*((head + BODY)[at : at + size] for at in range(0, len(head + BODY), size)))
    wire.connection.eof_received()
    assert wire.outcomes == WHOLE
    assert (wire.closed, wire.freed, wire.heads) == (True, 0, {})


@pytest.mark.parametrize("parts", [(HEAD + BODY[:10],), (CHUNKED + CHUNK[:-2],), (HEAD[:20],)])
def test_a_response_with_a_length_is_incomplete_if_the_connection_closes_early(
    parts: tuple[bytes, ...], wire: Wire
) -> None:
    wire.answer(*parts)
    wire.connection.eof_received()
    wire.connection.connection_lost(None)
    assert wire.outcomes[-1][0] == "lost"
    assert BODY not in wire.outcomes


def test_a_chunked_response_never_uses_the_cached_length(wire: Wire) -> None:
    for _ in range(2):
        assert wire.answer(CHUNKED, CHUNK) == WHOLE
    assert (wire.ways, wire.heads) == (["general", "general"], {})


@pytest.mark.parametrize("parts", [(HEAD + BODY[:10],), (HEAD, BODY[:10]), (HEAD,)])
def test_a_server_that_disconnects_in_the_middle_of_a_response_has_not_answered(
    parts: tuple[bytes, ...], wire: Wire
) -> None:
    wire.answer(HEAD, BODY)
    wire.answer(*parts)
    wire.connection.connection_lost(None)
    assert wire.outcomes[-1][0] == "lost"
    assert not any(isinstance(outcome, bytes) for outcome in wire.outcomes)
