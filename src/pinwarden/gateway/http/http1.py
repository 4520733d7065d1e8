"""One HTTP request of a client, read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import httptools

from pinwarden.gateway.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from pinwarden.gateway.http.connection import ClientConnection

# Read by us or by a server behind us. Twice, they would mean one thing to the first reader and another to the last.
_ONCE = frozenset(
    {
        *(b"host", b"content-length", b"content-type", b"transfer-encoding", b"authorization", b"origin"),
        *(b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id", b"last-event-id", b"expect"),
    }
)


_PARAMETER = b"mcp-param-"
_UNUSUAL = frozenset({b"transfer-encoding", b"content-encoding", b"expect"})
_SPOKEN = ("1.1", "1.0")
_END = b"\r\n\r\n"
SMALL_BODY = 64 * 1024
"""Of a body that is read before anybody looks at who sends it."""


class Refused(Exception):  # noqa: N818  an answer to give, not a failure to report
    """A request that is not taken, and the status that says so. The connection ends with it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Request:
    """A request whose body is complete."""

    __slots__ = ("body", "head", "headers", "keep_alive", "method", "parameters", "path")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.method = method
        self.path = path
        """As it was sent, without the query."""
        self.headers = headers
        """By lower-case name; several of one name are joined, as HTTP allows for those that may be repeated."""
        self.body = body
        self.keep_alive = True
        self.parameters = b""
        """The header lines of arguments that a tool wants as headers too."""
        self.head = b""
        """Its exact bytes, if the request came in one piece and has no framing but a length: the same bytes with a body
        of the same length behind them are the same request with another body."""

    def header(self, name: bytes) -> str:
        """One header, or nothing."""
        return self.headers.get(name, b"").decode("latin-1")


class BodyRoom(Protocol):
    """Where large bodies have their place."""

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        """Refuse a body that may be long, by the head of its request, which may say how long."""

    def add(self, size: int) -> None:
        """So many more bytes of it came. Refuse them if that is too much."""


class _Boundless:
    """Room for everybody."""

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        """Come in."""

    def add(self, size: int) -> None:
        """And bring what you like."""


class RequestReader:
    """Bytes in, requests out. `httptools` frames them; what it lets pass and we do not is refused here."""

    def __init__(self, limits: HttpLimits, room: BodyRoom | None = None) -> None:
        self._limits = limits
        self._room = room or _Boundless()
        self._parser = httptools.HttpRequestParser(self)
        self._ready: list[Request] = []
        self._head_bytes = 0
        self._in_head = True
        self.begun = False
        """Whether a request has begun and is not complete."""
        self.continues = False
        """Whether the client waits for leave to send the body."""
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
                raise Refused(431, "the head of the request is too long")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Refused(400, "another protocol is not spoken here") from None
        except httptools.HttpParserCallbackError as err:
            if isinstance(err.__context__, Refused):
                raise err.__context__ from None
            raise
        except httptools.HttpParserError as err:
            raise Refused(400, f"not a request: {err}") from None
        if self._bare > self._limits.max_head_bytes and self.in_body:
            raise Refused(400, "more than a body comes in the place of one")  # a trailer or a chunk's extension
        ready, self._ready = self._ready, []
        if fresh and len(ready) == 1 and not self.begun:
            ready[0].head = _head_of(data, ready[0])
        return ready

    def _is_head_too_long(self, data: bytes) -> bool:
        """A head and a long body may come in one piece, so the end of the head is looked for."""
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
        """Bytes since the last ones that were part of the body, or since the beginning of the head."""
        self._large = False
        """Whether each part of the body needs room."""

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self.begun = True
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self._url += url
        if len(self._url) > self._limits.max_head_bytes:
            raise Refused(414, "the address is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if not self._in_head:
            raise Refused(400, "trailers are not taken")
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in _ONCE or name.startswith(_PARAMETER):
                raise Refused(400, f"the header {name.decode('latin-1')} is there twice")
            self._repeated += 1
            value = headers[name] + b", " + value
        headers[name] = value
        if len(headers) + self._repeated > self._limits.max_headers:
            raise Refused(431, "too many headers")
        if name.startswith(_PARAMETER):
            self._parameters += name + b": " + value + b"\r\n"

    def on_headers_complete(self) -> None:
        """The head is complete."""
        headers = self._headers
        self._in_head = False
        if self._parser.get_http_version() not in _SPOKEN:
            raise Refused(505, "HTTP/1.1 is spoken here")
        if b"host" not in headers:
            raise Refused(400, "the header host is missing")
        if self._url[:1] != b"/":
            raise Refused(400, "the address is not a path")
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._limits.max_body_bytes:
            raise Refused(413, "the body is too long")
        if not _UNUSUAL.isdisjoint(headers):
            self._check_unusual(headers)
        self._bare = 0
        self._large = b"transfer-encoding" in headers or (length is not None and int(length) > SMALL_BODY)
        if self._large:
            self._room.admit(headers, int(length or 0))

    def _check_unusual(self, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise Refused(501, "no transfer encoding but chunked is taken")
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise Refused(415, "no compressed body is taken")
        expects = headers.get(b"expect")
        if expects is not None:
            if expects.strip().lower() != b"100-continue":
                raise Refused(417, "this expectation is not known")
            self.continues = True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._bare = 0
        self._size += len(data)
        if self._size > self._limits.max_body_bytes:
            raise Refused(413, "the body is too long")
        if self._large:
            self._room.add(len(data))
        if not self._body:
            self._body = data
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)  # a list of parts may take twenty times what is in them
        self._body += data

    def on_message_complete(self) -> None:
        """A request is complete."""
        body = bytes(self._body)  # which copies nothing, if it came in one part
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
    plain = b"content-length" in headers and request.keep_alive and _UNUSUAL.isdisjoint(headers)
    return data[:end] if plain and len(data) - end == len(request.body) and data[:1] not in (b"\r", b"\n") else b""


_REASONS = {each.value: each.phrase for each in HTTPStatus}
_ALWAYS = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
USUAL = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + _ALWAYS + b"content-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\nx-content-type-options: nosniff\r\ntransfer-encoding: chunked\r\n"
)
_PING = b": \r\n\r\n"
JSON = "application/json"


