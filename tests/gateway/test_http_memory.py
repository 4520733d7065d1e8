"""The memory that clients can make the gateway use is limited for all clients together."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pinwarden.gateway.http.connection import ClientConnections
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.process_supervisor import ProcessSlots
from tests.gateway.http_gateway import OTHER_TOKEN, TOKEN, RawClient, UpstreamServer, gateway, guard, rpc
from tests.gateway.test_http_framing import HEAD, Echo
from tests.servers import talking

MB = 1 << 20
NewLoop = Callable[[], asyncio.AbstractEventLoop]
ASK = HEAD + b"Content-Length: 0\r\n\r\n"


async def _until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.002)


class Reader:
    """A client that reads only when the test says so."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.socket.settimeout(60)
        self.socket.connect(address)
        self.got = 0

    def ask(self, data: bytes = ASK) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bool:
        """Read; return whether that many bytes were available."""
        try:
            while size > 0:
                data = self.socket.recv(min(size, 1 << 16))
                if not data:
                    return False
                size -= len(data)
                self.got += len(data)
        except ConnectionError:
            return False
        return True


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    chosen: NewLoop = request.param
    return chosen


def _serve(
    new_loop: NewLoop,
    limits: HttpLimits,
    echo: Echo,
    work: Callable[[ClientConnections, Callable[[], Reader]], Awaitable[None]],
) -> None:
    async def run() -> None:
        connections = ClientConnections(echo, limits)
        server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
        readers: list[Reader] = []

        def reader() -> Reader:
            readers.append(Reader(server.sockets[0].getsockname()))
            return readers[-1]

        try:
            await work(connections, reader)
        finally:
            for opened in readers:
                opened.socket.close()
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_attack_slow_readers_share_a_budget_and_the_one_with_the_largest_backlog_is_closed_first(
    new_loop: NewLoop,
) -> None:
    answer = b"x" * (16 * MB)
    limits = HttpLimits(max_all_unsent_bytes=40 * MB)
    lines: list[str] = []

    async def work(connections: ClientConnections, reader: Callable[[], Reader]) -> None:
        connections.on_slow_disconnect = lines.append
        echo.hold = True
        reads, *idle = [reader() for _ in range(5)]
        for index, client in enumerate((reads, *idle)):
            client.ask()
            await _until(lambda: echo.pending)
            echo.pending.pop().send(200, answer)
            assert connections.unsent_bytes <= limits.max_all_unsent_bytes
            if index == 0:
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, reads.read, 4 * MB)
        assert connections.slow_disconnects == len(lines) >= 1
        await _until(lambda: len(connections.open) == 5 - connections.slow_disconnects)
        assert all("127.0.0.1 was disconnected: " in line and "reads slowest" in line for line in lines)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, reads.read, 12 * MB), "a client that reads gets everything"

    echo = Echo()
    _serve(new_loop, limits, echo, work)


def test_attack_a_client_that_reads_nothing_is_disconnected_after_a_timeout(new_loop: NewLoop) -> None:
    lines: list[str] = []

    async def work(connections: ClientConnections, reader: Callable[[], Reader]) -> None:
        connections.on_slow_disconnect = lines.append
        echo.hold = True
        stuck = reader()
        stuck.ask()
        await _until(lambda: echo.pending)
        echo.pending.pop().send(200, b"x" * (16 * MB))

        def ticked() -> bool:
            connections.tick()
            return not connections.open

        await _until(ticked)
        assert (connections.slow_disconnects, connections.unsent_bytes) == (1, 0)

    echo = Echo()
    _serve(new_loop, HttpLimits(unread_seconds=0.1), echo, work)
    assert lines == ["127.0.0.1 was disconnected: the client stopped reading"]


def test_attack_the_gateway_stops_reading_from_a_client_that_does_not_read_its_responses(new_loop: NewLoop) -> None:
    """Attack: responses to pipelined requests pile up, without a token."""

    async def work(connections: ClientConnections, reader: Callable[[], Reader]) -> None:
        body = b"y" * 60_000
        flood = reader()
        flood.socket.settimeout(0.2)
        request = HEAD + b"Content-Length: 60000\r\n\r\n" + body

        def send_ahead() -> int:
            sent = 0
            try:
                while sent < 400 * MB:
                    sent += flood.socket.send(request)
            except TimeoutError:
                return sent
            return sent

        assert await asyncio.get_running_loop().run_in_executor(None, send_ahead) < 50 * MB
        assert connections.unsent_bytes < 2 * MB
        assert len(connections.open) == 1

    _serve(new_loop, HttpLimits(), Echo(), work)


