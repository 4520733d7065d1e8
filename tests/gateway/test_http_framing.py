"""Ambiguous HTTP requests close the connection and are never processed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from pinwarden.gateway.http.connection import ClientConnection, ClientConnections
from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http1 import Reply, Request, RequestReader
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.listener import Certificate, start_secure_server
from tests.servers.authority import Authority

HEAD = b"POST /mcp HTTP/1.1\r\nHost: gateway\r\n"


class Short:
    """A fast path to the same response."""

    def __init__(self, echo: Echo, request: Request) -> None:
        self.length = len(request.body)
        self._echo = echo
        self._request = request

    def relay_call(self, body: bytes, connection: ClientConnection) -> bool:
        self._echo.short += 1
        request = Request(self._request.method, self._request.path, self._request.headers, body)
        self._echo.handle_request(request, Reply(connection, keep_alive=True))
        return True


class Echo:
    """Responds to every request with its body, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.admitted: list[dict[bytes, bytes]] = []
        self.pending: list[Reply] = []
        self.hold = False
        self.routes: dict[bytes, Short] = {}
        self.short = 0

    def authenticate(self, headers: dict[bytes, bytes], path: str) -> str:
        assert path.startswith("/")
        self.admitted.append(headers)
        return headers.get(b"authorization", b"").decode()

    def handle_request(self, request: Request, reply: Reply) -> None:
        self.requests.append(request)
        if request.head:
            self.routes[request.head] = Short(self, request)
        if self.hold:
            self.pending.append(reply)
        else:
            reply.send(200, request.body or b"-", content_type="text/plain")


class FakeClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test advances, because a short real wait can end too early on a busy machine."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


Wait = tuple[Callable[[ClientConnection], bool], float]
"""A state that a connection must reach, and how many seconds pass then without traffic."""


async def _talk(
    data: list[bytes], limits: HttpLimits, echo: Echo, until: Callable[[bytes], bool], wait: Wait | None
) -> bytes:
    loop = asyncio.get_running_loop()
    connections = ClientConnections(echo, limits)
    server = await loop.create_server(connections, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    got = b""
    try:
        for part in data:
            writer.write(part)
            await writer.drain()
        if wait is not None:
            there, seconds = wait
            async with asyncio.timeout(60):
                while not any(map(there, connections.open)):
                    await asyncio.sleep(0)
            assert isinstance(loop, FakeClockLoop)
            loop.ahead += seconds * 0.9
            for _ in range(5):
                await asyncio.sleep(0)
            assert connections.open, "the timeout has not passed yet"
            loop.ahead += seconds * 0.1
        async with asyncio.timeout(60):
            while not until(got) and (more := await reader.read(65536)):
                got += more
    except ConnectionError:
        pass  # it closed the connection while the test was still sending
    finally:
        writer.close()
        server.close()
    return got


def talk(
    *data: bytes,
    limits: HttpLimits | None = None,
    echo: Echo | None = None,
    until: Callable[[bytes], bool] | None = None,
    wait: Wait | None = None,
) -> tuple[bytes, list[Request]]:
    """Send bytes; return the response until the connection closes, and the accepted requests."""
    echo = echo or Echo()
    with asyncio.Runner(loop_factory=FakeClockLoop) as runner:
        got = runner.run(_talk(list(data), limits or HttpLimits(), echo, until or (lambda _: False), wait))
    return got, echo.requests


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


SMUGGLING = {
    "content_length_and_transfer_encoding": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "transfer_encoding_and_content_length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two_equal_content_lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two_content_lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a_list_of_content_lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a_signed_content_length": b"Content-Length: +3\r\n\r\nabc",
    "a_space_before_the_colon": b"Content-Length : 3\r\n\r\nabc",
    "a_folded_header": b"X-A: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a_chunk_size_with_prefix": b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a_chunk_longer_than_its_size": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "chunks_with_bare_line_feeds": b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "a_second_transfer_encoding": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a_vertical_tab_in_transfer_encoding": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a_trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: y\r\n\r\n",
    "a_nul_in_a_header": b"X-A: a\0b\r\n\r\n",
    "a_bare_carriage_return": b"X-A: a\rb\r\n\r\n",
    "a_second_host": b"Host: other\r\nContent-Length: 0\r\n\r\n",
    "a_second_token": b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 0\r\n\r\n",
    "a_second_tool_name": b"Mcp-Name: a\r\nMcp-Name: b\r\nContent-Length: 0\r\n\r\n",
    "a_second_parameter": b"Mcp-Param-X: a\r\nMcp-Param-X: b\r\nContent-Length: 0\r\n\r\n",
    "another_protocol": b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("rest", [pytest.param(data, id=name) for name, data in SMUGGLING.items()])
def test_attack_an_ambiguous_http_request_is_refused_and_the_connection_is_closed(rest: bytes) -> None:
    answer, requests = talk(HEAD + rest + HEAD + b"Content-Length: 8\r\n\r\nsmuggled")
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1
    assert requests == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /mcp HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"POST /mcp HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
        (b"POST http://other/mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 400),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", 415),
        (HEAD + b"Expect: tea\r\nContent-Length: 0\r\n\r\n", 417),
        (HEAD + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(200)) + b"\r\n", 431),
        (HEAD + b"Content-Length: 2000\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n400\r\n", 413),
    ],
)
def test_unsupported_or_too_long_requests_get_their_specific_status(data: bytes, expected: int) -> None:
    answer, requests = talk(data, limits=HttpLimits(max_body_bytes=1000))
    assert (status(answer), requests) == (expected, [])


