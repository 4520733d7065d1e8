"""A server at an address that the test leads by the hand: it answers as an honest one, unless the test does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from pinwarden.surface.surface import Surface, surface_from_listing
from tests.servers.listening import listening

NEWEST = "2026-07-28"
META = "io.modelcontextprotocol/"
HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class Exchange:
    """A request that the server got, and its answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, message: Any) -> None:
        self._handler = handler
        self.message = message
        self.heads = {name.lower(): value for name, value in handler.headers.items()}

    @property
    def method(self) -> str:
        method: str = self.message.get("method", "")
        return method

    def send(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        """A document."""
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", kind)
        self._handler.send_header("Content-Length", str(len(body)))
        self._handler.end_headers()
        self._handler.wfile.write(body)
        self._handler.wfile.flush()

    def result(self, result: dict[str, Any]) -> None:
        """The answer, as a document."""
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).encode())

    def begin(self) -> None:
        """A stream of events."""
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "text/event-stream")
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()
        self._handler.wfile.flush()

    def event(self, message: Any) -> None:
        """One message of the stream."""
        self._chunk(b"data: " + json.dumps(message).encode() + b"\n\n")

    def end(self) -> None:
        """The end of the stream."""
        self._handler.wfile.write(b"0\r\n\r\n")
        self._handler.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._handler.wfile.flush()


class Led:
    """A running server."""

    def __init__(self, name: str, tools: list[dict[str, Any]], capabilities: dict[str, Any], *, newest: bool) -> None:
        self.name = name
        self.tools = tools
        self.capabilities = capabilities
        self.newest = newest
        self.url = ""
        self.lead: Callable[[Exchange], bool] = lambda _: False
        """What the test does with a request; whether it answered it."""
        self.got: list[Exchange] = []
        self.streams: list[Exchange] = []
        """Those that clients of the handshake era opened."""
        self.stopped = threading.Event()

    @property
    def methods(self) -> list[str]:
        """Of every message that came."""
        return [each.method for each in self.got]

    @property
    def surface(self) -> Surface:
        """What it shows."""
        server = {"serverInfo": {"name": self.name, "version": "1"}, "capabilities": self.capabilities}
        return surface_from_listing({**server, "tools": self.tools})

    def answer(self, exchange: Exchange) -> None:
        """As an honest server does."""
        message, hints = exchange.message, HINTS if self.newest else {}
        info = {"name": self.name, "version": "1"}
        if "id" not in message or "method" not in message:
            exchange.send(b"", status=202)
        elif message["method"] == "server/discover" and self.newest:
            told = {"supportedVersions": [NEWEST], "_meta": {f"{META}serverInfo": info}}
            exchange.result({"capabilities": self.capabilities, **told, **HINTS})
        elif message["method"] == "initialize":
            version = message["params"]["protocolVersion"]
            exchange.result({"protocolVersion": version, "capabilities": self.capabilities, "serverInfo": info})
        elif message["method"] == "tools/list":
            exchange.result({"tools": self.tools, **hints})
        elif message["method"] == "tools/call":
            text = json.dumps(message["params"].get("arguments"))
            exchange.result({"content": [{"type": "text", "text": text}], **hints})
        else:
            error = {"code": -32601, "message": f"Method not found: {message['method']}"}
            exchange.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())


@contextmanager
def led_http(
    name: str = "far",
    tools: list[dict[str, Any]] | None = None,
    capabilities: dict[str, Any] | None = None,
    *,
    newest: bool = True,
) -> Iterator[Led]:
    """Serve on loopback. ``newest`` servers know no handshake, and the others nothing else."""
    honest = [{"name": "go", "description": "Goes.", "inputSchema": {"type": "object"}}]
    world = Led(name, tools or honest, capabilities or {"tools": {}}, newest=newest)
    with listening(_handler(world)) as port:
        world.url = f"http://127.0.0.1:{port}/mcp"
        try:
            yield world
        finally:
            world.stopped.set()


def _handler(world: Led) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def do_GET(self) -> None:
            exchange = Exchange(self, {})
            if world.newest:
                exchange.send(b"", status=405)
                return
            exchange.begin()
            world.streams.append(exchange)
            world.stopped.wait()

        def do_DELETE(self) -> None:
            Exchange(self, {}).send(b"")

        def do_POST(self) -> None:
            exchange = Exchange(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))
            world.got.append(exchange)
            if not world.lead(exchange):
                world.answer(exchange)

    return Handler
