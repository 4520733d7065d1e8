"""Clients of one protocol era and servers of the other, with the gateway between them, and servers that restart.

The handshake servers are real: one of the older Python SDK, which answers 404 for an unknown session, and the reference
server of the TypeScript SDK, which answers 400.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pinwarden.surface.probe.probe import probe
from pinwarden.surface.protocol import VERSION_META
from pinwarden.system.target import HttpTarget
from tests.gateway.http_gateway import (
    MODERN,
    OTHER_TOKEN,
    TOKEN,
    EventStream,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    stateless_request,
)
from tests.gateway.published_servers import MODULES, OLD_PYTHON
from tests.gateway.session_harness import SEARCH, approved_surface
from tests.servers.led_http import Exchange, Led, led_http
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.needs import missing
from tests.support.ports import reserved_port
from tests.support.targets import LOCAL, names
from tests.support.waiting import poll

STATE = {"tools": [SEARCH]}
OLD_SERVER = Path(__file__).parent.parent / "servers/old_sdk_server.py"


class Restarting:
    """A real handshake server on a fixed port that can be restarted."""

    def __init__(self, kind: str, calls: Path) -> None:
        self.kind = kind
        self.calls = calls
        self.port = reserved_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.tool = "post" if kind == "python" else "echo"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.kind == "python":
            if not OLD_PYTHON.exists():
                missing(str(OLD_PYTHON), "make .venv-old-client/.ready")
            command = [str(OLD_PYTHON), str(OLD_SERVER), str(self.port), str(self.calls)]
        else:
            if not MODULES.exists():
                missing("tests/npm/node_modules", "tools/npm-packages.sh")
            command = ["node", str(MODULES / "server-everything/dist/index.js"), "streamableHttp"]
        environment = {**os.environ, "PORT": str(self.port)}
        with self.calls.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        poll(self._listens)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def restart(self) -> None:
        self.stop()
        self.start()

    def arguments(self, text: str) -> dict[str, Any]:
        return {"letter" if self.kind == "python" else "message": text}


@pytest.fixture(scope="module", params=["python", "typescript"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarting]:
    calls = tmp_path_factory.mktemp("eras") / "calls"
    calls.touch()
    started = Restarting(request.param, calls)
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def here(server: Restarting) -> Iterator[RunningGateway]:
    with gateway({"old": UpstreamServer(guard("old"), url=server.url)}) as running:
        yield running


def by_sdk(url: str, tool: str, arguments: dict[str, Any]) -> tuple[list[str], str]:
    """Return the tools and the result that a stateless-only client of the official SDK gets."""

    async def see() -> tuple[list[str], str]:
        import httpx2
        from mcp.client import Client
        from mcp.client.streamable_http import streamable_http_client

        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode=MODERN) as client,
        ):
            tools = await client.list_tools()
            called = await client.call_tool(tool, arguments)
            for resource in (await client.list_resources()).resources[:1]:
                assert (await client.read_resource(resource.uri)).contents
            return [tool.name for tool in tools.tools], called.content[0].text  # type: ignore[union-attr]

    return asyncio.run(see())


@pytest.mark.parametrize("place", ["", "old"], ids=["all servers", "own address"])
def test_a_stateless_client_calls_a_handshake_server_before_and_after_it_restarts(
    server: Restarting, here: RunningGateway, place: str
) -> None:
    tool = server.tool if place else f"old__{server.tool}"
    for time in ("first", "again"):
        tools, text = by_sdk(here.url(place), tool, server.arguments(time))
        assert tool in tools
        assert time in text
        server.restart()
    with RawClient(here, place) as raw:
        listed = raw.request("tools/list")["result"]["tools"]
    assert tool in [entry["name"] for entry in listed]


def test_a_handshake_session_at_the_merged_endpoint_survives_a_server_restart(
    server: Restarting, here: RunningGateway
) -> None:
    with RawClient(here) as raw:
        raw.initialize()
        with EventStream(here, raw.session) as stream:
            call = {"name": f"old__{server.tool}", "arguments": server.arguments("one")}
            assert "one" in raw.session_request("tools/call", call, 2)["result"]["content"][0]["text"]
            server.restart()
            assert "one" in raw.session_request("tools/call", call, 3)["result"]["content"][0]["text"]
            assert stream.next()["method"] == "notifications/tools/list_changed"


def test_a_session_at_a_single_server_endpoint_ends_with_status_404_after_a_restart(
    server: Restarting, here: RunningGateway
) -> None:
    with RawClient(here, "old") as raw:
        raw.initialize()
        server.restart()
        for _ in range(2):
            raw.session_request("tools/list", {}, 2)
            assert raw.status == 404
        raw.session = ""
        raw.initialize()
        assert raw.session_request("tools/list", {}, 2)["result"]["tools"]


def test_after_a_restart_every_clients_call_is_answered_and_executed_once(
    server: Restarting, here: RunningGateway
) -> None:
    places = [("", TOKEN), ("", TOKEN), ("", OTHER_TOKEN), ("old", TOKEN), ("old", OTHER_TOKEN)]

    with ExitStack() as ends, ThreadPoolExecutor(len(places)) as threads:
        clients = [ends.enter_context(RawClient(here, place, token)) for place, token in places]

        def call(number: int) -> str:
            name = server.tool if places[number][0] else f"old__{server.tool}"
            params = {"name": name, "arguments": server.arguments(f"letter {number}")}
            text: str = clients[number].request("tools/call", params)["result"]["content"][0]["text"]
            return text

        for client in clients:
            client.request("tools/list")
        server.restart()
        before = len(server.calls.read_text().splitlines())
        answers = list(threads.map(call, range(len(clients))))
    assert all(f"letter {number}" in text for number, text in enumerate(answers))
    if server.kind == "python":
        made = server.calls.read_text().splitlines()[before:]
        assert sorted(made) == [f"letter {number}" for number in range(len(clients))]


# Behaviour that real servers do not show on demand


def named_session(exchange: Exchange, world: Led, session: str) -> bool:
    """Answer ``initialize`` with a session."""
    handler = exchange._handler
    result = {"protocolVersion": "2025-11-25", "capabilities": world.capabilities}
    info = {"serverInfo": {"name": world.name, "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": exchange.message["id"], "result": {**result, **info}}).encode()
    handler.send_response(200)
    for name, value in (("Content-Type", "application/json"), ("Mcp-Session-Id", session)):
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    handler.wfile.flush()
    return True


def refused(exchange: Exchange, status: int = 400) -> bool:
    """Refuse a message like a server that has not read it."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Bad Request: go away"}}
    exchange.send(json.dumps(error).encode(), status=status)
    return True