def test_attack_a_request_head_that_never_ends_times_out() -> None:
    limits = HttpLimits(head_seconds=1000, body_seconds=9000, idle_connection_seconds=9000)
    answer, requests = talk(
        HEAD + b"X-A: ", limits=limits, wait=(lambda connection: connection._reader.in_request, 1000)
    )
    assert (status(answer), requests) == (408, [])


def test_attack_a_request_body_that_never_ends_times_out() -> None:
    limits = HttpLimits(head_seconds=9000, body_seconds=1000, idle_connection_seconds=9000)
    in_request = HEAD + b"Content-Length: 5\r\n\r\nab"
    answer, requests = talk(in_request, limits=limits, wait=(lambda connection: connection._reader.in_body, 1000))
    assert (status(answer), requests) == (408, [])


@pytest.mark.parametrize("rest", [b"0\r\nX-A: ", b"0\r\n", b"1;x=", b"2\r\n{}\r\n0\r\nX-A"])
def test_attack_an_endless_trailer_or_chunk_header_is_refused_after_32_kib(rest: bytes) -> None:
    """Attack: an endless trailer, which no body limit counts and which is copied again with every part."""
    reader = RequestReader(HttpLimits())
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
    sent = code = 0
    while not code and sent < 1 << 20:
        try:
            reader.feed(b"a" * 1024)
        except BadRequest as refused:
            code = refused.status
        sent += 1024
    assert code == 400
    assert sent <= 33 * 1024


def test_a_body_in_tiny_chunks_is_accepted_despite_its_chunk_overhead() -> None:
    reader = RequestReader(HttpLimits())
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(20_000):
        assert reader.feed(b"1;x\r\na\r\n") == []
    (request,) = reader.feed(b"0\r\n\r\n")
    assert request.body == b"a" * 20_000


def test_an_idle_connection_is_closed_without_a_response() -> None:
    limits = HttpLimits(head_seconds=100, idle_connection_seconds=1000)
    asks = HEAD + b"Authorization: alice\r\nContent-Length: 2\r\n\r\nab"
    answer, requests = talk(asks, limits=limits, echo=ManualHandler(), wait=(_answered, 1000))
    assert (status(answer), answer[-2:], len(requests)) == (200, b"ab", 1)


def _answered(connection: ClientConnection) -> bool:
    return not connection.is_busy and len(cast(Echo, connection.owner.handler).requests) == 1


def test_pipelined_requests_are_answered_in_order() -> None:
    parts = b"".join(HEAD + b"Content-Length: 4\r\n\r\n%04d" % n for n in range(60))
    answer, requests = talk(parts, until=lambda got: got.endswith(b"0059"))
    assert [int(request.body) for request in requests] == list(range(60))
    bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert [int(body) for body in bodies] == list(range(60))


