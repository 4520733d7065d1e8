"""A tap on HTTP: a proxy in front of a server on loopback that copies every byte and extracts the messages.

`tests.servers.tap` does the same for stdio.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httptools

Streams = list[list[bytes]]
"""Messages, grouped by the response that contained them."""


class HttpTap:
    """Forwards connections to one port and keeps a copy of the traffic."""

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
        self._close(self._listener)
        self._accepting.join(60)  # it may have accepted another connection, which must be closed too
        for connection in self._sockets:
            self._close(connection)

    @staticmethod
    def _close(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                index = len(self._sockets)
                client, _ = self._listener.accept()
                self._sockets.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(server)
                for source, sink, up in ((client, server, True), (server, client, False)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._copy, args=(index, source, sink, up), daemon=True).start()

    def _copy(self, index: int, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 18):
                with self._lock:
                    self._copied.append((index, up, chunk))
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def messages(self) -> tuple[list[bytes], Streams]:
        """Return the bodies of all requests, and the messages of all responses."""
        with self._lock:
            copied = list(self._copied)
        ups: list[bytes] = []
        downs: Streams = []
        parsers: dict[tuple[int, bool], Any] = {}
        for index, up, chunk in copied:
            parser = parsers.get((index, up))
            if parser is None:
                parser = (
                    httptools.HttpRequestParser(_RequestParser(ups))
                    if up
                    else httptools.HttpResponseParser(_ResponseParser(downs))
                )
                parsers[index, up] = parser
            parser.feed_data(chunk)
        return ups, [stream for stream in downs if stream]


@contextmanager
def http_tap(port: int) -> Iterator[HttpTap]:
    """Forward and copy until the block ends."""
    tap = HttpTap(port)
    try:
        yield tap
    finally:
        tap.close()


class _RequestParser:
    """Collects the bodies of requests."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self._parts: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        body = b"".join(self._parts)
        self._parts.clear()
        if body:
            self._messages.append(body)


class _ResponseParser:
    """Collects the messages of responses: the body, or one per event of an event stream."""

    def __init__(self, messages: Streams) -> None:
        self._messages = messages
        self._stream: list[bytes] = []
        self._events = False
        self._parts: list[bytes] = []

    def on_message_begin(self) -> None:
        self._stream = []
        self._messages.append(self._stream)
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
        self._stream += [event.removeprefix(b" ") for event in data if event.strip()]

    def on_message_complete(self) -> None:
        body = b"".join(self._parts).strip()
        if body and not self._events:
            self._stream.append(body)
