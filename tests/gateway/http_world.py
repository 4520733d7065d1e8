"""A gateway over HTTP in a thread of the test, with servers behind it that the test names."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.gated_server import ServerCommand
from pinwarden.gateway.guard import ApprovedSurface, Guard
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.header_checks import Access, Client
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.listener import HttpServer, ListenAddress
from pinwarden.gateway.http.merged import merged_route
from pinwarden.gateway.http.process_transport import ProcessSupervisor
from pinwarden.gateway.http.record_then_send import StepLog, StepRecorder
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.session_manager import Opener, SessionManager, Upstream
from pinwarden.gateway.http.telemetry import Tracing
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import TransportOwner, UpstreamTransport
from pinwarden.gateway.session_audit import SessionOutput
from pinwarden.gateway.store.tokens import token_digest
from pinwarden.lock.gateway_policy import DEFAULT_POLICY, GatewayPolicy
from pinwarden.surface.surface import Surface
from pinwarden.system.environment_variables import child_environment
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress

TOKEN = "pwt_a-token-for-tests"
OTHER = "pwt_another-token-for-tests"
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
T = TypeVar("T")


class OpenStream:
    """The stream of a client that listens."""

    open = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def heard(self) -> list[Any]:
        return [json.loads(each) for each in self.frames]

    def start_events(self) -> None:
        """Begin."""

    def event(self, frame: bytes) -> None:
        self.frames.append(frame)

    def end_events(self) -> None:
        """No more will come."""


class Kept(StepLog):
    """Keeps every step in memory."""

    def __init__(self) -> None:
        self.steps: list[SessionOutput] = []

    def record(self, step: SessionOutput) -> None:
        self.steps.append(step)

    def record_durably(self, step: SessionOutput) -> None:
        self.steps.append(step)

    @property
    def facts(self) -> list[Any]:
        return [fact for step in self.steps for fact in step.facts]


class Fixed:
    """What was approved, as the test says; nothing, until the first use is trusted."""

    def __init__(self, server: str, surface: Surface | None = None) -> None:
        self._server = server
        self.known = None if surface is None else self._approved(surface, 1)

    def _approved(self, surface: Surface, generation: int) -> ApprovedSurface:
        return ApprovedSurface(server=self._server, surface=surface, generation=str(generation))

    def current(self) -> ApprovedSurface | None:
        return self.known

    def trust(self, surface: Surface) -> ApprovedSurface:
        self.known = self.known or self._approved(surface, 1)
        return self.known

    def approve(self, surface: Surface) -> None:
        """Another surface counts from now on."""
        self.known = self._approved(surface, 2 if self.known is None else int(self.known.generation) + 1)


def guard(server: str, surface: Surface | None = None, policy: GatewayPolicy = DEFAULT_POLICY) -> Guard:
    """A judge with a measure in memory."""
    return Guard(server, Fixed(server, surface), policy)


class Behind:
    """A server behind the gateway: a command or an address, and who judges it."""

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
            server = RemoteServer.of(self.pool, address, {})
            return lambda owner: RemoteTransport(server, owner, limits)
        environment = child_environment(self.env, os.environ)
        command = ServerCommand(words=self.command, environment=environment)
        supervisor = self.supervisor = ProcessSupervisor("test", lambda: command, limits)

        def opened(owner: TransportOwner) -> UpstreamTransport:
            return supervisor.open(owner, lambda _: None)

        return opened


class Gateway:
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

    def later(self, seconds: float) -> None:
        """Let so much time pass at once: a wait would have to be short, and a busy machine is slower than that."""

        def passed() -> None:
            before = self.manager.clock
            self.manager.clock = lambda: before() + seconds
            for each in self.manager.conversations():
                each._clock = self.manager.clock  # type: ignore[attr-defined]
            self.manager.tick()

        self.call(passed)

    def url(self, server: str = "") -> str:
        return f"http://{self.host}:{self.port}/mcp" + (f"/{server}" if server else "")

    def run(self, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something on the gateway's own loop."""
        return asyncio.run_coroutine_threadsafe(made(), self.loop).result(60)

    def call(self, action: Callable[[], T]) -> T:
        async def made() -> T:
            return action()

        return self.run(made)


