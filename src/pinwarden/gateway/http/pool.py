"""Connections to one remote server: kept open, counted, and only ever to the network addresses that were checked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Protocol, cast

import httptools

from pinwarden.adapters.net.network_guard import Destination, HostNotFoundError, NetworkRules, destinations
from pinwarden.adapters.probe.sse_stream import EventParser
from pinwarden.core.errors import PinwardenError
from pinwarden.documents.target import Address
from pinwarden.gateway.http.limits import HttpLimits

EVENTS = b"text/event-stream"
_END = b"\r\n\r\n"
_REMEMBERED = 256  # heads of one server
_LONGEST_HEAD = 2048  # of a head that is remembered
_LONGEST_HELD = 1 << 16  # bytes of a body that is waited for; a longer one is read in parts


class Listener(Protocol):
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


class SilentListener:
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


NOBODY = SilentListener()
"""Nobody waits."""


class Sending(Protocol):
    """One request on its way. Whoever asked may give it up."""

    data: bytes
    listener: Listener
    given_up: bool
    """Whether nobody waits any more."""
    upstream: UpstreamConnection | None
    """The connection that it is sent on."""

    def give_up(self) -> None:
        """Cut it off."""


class Outgoing:
    """Any request on its way."""

    __slots__ = ("data", "given_up", "listener", "upstream")

    def __init__(self, data: bytes, listener: Listener) -> None:
        self.data = data
        self.listener = listener
        self.upstream: UpstreamConnection | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Cut it off: the server sees that nobody waits for the answer."""
        self.given_up = True
        self.data = b""  # it may stay in line for as long as all connections are in use
        if self.upstream is not None:
            self.upstream.abort()


class _Head:
    """What the head of an answer means that was read before."""

    __slots__ = ("length", "session", "status")

    def __init__(self, status: int, length: int, session: str) -> None:
        self.status = status
        self.length = length
        self.session = session


