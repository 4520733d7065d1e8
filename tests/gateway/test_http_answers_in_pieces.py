"""Answers of remote servers mean the same in whatever pieces they come, whether their head was seen before or not."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.gateway.http.limits import HttpLimits
from pinwarden.gateway.http.pool import Outgoing, UpstreamConnection

BODY = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """The server's end of one connection, and what the gateway is told of its answers."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Any] = {}
        self.told: list[Any] = []
        self.ways: list[str] = []
        self.aborted = False
        self.connection = UpstreamConnection(self, HttpLimits())  # type: ignore[arg-type]
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def answer(self, *parts: bytes) -> list[Any]:
        self.told = []
        self.connection.start(Outgoing(b"POST", self))
        for part in parts:
            self.connection.data_received(part)
        return self.told

    # The pool.
    def made(self, connection: object) -> None: ...
    def lost(self, connection: object) -> None: ...
    def free(self, connection: object) -> None: ...

    # The transport.
    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True

    # Whoever asked.
    def on_whole(self, status: int, session: str, body: bytes) -> None:
        self.ways.append("short")
        self.told += [(status, session), body, ("end",)]

    def on_head(self, status: int, session: str) -> None:
        self.told.append((status, session))

    def on_frame(self, frame: bytes) -> None:
        self.ways.append("general")
        self.told.append(frame)

    def on_end(self) -> None:
        self.told.append(("end",))

    def on_lost(self, why: str, *, sent: bool) -> None:
        self.told.append(("lost", why, sent))


@pytest.fixture
def wire() -> Wire:
    async def made() -> Wire:
        return Wire()

    return asyncio.run(made())


WHOLE = [(200, ""), BODY, ("end",)]


@given(cuts=st.lists(st.lists(st.integers(1, len(HEAD + BODY) - 1), max_size=5, unique=True), min_size=1, max_size=4))
def test_an_answer_is_the_same_in_any_pieces_again_and_again(cuts: list[list[int]]) -> None:
    async def talk() -> None:
        wire = Wire()
        for places in cuts:
            bounds = [0, *sorted(places), len(HEAD + BODY)]
            assert wire.answer(*((HEAD + BODY)[a:b] for a, b in pairwise(bounds))) == WHOLE
        assert not wire.aborted

    asyncio.run(talk())


def test_a_head_that_came_before_its_body_is_known_the_next_time(wire: Wire) -> None:
    for _ in range(3):
        assert wire.answer(HEAD, BODY) == WHOLE
    assert wire.ways == ["general", "short", "short"]


def test_attack_more_than_the_known_length_is_no_answer_of_that_length(wire: Wire) -> None:
    """What follows an answer would be taken for the answer to somebody's next request."""
    wire.answer(HEAD, BODY)
    wire.answer(HEAD, BODY + HEAD + BODY)
    assert wire.ways == ["general", "general"]
    wire.answer(HEAD, BODY[:5], BODY[5:] + b"x")
    assert "short" not in wire.ways


def test_chunks_are_never_taken_for_a_body_of_known_length(wire: Wire) -> None:
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    for _ in range(2):
        assert wire.answer(CHUNKED, chunk) == WHOLE
    assert (wire.ways, wire.heads) == (["general", "general"], {})


@pytest.mark.parametrize("parts", [(HEAD + BODY[:10],), (HEAD, BODY[:10]), (HEAD,)])
def test_a_server_that_hangs_up_in_the_middle_of_a_known_answer_has_not_answered(
    parts: tuple[bytes, ...], wire: Wire
) -> None:
    wire.answer(HEAD, BODY)
    wire.answer(*parts)
    wire.connection.connection_lost(None)
    assert wire.told[-1][0] == "lost"
    assert not any(isinstance(each, bytes) for each in wire.told)
