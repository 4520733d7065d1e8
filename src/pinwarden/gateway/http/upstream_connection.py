"""A connection to a remote server, which carries one request at a time, so that responses cannot be mixed up.

If the end of a response is ambiguous, the gateway closes the connection, because another client may use it next. If a
server sends faster than the gateway processes its messages, the connection pauses reading, so that other clients are
served too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.surface.probe.event_stream import EventParser
from pinwarden.system.net.connections import is_compressed, redirect_error
from pinwarden.system.target import HttpAddress

_EVENT_STREAM = b"text/event-stream"
_HEAD_END = b"\r\n\r\n"
_MAX_CACHED = 256  # maximum number of cached response heads of one server
_MAX_CACHED_BYTES = 2048  # maximum size of a cached response head
_MAX_BUFFERED = 1 << 16  # bytes of a body that is buffered; a longer body is parsed in parts
_BUDGET_STEP = 1 << 16  # bytes of an incomplete response between two updates of the budget
_HEAD_SLICE = 1 << 14  # bytes that are parsed at once before the body begins
_EVENT_SLICE = 1 << 12  # bytes of an event stream that are parsed at once; an event may have only eight bytes
_BODILESS = (204, 304)
_DENIED = (401, 403)


class CachedHead:
    """A parsed response head."""

    __slots__ = ("length", "session", "status")

    def __init__(self, status: int, length: int, session: str) -> None:
        self.status = status
        self.length = length
        self.session = session


class ConnectionPool(Protocol):
    """The owner of connections to one server."""

    address: HttpAddress
    heads: dict[bytes, CachedHead]
    budget: MemoryBudget | None
    """The budget for incomplete responses."""

    def on_connection_made(self, connection: UpstreamConnection) -> None:
        """Add an opened connection."""

    def release(self, connection: UpstreamConnection) -> None:
        """Reuse a connection whose response is complete."""

    def on_connection_lost(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a remote server, for one request at a time."""

    def __init__(self, pool: ConnectionPool, limits: HttpLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._outgoing: UpstreamRequest | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._heads = pool.heads
        self._fresh = True
        """Whether no byte of the response was processed yet."""
        self._partial = b""
        """The received part of a response whose head is cached."""
        self._head = b""
        self._unread = b""
        """Received bytes. The bytes from `_offset` on are not processed yet."""
        self._offset = 0
        self._messages: deque[bytes] = deque()
        """Messages that are not delivered yet."""
        self._paused = False
        self._counted = 0
        self._reset()

    @property
    def current_request(self) -> UpstreamRequest | None:
        """The current request; None if the connection is idle."""
        return self._outgoing

    def is_usable(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._outgoing is None

    def _reset(self) -> None:
        """Reset the state for parsing a response."""
        self._headers: dict[bytes, bytes] = {}
        self._size = 0
        self._framing_bytes = 0
        """Bytes of the head, or of chunk headers since the last byte of the body."""
        self._fields = self._field_bytes = 0
        self._in_body = False
        self._body: bytes | bytearray = b""
        self._events: EventParser | None = None
        self._complete = self._keep_alive = self._ends_at_eof = False

    def start(self, outgoing: UpstreamRequest) -> None:
        """Send a request."""
        self._idle_until = 0.0
        self._outgoing = outgoing
        outgoing.upstream = self
        self._fresh = True
        self._partial = b""
        if self._transport is None:
            self._fail("the connection was closed", was_sent=False)
        else:
            self._transport.write(outgoing.data)

    def expire_later(self, seconds: float) -> None:
        """Close the connection unless it is used again. One timer serves many requests."""
        self._idle_until = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._idle_until, self._expire)

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the open connection to the pool."""
        self._transport = cast(asyncio.Transport, transport)
        self._pool.on_connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Remove the closed connection from the pool, and fail its request."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._pool.on_connection_lost(self)
        self._fail("the server closed the connection before its response was complete", was_sent=True)

    def eof_received(self) -> bool:
        """Complete a response that ends with the connection, because it has no content length.

        A truncated response is detected as invalid JSON.
        """
        if self._ends_at_eof and self._outgoing is not None and not self._unread and not self._messages:
            self._keep_alive = False
            self._finish()
        return False

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. A response with a cached head is not parsed."""
        outgoing = self._outgoing
        if outgoing is None:
            self.abort()  # no request is open
            return
        if self._fresh:
            may_wait = not self._partial  # wait only once, because joining many small pieces takes quadratic time
            if self._partial:
                data, self._partial = self._partial + data, b""
            end = data.find(_HEAD_END) + 4
            head = self._heads.get(data[:end])
            if head is not None:
                missing = end + head.length - len(data)
                if not missing:
                    self._outgoing = outgoing.upstream = None
                    self._pool.release(self)
                    outgoing.listener.on_response(head.status, head.session, data[end:])
                    return
                if (
                    missing > 0 and may_wait and head.length <= _MAX_BUFFERED
                ):  # many servers send the body after the head
                    self._partial = data
                    return
            self._fresh = False
            self._reset()
            self._head = data[:end]
        if self._paused:  # some transports deliver data although they are paused
            self._unread, self._offset = self._unread[self._offset :] + data, 0
            return
        self._unread = data
        self._process(outgoing)

    # Processing in portions

    def _process(self, outgoing: UpstreamRequest) -> None:
        """Process a limited number of received bytes, then let other work run."""
        messages, size = self._limits.max_messages_at_once, self._limits.max_bytes_at_once
        while self._outgoing is outgoing and not outgoing.cancelled:
            if self._messages:
                if messages <= 0 or size <= 0:
                    self._pause(outgoing)
                    return
                message = self._messages.popleft()
                messages -= 1
                size -= len(message)
                self._deliver(outgoing, message)
            elif self._unread:
                if size <= 0:
                    self._pause(outgoing)
                    return
                size -= self._feed()
            else:
                self._resume()
                if self._complete:
                    self._cache_head()
                    self._finish()
                return
        self._discard()

    def _deliver(self, outgoing: UpstreamRequest, message: bytes) -> None:
        try:
            outgoing.listener.on_message(message)
        except BaseException:
            self._fail_and_abort("a response could not be processed")
            raise

    def _pause(self, outgoing: UpstreamRequest) -> None:
        """Continue in the next iteration of the loop."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._loop.call_soon(self._continue, outgoing)

    def _continue(self, outgoing: UpstreamRequest) -> None:
        if self._outgoing is outgoing:
            self._process(outgoing)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def _discard(self) -> None:
        """Drop the unprocessed bytes and messages of a response that is no longer needed."""
        self._unread, self._offset, self._body = b"", 0, b""
        self._messages.clear()
        self._events = None
        self._remove_from_budget()

    def _feed(self) -> int:
        """Parse the next received bytes. Returns their number."""
        data, offset = self._unread, self._offset
        step = self._limits.max_bytes_at_once if self._in_body else _HEAD_SLICE
        if self._events is not None:
            step = _EVENT_SLICE
        piece = data[offset : offset + step] if offset or len(data) > step else data
        self._offset = offset + len(piece)
        if self._offset >= len(data):
            self._unread, self._offset = b"", 0
        self._size += len(piece)
        self._framing_bytes += len(piece)
        if self._size > self._limits.max_server_message_bytes:
            self._fail_and_abort("the server sent a response above the size limit")
            return len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as err:
            cause = err.__context__
            if not isinstance(cause, _BadResponseError | PinwardenError):
                self._fail_and_abort("a response could not be processed")
                raise
            self._fail_and_abort(str(cause))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail_and_abort("the server's response is not HTTP")
        else:
            self._check_limits()
        return len(piece)

    def _check_limits(self) -> None:
        """Fail the request if the head is too long, or if data follows the response."""
        if self._framing_bytes > self._limits.max_upstream_head_bytes:
            self._fail_and_abort("the head of the server's response is too long")
        elif self._complete and self._unread[self._offset :].strip(b"\r\n"):
            self._fail_and_abort(_SURPLUS)
        else:
            self._update_budget()

    def _fail_and_abort(self, reason: str) -> None:
        self._fail(reason, was_sent=True)
        self.abort()

    # Incomplete responses

    @property
    def pending_bytes(self) -> int:
        """Bytes of the incomplete response."""
        return len(self._body) + (0 if self._events is None else self._events.buffered_bytes)

    def on_overflow(self) -> None:
        """Fail the request, because the shared budget is exceeded and this response is the largest message."""
        self._counted = 0
        self._fail_and_abort("the memory budget for incomplete responses is exceeded, and this response is the largest")

    def _update_budget(self) -> None:
        budget = self._pool.budget
        if budget is not None and self.pending_bytes - self._counted >= _BUDGET_STEP:
            self._counted = self.pending_bytes
            budget.add(self)
            budget.enforce()

    def _remove_from_budget(self) -> None:
        if self._counted and self._pool.budget is not None:
            self._pool.budget.remove(self)
        self._counted = 0

    def _cache_head(self) -> None:
        """Cache the head if it arrived in one piece and a content length frames the body."""
        headers, head = self._headers, self._head
        length = len(self._body)
        framed = b"content-length" in headers and b"transfer-encoding" not in headers
        plain = self._events is None and self._keep_alive and framed and self._size - len(head) == length
        plain = plain and self._parser.get_status_code() not in _DENIED  # a challenge is handled each time
        if plain and head.endswith(_HEAD_END) and len(head) <= _MAX_CACHED_BYTES:
            if len(self._heads) >= _MAX_CACHED:
                self._heads.clear()  # heads contain the time, so old ones do not recur
            session = headers.get(b"mcp-session-id", b"").decode("latin-1")
            self._heads[head] = CachedHead(self._parser.get_status_code(), length, session)

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """Refuse a second response. Interim responses (1xx) may come before the final response."""
        if self._complete:
            raise _BadResponseError(_SURPLUS)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are ignored."""
        self._fields += 1
        self._field_bytes += len(name) + len(value) + 4
        limits = self._limits
        if self._fields > limits.max_headers or self._field_bytes > limits.max_upstream_head_bytes:
            raise _BadResponseError("the head of the server's response is too long")
        if not self._in_body:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Check the head, and pass it to the listener."""
        status = self._parser.get_status_code()
        outgoing = self._outgoing
        if outgoing is None or status < 200:
            return
        headers = self._headers
        if b"content-encoding" in headers and is_compressed(headers[b"content-encoding"].decode("latin-1")):
            raise _BadResponseError("the server compressed its response, which the gateway does not accept")
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise _BadResponseError("the server used a transfer encoding that the gateway does not accept")
        if 300 <= status < 400:
            raise _BadResponseError(redirect_error(self._pool.address, status).message)
        self._framing_bytes = 0
        self._in_body = True
        framed = b"content-length" in headers or b"transfer-encoding" in headers
        self._ends_at_eof = not framed and status not in _BODILESS
        content_type = headers.get(b"content-type", b"")
        if (
            content_type != b"application/json"
            and content_type.partition(b";")[0].strip().lower() == _EVENT_STREAM
            and status < 300
        ):
            self._events = EventParser(self._limits.max_server_message_bytes)
        if status in _DENIED:
            outgoing.listener.on_challenge(headers.get(b"www-authenticate", b"").decode("latin-1"))
        outgoing.listener.on_head(status, headers.get(b"mcp-session-id", b"").decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._framing_bytes = 0
        if self._outgoing is None:
            return
        if self._events is None:
            if not self._body:
                self._body = data
            else:
                if type(self._body) is bytes:
                    self._body = bytearray(self._body)  # a list of tiny parts would take twenty times their size
                self._body += data
            return
        self._size = 0  # in a stream, the size limit applies to each event, and the event parser enforces it
        self._messages += [event.data for event in self._events.feed(data) if event.name == "message"]

    def on_message_complete(self) -> None:
        """Complete the response, unless it is an interim response (1xx)."""
        if self._parser.get_status_code() >= 200:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()  # the parser knows this only at the end of the response
        else:
            self._headers = {}

    def _finish(self) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is None:
            return
        outgoing.upstream = None
        self._remove_from_budget()
        body, self._body = self._body, b""
        is_document = self._events is None
        self._events = None
        if self._keep_alive and self._transport is not None:
            self._pool.release(self)
        elif self._transport is not None:
            self._transport.close()
        if is_document and (message := bytes(body).strip()):
            outgoing.listener.on_message(message)
        outgoing.listener.on_end()

    def _fail(self, reason: str, *, was_sent: bool) -> None:
        outgoing, self._outgoing = self._outgoing, None
        self._discard()
        if outgoing is not None:
            outgoing.upstream = None
            if not outgoing.cancelled:
                outgoing.listener.on_lost(reason, was_sent=was_sent)

    def _expire(self) -> None:
        self._timer = None
        if self._idle_until == 0.0 or self._transport is None:
            return
        if self._loop.time() >= self._idle_until - 0.001:
            self._transport.close()
        else:
            self._timer = self._loop.call_at(self._idle_until, self._expire)


_SURPLUS = "the server sent data after its response"


class _BadResponseError(Exception):
    """The gateway does not accept the server's response, for the reason in the message."""


class Abortable(Protocol):
    """A connection that carries a request."""

    def abort(self) -> None:
        """Close the connection immediately."""


class ResponseListener(Protocol):
    """Receives the response to one request."""

    def on_challenge(self, challenge: str) -> None:
        """Handle the header ``WWW-Authenticate`` of status 401 or 403, before `on_head`; empty without one."""

    def on_head(self, status: int, session: str) -> None:
        """Handle the head of the response. ``session`` is the session id in the head, or empty."""

    def on_message(self, message: bytes) -> None:
        """Handle a message, which is the complete body or one event."""

    def on_end(self) -> None:
        """Handle the end of the response."""

    def on_response(self, status: int, session: str, body: bytes) -> None:
        """Handle a complete response that arrived in one piece."""

    def on_lost(self, reason: str, *, was_sent: bool) -> None:
        """Handle a missing or incomplete response. If ``was_sent`` is false, the server did not get the request."""


class NullListener:
    """Ignores the response. Subclasses override the methods for head, messages and end."""

    __slots__ = ()

    def on_challenge(self, challenge: str) -> None:
        """Ignored."""

    def on_head(self, status: int, session: str) -> None:
        """Ignored."""

    def on_message(self, message: bytes) -> None:
        """Ignored."""

    def on_end(self) -> None:
        """Ignored."""

    def on_response(self, status: int, session: str, body: bytes) -> None:
        """Call `on_head`, `on_message` and `on_end`."""
        self.on_head(status, session)
        body = body.strip()
        if body:
            self.on_message(body)
        self.on_end()

    def on_lost(self, reason: str, *, was_sent: bool) -> None:
        """Ignored."""


NULL_LISTENER = NullListener()
"""Ignores a response."""


class UpstreamRequest:
    """A request to a remote server, which can be cancelled: a `ToolCall`, or a `GeneralRequest`."""

    if not TYPE_CHECKING:  # type checkers would not let `cancel` assign the slots of the subclasses
        __slots__ = ()

    data: bytes
    listener: ResponseListener
    cancelled: bool
    """Whether the response is no longer needed."""
    upstream: Abortable | None
    """The connection that carries the request."""
    stream: bool
    """Whether the response is an endless stream, which occupies its connection."""

    @property
    def client(self) -> str:
        """The name of the client."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the request by closing its connection."""
        self.cancelled = True
        self.data = b""  # it may stay in the queue while all connections are in use
        if self.upstream is not None:
            self.upstream.abort()


class GeneralRequest(UpstreamRequest):
    """A request of the general path: with any HTTP method, and with a listener of its own for the response."""

    __slots__ = ("_client", "cancelled", "data", "listener", "stream", "upstream")

    def __init__(self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False) -> None:
        self.data = data
        self.listener = listener
        self._client = client
        self.stream = stream
        self.upstream = None
        self.cancelled = False

    @property
    def client(self) -> str:
        """The name of the client; empty for a request of the gateway."""
        return self._client