def _head(length: int, token: str) -> bytes:
    return (
        f"POST /mcp/none HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def _answer(connection: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        more = connection.recv(65536)
        if not more:
            break
        got += more
    return got


def test_attack_a_long_body_without_a_token_is_not_read() -> None:
    with gateway({"none": UpstreamServer(guard("none"), command=["false"])}) as at:
        for head in (
            _head(1 * MB, "wrong"),
            _head(0, "wrong").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        ):
            with socket.create_connection((at.host, at.port), timeout=60) as running:
                running.sendall(head)
                answer = _answer(running)
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert b"www-authenticate: Bearer" in answer
        assert at.call_on_loop(lambda: at.serving.connections.large_body_bytes) == 0
        assert at.call_on_loop(lambda: at.endpoint.requests) == 0


def test_large_requests_share_a_memory_budget_and_release_it() -> None:
    limits = HttpLimits(max_all_body_bytes=300_000, reload_seconds=0.05)

    def bodies() -> int:
        return at.call_on_loop(lambda: at.serving.connections.large_body_bytes)

    with gateway({"none": UpstreamServer(guard("none"), command=["false"])}, limits=limits) as at:
        body = b'"' + b"x" * 199_998 + b'"'
        with (
            socket.create_connection((at.host, at.port), timeout=60) as first,
            socket.create_connection((at.host, at.port), timeout=60) as second,
        ):
            first.sendall(_head(200_000, TOKEN) + body[:150_000])
            while bodies() != 150_000:
                pass
            second.sendall(_head(200_000, OTHER_TOKEN))
            answer = _answer(second)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer
            first.sendall(body[150_000:])
            assert _answer(first).startswith(b"HTTP/1.1 400 "), "the body was read and is not a message"
            assert bodies() == 0
            first.sendall(_head(250_000, TOKEN) + body[:1000])
            while bodies() != 1000:
                pass
        while bodies():
            pass


def test_attack_announced_but_unsent_bodies_use_no_memory_budget() -> None:
    """Attack: the heads of many large requests without their bodies."""
    limits = HttpLimits(max_all_body_bytes=300_000, reload_seconds=0.05)
    with ExitStack() as stack, gateway({"none": UpstreamServer(guard("none"), command=["false"])}, limits=limits) as at:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection((at.host, at.port), timeout=60))
            connection.sendall(_head(200_000, TOKEN) + b'"')
        while at.call_on_loop(lambda: at.serving.connections.large_body_bytes) != 20:
            pass
        with socket.create_connection((at.host, at.port), timeout=60) as other:
            other.sendall(_head(200_000, OTHER_TOKEN) + b'"' + b"x" * 199_998 + b'"')
            assert _answer(other).startswith(b"HTTP/1.1 400 "), "the body was read and is not a message"


def test_attack_large_requests_of_one_client_leave_memory_budget_for_others() -> None:
    """Attack: large requests that lack only the last byte."""
    limits = HttpLimits(max_all_body_bytes=500_000, max_client_body_bytes=250_000, reload_seconds=0.05)
    with ExitStack() as stack, gateway({"none": UpstreamServer(guard("none"), command=["false"])}, limits=limits) as at:
        connection = stack.enter_context(socket.create_connection((at.host, at.port), timeout=60))
        connection.sendall(_head(200_000, TOKEN) + b"x" * 199_999)
        while at.call_on_loop(lambda: at.serving.connections.large_body_bytes) != 199_999:
            pass
        with socket.create_connection((at.host, at.port), timeout=60) as same:
            same.sendall(_head(100_000, TOKEN))
            assert _answer(same).startswith(b"HTTP/1.1 503 ")
        with socket.create_connection((at.host, at.port), timeout=60) as chunked:
            head = _head(0, TOKEN).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
            chunked.sendall(head + b"%x\r\n" % 100_000 + b"x" * 60_000)
            assert _answer(chunked).startswith(b"HTTP/1.1 503 ")
        with socket.create_connection((at.host, at.port), timeout=60) as other:
            other.sendall(_head(200_000, OTHER_TOKEN) + b'"' + b"x" * 199_998 + b'"')
            assert _answer(other).startswith(b"HTTP/1.1 400 "), "the body was read and is not a message"