def test_a_400_response_in_a_valid_session_is_forwarded_and_the_session_continues() -> None:
    with led_http(newest=False) as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:

        def lead(exchange: Exchange) -> bool:
            if exchange.method == "initialize":
                return named_session(exchange, world, "one")
            return exchange.method == "tools/call" and refused(exchange)

        world.lead = lead
        with RawClient(running) as raw:
            for request_id in (1, 2):
                answer = raw.request("tools/call", {"name": "far__go", "arguments": {}}, request_id)
                assert answer["error"]["message"] == "Bad Request: go away"
    assert world.methods.count("tools/call") == 2
    assert world.methods.count("ping") == 2
    assert world.methods.count("initialize") == 1


@pytest.mark.parametrize("status", [400, 404])
def test_attack_a_server_that_forgets_every_session_gets_a_call_at_most_twice(status: int) -> None:
    with led_http(newest=False) as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:
        sessions = iter(range(1000))

        def lead(exchange: Exchange) -> bool:
            if exchange.method == "initialize":
                return named_session(exchange, world, f"session-{next(sessions)}")
            return exchange.method in ("tools/call", "ping") and refused(exchange, status)

        world.lead = lead
        with RawClient(running) as raw:
            answer = raw.request("tools/call", {"name": "far__go", "arguments": {}})
        assert answer["error"] == {"code": -32000, "message": "the server ended the session"}
    assert world.methods.count("tools/call") == 2
    assert world.methods.count("initialize") == 2


def test_a_call_that_may_have_been_executed_is_not_repeated() -> None:
    with led_http(newest=False) as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:

        def lead(exchange: Exchange) -> bool:
            if exchange.method == "initialize":
                return named_session(exchange, world, "one")
            if exchange.method == "tools/call":
                exchange._handler.connection.shutdown(socket.SHUT_RDWR)  # like a server that dies with the call
                return True
            return False

        world.lead = lead
        with RawClient(running) as raw:
            assert raw.request("tools/call", {"name": "far__go", "arguments": {}})["error"]["code"] == -32000
    assert world.methods.count("tools/call") == 1


def test_a_handshake_client_uses_a_stateless_server() -> None:
    with led_http() as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:
        world.lead = lambda exchange: exchange.method == "initialize" and refused(exchange)
        for place, name in (("far", "go"), ("", "far__go")):
            with RawClient(running, place) as raw:
                about = raw.initialize()["result"]
                assert (about["protocolVersion"], "tools" in about["capabilities"]) == ("2025-11-25", True)
                assert [tool["name"] for tool in raw.session_request("tools/list", {}, 2)["result"]["tools"]] == [name]
                called = raw.session_request("tools/call", {"name": name, "arguments": {"a": 1}}, 3)
                assert called["result"]["content"][0]["text"] == '{"a": 1}'
                assert raw.session_request("ping", {}, 4)["result"] == {}