class Pool:
    """Connections to the one host of a remote server."""

    def __init__(self, address: Address, rules: NetworkRules, limits: HttpLimits) -> None:
        self.address = address
        self._rules = rules
        self._limits = limits
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._opening = 0
        self._line: deque[Sending] = deque()
        self._places: tuple[Destination, ...] = ()
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.heads: dict[bytes, _Head] = {}
        """What heads mean that httptools has read before, by their exact bytes: servers repeat theirs, and reading one
        takes longer than all else that is done about an answer."""

    def send(self, data: bytes, listener: Listener) -> Outgoing:
        """Send one request, on a connection that is free or on a new one."""
        outgoing = Outgoing(data, listener)
        self.start(outgoing)
        return outgoing

    def start(self, outgoing: Sending) -> None:
        """Send one request that whoever asks keeps by himself."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                connection.start(outgoing)
                return
        self._line.append(outgoing)
        self._open_one()

    def _open_one(self) -> None:
        """Open a connection for who is first in line, unless there are as many as may be."""
        if len(self._open) + self._opening < self._limits.max_upstream_connections and not self._closed:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _see_to_line(self) -> None:
        """There is room again: whoever came when there was none may have nobody else to wait for."""
        if len(self._line) > self._opening:
            self._open_one()

    def free(self, connection: UpstreamConnection) -> None:
        """A connection has nothing to do."""
        while self._line:
            outgoing = self._line.popleft()
            if not outgoing.given_up:
                connection.start(outgoing)
                return
        self._idle.append(connection)
        connection.expire_later(self._limits.idle_upstream_seconds)

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection ended."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._see_to_line()

    def made(self, connection: UpstreamConnection) -> None:
        """A connection is up."""
        self._open.add(connection)

    def close(self) -> None:
        """Cut everything."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        for connection in tuple(self._open):
            connection.abort()

    async def _connect(self) -> None:
        connection = None
        try:
            connection = await asyncio.wait_for(self._connected(), self._limits.connect_seconds)
        except (OSError, PinwardenError, TimeoutError, ssl.SSLError) as err:
            self._places = ()  # the next try looks the name up anew, and checks what it finds
            self._fail_one(_why_not(err, self.address))
        finally:
            self._opening -= 1
        if connection is not None:
            self.free(connection)
        self._see_to_line()

    def _fail_one(self, why: str) -> None:
        while self._line:
            outgoing = self._line.popleft()
            if not outgoing.given_up:
                outgoing.listener.on_lost(why, sent=False)
                return

    async def _connected(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        if not self._places:
            self._places = await loop.run_in_executor(None, destinations, self.address, self._rules)
        last: OSError = ConnectionRefusedError("no address")
        for place in self._places:
            made = socket.socket(place.family, socket.SOCK_STREAM)
            try:
                made.setblocking(False)
                await loop.sock_connect(made, place.sockaddr)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # The name of the host stays what the certificate is checked against.
                name = self.address.host if self._tls is not None else None
                _, protocol = await loop.create_connection(
                    lambda: UpstreamConnection(self, self._limits), sock=made, ssl=self._tls, server_hostname=name
                )
            except OSError as err:
                made.close()
                last = err
            except BaseException:
                made.close()
                raise
            else:
                return protocol
        raise last


def _why_not(err: Exception, address: Address) -> str:
    if isinstance(err, PinwardenError):
        return err.message
    if isinstance(err, HostNotFoundError):
        return str(err)
    if isinstance(err, ssl.SSLError):
        return f"{address} did not prove who it is: {getattr(err, 'verify_message', '') or err.reason or 'TLS failed'}"
    if isinstance(err, TimeoutError):
        return f"{address} did not answer in time"
    return f"{address} could not be reached: {(isinstance(err, OSError) and err.strerror) or type(err).__name__}"


class UpstreamConnection(asyncio.Protocol):
    """One connection to a remote server, for one request at a time."""

    def __init__(self, pool: Pool, limits: HttpLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._outgoing: Sending | None = None
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
        self._begin()

    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._outgoing is None

    def _begin(self) -> None:
        """Be ready for an answer that is read in parts."""
        self._headers: dict[bytes, bytes] = {}
        self._size = 0
        self._body: bytes | bytearray = b""
        self._events: EventParser | None = None
        self._complete = self._keep = False

    def start(self, outgoing: Sending) -> None:
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
        """A body without a length would end here; none is taken."""
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
        self._size += len(data)
        if self._size > self._limits.max_answer_bytes:
            self._fail("the server sent more than is taken for one answer", sent=True)
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as err:
            cause = err.__context__
            if not isinstance(cause, _BadAnswerError | PinwardenError):
                self._fail("an answer could not be taken", sent=True)
                self.abort()
                raise
            self._fail(str(cause), sent=True)
            self.abort()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the server's answer is not HTTP", sent=True)
            self.abort()
        else:
            if self._complete:
                self._remember()
                self._finish()

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
            self._heads[head] = _Head(self._parser.get_status_code(), length, session)

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        headers = self._headers
        headers[name.lower()] = value
        if len(headers) > self._limits.max_headers:
            raise _BadAnswerError("the head of the server's answer is too long")

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
        if 300 <= status < 400:
            raise _BadAnswerError("the server redirects to another address, which is not followed")
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() == EVENTS and status < 300:
            self._events = EventParser(self._limits.max_answer_bytes)
        outgoing.listener.on_head(status, headers.get(b"mcp-session-id", b"").decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        """A part of the answer."""
        outgoing = self._outgoing
        if outgoing is None:
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
        for event in self._events.feed(data):
            if event.name == "message" and self._outgoing is outgoing:
                outgoing.listener.on_frame(event.data)

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
        if self._keep and self._transport is not None:
            self._pool.free(self)
        elif self._transport is not None:
            self._transport.close()
        if self._events is None:
            body, self._body = bytes(self._body).strip(), b""
            if body:
                outgoing.listener.on_frame(body)
        outgoing.listener.on_end()

    def _fail(self, why: str, *, sent: bool) -> None:
        outgoing, self._outgoing = self._outgoing, None
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


class _BadAnswerError(Exception):
    """An answer that is not taken, whatever it holds."""
