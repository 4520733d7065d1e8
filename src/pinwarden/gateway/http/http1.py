"""HTTP/1.1 on the client side: `RequestReader` parses requests, `Reply` writes responses.

The parser is strict: it refuses requests that another HTTP implementation could interpret differently
(`header_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import httptools

from pinwarden.gateway.http.header_checks import (
    FRAMING_HEADERS,
    PARAMETER_PREFIX,
    BadRequest,
    check_framing,
    check_head,
    refuse_repeated_header,
)
from pinwarden.gateway.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from pinwarden.gateway.http.connection import ClientConnection

_HEAD_END = b"\r\n\r\n"
SMALL_BODY = 64 * 1024
"""The length up to which a body is read before its sender is authenticated."""


class Request:
    """A complete HTTP request."""

    __slots__ = ("body", "head", "headers", "keep_alive", "method", "param_headers", "path")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.method = method
        self.path = path
        """The request target as sent, without the query."""
        self.headers = headers
        """Header values by lower-case name. Repeated headers are joined with commas."""
        self.body = body
        self.keep_alive = True
        self.param_headers = b""
        """The ``mcp-param-`` header lines."""
        self.head = b""
        """The exact bytes of the head, which identify a cached route; empty if the head cannot be cached.

        A head can be cached if the request arrived in one piece and a content length frames its body. A later request
        with the same bytes and a body of the same length then differs only in its body.
        """

    def get_header(self, name: bytes) -> str:
        """Return the value of a header, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1")


class BodyAdmission(Protocol):
    """Decides whether the gateway reads a large body."""

    def admit_body(self, path: str, headers: dict[bytes, bytes], size: int) -> None:
        """Raise `BadRequest` unless a large body may follow this head. ``size`` is the content length; 0 if unknown."""

    def count_body_bytes(self, size: int) -> None:
        """Count received bytes of the body. Raises `BadRequest` if the budget is exhausted."""


class _UnlimitedBodies:
    """Admits every body."""

    def admit_body(self, path: str, headers: dict[bytes, bytes], size: int) -> None:
        pass

    def count_body_bytes(self, size: int) -> None:
        pass


class RequestReader:
    """Parses requests with `httptools`, and adds limits and stricter checks."""

    def __init__(self, limits: HttpLimits, bodies: BodyAdmission | None = None) -> None:
        self._limits = limits
        self._bodies = bodies or _UnlimitedBodies()
        self._parser = httptools.HttpRequestParser(self)
        self._ready: list[Request] = []
        self._head_bytes = 0
        self._in_head = True
        self.in_request = False
        """Whether a request began and is incomplete."""
        self.awaits_continue = False
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        self._reset()

    @property
    def in_body(self) -> bool:
        """Whether the head of a request is complete and its body is incomplete."""
        return self.in_request and not self._in_head

    def feed(self, data: bytes) -> list[Request]:
        """Parse received bytes. Returns the requests that they complete."""
        fresh = not self.in_request
        self._framing_bytes += len(data)
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
        if self._framing_bytes > self._limits.max_head_bytes and self.in_body:
            raise BadRequest(400, "Too much framing around the body.")  # such as chunk extensions
        ready, self._ready = self._ready, []
        if fresh and len(ready) == 1 and not self.in_request:
            ready[0].head = _extract_cacheable_head(data, ready[0])
        return ready

    def _is_head_too_long(self, data: bytes) -> bool:
        """Whether the head exceeds the limit, not counting the part of the body that arrived with the head."""
        before = self._head_bytes - len(data)
        end = data.find(b"\r\n\r\n")
        return end < 0 or before + end > self._limits.max_head_bytes

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated = 0
        self._param_headers = b""
        self._body: bytes | bytearray = b""
        self._size = 0
        self._framing_bytes = 0
        """Bytes since the last body byte, or since the start of the head."""
        self._large = False
        """Whether the body counts against the budget for large bodies."""

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """Start a new request."""
        self.in_request = True
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._url += url
        if len(self._url) > self._limits.max_head_bytes:
            raise BadRequest(414, "The request target is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are refused."""
        if not self._in_head:
            raise BadRequest(400, "Trailers are not supported.")
        name = name.lower()
        headers = self._headers
        if name in headers:
            refuse_repeated_header(name)
            self._repeated += 1
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) + self._repeated > self._limits.max_headers:
            raise BadRequest(431, "Too many headers.")
        if name.startswith(PARAMETER_PREFIX):
            self._param_headers += name + b": " + value + b"\r\n"

    def on_headers_complete(self) -> None:
        """Check the head, and whether a large body may follow."""
        headers = self._headers
        self._in_head = False
        length = check_head(self._parser.get_http_version(), self._url, headers, self._limits)
        if not FRAMING_HEADERS.isdisjoint(headers):
            self.awaits_continue = check_framing(headers)
        self._framing_bytes = 0
        self._large = b"transfer-encoding" in headers or (length is not None and length > SMALL_BODY)
        if self._large:
            self._bodies.admit_body(self._url.partition(b"?")[0].decode("latin-1"), headers, length or 0)

    def on_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._framing_bytes = 0
        self._size += len(data)
        if self._size > self._limits.max_body_bytes:
            raise BadRequest(413, "The body is too long.")
        if self._large:
            self._bodies.count_body_bytes(len(data))
        if not self._body:
            self._body = data
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)  # a list of tiny parts would take twenty times their size
        self._body += data

    def on_message_complete(self) -> None:
        """Complete the request."""
        body = bytes(self._body)  # no copy if it arrived in one part
        path = self._url.partition(b"?")[0] if b"?" in self._url else self._url
        request = Request(self._parser.get_method().decode(), path.decode("latin-1"), self._headers, body)
        request.keep_alive = self._parser.should_keep_alive()
        request.param_headers = self._param_headers
        self._ready.append(request)
        self._reset()
        self.in_request = self.awaits_continue = False
        self._in_head = True
        self._head_bytes = 0


