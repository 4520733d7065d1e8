"""Remote servers behind the gateway: bytes are relayed unchanged, and redirects are not followed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.upstream_connection import NULL_LISTENER, GeneralRequest, ResponseListener, UpstreamRequest
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import TransportOwner, UpstreamTransport
from pinwarden.gateway.session.messages import ParsedMessage
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress
from tests.gateway.http_gateway import (
    InMemoryRecorder,
    RawClient,
    UpstreamServer,
    gateway,
    guard,
    rpc,
    stateless_request,
)
from tests.gateway.test_http_memory_budgets import Owner
from tests.servers.led_http import Exchange, led_http

ODD = (
    b'{ "result" : {"content":[ {"type" :"text","text":"\\u00e9\\/ \\ud83d\\ude00 1.0e2"}],"x":1.50, "big":'
    b'123456789012345678901234567890 , "resultType":"complete" }\t, "id":%s , "jsonrpc":"2.0" }'
)
META = {"io.modelcontextprotocol/serverInfo": {"name": "odd", "version": "1"}}
HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class World:
    """A minimal server that sends exactly the bytes that the test gives, and keeps those that it received."""

    def __init__(self, wrap: Callable[[bytes], list[bytes]]) -> None:
        self._wrap = wrap
        self.got: list[bytes] = []
        self.sent: list[bytes] = []
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/mcp"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with (
            suppress(OSError),
            connection,
            connection.makefile("rb") as reader,
        ):  # the gateway may disconnect at any time
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while line := reader.readline():
                length = 0
                while (line := reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                for part in self._wrap(self._answer(reader.read(length))):
                    connection.sendall(part)

    def _answer(self, body: bytes) -> bytes:
        message = json.loads(body)
        if message["method"] == "tools/call":
            self.got.append(body)
            frame = ODD % json.dumps(message["id"]).encode()
            self.sent.append(frame)
            return frame
        results: dict[str, Any] = {
            "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": META},
            "tools/list": {"tools": [{"name": "odd", "inputSchema": {"type": "object"}}]},
        }
        result = {**results[message["method"]], **HINTS}
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


def as_json(body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body]


def in_parts(body: bytes) -> list[bytes]:
    """Split bytes into chunks at unfavourable positions."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, b"7\r\n" + body[:7] + b"\r\n", b"%x\r\n" % len(body[7:]) + body[7:] + b"\r\n0\r\n", b"\r\n"]


def as_events(body: bytes) -> list[bytes]:
    text = b": hello\r\n\r\nid: 7\r\nevent: message\r\ndata: " + body + b"\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    first, rest = (b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:40], text[40:]))
    return [head + first, rest + b"0\r\n\r\n"]


@contextmanager
def world(wrap: Callable[[bytes], list[bytes]]) -> Iterator[World]:
    made = World(wrap)
    try:
        yield made
    finally:
        made.listener.close()


@pytest.mark.parametrize("wrap", [as_json, in_parts, as_events])
def test_a_call_to_a_remote_and_its_response_are_relayed_byte_for_byte(
    wrap: Callable[[bytes], list[bytes]],
) -> None:
    body, headers = stateless_request("tools/call", {"name": "odd", "arguments": {"a": "\u00e9", "n": 1.5}}, 7)
    odd = body.replace(b'"n": 1.5', b'"n":1.50,\t"m" : -0.0').replace(b'"id": 7', b'"id" :7')
    with (
        world(wrap) as there,
        gateway({"odd": UpstreamServer(guard("odd"), url=there.url)}) as running,
        RawClient(running, "odd") as raw,
    ):
        for sent in (odd, body, body, odd, body):
            status, names, got = raw.send(sent, headers)
            assert (status, names["content-type"]) == (200, "application/json")
            assert (there.got[-1], there.sent[-1]) == (sent, got)
        assert len(there.got) == 5


def test_a_queued_request_gets_a_new_connection_if_the_server_closes_each_one() -> None:
    def closing(body: bytes) -> list[bytes]:
        return [message.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) for message in as_json(body)]

    limits = HttpLimits(reload_seconds=0.05, max_upstream_connections=1)
    with (
        world(closing) as there,
        gateway({"odd": UpstreamServer(guard("odd"), url=there.url)}, limits=limits) as running,
        RawClient(running, "odd") as raw,
    ):
        for request_id in (1, 2, 3):
            assert "result" in raw.request("tools/call", {"name": "odd", "arguments": {}}, request_id)
    assert there.connections == len(there.got) + 2  # one more to discover the server, and one for its list