def test_a_server_that_refuses_the_handshake_for_another_reason_has_its_error_forwarded() -> None:
    with led_http(newest=False) as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:
        world.lead = lambda exchange: exchange.method == "initialize" and refused(exchange)
        with RawClient(running, "far") as raw:
            assert raw.initialize()["error"]["message"] == "Bad Request: go away"


def test_a_stateless_client_that_disconnects_cancels_its_call_at_a_handshake_server() -> None:
    with led_http(newest=False) as world, gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running:

        def lead(exchange: Exchange) -> bool:
            if exchange.method == "initialize":
                return named_session(exchange, world, "one")
            if exchange.method == "tools/call":
                exchange.begin()
                exchange.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}})
                world.stopped.wait(60)
                return True
            return False

        world.lead = lead
        with RawClient(running) as raw:
            raw.request("tools/list")
        body, headers = stateless_request("tools/call", {"name": "far__go", "arguments": {}}, 7)
        with EventStream(running, body=body, headers=headers) as stream:
            assert stream.next()["method"] == "notifications/message"
        poll(lambda: "notifications/cancelled" in world.methods)
        note = next(message for message in world.got if message.method == "notifications/cancelled")
        call = next(message for message in world.got if message.method == "tools/call")
        assert note.message["params"]["requestId"] == call.message["id"]
        assert note.heads["mcp-session-id"] == "one"


def test_a_server_that_goes_back_to_the_handshake_is_detected() -> None:
    """The server's era was cached, and requests were sent directly."""
    with (
        led_http() as world,
        gateway({"far": UpstreamServer(guard("far"), url=world.url)}) as running,
        RawClient(running, "far") as raw,
    ):
        call = {"name": "go", "arguments": {}}
        for request_id in (1, 2, 3):
            assert "result" in raw.request("tools/call", call, request_id)
        world.newest = False
        sessions = {"one"}

        def lead(exchange: Exchange) -> bool:
            if exchange.method == "initialize":
                return named_session(exchange, world, "one")
            return exchange.heads.get("mcp-session-id") not in sessions and refused(exchange)

        world.lead = lead
        raw.request("tools/call", call, 4)
        assert "result" in raw.request("tools/call", call, 5)


FUTURE = "2099-01-01"


@pytest.fixture
def two_stateless_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinwarden as it would be with a second stateless revision."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pinwarden.") and hasattr(module, "STATELESS_VERSIONS"):
            monkeypatch.setattr(module, "STATELESS_VERSIONS", (MODERN, FUTURE))


def versions_of_requests(world: TurningWorld) -> set[tuple[str, str]]:
    """The revision in header and message of each request of the stateless era, except the first ``server/discover``."""
    received = [
        (head["mcp-protocol-version"], message["params"]["_meta"][VERSION_META])
        for head, message in zip(world.heads, map(json.loads, world.bodies), strict=True)
        if message["method"] != "initialize"
    ]
    assert received[0] == (MODERN, MODERN)
    return set(received[1:])


@pytest.mark.usefixtures("two_stateless_revisions")
def test_a_server_of_another_stateless_revision_is_probed_in_its_revision() -> None:
    with turning_http({"states": [STATE], "eras": ["discover"], "versions": [FUTURE]}) as world:
        surface = probe(HttpTarget(url=world.url), LOCAL)
    assert names(surface) == ["search_notes"]
    assert (surface.observed["era"], surface.observed["protocolVersion"]) == ("discover", FUTURE)
    assert versions_of_requests(world) == {(FUTURE, FUTURE)}


@pytest.mark.usefixtures("two_stateless_revisions")
@pytest.mark.parametrize("era", ["handshake", "newest"])
def test_the_gateway_uses_a_server_in_its_stateless_revision(era: str) -> None:
    with (
        turning_http({"states": [STATE], "eras": ["discover"], "versions": [FUTURE]}) as world,
        gateway({"far": UpstreamServer(guard("far", approved_surface(STATE)), url=world.url)}) as running,
        RawClient(running) as raw,
    ):
        if era == "handshake":
            raw.initialize()
        ask = raw.request if era == "newest" else raw.session_request
        assert [tool["name"] for tool in ask("tools/list", {}, 2)["result"]["tools"]] == ["far__search_notes"]
        assert "result" in ask("tools/call", {"name": "far__search_notes", "arguments": {}}, 3)
        assert world.calls("search_notes") == 1
    assert versions_of_requests(world) == {(FUTURE, FUTURE)}