def _extract_cacheable_head(data: bytes, request: Request) -> bytes:
    end = data.find(_HEAD_END) + 4
    headers = request.headers
    plain = b"content-length" in headers and request.keep_alive and FRAMING_HEADERS.isdisjoint(headers)
    return data[:end] if plain and len(data) - end == len(request.body) and data[:1] not in (b"\r", b"\n") else b""


_REASONS = {status.value: status.phrase for status in HTTPStatus}
_FIXED_HEADERS = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + _FIXED_HEADERS + b"content-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\nx-content-type-options: nosniff\r\ntransfer-encoding: chunked\r\n"
)
_PING = b": \r\n\r\n"
JSON = "application/json"


class Reply:
    """The response to one request: a single document or an event stream."""

    def __init__(self, connection: ClientConnection | None, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = False
        self.client = ""
        """The name of the client; empty before its token is checked."""
        self.bodiless = False
        """Whether only the head is sent, because the method is HEAD."""
        self.cors: Mapping[str, str] | None = None
        """CORS headers, if a web page of an allowed origin sent the request."""
        self.on_disconnect: Callable[[], object] | None = None
        """Called if the client disconnects before the response is complete."""
        self.large_body_bytes = 0
        """Bytes of a large body that count against the budget."""
        self.on_finished: Callable[[int], None] | None = None
        """Called with `large_body_bytes` when the request of a disconnected client ends."""

    def set_client(self, client: str) -> None:
        """Set the client that sent the request."""
        self.client = client
        if self._connection is not None:
            self._connection.set_client(client)

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected and the response is incomplete."""
        return self._connection is not None

    @property
    def streaming(self) -> bool:
        """Whether the response is an event stream."""
        return self._chunked

    def send(
        self, status: int, body: bytes = b"", *, content_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the complete response."""
        connection = self._connection
        if connection is None:
            self._finish_disconnected()
            return
        keep = self._keep_alive and not connection.owner.draining
        if self.cors is not None:
            headers = {**(headers or {}), **self.cors}
        if self.bodiless:
            connection.write(build_response_head(status, len(body), content_type if body else "", headers, keep=keep))
        elif status == 200 and keep and headers is None and content_type is JSON and body:
            connection.write(OK_HEAD % len(body) + body)  # the most common response
        else:
            connection.write(
                build_response_head(status, len(body), content_type if body else "", headers, keep=keep) + body
            )
        self._finish(keep=keep)

    def start_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin an event stream."""
        connection = self._connection
        if connection is None or self._chunked:
            return
        self._chunked = True
        more = "".join(f"{name}: {value}\r\n" for name, value in {**(headers or {}), **(self.cors or {})}.items())
        connection.write(_STREAM + more.encode("latin-1") + b"\r\n")
        connection.ping_later(self)

    def send_event(self, message: bytes) -> None:
        """Send one message as an event."""
        if self._connection is not None:
            if b"\n" in message or b"\r" in message:
                # JSON has raw line ends only between tokens.
                message = message.replace(b"\r", b" ").replace(b"\n", b" ")
            self._send_chunk(b"event: message\r\ndata: " + message + b"\r\n\r\n")

    def ping(self) -> None:
        """Send a comment, which clients ignore and proxies count as traffic."""
        self._send_chunk(_PING)

    def end_events(self) -> None:
        """End the event stream."""
        connection = self._connection
        if connection is not None:
            connection.write(b"0\r\n\r\n")
            self._finish(keep=self._keep_alive and not connection.owner.draining)
        else:
            self._finish_disconnected()

    def handle_disconnect(self) -> None:
        """Handle that the client disconnected before the response was complete."""
        if self._connection is not None:
            self._connection = None
            if self.on_disconnect is not None:
                self.on_disconnect()

    def _send_chunk(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _finish_disconnected(self) -> None:
        on_finished, self.on_finished = self.on_finished, None
        if on_finished is not None:
            on_finished(self.large_body_bytes)

    def _finish(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish_response(keep=keep)


def build_response_head(
    status: int, length: int, content_type: str, headers: Mapping[str, str] | None, *, keep: bool
) -> bytes:
    """Build the head of a response with a content length."""
    lines = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-length: {length}\r\n"
    if content_type:
        lines += f"content-type: {content_type}\r\n"
    if headers:
        lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if not keep:
        lines += "connection: close\r\n"
    return lines.encode("latin-1") + _FIXED_HEADERS + b"\r\n"