def test_a_queued_request_fails_if_no_connection_can_be_opened() -> None:
    limits = HttpLimits(reload_seconds=0.05, max_upstream_connections=1)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        behind = UpstreamServer(guard("odd"), url=f"http://127.0.0.1:{reserved.getsockname()[1]}/mcp")
        with gateway({"odd": behind}, limits=limits) as running, RawClient(running, "odd") as raw:
            message = raw.request("tools/call", {"name": "odd", "arguments": {}})["error"]["message"]
    assert "could not be reached" in message, "not a timeout"


def _behind(url: str, rules: NetworkRules) -> UpstreamServer:
    behind = UpstreamServer(guard("odd"), url=url)

    def opener(limits: HttpLimits) -> Callable[[TransportOwner], UpstreamTransport]:
        address = HttpAddress.parse(url)
        behind.pool = UpstreamPool(address, rules, limits)
        server = RemoteServer.create(behind.pool, address, {"Authorization": "Bearer secret"})
        return lambda owner: RemoteTransport(server, owner, limits)

    behind.opener = opener  # type: ignore[method-assign]
    return behind


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_attack_a_redirect_of_a_remote_is_not_followed_and_credentials_are_not_sent(status: int) -> None:
    with world(as_json) as elsewhere:

        def redirect(_: bytes) -> list[bytes]:
            return [f"HTTP/1.1 {status} Go\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n".encode()]

        with (
            world(redirect) as there,
            gateway({"odd": _behind(there.url, NetworkRules(allow_private=True))}) as running,
            RawClient(running, "odd") as raw,
        ):
            error = raw.request("server/discover")["error"]
            assert (error["code"], "redirects" in error["message"]) == (-32000, True)
        assert elsewhere.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"])
def test_attack_a_remote_that_resolves_to_a_private_address_is_not_contacted(host: str) -> None:
    with world(as_json) as there:
        url = there.url.replace("127.0.0.1", host)
        with gateway({"odd": _behind(url, NetworkRules())}) as running, RawClient(running, "odd") as raw:
            error = raw.request("server/discover")["error"]
            assert error["code"] == -32000
            assert "not a public address" in error["message"]
            assert "error" in raw.request("tools/call", {"name": "odd", "arguments": {}}, 2)
        assert there.connections == 0