def test_attack_a_client_that_opens_too_many_sessions_loses_only_its_own() -> None:
    limits = HttpLimits(max_client_sessions=3, max_sessions=5, reload_seconds=0.05)
    command = [sys.executable, str(Path(talking.__file__)), os.devnull]
    with (
        gateway({"talking": UpstreamServer(guard("talking"), command=command)}, limits=limits) as at,
        ExitStack() as stack,
    ):
        honest = stack.enter_context(RawClient(at, "talking", OTHER_TOKEN))
        honest.initialize()
        greedy = [stack.enter_context(RawClient(at, "talking")) for _ in range(6)]
        for client in greedy:
            client.initialize()
        assert honest.session_request("ping")["result"] is not None
        alive = [entry.send(json.dumps(rpc("ping", {}, 1)).encode())[0] for entry in greedy]
        assert alive == [404, 404, 404, 200, 200, 200]


def test_attack_a_client_that_holds_every_process_loses_its_oldest_to_a_client_without_one() -> None:
    """Attack: use all process slots, so that other clients get none."""
    limits = HttpLimits(max_processes=4, reload_seconds=0.05, grace_seconds=0.05, eviction_seconds=60)
    command = [sys.executable, str(Path(talking.__file__)), os.devnull]
    behind = UpstreamServer(guard("talking"), command=command)
    with gateway({"talking": behind}, limits=limits) as at, ExitStack() as stack:
        greedy = [stack.enter_context(RawClient(at, "talking")) for _ in range(4)]
        for client in greedy:
            client.initialize()
        assert greedy[0].session_request("ping")["result"] is not None
        honest = stack.enter_context(RawClient(at, "talking", OTHER_TOKEN))
        assert honest.initialize()["result"]
        assert honest.session_request("ping")["result"] is not None
        assert behind.supervisor is not None
        assert behind.supervisor.slots.occupied == 4
        alive = [entry.send(json.dumps(rpc("ping", {}, 1)).encode())[0] for entry in greedy]
        assert alive == [200, 404, 200, 200], "the least recently used session"
        with RawClient(at, "talking") as again:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            refusal = again.session_request("initialize", hello)["error"]
        assert refusal["code"] == -32000
        assert "server processes already, which is its limit" in refusal["message"]


class Process:
    """A process that ends when the test says so."""

    def __init__(self, client: str, used: float, *, idle: bool = True) -> None:
        self.client = client
        self.last_used = used
        self.is_idle = idle
        self.end_requests = 0

    def evict(self) -> None:
        self.end_requests += 1


def test_process_slots_are_taken_from_the_client_with_the_most_and_busy_ones_only_above_half() -> None:
    async def scene() -> None:
        places = ProcessSlots(5)
        busy = [Process("alice", number, idle=False) for number in range(3)]
        idle = [Process("bob", 7), Process("bob", 6)]
        for process in (*busy, *idle):
            assert await places.take(process, 0)
        assert not await places.take(Process("alice", 0), 0), "alice has the most"
        carl = asyncio.ensure_future(places.take(Process("carl", 0), 60))
        await asyncio.sleep(0)
        assert [process.end_requests for process in (*busy, *idle)] == [1, 0, 0, 0, 0]
        places.release(busy[0])
        assert await carl
        assert not await places.take(Process("dora", 0, idle=False), 0), "bob's process is ending slowly"
        assert [process.end_requests for process in (*busy, *idle)] == [1, 0, 0, 0, 1]
        places.release(idle[1])
        assert places.occupied == 4

    asyncio.run(scene())


def test_a_request_with_a_huge_integer_id_is_answered_even_if_the_server_is_gone() -> None:
    """Attack: an error that cannot be serialized leaves other requests of the session waiting."""
    request_id = 10**40
    with gateway({"none": UpstreamServer(guard("none"), command=["false"])}) as at, RawClient(at, "none") as client:
        for method in ("server/discover", "tools/list"):
            answer = client.request(method, None, request_id)
            assert (answer["id"], answer["error"]["code"]) == (request_id, -32000)


def test_a_response_to_head_has_no_body() -> None:
    ask = "{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with gateway({"none": UpstreamServer(guard("none"), command=["false"])}) as at:
        at.endpoint.public_pages["/healthz"] = lambda _: (200, "application/json", b'{"status":"ok"}')
        with socket.create_connection((at.host, at.port), timeout=60) as running:
            for path, status in (("/healthz", b"200"), ("/mcp/none", b"401"), ("/metrics", b"401")):
                running.sendall(ask.format("HEAD", path).encode())
                head = _answer(running)
                assert head.split(b" ")[1] == status
                assert head.endswith(b"\r\n\r\n")
            running.sendall(ask.format("GET", "/healthz").encode())
            assert _answer(running).startswith(b"HTTP/1.1 200 OK")
