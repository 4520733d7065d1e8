"""One HTTP request of a client, read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

from typing import Protocol

import httptools

from pinwarden.gateway.http.limits import HttpLimits

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
