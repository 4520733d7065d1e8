"""Messages that wait for servers or for lists to be judged share a memory budget over all sessions."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, cast

import pytest
import uvloop

from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.process_supervisor import ProcessSupervisor
from pinwarden.gateway.http.process_transport import TOO_MUCH, LineReader
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.upstream_connection import NULL_LISTENER
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import TransportOwner
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.messages import ParsedMessage
from pinwarden.project.server_start import ServerCommand
from pinwarden.system.fair_executor import FairExecutor
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress
from tests.gateway.http_gateway import InMemoryRecorder, rpc
from tests.gateway.session_harness import SessionHarness
from tests.gateway.test_hostile_messages import HONEST
from tests.gateway.test_http_attacks import RecordingSink
from tests.gateway.test_http_split_responses import Wire

MB = 1 << 20
NewLoop = Callable[[], asyncio.AbstractEventLoop]
DEAF = ServerCommand(words=(sys.executable, "-c", "import time; time.sleep(60)"), environment={})


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    chosen: NewLoop = request.param
    return chosen


class Owner:
    """The owner of a transport."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.client = "tester"
        self.lost: list[str] = []
        self.on_lost: Callable[[], None] = lambda: None

    def on_server_lost(self, why: str) -> None:
        self.lost.append(why)
        self.on_lost()

    def on_request_failed(self, request_id: Any, why: str) -> None:
        self.lost.append(f"{request_id[1]}: {why}")


def notification(size: int) -> ParsedMessage:
    message = rpc("notifications/progress", {"message": "x" * size}, None)
    return ParsedMessage(json.dumps(message).encode(), message)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("started", [True, False])
def test_attack_servers_that_do_not_read_share_a_budget_and_the_largest_backlog_is_dropped(
    new_loop: NewLoop, started: bool
) -> None:
    """Attack: many sessions with a server that does not read, each filled to just below its own limit."""
    limits = HttpLimits(max_queued_bytes=20 * MB, grace_seconds=0.05)

    async def scene() -> None:
        budget = MemoryBudget(limits.max_queued_bytes)
        supervisor = ProcessSupervisor("deaf", lambda: DEAF, limits)
        owners = [Owner(budget) for _ in range(3)]
        links = [supervisor.open(cast(TransportOwner, owner), lambda _: None) for owner in owners]
        if started:
            await until(lambda: all(link._stdin is not None for link in links))
        for link, size in zip(links, (6, 12, 6), strict=True):
            for _ in range(size):
                link.send(notification(MB), b"")
                assert budget.pending_bytes <= limits.max_queued_bytes
        assert [bool(owner.lost) for owner in owners] == [False, True, False]
        assert "the memory budget for queued messages is exceeded" in owners[1].lost[0]
        assert (budget.overflows, links[1].pending_bytes) == (1, 0)
        assert 9 * MB < budget.pending_bytes < 13 * MB
        for link in links:
            link.close()
        await until(lambda: not budget.pending_bytes and not supervisor.slots.occupied)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


def test_attack_the_backlog_of_an_ending_process_counts_until_it_is_gone(new_loop: NewLoop) -> None:
    """Attack: fill a session, end it and start the next, faster than processes end."""
    limits = HttpLimits(grace_seconds=0.3)

    async def scene() -> None:
        owner = Owner(MemoryBudget(limits.max_queued_bytes))
        supervisor = ProcessSupervisor("deaf", lambda: DEAF, limits)
        link = supervisor.open(cast(TransportOwner, owner), lambda _: None)
        await until(lambda: link._stdin is not None)
        link.send(notification(8 * MB), b"")
        link.close()
        assert owner.budget.pending_bytes > 6 * MB
        await until(lambda: not owner.budget.pending_bytes and not supervisor.slots.occupied)
        assert owner.lost == []

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


def test_attack_notifications_to_unresponsive_remotes_share_a_budget() -> None:
    limits = HttpLimits(max_queued_bytes=100_000)

    async def scene() -> tuple[list[str], list[str], int]:
        with socket.create_server(("127.0.0.1", 0)) as unresponsive:
            address = HttpAddress.parse(f"http://127.0.0.1:{unresponsive.getsockname()[1]}/mcp")
            pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
            server, budget = RemoteServer.create(pool, address, {}), MemoryBudget(limits.max_queued_bytes)
            few, many = Owner(budget), Owner(budget)
            first, second = (RemoteTransport(server, cast(TransportOwner, owner), limits) for owner in (few, many))
            first.send(notification(10_000), b"")
            for _ in range(9):
                second.send(notification(10_000), b"")
            waiting = budget.pending_bytes
            for link in (first, second):
                link.close()
            pool.close()
            return few.lost, many.lost, waiting

    few, many, waiting = asyncio.run(scene())
    assert few == []
    assert len(many) == 1
    assert 10_000 < waiting < 12_000


def test_attack_messages_of_an_ended_session_to_a_remote_count_until_they_are_released() -> None:
    """Attack: fill a session, end it and start the next; or let all connections hang, so that nothing is sent."""
    limits = HttpLimits(max_queued_bytes=100_000, max_upstream_connections=1, grace_seconds=0.05)

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as unresponsive:
            address = HttpAddress.parse(f"http://127.0.0.1:{unresponsive.getsockname()[1]}/mcp")
            pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
            server, owner = RemoteServer.create(pool, address, {}), Owner(MemoryBudget(limits.max_queued_bytes))
            pool.send(b"GET / HTTP/1.1\r\n\r\n", NULL_LISTENER)
            await until(lambda: pool._open)
            ended, full = (RemoteTransport(server, cast(TransportOwner, owner), limits) for _ in range(2))
            for _ in range(4):
                ended.send(notification(10_000), b"")
            ended.close()
            assert owner.budget.pending_bytes > 40_000
            await until(lambda: not owner.budget.pending_bytes)
            for _ in range(10):
                full.send(notification(10_000), b"")
            assert (len(owner.lost), owner.budget.pending_bytes) == (1, 0)
            assert [len(queued.data) for queued in pool._queue] == [0] * 14
            pool.close()

    asyncio.run(scene())


