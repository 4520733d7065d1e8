"""A small HTTP or HTTPS server on loopback that answers what a test says, and remembers what it was asked."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.servers.listening import listening


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it came in."""

    path: str
    headers: Mapping[str, str]
    method: str = "GET"


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer. With ``pieces`` the body is sent piece by piece without a length, and the connection is closed."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] | None = None
    raw: Iterable[bytes] | None = None
    """Everything after the request, head included."""


Answerer = Callable[[Asked], Said]


@dataclass(kw_only=True)
class PlainServer:
    """A running server."""

    url: str
    port: int
    asked: list[Asked]

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.asked]

    def sent(self, header: str) -> list[str | None]:
        """The values of one header in all requests."""
        return [each.headers.get(header) for each in self.asked]


def files(content: Mapping[str, bytes | Said]) -> Answerer:
    """An answerer that knows paths, and says 404 for others."""

    def answer(asked: Asked) -> Said:
        found = content.get(asked.path)
        if found is None:
            return Said(status=404, body=b"not found")
        return found if isinstance(found, Said) else Said(body=found)

    return answer


@contextmanager
def plain_server(
    answer: Answerer, *, tls: ssl.SSLContext | None = None, host: str = "localhost"
) -> Iterator[PlainServer]:
    """Serve until the block ends."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            headers["x-client-port"] = str(self.client_address[1])  # tells connections apart
            request = Asked(path=self.path, headers=headers, method=self.command)
            asked.append(request)
            try:
                self._say(answer(request))
            except (BrokenPipeError, ConnectionError, ssl.SSLError):
                self.close_connection = True

        do_CONNECT = do_GET  # noqa: N815 - the name that http.server looks for

        def _say(self, said: Said) -> None:
            if said.raw is not None:
                self._send_all(said.raw)
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.pieces is not None:
                self.send_header("connection", "close")
                self.end_headers()
                self._send_all(said.pieces)
                return
            if "content-length" not in {name.lower() for name in said.headers}:
                self.send_header("content-length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)
            if int(said.headers.get("content-length", len(said.body))) != len(said.body):
                self.close_connection = True

        def _send_all(self, pieces: Iterable[bytes]) -> None:
            self.close_connection = True
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
            """Tests are quiet."""

    with listening(Handler, tls) as port:
        yield PlainServer(url=f"{'https' if tls else 'http'}://{host}:{port}/", port=port, asked=asked)
