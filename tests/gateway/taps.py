"""A tap on HTTP: stands before a server on loopback, copies every byte, and tells the messages that were in them.

For stdio the same is `tests.servers.tap`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httptools

Streams = list[list[bytes]]
"""Messages, by the answer or the stream that they came in."""


class HttpTap:
    """Copies between whoever connects and one port."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._copied: list[tuple[int, bool, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._hang_up(self._listener)
        self._accepting.join(60)  # it may just have got a connection, which is to be closed too
        for each in self._sockets:
            self._hang_up(each)

    @staticmethod
    def _hang_up(each: socket.socket) -> None:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                number = len(self._sockets)
                client, _ = self._listener.accept()
                self._sockets.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(server)
                for source, sink, up in ((client, server, True), (server, client, False)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._copy, args=(number, source, sink, up), daemon=True).start()

    def _copy(self, number: int, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 18):
                with self._lock:
                    self._copied.append((number, up, chunk))
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def messages(self) -> tuple[list[bytes], Streams]:
        """The bodies of all requests, and the messages of all answers."""
        with self._lock:
            copied = list(self._copied)
        ups: list[bytes] = []
        downs: Streams = []
        parsers: dict[tuple[int, bool], Any] = {}
        for number, up, chunk in copied:
            parser = parsers.get((number, up))
            if parser is None:
                made = (
                    httptools.HttpRequestParser(_Requests(ups)) if up else httptools.HttpResponseParser(_Answers(downs))
                )
                parser = parsers[number, up] = made
            parser.feed_data(chunk)
        return ups, [stream for stream in downs if stream]


@contextmanager
def http_tap(port: int) -> Iterator[HttpTap]:
    """Copy until the block ends."""
    made = HttpTap(port)
    try:
        yield made
    finally:
        made.close()


class _Requests:
    """Gathers the bodies of requests."""

    def __init__(self, found: list[bytes]) -> None:
        self._found = found
        self._parts: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        body = b"".join(self._parts)
        self._parts.clear()
        if body:
            self._found.append(body)


class _Answers:
    """Gathers the messages of answers: a document is one, and an event stream has one in each event."""

    def __init__(self, found: Streams) -> None:
        self._found = found
        self._stream: list[bytes] = []
        self._events = False
        self._parts: list[bytes] = []

    def on_message_begin(self) -> None:
        self._stream = []
        self._found.append(self._stream)
        self._events = False
        self._parts.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._events = value.startswith(b"text/event-stream")

    def on_body(self, part: bytes) -> None:
        if not self._events or b"\n" not in part:
            self._parts.append(part)
            return
        *ended, rest = b"".join((*self._parts, part)).split(b"\n")
        self._parts[:] = [rest]
        data = [line.removesuffix(b"\r").removeprefix(b"data:") for line in ended if line.startswith(b"data:")]
        self._stream += [each.removeprefix(b" ") for each in data if each.strip()]

    def on_message_complete(self) -> None:
        body = b"".join(self._parts).strip()
        if body and not self._events:
            self._stream.append(body)
