"""HTTP/1.1 between clients and the gateway: `RequestReader` reads requests, `Reply` writes responses.

Requests are read strictly. What two readers could understand differently is rejected (`header_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import httptools

from pinwarden.gateway.http.header_checks import (
    PARAMETER,
    UNUSUAL,
    BadRequest,
    check_framing,
    check_head,
    check_repeated,
)
from pinwarden.gateway.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from pinwarden.gateway.http.connection import ClientConnection

_END = b"\r\n\r\n"
SMALL_BODY = 64 * 1024
"""Bytes of a body that is read before the sender is authenticated."""


class Request:
    """A complete request."""

    __slots__ = ("body", "head", "headers", "keep_alive", "method", "parameters", "path")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.method = method
        self.path = path
        """As sent, without the query."""
        self.headers = headers
        """By lower-case name. Repeated headers are joined with commas."""
        self.body = body
        self.keep_alive = True
        self.parameters = b""
        """The ``mcp-param-`` header lines."""
        self.head = b""
        """The exact bytes of the head, if it can be cached: the request came in one piece, with a content length and no
        other framing. The same bytes before a body of the same length are the same request with another body."""

    def header(self, name: bytes) -> str:
        """The value of a header, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1")


class BodyAdmission(Protocol):
    """Decides whether a large body may be read."""

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        """Raise `BadRequest` unless a large body may follow this head; ``size`` is 0 if it is not announced."""

    def add(self, size: int) -> None:
        """Count bytes of the body that arrived. Raise `BadRequest` if the budget is exhausted."""


class _Unlimited:
    """Admits every body."""

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        pass

    def add(self, size: int) -> None:
        pass


class RequestReader:
    """Bytes in, requests out. `httptools` parses them; this class adds limits and stricter checks."""

    def __init__(self, limits: HttpLimits, bodies: BodyAdmission | None = None) -> None:
        self._limits = limits
        self._bodies = bodies or _Unlimited()
        self._parser = httptools.HttpRequestParser(self)
        self._ready: list[Request] = []
        self._head_bytes = 0
        self._in_head = True
        self.begun = False
        """Whether a request has begun and is not complete."""
        self.continues = False
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self._reset()

    @property
    def in_body(self) -> bool:
        """Whether the head of a request is complete, and its body is not."""
        return self.begun and not self._in_head

    def feed(self, data: bytes) -> list[Request]:
        """The requests that these bytes complete."""
        fresh = not self.begun
        self._bare += len(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes and self._is_head_too_long(data):
                raise BadRequest(431, "The request head is too long.")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadRequest(400, "Protocol upgrades are not supported.") from None
        except httptools.HttpParserCallbackError as err:
            if isinstance(err.__context__, BadRequest):
                raise err.__context__ from None
            raise
        except httptools.HttpParserError as err:
            raise BadRequest(400, f"Not an HTTP request: {err}") from None
        if self._bare > self._limits.max_head_bytes and self.in_body:
            raise BadRequest(400, "Too much framing around the body.")  # a trailer or a chunk extension
        ready, self._ready = self._ready, []
        if fresh and len(ready) == 1 and not self.begun:
            ready[0].head = _head_of(data, ready[0])
        return ready

    def _is_head_too_long(self, data: bytes) -> bool:
        """Head and body may come in one piece, so only the part up to the end of the head counts."""
        before = self._head_bytes - len(data)
        end = data.find(b"\r\n\r\n")
        return end < 0 or before + end > self._limits.max_head_bytes

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated = 0
        self._parameters = b""
        self._body: bytes | bytearray = b""
        self._size = 0
        self._bare = 0
        """Bytes since the last body byte, or since the start of the head."""
        self._large = False
        """Whether the body counts against the budget for large bodies."""

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        self.begun = True
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """A part of the request target."""
        self._url += url
        if len(self._url) > self._limits.max_head_bytes:
            raise BadRequest(414, "The request target is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if not self._in_head:
            raise BadRequest(400, "Trailers are not supported.")
        name = name.lower()
        headers = self._headers
        if name in headers:
            check_repeated(name)
            self._repeated += 1
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) + self._repeated > self._limits.max_headers:
            raise BadRequest(431, "Too many headers.")
        if name.startswith(PARAMETER):
            self._parameters += name + b": " + value + b"\r\n"

    def on_headers_complete(self) -> None:
        """The head is complete."""
        headers = self._headers
        self._in_head = False
        length = check_head(self._parser.get_http_version(), self._url, headers, self._limits)
        if not UNUSUAL.isdisjoint(headers):
            self.continues = check_framing(headers)
        self._bare = 0
        self._large = b"transfer-encoding" in headers or (length is not None and length > SMALL_BODY)
        if self._large:
            self._bodies.admit(headers, length or 0)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._bare = 0
        self._size += len(data)
        if self._size > self._limits.max_body_bytes:
            raise BadRequest(413, "The body is too long.")
        if self._large:
            self._bodies.add(len(data))
        if not self._body:
            self._body = data
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)  # a list of tiny parts takes twenty times their size
        self._body += data

    def on_message_complete(self) -> None:
        """A request is complete."""
        body = bytes(self._body)  # no copy if it came in one part
        path = self._url.partition(b"?")[0] if b"?" in self._url else self._url
        request = Request(self._parser.get_method().decode(), path.decode("latin-1"), self._headers, body)
        request.keep_alive = self._parser.should_keep_alive()
        request.parameters = self._parameters
        self._ready.append(request)
        self._reset()
        self.begun = self.continues = False
        self._in_head = True
        self._head_bytes = 0