def test_a_session_that_ends_with_its_first_message_to_a_remote_leaves_no_stream_open() -> None:
    limits = HttpLimits(max_queued_bytes=100)

    async def scene() -> list[bytes]:
        address = HttpAddress.parse("http://127.0.0.1:9/mcp")
        pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
        owner = Owner(MemoryBudget(limits.max_queued_bytes))
        link = RemoteTransport(RemoteServer.create(pool, address, {}), cast(TransportOwner, owner), limits)
        owner.on_lost = link.close  # as a session does
        message = rpc("notifications/initialized", None, None)
        link.send(ParsedMessage(json.dumps(message).encode(), message), b"")
        sent = [queued.data[:4] for queued in pool._queue]
        pool.close()
        return sent

    assert asyncio.run(scene()) == [b""]


def test_attack_messages_queued_behind_list_judging_share_a_budget_over_all_sessions() -> None:
    """Attack: many sessions with slow lists, each with a queue just below its own limit."""
    closed: list[tuple[str, str]] = []
    limits = HttpLimits(max_queued_bytes=400_000)

    async def work() -> None:
        budget, judged = MemoryBudget(limits.max_queued_bytes), Event()
        with ThreadPoolExecutor(1) as threads:
            executor = FairExecutor(pool=threads)
            threads.submit(judged.wait, 60)  # so that all later messages wait
            conversations: dict[str, Conversation] = {}
            for name in ("greedy", "modest"):
                harness = SessionHarness(HONEST)
                harness.open()

                def on_closed(why: str, name: str = name) -> None:
                    closed.append((name, why))

                conversations[name] = Conversation(
                    harness.session, LoopRecorder(InMemoryRecorder()), limits, lambda: 0.0, on_closed, executor, budget
                )
            note = json.dumps(rpc("notifications/message", {"data": "x" * 70_000}, None)).encode()
            asks = RecordingSink()
            for _ in range(5):
                conversations["greedy"].on_server_message(note)  # the first is on the thread, the others are queued
            ping = rpc("ping", None, 77)
            conversations["greedy"].request(ParsedMessage(json.dumps(ping).encode(), ping), asks)
            conversations["modest"].on_server_message(note)
            assert closed == []
            conversations["modest"].on_server_message(note)
            conversations["modest"].on_server_message(note)
            assert [name for name, _ in closed] == ["greedy"]
            assert "and this session has the most" in closed[0][1]
            assert [code for code, _ in asks.got] == [-32000]
            assert 0 < budget.pending_bytes < 200_000
            judged.set()
            await until(lambda: not conversations["modest"]._queue.busy and not conversations["greedy"]._queue.busy)
            assert budget.pending_bytes == 0
            assert not conversations["modest"].closed

    asyncio.run(work())


def test_attack_unfinished_messages_of_processes_share_a_budget_and_the_longest_is_dropped() -> None:
    """Attack: many processes print a line just below the size limit and never end it."""
    budget = MemoryBudget(2 * MB)
    lost: list[tuple[str, str]] = []
    lines = {
        name: LineReader(
            lambda _: None,
            lambda: None,
            lambda why, name=name: lost.append((name, why)),  # type: ignore[misc]
            128 * MB,
            HttpLimits(),
            budget,
        )
        for name in ("modest", "greedy", "other")
    }
    for name, size in (("modest", 6), ("greedy", 20), ("other", 8)):
        for _ in range(size):
            lines[name].data_received(b"x" * (1 << 16))
            assert budget.pending_bytes <= 2 * MB
    assert lost == [("greedy", TOO_MUCH)]
    assert (budget.overflows, lines["greedy"].pending_bytes) == (1, 0)
    assert budget.pending_bytes == 14 << 16
    lines["modest"].data_received(b"\n")
    lines["other"].connection_lost(None)
    assert budget.pending_bytes == 0


@pytest.mark.parametrize(
    "head",
    [
        b"content-type: application/json\r\ncontent-length: 100000000\r\n\r\n",
        b"content-type: application/json\r\n\r\n",
        b"content-type: text/event-stream\r\n\r\ndata: ",
    ],
)
def test_attack_unfinished_responses_of_remotes_share_a_budget_and_the_longest_is_dropped(head: bytes) -> None:
    """Attack: responses of a hundred megabytes that lack only their end."""

    async def scene() -> None:
        budget = MemoryBudget(2 * MB)
        modest, greedy, other = wires = [Wire() for _ in range(3)]
        for wire, size in zip(wires, (6, 20, 8), strict=True):
            wire.budget = budget
            wire.answer(b"HTTP/1.1 200 OK\r\n" + head)
            for _ in range(size):
                if not wire.aborted:
                    wire.connection.data_received(b"x" * (1 << 16))
                await until(lambda wire=wire: not wire.paused)  # type: ignore[misc]
                assert budget.pending_bytes <= 2 * MB
        assert [wire.aborted for wire in wires] == [False, True, False]
        assert "and this response is the largest" in greedy.outcomes[-1][1]
        assert (budget.overflows, budget.pending_bytes >> 16) == (1, 14)
        modest.connection.connection_lost(None)
        other.connection.connection_lost(None)
        assert budget.pending_bytes == 0

    asyncio.run(scene())