class Slow:
    """A server that answers a request when the test says so."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.open = 0
        self._writers: dict[bytes, asyncio.StreamWriter] = {}

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                name = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
                self.received.append(name)
                self._writers[name] = writer
        writer.close()
        self.open -= 1

    def answer(self, name: bytes, *, close: bool = False) -> None:
        """Answer one request."""
        more = b"connection: close\r\n" if close else b""
        self._writers[name].write(b"HTTP/1.1 200 OK\r\n" + more + b"content-length: 2\r\n\r\n{}")

    async def has(self, *names: bytes) -> None:
        """Wait until it received exactly these requests, in any order."""
        async with asyncio.timeout(60):
            while sorted(self.received) != sorted(names):
                await asyncio.sleep(0.002)


def with_a_slow_one(limits: HttpLimits, scene: Callable[[Slow, UpstreamPool], Awaitable[None]]) -> None:
    async def run() -> None:
        slow = Slow()
        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        address = HttpAddress.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
        pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
        try:
            await scene(slow, pool)
        finally:
            pool.close()
            server.close()
            async with asyncio.timeout(60):
                while slow.open:
                    await asyncio.sleep(0.002)

    asyncio.run(run())


@pytest.mark.parametrize("close", [False, True])
def test_attack_requests_of_one_client_leave_connections_for_others(close: bool) -> None:
    """Attack: make calls that are never answered until they use every connection to a server."""

    async def scene(slow: Slow, pool: UpstreamPool) -> None:
        own = [b"a%d" % number for number in range(6)]
        for name in own:
            pool.send(b"GET %b HTTP/1.1\r\n\r\n" % name, NULL_LISTENER, "alice")
            if name <= b"a2":
                await slow.has(*own[: own.index(name) + 1])
        pool.send(b"GET b0 HTTP/1.1\r\n\r\n", NULL_LISTENER, "bob")
        await slow.has(*own[:3], b"b0")
        slow.answer(b"b0", close=close)
        pool.send(b"GET b1 HTTP/1.1\r\n\r\n", NULL_LISTENER, "bob")
        await slow.has(*own[:3], b"b0", b"b1")
        slow.answer(b"a1", close=close)  # now one of alice's queued requests is next
        await slow.has(*own[:4], b"b0", b"b1")

    with_a_slow_one(HttpLimits(max_upstream_connections=4, max_client_upstream_connections=3), scene)


def test_a_queued_request_that_is_cancelled_is_never_sent() -> None:
    async def scene(slow: Slow, pool: UpstreamPool) -> None:
        pool.send(b"GET a0 HTTP/1.1\r\n\r\n", NULL_LISTENER, "alice")
        await slow.has(b"a0")
        pool.send(b"GET a1 HTTP/1.1\r\n\r\n", NULL_LISTENER, "alice").cancel()
        pool.send(b"GET a2 HTTP/1.1\r\n\r\n", NULL_LISTENER, "alice")
        slow.answer(b"a0")
        await slow.has(b"a0", b"a2")

    with_a_slow_one(HttpLimits(max_upstream_connections=4, max_client_upstream_connections=1), scene)


def test_attack_streams_of_one_client_leave_streams_for_others_and_connections_for_requests() -> None:
    """Attack: subscribe until every connection to a server is an endless stream."""

    async def scene(slow: Slow, pool: UpstreamPool) -> None:
        first = pool.send(b"GET s0 HTTP/1.1\r\n\r\n", NULL_LISTENER, "alice", stream=True)
        assert pool.allows_stream("alice")
        pool.send(b"GET s1 HTTP/1.1\r\n\r\n", NULL_LISTENER, "alice", stream=True)
        assert (pool.allows_stream("alice"), pool.allows_stream("bob")) == (False, True)
        pool.send(b"GET s2 HTTP/1.1\r\n\r\n", NULL_LISTENER, "bob", stream=True)
        assert (pool.allows_stream("bob"), pool.allows_stream("carl")) == (False, False)
        await slow.has(b"s0", b"s1", b"s2")
        assert (pool.allows_stream("bob"), pool.allows_stream("carl")) == (False, False)
        pool.send(b"GET b0 HTTP/1.1\r\n\r\n", NULL_LISTENER, "carl")
        await slow.has(b"s0", b"s1", b"s2", b"b0")
        first.cancel()
        assert pool.allows_stream("carl")

    limits = HttpLimits(max_upstream_connections=4, max_upstream_streams=3, max_client_streams=2)
    with_a_slow_one(limits, scene)


def test_a_stream_above_the_limit_is_refused_and_the_session_works_without_it() -> None:
    async def scene(slow: Slow, pool: UpstreamPool) -> None:
        owner = Owner(MemoryBudget(1 << 20))
        link = RemoteTransport(RemoteServer.create(pool, pool.address, {}), cast(TransportOwner, owner), pool._limits)
        listen, begun = rpc("subscriptions/listen", {}, 7), rpc("notifications/initialized", None, None)
        link.send(ParsedMessage(json.dumps(listen).encode(), listen), b"")
        await asyncio.sleep(0)
        link.send(ParsedMessage(json.dumps(begun).encode(), begun), b"")
        await slow.has(b"/mcp")  # the notification, and no stream
        why = "too many streams to this server are open; close one, or try again later"
        assert owner.lost == [f"7: {why}"]

    with_a_slow_one(HttpLimits(max_client_streams=0), scene)


class Line:
    """A connection pool that shows the test what is sent, and lets it respond."""

    budget: MemoryBudget | None = None

    def __init__(self) -> None:
        self.sent: list[UpstreamRequest] = []

    def start(self, outgoing: UpstreamRequest) -> None:
        self.sent.append(outgoing)

    def send(
        self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False
    ) -> GeneralRequest:
        outgoing = GeneralRequest(data, listener, client, stream=stream)
        self.start(outgoing)
        return outgoing

    def allows_stream(self, client: str) -> bool:
        del client
        return True

    @property
    def methods(self) -> list[str]:
        bodies = [message.data.partition(b"\r\n\r\n")[2] for message in self.sent if not message.cancelled]
        return [json.loads(body)["method"] if body else "GET" for body in bodies]


@pytest.mark.parametrize("how", ["answered", "begins to answer", "lost", "given up", "waited for"])
def test_no_message_overtakes_the_initialized_notification(how: str) -> None:
    """Servers refuse earlier requests or list fewer tools, and parallel connections guarantee no order."""
    begins = "notifications/initialized"

    async def scene() -> None:
        line = Line()
        limits = HttpLimits(connect_seconds=0 if how == "waited for" else 3600)
        server = RemoteServer.create(cast(UpstreamPool, line), HttpAddress.parse("http://127.0.0.1:9/mcp"), {})
        link = RemoteTransport(server, cast(TransportOwner, Owner(MemoryBudget(1 << 20))), limits)

        def send(method: str, request_id: int | None) -> None:
            message = rpc(method, {}, request_id)
            link.send(ParsedMessage(json.dumps(message).encode(), message), b"")

        for method, request_id in ((begins, None), ("tools/list", 1), ("ping", 2), ("notifications/x", None)):
            send(method, request_id)
        link.cancel((int, 2))
        assert line.methods == [begins]
        answer = {"jsonrpc": "2.0", "id": 5, "result": {}}
        link.send(ParsedMessage(json.dumps(answer).encode(), answer), b"")
        assert b'"id": 5' in line.sent.pop().data, "at once, because a server may wait for it"
        first = line.sent[0].listener
        if how == "answered":
            first.on_response(202, "", b"")
        elif how == "begins to answer":
            first.on_head(202, "")
        elif how == "lost":
            first.on_lost("it hung up", was_sent=True)
        elif how == "given up":
            link.expire(link._clock() + 1, {(int, 1)})
        else:
            async with asyncio.timeout(60):
                while len(line.sent) == 1:
                    await asyncio.sleep(0.002)
        later = ["tools/list"] if how == "given up" else ["tools/list", "notifications/x"]
        assert line.methods == ([] if how == "given up" else [begins]) + ["GET", *later]
        send("tools/call", 3)
        assert line.methods[-1] == "tools/call", "at once"

    asyncio.run(scene())


def test_a_session_that_ends_during_its_handshake_sends_nothing_more() -> None:
    async def scene() -> None:
        line = Line()
        server = RemoteServer.create(cast(UpstreamPool, line), HttpAddress.parse("http://127.0.0.1:9/mcp"), {})
        link = RemoteTransport(server, cast(TransportOwner, Owner(MemoryBudget(1 << 20))), HttpLimits())
        for message in (rpc("notifications/initialized", None, None), rpc("tools/list", {}, 1)):
            link.send(ParsedMessage(json.dumps(message).encode(), message), b"")
        link.close()
        line.sent[0].listener.on_response(202, "", b"")
        assert line.methods == ["notifications/initialized"]

    asyncio.run(scene())


GARBAGE = [
    b"<html>oops</html>",
    b"hello",
    b"null",
    b"[1]",
    b"{}",
    b"\xff\xfe",
    b'{"jsonrpc":"2.0","id":NUMBER,"result":',
    b'{"jsonrpc":"2.0","id":NUMBER,"result":{"content":[]}} trailing',
    b'{"id":NUMBER,"id":NUMBER,"result":{}}',
    b'{"jsonrpc":"2.0","id":NUMBER,"result":{"a":1,"a":2}}',
    b'{"jsonrpc":"2.0","id":99,"result":{"a":1,"a":2}}',
]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("body", GARBAGE)
def test_a_malformed_response_produces_exactly_one_error_at_once(body: bytes, kind: str) -> None:
    def lead(exchange: Exchange) -> bool:
        if exchange.method != "tools/call":
            return False
        text = body.replace(b"NUMBER", str(exchange.message["id"]).encode())
        exchange.send(text if kind == "application/json" else b"data: " + text + b"\n\n", kind)
        return True

    recorder = InMemoryRecorder()
    with (
        led_http() as led,
        gateway({"far": UpstreamServer(guard("far", led.surface), url=led.url)}, recorder) as running,
    ):
        led.lead = lead
        with RawClient(running, "far") as raw:
            for request_id in (1, 2):
                assert raw.request("tools/call", {"name": "go", "arguments": {}}, request_id)["error"]["code"] in (
                    -32000,
                    -32603,
                )
    if b"NUMBER" in body:
        assert "answer_unasked" not in {fact.code for fact in recorder.events}, "otherwise it was answered twice"