class Reply:
    """The answer to one request: one document, or a stream of events."""

    def __init__(self, connection: ClientConnection | None, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = False
        self.client = ""
        """Whose request it answers, if a token was shown."""
        self.bodiless = False
        """Whether only the head is wanted: whatever came behind it would be read as the next answer."""
        self.shared: Mapping[str, str] | None = None
        """Headers for the browser, if a page of another site asks that may do so."""
        self.on_gone: Callable[[], object] | None = None
        """Called if the client goes away before the answer is complete."""
        self.weight = 0
        """Bytes of a large request."""
        self.on_over: Callable[[int], None] | None = None
        """Called with the weight when the answer comes that nobody waits for any more."""

    def is_for(self, client: str) -> None:
        """The request shows the token of a client."""
        self.client = client
        if self._connection is not None:
            self._connection.is_of(client)

    @property
    def open(self) -> bool:
        """Whether something can still be sent."""
        return self._connection is not None

    @property
    def streaming(self) -> bool:
        """Whether the answer is a stream of events."""
        return self._chunked

    def send(
        self, status: int, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole answer."""
        connection = self._connection
        if connection is None:
            self._over()
            return
        keep = self._keep_alive and not connection.owner.draining
        if self.shared is not None:
            headers = {**(headers or {}), **self.shared}
        if self.bodiless:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep))
        elif status == 200 and keep and headers is None and kind is JSON and body:
            connection.write(USUAL % len(body) + body)  # what nearly always is sent
        else:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep) + body)
        self._done(keep=keep)

    def start_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of events."""
        connection = self._connection
        if connection is None or self._chunked:
            return
        self._chunked = True
        more = "".join(f"{name}: {value}\r\n" for name, value in {**(headers or {}), **(self.shared or {})}.items())
        connection.write(_STREAM + more.encode("latin-1") + b"\r\n")
        connection.ping_later(self)

    def event(self, frame: bytes) -> None:
        """One message as an event. Messages are JSON without line ends outside of strings, so one line holds it."""
        if self._connection is not None:
            if b"\n" in frame or b"\r" in frame:
                # Between the tokens of JSON only; inside of strings they are escaped.
                frame = frame.replace(b"\r", b" ").replace(b"\n", b" ")
            self._chunk(b"event: message\r\ndata: " + frame + b"\r\n\r\n")

    def ping(self) -> None:
        """A comment, which clients skip."""
        self._chunk(_PING)

    def end_events(self) -> None:
        """End the stream."""
        connection = self._connection
        if connection is not None:
            connection.write(b"0\r\n\r\n")
            self._done(keep=self._keep_alive and not connection.owner.draining)
        else:
            self._over()

    def gone(self) -> None:
        """The client went away."""
        if self._connection is not None:
            self._connection = None
            if self.on_gone is not None:
                self.on_gone()

    def _chunk(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _over(self) -> None:
        told, self.on_over = self.on_over, None
        if told is not None:
            told(self.weight)

    def _done(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.answered(keep=keep)


def head_of(status: int, length: int, kind: str, headers: Mapping[str, str] | None, *, keep: bool) -> bytes:
    """The head of an answer that has a length."""
    lines = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-length: {length}\r\n"
    if kind:
        lines += f"content-type: {kind}\r\n"
    if headers:
        lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if not keep:
        lines += "connection: close\r\n"
    return lines.encode("latin-1") + _ALWAYS + b"\r\n"
