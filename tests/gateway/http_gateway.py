"""Runs an HTTP gateway with chosen upstream servers in a thread of the test, and talks to it over raw HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.guard import ApprovedSurface, Guard
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.header_checks import Access, GatewayClient, TokenVerifier
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.listener import HttpServer, ListenAddress
from pinwarden.gateway.http.merged import create_merged_route
from pinwarden.gateway.http.process_supervisor import ProcessSupervisor
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.session_manager import Opener, SessionManager, Upstream
from pinwarden.gateway.http.tracing import Tracing
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import TransportOwner, UpstreamTransport
from pinwarden.gateway.recorder import LoopRecorder, OutputRecorder
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.store.tokens import hash_token
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy
from pinwarden.project.server_start import ServerCommand
from pinwarden.surface.surface import Surface
from pinwarden.system.environment_variables import build_child_environment
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress

TOKEN = "pwt_a-token-for-tests"
OTHER_TOKEN = "pwt_another-token-for-tests"
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
T = TypeVar("T")


class RecordingStream:
    """A client's open notification stream that records its messages."""

    is_open = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def messages(self) -> list[Any]:
        return [json.loads(frame) for frame in self.frames]

    def start_events(self) -> None:
        """Do nothing: the stream is open already."""

    def send_event(self, frame: bytes) -> None:
        self.frames.append(frame)

    def end_events(self) -> None:
        """Do nothing: tests look at the recorded messages."""


class InMemoryRecorder(OutputRecorder):
    """Records every session output in memory."""

    def __init__(self) -> None:
        self.steps: list[SessionOutput] = []

    def record(self, step: SessionOutput) -> None:
        self.steps.append(step)

    def record_durably(self, step: SessionOutput) -> None:
        self.steps.append(step)

    @property
    def events(self) -> list[Any]:
        return [fact for step in self.steps for fact in step.events]


class FixedApprovals:
    """The approved surface, set by the test or by trust on first use."""

    def __init__(self, server: str, surface: Surface | None = None) -> None:
        self._server = server
        self.known = None if surface is None else self._approved(surface, 1)

    def _approved(self, surface: Surface, generation: int) -> ApprovedSurface:
        return ApprovedSurface(server=self._server, surface=surface, generation=str(generation))

    def get_current(self) -> ApprovedSurface | None:
        return self.known

    def trust(self, surface: Surface) -> ApprovedSurface:
        self.known = self.known or self._approved(surface, 1)
        return self.known

    def approve(self, surface: Surface) -> None:
        """Replace the approved surface."""
        self.known = self._approved(surface, 2 if self.known is None else int(self.known.generation) + 1)


def guard(server: str, surface: Surface | None = None, policy: GatewayPolicy = DEFAULT_GATEWAY_POLICY) -> Guard:
    """Return a guard with an approved surface in memory."""
    return Guard(server, FixedApprovals(server, surface), policy)


class UpstreamServer:
    """A server behind the gateway, started by a command or reached at a URL, and its guard."""

    def __init__(self, guard: Guard, *, command: Sequence[str] = (), url: str = "", env: dict[str, str] | None = None):
        self.guard = guard
        self.command = tuple(command)
        self.url = url
        self.env = env or {}
        self.supervisor: ProcessSupervisor | None = None
        self.pool: UpstreamPool | None = None

    def opener(self, limits: HttpLimits) -> Opener:
        import os

        if self.url:
            address = HttpAddress.parse(self.url)
            self.pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
            server = RemoteServer.create(self.pool, address, {})
            return lambda owner: RemoteTransport(server, owner, limits)
        environment = build_child_environment(self.env, os.environ)
        command = ServerCommand(words=self.command, environment=environment)
        supervisor = self.supervisor = ProcessSupervisor("test", lambda: command, limits)

        def opened(owner: TransportOwner) -> UpstreamTransport:
            return supervisor.open(owner, lambda _: None)

        return opened


