"""The turning server over HTTP, in a thread of the test: the test turns it, and sees what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.servers.listening import listening
from tests.servers.turning import TURN, Turning


class TurningWorld:
    """A running server."""

    def __init__(self, script: dict[str, Any], mode: str) -> None:
        self.server = Turning(script)
        self.mode = mode
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.sent: list[bytes] = []
        self.url = ""
        self.streams: list[Any] = []
        self.stopped = threading.Event()

    def turn(self) -> None:
        """Go on to the next state, and say so on every open stream if the script has it so."""
        for note in self.server.answers(json.dumps({"jsonrpc": "2.0", "method": TURN})):
            for stream in self.streams:
                with suppress(OSError):  # of a session that has ended
                    stream.event(note)

    def calls(self, name: str) -> int:
        """How often a tool was called."""
        got = self.server.received
        return sum(each.get("method") == "tools/call" and each["params"]["name"] == name for each in got)


@contextmanager
def turning_http(script: dict[str, Any], mode: str = "json", tls: Any = None) -> Iterator[TurningWorld]:
    """Serve a script on loopback. Modes: ``json``, ``events``; ``sessions`` demands Mcp-Session-Id and has a stream."""
    world = TurningWorld(script, mode)
    with listening(_handler(world), tls) as port:
        world.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/mcp"
        try:
            yield world
        finally:
            world.stopped.set()


def _handler(world: TurningWorld) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body go in one piece, as real servers send them

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def do_GET(self) -> None:
            if world.mode != "sessions":
                self._reply(405, b"")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            world.streams.append(self)
            world.stopped.wait()

        def do_DELETE(self) -> None:
            self._reply(200, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            world.heads.append({name.lower(): value for name, value in self.headers.items()})
            world.bodies.append(body)
            message = json.loads(body)
            known = world.mode != "sessions" or self.headers.get("mcp-session-id") == "upstream-1"
            if not known and message.get("method") != "initialize":
                self._reply(404, b"{}")
                return
            answers = [each.encode() for each in world.server.answers(body.decode())]
            world.sent += answers
            if "id" not in message or "method" not in message:
                self._reply(202, b"")
            elif not answers:
                world.stopped.wait()
            elif world.mode == "events":
                text = b"".join(b"id: 7\r\nevent: message\r\ndata: " + each + b"\r\n\r\n" for each in answers)
                self._reply(200, text, "text/event-stream")
            else:
                self._reply(200, answers[-1])

        def event(self, text: str) -> None:
            data = f"data: {text}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if world.mode == "sessions":
                self.send_header("Mcp-Session-Id", "upstream-1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
