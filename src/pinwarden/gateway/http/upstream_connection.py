"""One connection to a remote server: a request out, its answer in, and never one answer for another.

Whatever is in doubt about where an answer ends, ends the connection: the next request on it is somebody else's. What a
server sends faster than it is judged waits in the system's own buffers, so that everybody else is served in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

import httptools

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.surface.probe.event_stream import EventParser

_EVENT_STREAM = b"text/event-stream"
_END = b"\r\n\r\n"
_REMEMBERED = 256  # heads of one server
_LONGEST_HEAD = 2048  # of a head that is remembered
_LONGEST_HELD = 1 << 16  # bytes of a body that is waited for; a longer one is read in parts
_COUNTED = 1 << 16  # bytes of an answer that are held before it counts, and between two counts
_HEAD_SLICE = 1 << 14  # bytes that are read at once while it is not known what they are
_EVENT_SLICE = 1 << 12  # of a stream: an event may have eight bytes, and each of them is an object
_BODILESS = (204, 304)


class CachedHead:
    """What the head of an answer means that was read before."""

    __slots__ = ("length", "session", "status")

    def __init__(self, status: int, length: int, session: str) -> None:
        self.status = status
        self.length = length
        self.session = session


class ConnectionPool(Protocol):
    """Who has connections to one server."""

    heads: dict[bytes, CachedHead]
    budget: MemoryBudget | None
    """Where answers count that are not complete."""

    def made(self, connection: UpstreamConnection) -> None:
        """A connection is up."""

    def free(self, connection: UpstreamConnection) -> None:
        """A connection has nothing to do."""

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection ended."""


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
        """Whether nothing of the answer was read."""
        self._held = b""
        """What came of an answer whose head is known, until all of it is there."""
        self._head = b""
        self._unread = b""
        """What came and was not looked at yet, from a place on."""
        self._offset = 0
        self._frames: deque[bytes] = deque()
        """Messages that nobody was told of yet."""
        self._paused = False
        self._counted = 0
        self._begin()

    @property
    def outgoing(self) -> UpstreamRequest | None:
        """What it is used for."""
        return self._outgoing

    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._outgoing is None

    def _begin(self) -> None:
        """Be ready for an answer that is read in parts."""
        self._headers: dict[bytes, bytes] = {}
        self._size = 0
        self._bare = 0
        """Bytes since the last ones that were part of the body, or since the beginning of the head."""
        self._fields = self._field_bytes = 0
        self._in_body = False
        self._body: bytes | bytearray = b""
        self._events: EventParser | None = None
        self._complete = self._keep = self._until_end = False

    def start(self, outgoing: UpstreamRequest) -> None:
        """Send a request."""
        self._idle_until = 0.0
        self._outgoing = outgoing
        outgoing.upstream = self
        self._fresh = True
        self._held = b""
        if self._transport is None:
            self._fail("the connection was closed", sent=False)
        else:
            self._transport.write(outgoing.data)

    def expire_later(self, seconds: float) -> None:
        """Close the connection unless it is used again. One timer serves many requests."""
        self._idle_until = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._idle_until, self._expire)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._pool.made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The server hung up, or we did."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._pool.lost(self)
        self._fail("the server closed the connection before its answer was complete", sent=True)

    def eof_received(self) -> bool:
        """An answer that says nothing of its length ends here. One that was cut short is no JSON."""
        if self._until_end and self._outgoing is not None and not self._unread and not self._frames:
            self._keep = False
            self._finish()
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        outgoing = self._outgoing
        if outgoing is None:
            self.abort()  # nobody asked
            return
        if self._fresh:
            waits = not self._held  # once: joining ever more pieces would take longer the smaller they are
            if self._held:
                data, self._held = self._held + data, b""
            end = data.find(_END) + 4
            head = self._heads.get(data[:end])
            if head is not None:
                missing = end + head.length - len(data)
                if not missing:
                    self._outgoing = outgoing.upstream = None
                    self._pool.free(self)
                    outgoing.listener.on_whole(head.status, head.session, data[end:])
                    return
                if missing > 0 and waits and head.length <= _LONGEST_HELD:  # many servers send the body after the head
                    self._held = data
                    return
            self._fresh = False
            self._begin()
            self._head = data[:end]
        if self._paused:  # some transports have more to say all the same
            self._unread, self._offset = self._unread[self._offset :] + data, 0
            return
        self._unread = data
        self._process(outgoing)

    # So much at once, and then it is the turn of others.

    def _process(self, outgoing: UpstreamRequest) -> None:
        """Look at what came, for no longer than others can wait."""
        frames, size = self._limits.max_frames_at_once, self._limits.max_bytes_at_once
        while self._outgoing is outgoing and not outgoing.given_up:
            if self._frames:
                if frames <= 0 or size <= 0:
                    self._pause(outgoing)
                    return
                frame = self._frames.popleft()
                frames -= 1
                size -= len(frame)
                self._deliver(outgoing, frame)
            elif self._unread:
                if size <= 0:
                    self._pause(outgoing)
                    return
                size -= self._feed()
            else:
                self._resume()
                if self._complete:
                    self._remember()
                    self._finish()
                return
        self._forget()

    def _deliver(self, outgoing: UpstreamRequest, frame: bytes) -> None:
        try:
            outgoing.listener.on_frame(frame)
        except BaseException:
            self._refuse("an answer could not be taken")
            raise

    def _pause(self, outgoing: UpstreamRequest) -> None:
        """Go on when everybody else had a turn."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._loop.call_soon(self._go_on, outgoing)

    def _go_on(self, outgoing: UpstreamRequest) -> None:
        if self._outgoing is outgoing:
            self._process(outgoing)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def _forget(self) -> None:
        """Nobody waits for the rest of it."""
        self._unread, self._offset, self._body = b"", 0, b""
        self._frames.clear()
        self._events = None
        self._uncount()

    def _feed(self) -> int:
        """Let the next bytes be read; how many they were."""
        data, offset = self._unread, self._offset
        step = self._limits.max_bytes_at_once if self._in_body else _HEAD_SLICE
        if self._events is not None:
            step = _EVENT_SLICE
        piece = data[offset : offset + step] if offset or len(data) > step else data
        self._offset = offset + len(piece)
        if self._offset >= len(data):
            self._unread, self._offset = b"", 0
        self._size += len(piece)
        self._bare += len(piece)
        if self._size > self._limits.max_answer_bytes:
            self._refuse("the server sent more than is taken for one answer")
            return len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as err:
            cause = err.__context__
            if not isinstance(cause, _BadAnswerError | PinwardenError):
                self._refuse("an answer could not be taken")
                raise
            self._refuse(str(cause))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse("the server's answer is not HTTP")
        else:
            self._check()
        return len(piece)

    def _check(self) -> None:
        """Refuse what is neither an answer nor the end of one."""
        if self._bare > self._limits.max_upstream_head_bytes:
            self._refuse("the head of the server's answer is too long")
        elif self._complete and self._unread[self._offset :].strip(b"\r\n"):
            self._refuse(_SURPLUS)
        else:
            self._count()

    def _refuse(self, why: str) -> None:
        self._fail(why, sent=True)
        self.abort()

    # What is held of an answer that is not complete

    @property
    def pending_bytes(self) -> int:
        """Bytes that are held of an answer."""
        return len(self._body) + (0 if self._events is None else self._events.held)

    def overflow(self) -> None:
        """All answers that are begun are too much together, and most of it is this one."""
        self._counted = 0
        self._refuse("more is held of answers that are not complete than is kept, and most of it is this one")

    def _count(self) -> None:
        budget = self._pool.budget
        if budget is not None and self.pending_bytes - self._counted >= _COUNTED:
            self._counted = self.pending_bytes
            budget.enter(self)
            budget.make()

    def _uncount(self) -> None:
        if self._counted and self._pool.budget is not None:
            self._pool.budget.leave(self)
        self._counted = 0

    def _remember(self) -> None:
        """Know the head again, if it came in one piece and says nothing but how long the body is."""
        headers, head = self._headers, self._head
        length = len(self._body)
        framed = b"content-length" in headers and b"transfer-encoding" not in headers
        plain = self._events is None and self._keep and framed and self._size - len(head) == length
        if plain and head.endswith(_END) and len(head) <= _LONGEST_HEAD:
            if len(self._heads) >= _REMEMBERED:
                self._heads.clear()  # they have the time of day in them
            session = headers.get(b"mcp-session-id", b"").decode("latin-1")
            self._heads[head] = CachedHead(self._parser.get_status_code(), length, session)

    # What httptools calls.

    def on_message_begin(self) -> None:
        """An answer begins: the first one, or the one behind an interim one."""
        if self._complete:
            raise _BadAnswerError(_SURPLUS)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer, or a trailer, which is not kept."""
        self._fields += 1
        self._field_bytes += len(name) + len(value) + 4
        limits = self._limits
        if self._fields > limits.max_headers or self._field_bytes > limits.max_upstream_head_bytes:
            raise _BadAnswerError("the head of the server's answer is too long")
        if not self._in_body:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head of the answer is complete."""
        status = self._parser.get_status_code()
        outgoing = self._outgoing
        if outgoing is None or status < 200:
            return
        headers = self._headers
        if b"content-encoding" in headers and headers[b"content-encoding"].strip().lower() not in (b"identity", b""):
            # None was asked for, and a small compressed body can be an enormous one.
            raise _BadAnswerError("the server compressed its answer without being asked to")
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise _BadAnswerError("the server encoded its answer without being asked to")
        if 300 <= status < 400:
            raise _BadAnswerError("the server redirects to another address, which is not followed")
        self._bare = 0
        self._in_body = True
        framed = b"content-length" in headers or b"transfer-encoding" in headers
        self._until_end = not framed and status not in _BODILESS
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() == _EVENT_STREAM and status < 300:
            self._events = EventParser(self._limits.max_answer_bytes)
        outgoing.listener.on_head(status, headers.get(b"mcp-session-id", b"").decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        """A part of the answer."""
        self._bare = 0
        if self._outgoing is None:
            return
        if self._events is None:
            if not self._body:
                self._body = data
            else:
                if type(self._body) is bytes:
                    self._body = bytearray(self._body)  # a list of parts may take twenty times what is in them
                self._body += data
            return
        self._size = 0  # a stream has no end to its size; each event has
        self._frames += [event.data for event in self._events.feed(data) if event.name == "message"]

    def on_message_complete(self) -> None:
        """The answer is complete. An interim one (1xx) is not the answer."""
        if self._parser.get_status_code() >= 200:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # known only here
        else:
            self._headers = {}

    def _finish(self) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is None:
            return
        outgoing.upstream = None
        self._uncount()
        body, self._body = self._body, b""
        document = self._events is None
        self._events = None
        if self._keep and self._transport is not None:
            self._pool.free(self)
        elif self._transport is not None:
            self._transport.close()
        if document and (frame := bytes(body).strip()):
            outgoing.listener.on_frame(frame)
        outgoing.listener.on_end()

    def _fail(self, why: str, *, sent: bool) -> None:
        outgoing, self._outgoing = self._outgoing, None
        self._forget()
        if outgoing is not None:
            outgoing.upstream = None
            if not outgoing.given_up:
                outgoing.listener.on_lost(why, sent=sent)

    def _expire(self) -> None:
        self._timer = None
        if self._idle_until == 0.0 or self._transport is None:
            return
        if self._loop.time() >= self._idle_until - 0.001:
            self._transport.close()
        else:
            self._timer = self._loop.call_at(self._idle_until, self._expire)


_SURPLUS = "the server sent more than the answer to what it was asked"


class _BadAnswerError(Exception):
    """An answer that is not taken, whatever it holds."""


class Abortable(Protocol):
    """What a request is sent on."""

    def abort(self) -> None:
        """Cut it off."""


class ResponseListener(Protocol):
    """Who waits for the answer to one request."""

    def on_head(self, status: int, session: str) -> None:
        """The status came, and the session that the server names, if it does."""

    def on_frame(self, frame: bytes) -> None:
        """A message came: the whole body, or one event."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """Head, message and end at once."""

    def on_lost(self, why: str, *, sent: bool) -> None:
        """There is no complete answer. Unless it was sent, the server has not seen the request."""


class NullListener:
    """Does nothing by itself, and takes an answer in one piece as one in parts."""

    __slots__ = ()

    def on_head(self, status: int, session: str) -> None:
        """Nothing."""

    def on_frame(self, frame: bytes) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """One after the other."""
        self.on_head(status, session)
        body = body.strip()
        if body:
            self.on_frame(body)
        self.on_end()

    def on_lost(self, why: str, *, sent: bool) -> None:
        """Nothing."""


NULL_LISTENER = NullListener()
"""Nobody waits."""


class UpstreamRequest(Protocol):
    """One request on its way. Whoever asked may give it up."""

    data: bytes
    listener: ResponseListener
    given_up: bool
    """Whether nobody waits any more."""
    upstream: Abortable | None
    """The connection that it is sent on."""
    stream: bool
    """Whether it is answered by whatever the server tells from now on, and so may hold its connection for ever."""

    @property
    def client(self) -> str:
        """For whom it is sent."""

    def give_up(self) -> None:
        """Cut it off."""


class QueuedRequest:
    """Any request on its way."""

    __slots__ = ("client", "data", "given_up", "listener", "stream", "upstream")

    def __init__(self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False) -> None:
        self.data = data
        self.listener = listener
        self.client = client
        self.stream = stream
        self.upstream: Abortable | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Cut it off: the server sees that nobody waits for the answer."""
        self.given_up = True
        self.data = b""  # it may stay in line for as long as all connections are in use
        if self.upstream is not None:
            self.upstream.abort()