class RunningGateway:
    """A running gateway."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, manager: SessionManager, endpoint: Endpoint, serving: HttpServer
    ) -> None:
        self.loop = loop
        self.manager = manager
        self.endpoint = endpoint
        self.serving = serving
        self.host = "127.0.0.1"
        self.port = 0

    def advance_clock(self, seconds: float, *, silent: bool = False) -> None:
        """Advance the gateway's clock without waiting.

        ``silent``: as if the servers had sent nothing since the open requests. The gateway lists in the background, so
        a response to that may come after a request.
        """

        def advance() -> None:
            before = self.manager.clock
            self.manager.clock = lambda: before() + seconds
            for conversation in self.manager.list_conversations():
                conversation._clock = self.manager.clock  # type: ignore[attr-defined]
                if silent:
                    conversation.last_received = 0.0  # type: ignore[attr-defined]
            self.manager.tick()

        self.call_on_loop(advance)

    def url(self, server: str = "") -> str:
        return f"http://{self.host}:{self.port}/mcp" + (f"/{server}" if server else "")

    def run_on_loop(self, new_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the gateway's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(new_coroutine(), self.loop).result(60)

    def call_on_loop(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return self.run_on_loop(act)


@contextmanager
def gateway(
    servers: Mapping[str, UpstreamServer],
    recorder: OutputRecorder | None = None,
    limits: HttpLimits | None = None,
    clients: Mapping[str, GatewayClient] | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    *,
    note: Callable[[AuditEvent, int | str], None] | None = None,
    tracing: Tracing | None = None,
    origins: Collection[str] = (),
    verifier: TokenVerifier | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> Iterator[RunningGateway]:
    """Run a gateway for these servers on loopback."""
    # Long enough for servers that start and list slowly on a busy machine.
    limits = limits or HttpLimits(reload_seconds=0.05, merged_opening_seconds=60, merged_list_seconds=60)
    known = clients or {TOKEN: GatewayClient(name="tester"), OTHER_TOKEN: GatewayClient(name="other")}
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> RunningGateway:
        recording = LoopRecorder(recorder or InMemoryRecorder(), note)
        upstreams = {
            name: Upstream(name, name, server.guard, recording, server.opener(limits), tracing)
            for name, server in servers.items()
        }
        manager = SessionManager(upstreams, limits, loop.time)
        by_digest = {hash_token(token): client for token, client in known.items()}
        access = Access({"127.0.0.1"}, origins, by_digest, verifier, wall_clock)
        endpoint = Endpoint(manager, access, limits, create_merged_route())
        running = RunningGateway(loop, manager, endpoint, HttpServer(endpoint, manager, limits))
        running.host, running.port = await running.serving.start(ListenAddress(host="127.0.0.1", port=0))
        return running

    async def stop(running: RunningGateway) -> None:
        await running.serving.stop(drain=False)
        for server in servers.values():
            if server.pool is not None:
                server.pool.close()
        await loop.shutdown_default_executor()

    running = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(stop(running), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


class _InOnePiece(http.client.HTTPConnection):
    """Sends head and body together, as most clients do."""

    def _send_output(self, message_body: Any = None, encode_chunked: bool = False) -> None:  # noqa: ARG002
        head = b"\r\n".join([*self._buffer, b"", b""])  # type: ignore[attr-defined]
        del self._buffer[:]  # type: ignore[attr-defined]
        self.send(head + (message_body or b""))


class RawClient:
    """A client with one connection that writes its own requests and sees every byte of the responses."""

    def __init__(self, gateway: RunningGateway, server: str = "", token: str = TOKEN) -> None:
        self._connection = _InOnePiece(gateway.host, gateway.port, timeout=60)
        self._path = f"/mcp/{server}" if server else "/mcp"
        self._token = token
        self.session = ""
        self.headers: dict[str, str] = {}
        self.status = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(
        self, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one HTTP request, and return status, headers and body of the response."""
        given = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json, text/event-stream",
            **({"Content-Type": "application/json"} if method == "POST" else {}),
            **({"Mcp-Session-Id": self.session} if self.session else {}),
            **(headers or {}),
        }
        self._connection.request(method, self._path, body or None, given)
        answer = self._connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, answer.read()

    def request(self, method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> Any:
        """Send a request of the newest revision, and return the JSON-RPC response."""
        status, headers, body = self.send(*stateless_request(method, params, request_id))
        self.status = status
        return last_message(headers, body)

    def initialize(self, **more: Any) -> Any:
        """Open a session, and return the response to ``initialize``."""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        _, headers, body = self.send(json.dumps(rpc("initialize", {**hello, **more}, 0)).encode())
        self.session = headers["mcp-session-id"]
        self.send(json.dumps(rpc("notifications/initialized", None, None)).encode())
        return last_message(headers, body)

    def session_request(self, method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> Any:
        """Send a request in the session, and return the JSON-RPC response."""
        status, headers, body = self.send(json.dumps(rpc(method, params, request_id)).encode())
        self.status = status
        return last_message(headers, body)


class EventStream:
    """Reads the events of a session's stream, or of the response to a request, as they arrive."""

    def __init__(
        self,
        gateway: RunningGateway,
        session: str = "",
        server: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        token: str = TOKEN,
    ) -> None:
        self._connection = _InOnePiece(gateway.host, gateway.port, timeout=60)
        given = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            **({"Mcp-Session-Id": session} if session else {}),
            **({"Content-Type": "application/json"} if body else {}),
            **(headers or {}),
        }
        path = f"/mcp/{server}" if server else "/mcp"
        self._connection.request("POST" if body else "GET", path, body or None, given)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._connection.close()

    def next(self) -> Any:
        """Return the next message, or None at the end."""
        if not self._answer.headers["content-type"].startswith("text/event-stream"):
            return json.loads(self._answer.read())
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None


def rpc(method: str, params: dict[str, Any] | None, request_id: Any) -> dict[str, Any]:
    """Return a JSON-RPC request, or a notification if the id is None."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        message["id"] = request_id
    if params is not None:
        message["params"] = params
    return message


def stateless_request(
    method: str, params: dict[str, Any] | None = None, request_id: Any = 1
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request of the newest revision."""
    meta = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "raw", "version": "1"},
        f"{META}clientCapabilities": {},
        **(params or {}).get("_meta", {}),
    }
    whole = {**(params or {}), "_meta": meta}
    headers = {"Mcp-Protocol-Version": MODERN, "Mcp-Method": method}
    name = whole.get("uri" if method == "resources/read" else "name")
    if name is not None and method in ("tools/call", "prompts/get", "resources/read"):
        headers["Mcp-Name"] = name
    return json.dumps(rpc(method, whole, request_id)).encode(), headers


def messages(headers: Mapping[str, str], body: bytes) -> list[Any]:
    """Return the messages of a response: of its JSON body or its event stream."""
    if headers.get("content-type", "").startswith("text/event-stream"):
        lines = body.decode().replace("\r\n", "\n").split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [json.loads(body)] if body else []


def last_message(headers: Mapping[str, str], body: bytes) -> Any:
    """Return the last message of a response, which is the JSON-RPC response."""
    return messages(headers, body)[-1]