def test_a_cached_request_head_is_parsed_the_same_and_never_consumes_more_than_its_body() -> None:
    one = HEAD + b"Content-Length: 4\r\n\r\n"
    parts = [one + b"aaaa", one + b"bbbb", one + b"cc", b"cc" + one + b"dddd" + one + b"eeee", one + b"ffff"]
    bad = HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"

    echo = Echo()

    async def scene() -> tuple[list[bytes], bytes]:
        connections = ClientConnections(echo, HttpLimits())
        server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(60):
            for part, taken, in_request in zip(parts, (1, 2, 2, 5, 6), (False, False, True, False, False), strict=True):
                writer.write(part)
                while not connections.open:
                    await asyncio.sleep(0)
                (connection,) = connections.open
                while len(echo.requests) < taken or connection._reader.in_request != in_request:
                    await asyncio.sleep(0)
            writer.write(bad)
            got = await reader.read()
        writer.close()
        server.close()
        return [request.body for request in echo.requests], got

    bodies, got = asyncio.run(scene())
    assert bodies == [b"aaaa", b"bbbb", b"cccc", b"dddd", b"eeee", b"ffff"]
    assert got.count(b"HTTP/1.1 200 ") == 6
    assert got.count(b"HTTP/1.1 400 ") == 1
    assert echo.short == 2, "only heads that arrived complete in one read"


def test_a_long_body_in_one_read_with_its_head_is_accepted() -> None:
    body = b"x" * 100_000
    answer, requests = talk(HEAD + b"Content-Length: 100000\r\n\r\n" + body, until=lambda got: got.endswith(body))
    assert (status(answer), requests[0].body) == (200, body)


def test_chunks_are_joined() -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    answer, requests = talk(HEAD + body, until=lambda got: got.endswith(b"abcde"))
    assert (status(answer), requests[0].body) == (200, b"abcde")


def test_expect_100_continue_is_answered() -> None:
    answer, requests = talk(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", until=bool)
    assert answer == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert requests == []


def test_a_connection_above_the_limit_gets_status_503() -> None:
    answer, requests = talk(HEAD + b"Content-Length: 0\r\n\r\n", limits=HttpLimits(max_connections=0))
    assert (status(answer), requests) == (503, [])
    assert b"retry-after: 1\r\n" in answer


class ManualHandler(Echo):
    """Identifies clients by a header, and responds when the test says so."""

    def handle_request(self, request: Request, reply: Reply) -> None:
        if client := request.get_header(b"authorization"):
            reply.set_client(client)
        super().handle_request(request, reply)


def ask(client: str = "") -> bytes:
    return HEAD + (f"Authorization: {client}\r\n" if client else "").encode() + b"Content-Length: 0\r\n\r\n"


class RawConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send_request(self, client: str = "") -> int:
        """Send a request; return the status, or 0 if the connection was closed."""
        try:
            self.writer.write(ask(client))
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
            await self.reader.readexactly(1 if b"content-length: 1" in head else 0)
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0
        return status(head)

    async def is_closed(self) -> bool:
        """Wait until the connection is closed."""
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 60) == b""
        return True


def with_connections(
    most: int,
    scene: Callable[[ManualHandler, ClientConnections, Callable[[], Awaitable[RawConnection]]], Awaitable[None]],
) -> None:
    async def run() -> None:
        handler = ManualHandler()
        connections = ClientConnections(handler, HttpLimits(max_connections=most))
        server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
        connected: list[RawConnection] = []

        async def connect() -> RawConnection:
            connected.append(RawConnection(*await asyncio.open_connection(*server.sockets[0].getsockname())))
            return connected[-1]

        try:
            await scene(handler, connections, connect)
        finally:
            for connection in connected:
                connection.writer.close()
            server.close()

    asyncio.run(run())


def test_attack_unauthenticated_connections_cannot_lock_out_clients() -> None:
    """Attack: without a token, open as many connections as allowed, and keep them."""

    async def scene(
        handler: ManualHandler, connections: ClientConnections, connect: Callable[[], Awaitable[RawConnection]]
    ) -> None:
        first = await connect()
        assert await first.send_request("alice") == 200
        unauthenticated = [await connect() for _ in range(3)]
        for connection in unauthenticated:
            assert await connection.send_request() == 200
        late = await connect()
        assert await late.send_request("bob") == 200
        assert await unauthenticated[0].is_closed(), "the oldest connection"
        assert [await connection.send_request() for connection in (first, *unauthenticated[1:], late)] == [200] * 4
        assert (connections.evicted, connections.refused, len(connections.open)) == (1, 0, 4)
        assert len(handler.requests) == 9

    with_connections(4, scene)


