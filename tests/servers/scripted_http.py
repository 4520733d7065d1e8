"""Scripted servers over HTTP, in a thread of the test, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.servers.listening import listening
from tests.servers.scripted import Scripted


class HttpWorld:
    """A running HTTP server and what it saw."""

    def __init__(self, script: dict[str, Any], mode: str) -> None:
        self.script = script
        self.mode = mode
        self.requests: list[tuple[str, str, dict[str, str], dict[str, Any] | None]] = []
        self.sessions: dict[str, Scripted] = {}
        self.streams: dict[str, Any] = {}
        self.connections = 0
        self.open_now: set[int] = set()
        self.most_open = 0
        self.url = ""
        self.stopped = threading.Event()

    def header_values(self, name: str) -> set[str]:
        """The values of one header over all requests."""
        return {headers[name] for _, _, headers, _ in self.requests if name in headers}


@contextmanager
def http_server(script: dict[str, Any], mode: str = "json", tls: Any = None) -> Iterator[HttpWorld]:
    """Serve a script on loopback.

    Modes: ``json`` and ``events`` (Streamable HTTP, answered as JSON or as a stream), ``sessions`` (with
    Mcp-Session-Id), ``sse`` (HTTP+SSE only), ``redirect:<code>:<address>``, ``drip``, ``drip-headers``, ``hang``,
    ``gzip``, ``status:<code>``, ``echo-headers``, ``cut``.
    """
    world = HttpWorld(script, mode)
    with listening(_handler(world), tls) as port:
        world.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/mcp"
        try:
            yield world
        finally:
            world.stopped.set()


def _handler(world: HttpWorld) -> type[BaseHTTPRequestHandler]:  # noqa: C901  one handler, one case per mode
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            world.connections += 1
            world.open_now.add(id(self))
            world.most_open = max(world.most_open, len(world.open_now))
            with suppress(OSError):  # the client cut the connection, as it should
                super().handle()
            world.open_now.discard(id(self))

        def do_GET(self) -> None:
            self._note(None)
            if world.mode != "sse":
                self._reply(405, b"")
                return
            name = str(len(world.streams) + 1)
            world.streams[name] = self
            world.sessions[name] = Scripted(world.script)
            self._start_events()
            self._event("endpoint", world.script.get("endpoint", f"/messages?session={name}"))
            world.stopped.wait()

        def do_DELETE(self) -> None:
            self._note(None)
            self._reply(200, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            message = json.loads(body)
            self._note(message)
            mode, _, argument = world.mode.partition(":")
            getattr(self, f"_do_{mode.replace('-', '_')}")(message, argument)

        def _do_json(self, message: dict[str, Any], _: str) -> None:
            answers = self._scripted("only").answers(message)
            self._reply(200, answers[-1].encode()) if answers else self._reply(202, b"")

        def _do_sessions(self, message: dict[str, Any], _: str) -> None:
            given = self.headers.get("mcp-session-id")
            method = message.get("method")
            if given is None and method != "initialize":
                error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no session"}}
                self._reply(400, json.dumps(error).encode())
            elif method == "initialize":
                self._reply(200, self._scripted("s-1").answers(message)[0].encode(), {"Mcp-Session-Id": "s-1"})
            else:
                self._do_json(message, "")

        def _do_events(self, message: dict[str, Any], _: str) -> None:
            answers = self._scripted("only").answers(message)
            if "method" not in message:
                for name in list(world.streams):
                    stream = world.streams.pop(name)
                    for answer in answers:
                        stream._event("message", answer)
                    if any('"result"' in answer for answer in answers):
                        stream._end_events()
                    else:
                        world.streams[name] = stream
                self._reply(202, b"")
            elif "id" not in message:
                self._reply(202, b"")
            else:
                self._start_events()
                for answer in answers:
                    self._event("message", answer)
                if any('"result"' in answer or '"error"' in answer for answer in answers):
                    self._end_events()
                else:
                    world.streams["open"] = self
                    world.stopped.wait()

        def _do_sse(self, message: dict[str, Any], _: str) -> None:
            name = self.path.partition("session=")[2]
            if not name:
                self._reply(404, b"not here")
                return
            self._reply(202, b"Accepted")
            for answer in world.sessions[name].answers(message):
                world.streams[name]._event("message", answer)

        def _do_redirect(self, message: dict[str, Any], argument: str) -> None:
            del message
            code, _, address = argument.partition(":")
            self._reply(int(code), b"", {"Location": address})

        def _do_status(self, _: dict[str, Any], argument: str) -> None:
            self._reply(int(argument), b"<html>no</html>", {"Content-Type": "text/html"})

        def _do_echo_headers(self, message: dict[str, Any], _: str) -> None:
            text = f"bad credentials: {dict(self.headers)}"
            error = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -32000, "message": text}}
            self._reply(200, json.dumps(error).encode())

        def _do_gzip(self, _: dict[str, Any], __: str) -> None:
            self._reply(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})

        def _do_hang(self, _: dict[str, Any], __: str) -> None:
            world.stopped.wait()

        def _do_drip(self, _: dict[str, Any], __: str) -> None:
            self._start_events()
            while not world.stopped.wait(0.05):
                self._chunk(b": still here\n")

        def _do_drip_headers(self, _: dict[str, Any], __: str) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not world.stopped.wait(0.05):
                self.wfile.write(b"z")
                self.wfile.flush()

        def _do_cut(self, _: dict[str, Any], __: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"jsonrpc":')
            self.close_connection = True

        def _scripted(self, name: str) -> Scripted:
            return world.sessions.setdefault(name if world.mode != "sessions" else "s-1", Scripted(world.script))

        def _note(self, message: dict[str, Any] | None) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            world.requests.append((self.command, self.path, headers, message))

        def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _start_events(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def _event(self, name: str, data: str) -> None:
            self._chunk(f": keep-alive\r\nevent: {name}\r\ndata: {data}\r\n\r\n".encode())

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _end_events(self) -> None:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    return Handler