def _head_of(data: bytes, request: Request) -> bytes:
    end = data.find(_END) + 4
    headers = request.headers
    plain = b"content-length" in headers and request.keep_alive and UNUSUAL.isdisjoint(headers)
    return data[:end] if plain and len(data) - end == len(request.body) and data[:1] not in (b"\r", b"\n") else b""


_REASONS = {status.value: status.phrase for status in HTTPStatus}
_ALWAYS = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
USUAL = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + _ALWAYS + b"content-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\nx-content-type-options: nosniff\r\ntransfer-encoding: chunked\r\n"
)
_PING = b": \r\n\r\n"
JSON = "application/json"


class Reply:
    """The response to one request: one document, or an event stream."""

    def __init__(self, connection: ClientConnection | None, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = False
        self.client = ""
        """The name of the client, once its token was checked."""
        self.bodiless = False
        """Whether only the head is sent, because the method is HEAD."""
        self.cors: Mapping[str, str] | None = None
        """Headers for the browser, if a page of an allowed origin sent the request."""
        self.on_gone: Callable[[], object] | None = None
        """Called if the client disconnects before the response is complete."""
        self.weight = 0
        """Bytes of a large request that count against the budget."""
        self.on_over: Callable[[int], None] | None = None
        """Called with the weight when the request of a disconnected client is answered."""

    def set_client(self, client: str) -> None:
        """Set the client that sent the request."""
        self.client = client
        if self._connection is not None:
            self._connection.set_client(client)

    @property
    def open(self) -> bool:
        """Whether the client is still connected and the response is incomplete."""
        return self._connection is not None

    @property
    def streaming(self) -> bool:
        """Whether the response is an event stream."""
        return self._chunked

    def send(
        self, status: int, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the complete response."""
        connection = self._connection
        if connection is None:
            self._over()
            return
        keep = self._keep_alive and not connection.owner.draining
        if self.cors is not None:
            headers = {**(headers or {}), **self.cors}
        if self.bodiless:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep))
        elif status == 200 and keep and headers is None and kind is JSON and body:
            connection.write(USUAL % len(body) + body)  # nearly every response
        else:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep) + body)
        self._done(keep=keep)

    def start_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin an event stream."""
        connection = self._connection
        if connection is None or self._chunked:
            return
        self._chunked = True
        more = "".join(f"{name}: {value}\r\n" for name, value in {**(headers or {}), **(self.cors or {})}.items())
        connection.write(_STREAM + more.encode("latin-1") + b"\r\n")
        connection.ping_later(self)

    def event(self, frame: bytes) -> None:
        """Send one message as an event."""
        if self._connection is not None:
            if b"\n" in frame or b"\r" in frame:
                # JSON has raw line ends only between tokens.
                frame = frame.replace(b"\r", b" ").replace(b"\n", b" ")
            self._chunk(b"event: message\r\ndata: " + frame + b"\r\n\r\n")

    def ping(self) -> None:
        """Send a comment, which clients ignore."""
        self._chunk(_PING)

    def end_events(self) -> None:
        """End the event stream."""
        connection = self._connection
        if connection is not None:
            connection.write(b"0\r\n\r\n")
            self._done(keep=self._keep_alive and not connection.owner.draining)
        else:
            self._over()

    def gone(self) -> None:
        """The client disconnected."""
        if self._connection is not None:
            self._connection = None
            if self.on_gone is not None:
                self.on_gone()

    def _chunk(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _over(self) -> None:
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over(self.weight)

    def _done(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.answered(keep=keep)


def head_of(status: int, length: int, kind: str, headers: Mapping[str, str] | None, *, keep: bool) -> bytes:
    """The head of a response with a content length."""
    lines = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-length: {length}\r\n"
    if kind:
        lines += f"content-type: {kind}\r\n"
    if headers:
        lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if not keep:
        lines += "connection: close\r\n"
    return lines.encode("latin-1") + _ALWAYS + b"\r\n"