def test_attack_a_client_that_holds_every_connection_loses_one_to_another_client() -> None:
    async def scene(
        handler: ManualHandler, connections: ClientConnections, connect: Callable[[], Awaitable[RawConnection]]
    ) -> None:
        other = await connect()
        assert await other.send_request("bob") == 200
        own = [await connect() for _ in range(3)]
        for message in own:
            assert await message.send_request("alice") == 200
        late = await connect()
        assert await late.send_request("carl") == 200
        assert await own[0].is_closed(), "its least recently used connection"
        assert [await message.send_request("alice") for message in own[1:]] == [200, 200]
        assert await other.send_request("bob") == 200

    with_connections(4, scene)


def test_a_connection_with_a_request_in_flight_is_never_closed_for_another() -> None:
    async def scene(
        handler: ManualHandler, connections: ClientConnections, connect: Callable[[], Awaitable[RawConnection]]
    ) -> None:
        handler.hold = True
        first = await connect()
        asking = asyncio.ensure_future(first.send_request("alice"))
        async with asyncio.timeout(60):
            while not handler.pending:
                await asyncio.sleep(0)
        assert await (await connect()).send_request("bob") == 503
        handler.pending.pop().send(200, b"-", content_type="text/plain")
        assert await asking == 200
        assert (connections.evicted, connections.refused) == (0, 1)

    with_connections(1, scene)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_attack_unfinished_tls_handshakes_count_and_the_oldest_is_closed_first(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Attack: open as many connections as files can be opened, and never start the TLS handshake."""
    authority = Authority(tmp_path)
    authority.server("127.0.0.1")
    certificate = Certificate(tmp_path / "server-127.0.0.1.pem", None)

    async def scene() -> None:
        connections = ClientConnections(ManualHandler(), HttpLimits(max_connections=3))
        server = await start_secure_server(connections, certificate.context, "127.0.0.1", 0, 16)
        address = server.sockets[0].getsockname()
        silent = [RawConnection(*await asyncio.open_connection(*address)) for _ in range(3)]
        tls = ssl.create_default_context(cafile=str(authority.file))
        client = RawConnection(*await asyncio.open_connection(*address, ssl=tls))
        assert await client.send_request("alice") == 200
        assert await silent[0].is_closed()
        more = [RawConnection(*await asyncio.open_connection(*address)) for _ in range(2)]
        assert await silent[1].is_closed()
        assert await silent[2].is_closed()
        assert await client.send_request("alice") == 200
        assert (connections.evicted, connections.refused, len(connections.open)) == (3, 0, 1)
        server.close()
        connections.draining = True
        for connection in (*silent, *more, client):
            connection.writer.close()
        async with asyncio.timeout(60):
            while connections.open or connections.unauthenticated:
                await asyncio.sleep(0.002)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


def test_an_unauthenticated_connection_has_a_shorter_idle_timeout() -> None:
    limits = HttpLimits(head_seconds=100, idle_connection_seconds=1000)
    answer, requests = talk(ask(), limits=limits, wait=(_answered, 100))
    assert (status(answer), len(requests)) == (200, 1), "the connection was closed; otherwise this would still wait"


def test_during_shutdown_open_requests_finish_and_new_ones_are_not_accepted() -> None:
    async def scene() -> tuple[bytes, bool, int]:
        echo = Echo()
        echo.hold = True
        connections = ClientConnections(echo, HttpLimits())
        server = await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        async with asyncio.timeout(60):
            while not echo.pending:
                await asyncio.sleep(0)
            draining = asyncio.create_task(connections.drain(60))
            await asyncio.sleep(0)
            echo.pending[0].send(200, b"late", content_type="text/plain")
            got = await reader.read(65536)
            drained = await draining
            writer.close()
            server.close()
            return got, drained, len(connections.open)

    got, drained, still_open = asyncio.run(scene())
    assert (status(got), got[-4:], drained) == (200, b"late", True)
    assert b"connection: close\r\n" in got
    assert still_open == 0