@contextmanager
def gateway(
    servers: Mapping[str, Behind],
    recorder: StepLog | None = None,
    limits: HttpLimits | None = None,
    clients: Mapping[str, Client] | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    *,
    note: Callable[[AuditEvent, int | str], None] | None = None,
    tracing: Tracing | None = None,
    origins: Collection[str] = (),
) -> Iterator[Gateway]:
    """Serve these servers on loopback."""
    # Servers may take as long to start and to list as they do on a busy machine.
    limits = limits or HttpLimits(reload_seconds=0.05, merged_opening_seconds=60, merged_list_seconds=60)
    known = clients or {TOKEN: Client(name="tester"), OTHER: Client(name="other")}
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> Gateway:
        recording = StepRecorder(recorder or Kept(), note)
        recording.tracing = tracing
        upstreams = {
            name: Upstream(name, name, each.guard, recording, each.opener(limits)) for name, each in servers.items()
        }
        manager = SessionManager(upstreams, limits, loop.time)
        access = Access({"127.0.0.1"}, origins, {token_digest(token): client for token, client in known.items()})
        endpoint = Endpoint(manager, access, limits, merged_route())
        made = Gateway(loop, manager, endpoint, HttpServer(endpoint, manager, limits))
        made.host, made.port = await made.serving.start(ListenAddress(port=0))
        return made

    async def stop(made: Gateway) -> None:
        await made.serving.stop(drain=False)
        for each in servers.values():
            if each.pool is not None:
                each.pool.close()
        await loop.shutdown_default_executor()

    made = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(stop(made), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


class _InOnePiece(http.client.HTTPConnection):
    """Sends head and body together, as most clients do."""

    def _send_output(self, message_body: Any = None, encode_chunked: bool = False) -> None:  # noqa: ARG002
        head = b"\r\n".join([*self._buffer, b"", b""])  # type: ignore[attr-defined]
        del self._buffer[:]  # type: ignore[attr-defined]
        self.send(head + (message_body or b""))


class Raw:
    """A client that writes its own requests, one connection, and sees every byte of the answers."""

    def __init__(self, gateway: Gateway, server: str = "", token: str = TOKEN) -> None:
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
        """One request; the status, headers and body that answered it."""
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

    def ask(self, method: str, params: dict[str, Any] | None = None, number: Any = 1) -> Any:
        """A request of the newest revision, and the message that answered it."""
        status, headers, body = self.send(*modern(method, params, number))
        self.status = status
        return last_message(headers, body)

    def initialize(self, **more: Any) -> Any:
        """A handshake."""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        _, headers, body = self.send(json.dumps(rpc("initialize", {**hello, **more}, 0)).encode())
        self.session = headers["mcp-session-id"]
        self.send(json.dumps(rpc("notifications/initialized", None, None)).encode())
        return last_message(headers, body)

    def say(self, method: str, params: dict[str, Any] | None = None, number: Any = 1) -> Any:
        """A request in a session, and the message that answered it."""
        status, headers, body = self.send(json.dumps(rpc(method, params, number)).encode())
        self.status = status
        return last_message(headers, body)


class Stream:
    """The events of one answer, read as they come: of the stream of a session, or of a request."""

    def __init__(
        self,
        gateway: Gateway,
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
        """The next message; None at the end."""
        if not self._answer.headers["content-type"].startswith("text/event-stream"):
            return json.loads(self._answer.read())
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None


def rpc(method: str, params: dict[str, Any] | None, number: Any) -> dict[str, Any]:
    """A message."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if number is not None:
        message["id"] = number
    if params is not None:
        message["params"] = params
    return message


def modern(method: str, params: dict[str, Any] | None = None, number: Any = 1) -> tuple[bytes, dict[str, str]]:
    """A request of the newest revision: its body and its headers."""
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
    return json.dumps(rpc(method, whole, number)).encode(), headers


def messages(headers: Mapping[str, str], body: bytes) -> list[Any]:
    """The messages of an answer, whether it is a document or a stream."""
    if headers.get("content-type", "").startswith("text/event-stream"):
        lines = body.decode().replace("\r\n", "\n").split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [json.loads(body)] if body else []


def last_message(headers: Mapping[str, str], body: bytes) -> Any:
    """The answer itself."""
    return messages(headers, body)[-1]
