"""Client connections: each answers its requests in order, and all together stay within limits."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http1 import SMALL_BODY, USUAL, Reply, Request, RequestReader, head_of
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import BodyBudget

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END = b"\r\n\r\n"
_MORE = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
_LINGER_SECONDS = 1.0  # for the client to read the error before the connection closes


class FastRoute(Protocol):
    """Handles requests whose head was seen before."""

    length: int

    def take(self, body: bytes, connection: ClientConnection) -> bool:
        """Handle the request. Returns False, without side effects, if it needs the general path."""


class OpenConnection(Protocol):
    """A TCP connection that counts against the limit, before or after its TLS handshake."""

    def abort(self) -> None:
        """Close the connection immediately."""


class CurrentRequest(Protocol):
    """The request that a connection answers now."""

    @property
    def client(self) -> str:
        """The name of the client; empty before its token is checked."""

    def gone(self) -> None:
        """The client disconnected."""


class RequestHandler(Protocol):
    """Handles requests."""

    @property
    def routes(self) -> Mapping[bytes, FastRoute]:
        """Cached routes by the exact bytes of a request head."""

    def answer(self, request: Request, reply: Reply) -> None:
        """Handle a request, and answer it through ``reply`` now or later."""

    def admit(self, headers: dict[bytes, bytes]) -> str:
        """The name of the client that sent this head; raises `BadRequest` if there is none."""


class ClientConnections:
    """All client connections, with their limits."""

    def __init__(self, handler: RequestHandler, limits: HttpLimits) -> None:
        self.handler = handler
        self.routes = handler.routes
        self.limits = limits
        self.max_open = limits.max_connections
        self.open: set[ClientConnection] = set()
        self.unauthenticated: dict[OpenConnection, None] = {}
        """Connections without a valid token so far, oldest first."""
        self._handshaking: set[OpenConnection] = set()
        """Connections in their TLS handshake."""
        self.draining = False
        self.refused = 0
        self.evicted = 0
        """Connections that were closed to make place for others."""
        self.cut = 0
        """Connections that were closed because the client read too slowly."""
        self.on_cut: Callable[[str], None] = _ignore
        self.slow_readers: set[ClientConnection] = set()
        """Connections with a write backlog."""
        self.body_budget = BodyBudget(limits)

    @property
    def unsent(self) -> int:
        """Bytes in all write backlogs."""
        return sum(connection.unsent for connection in self.slow_readers)

    @property
    def bodies(self) -> int:
        """Bytes of large requests without a response."""
        return self.body_budget.size

    def cut_slowest(self) -> None:
        """Close the slowest connections until all backlogs together are within the limit."""
        while self.slow_readers and (unsent := self.unsent) > self.limits.max_all_unsent_bytes:
            slowest = min(self.slow_readers, key=lambda connection: (connection.pace, -connection.unsent))
            slowest.give_up(f"{unsent} bytes wait for slow readers, and this one is the slowest")

    def tick(self) -> None:
        """Close connections whose client reads nothing. Called about once a second."""
        for connection in tuple(self.slow_readers):
            if connection.stalled:
                connection.give_up("the client stopped reading")

    def __call__(self) -> ClientConnection:
        """Create the protocol for a new connection."""
        return ClientConnection(self)

    def enter(self, connection: OpenConnection) -> bool:
        """Count a new connection, closing another one if the limit is reached. Returns False if none can be closed."""
        if self.draining or (len(self.open) + len(self._handshaking) >= self.max_open and not self._evict_one()):
            return False
        self.unauthenticated[connection] = None
        if isinstance(connection, ClientConnection):
            self.open.add(connection)
        else:
            self._handshaking.add(connection)
        return True

    def leave(self, connection: OpenConnection) -> None:
        """Stop counting a connection."""
        self.unauthenticated.pop(connection, None)
        self._handshaking.discard(connection)
        self.open.discard(connection)

    def _evict_one(self) -> bool:
        """Close the oldest unauthenticated connection, or else an idle one of the client with most connections."""
        chosen: OpenConnection | None = next(iter(self.unauthenticated), None)
        if chosen is None:
            counts = Counter(connection.client for connection in self.open)
            greediest = max(counts, key=lambda client: counts[client], default="")
            idle = (connection for connection in self.open if connection.client == greediest and not connection.busy)
            chosen = min(idle, key=lambda connection: connection.used, default=None)
        if chosen is None:
            return False
        self.evicted += 1
        self.leave(chosen)
        chosen.abort()
        return True

    async def drain(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Close idle connections and wait for the others. Returns whether all ended in time, and before ``hurry``."""
        self.draining = True
        for open_connection in tuple(self.open):
            open_connection.close_when_idle()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (
            self.open and loop.time() < end and not (hurry and hurry.is_set())
        ):  # a complete response may still be on its way to a slow reader
            await asyncio.sleep(0.02)
        drained = not self.open
        for connection in (*self.open, *self._handshaking):
            connection.abort()
        return drained


def _ignore(why: str) -> None:
    del why


class ClientConnection(asyncio.Protocol):
    """One client connection. It is not read from while too many of its requests wait for a response."""

    def __init__(self, owner: ClientConnections) -> None:
        self.owner = owner
        self._limits = owner.limits
        self._reader = RequestReader(owner.limits, self)
        self._waiting: deque[Request] = deque()
        self._current: CurrentRequest | None = None
        self._routes = owner.routes
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pinger: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._closing = False
        self._paused = False
        self._backlog: WriteBacklog | None = None
        self._reserved = 0
        self.handshake: OpenConnection | None = None
        """Its TLS handshake, if there was one."""
        self.client = ""
        """The client whose token was used last on this connection."""
        self._loop = asyncio.get_running_loop()

    @property
    def used(self) -> float:
        """Grows with each use; for comparison only."""
        return self._deadline

    def set_client(self, client: str) -> None:
        """Set the client that uses the connection."""
        if client != self.client:
            if self._reserved:
                self.owner.body_budget.move(self.client, client, self._reserved)
            self.client = client
            self.owner.unauthenticated.pop(self, None)

    @property
    def busy(self) -> bool:
        """Whether a request waits for its response."""
        return self._current is not None or bool(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self.handshake is not None:
            self.owner.leave(self.handshake)
        if not self.owner.enter(self):
            self.owner.refused += 1
            self._closing = True
            self._transport.write(head_of(503, 0, "", {"retry-after": "1"}, keep=False))
            self._transport.close()
            return
        self._wait(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client disconnected."""
        self._closing = True
        self.owner.leave(self)
        self.owner.slow_readers.discard(self)
        reply, self._current = self._current, None
        if reply is not None:
            self._leave(reply)
        self._release()
        for timer in (self._timer, self._pinger):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._closing:
            return
        if self._current is None and not self._waiting and not self._reader.begun:
            end = data.find(_END) + 4
            route = self._routes.get(data[:end])
            if route is not None and len(data) - end == route.length and route.take(data[end:], self):
                return
        was_in_body = self._reader.in_body
        try:
            requests = self._reader.feed(data)
        except BadRequest as refused:
            self._refuse(refused)
            return
        if requests:
            self._waiting.extend(requests)
            if len(self._waiting) > self._limits.max_pipelined and self._transport is not None:
                self._transport.pause_reading()
                self._paused = True
            if self._current is None:
                self._next()
        if self._reader.continues and self._current is None:
            self._reader.continues = False
            self.write(_CONTINUE)
        if self._current is None:
            in_body = self._reader.in_body
            if in_body != was_in_body or (requests and self._reader.begun):
                self._wait(self._limits.body_seconds if in_body else self._limits.head_seconds)

    def eof_received(self) -> bool:
        """A client that closes its sending side counts as disconnected."""
        return False

    def begin(self, reply: CurrentRequest) -> None:
        """Begin to answer a request. Its own deadlines replace those of the connection."""
        self._current = reply
        self._deadline = 0.0
        if not self.client:
            self.set_client(reply.client)

    def result(self, body: bytes) -> None:
        """Send the result of a tool call: the fast path of `Reply.send`."""
        transport = self._transport
        if self._waiting or self.owner.draining or transport is None or transport.get_write_buffer_size():
            Reply(self, keep_alive=True).send(200, body)
            return
        transport.write(USUAL % len(body) + body)
        self._current = None
        self._deadline = self._loop.time() + self._limits.idle_seconds
        if self._timer is None:  # no other timeout is longer, so a timer that runs is early enough
            self._timer = self._loop.call_at(self._deadline, self._overdue)

    def write(self, data: bytes) -> None:
        """Send bytes. Closes the connection if too many bytes wait already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
            self.give_up(f"{transport.get_write_buffer_size()} bytes wait for this client")
            return
        transport.write(data)
        if self._backlog is not None:
            self._backlog.given += len(data)
            self.owner.cut_slowest()

    # Slow readers

    def pause_writing(self) -> None:
        """The kernel's send buffer is full. Stop reading from this client until it reads."""
        if self._transport is None or self._closing:
            return
        self._backlog = WriteBacklog(self._loop.time(), self.unsent)
        self.owner.slow_readers.add(self)
        self._transport.pause_reading()
        self.owner.cut_slowest()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._backlog = None
        self.owner.slow_readers.discard(self)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    @property
    def unsent(self) -> int:
        """Bytes in the write buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def pace(self) -> float:
        """Bytes per second that the client read since the backlog began."""
        backlog = self._backlog
        return 0.0 if backlog is None else backlog.pace(self._loop.time(), self.unsent)

    @property
    def stalled(self) -> bool:
        """Whether the client read nothing for ``unread_seconds``."""
        backlog = self._backlog
        return backlog is not None and backlog.stalled(self._loop.time(), self.unsent, self._limits.unread_seconds)

    def give_up(self, why: str) -> None:
        """Close the connection of a client that reads too slowly."""
        transport = self._transport
        self._closing = True
        self.owner.slow_readers.discard(self)
        if transport is not None:
            peer = transport.get_extra_info("peername")
            self.owner.cut += 1
            self.owner.on_cut(f"{peer[0] if isinstance(peer, tuple) else 'a client'} was disconnected: {why}")
            transport.abort()

    # Large requests

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        """Accept a large body only from an authenticated client. Only bytes that arrive are counted."""
        self.set_client(self.owner.handler.admit(headers))
        self.owner.body_budget.check(self.client, size)

    def add(self, size: int) -> None:
        """Count a part of the body against the budget."""
        self.owner.body_budget.add(self.client, size)
        self._reserved += size

    def _leave(self, reply: CurrentRequest) -> None:
        """The client disconnected. A request in a session continues, and its body stays counted."""
        if isinstance(reply, Reply) and reply.weight and reply.on_gone is None:
            self._reserved -= reply.weight
            reply.on_over = partial(self.owner.body_budget.release, self.client)
        reply.gone()

    def _release(self) -> None:
        self.owner.body_budget.release(self.client, self._reserved)
        self._reserved = 0

    def answered(self, *, keep: bool) -> None:
        """The response is complete. The next request starts in a new iteration of the loop, after other connections."""
        self._current = None
        if self._reserved and not self._waiting and not self._reader.begun:
            self._release()
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        if not keep:
            self._close()
        elif self._waiting:
            self._loop.call_soon(self._next)
        else:
            # Unauthenticated connections get the short timeout.
            self._wait(self._limits.idle_seconds if self.client else self._limits.head_seconds)

    def ping_later(self, reply: Reply) -> None:
        """Send comments on an idle event stream, so that proxies keep it open."""

        def ping() -> None:
            if reply.open:
                reply.ping()
                self.ping_later(reply)

        self._pinger = self._loop.call_later(self._limits.ping_seconds, ping)

    def close_when_idle(self) -> None:
        """Close the connection unless a request waits for its response."""
        if not self.busy:
            self._close()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._closing or self._current is not None or not self._waiting:
            return
        request = self._waiting.popleft()
        self._deadline = 0.0
        if self._paused and self._transport is not None and len(self._waiting) <= self._limits.max_pipelined:
            self._paused = False
            if self._backlog is None:
                self._transport.resume_reading()
        reply = self._current = Reply(self, keep_alive=request.keep_alive)
        reply.bodiless = request.method == "HEAD"
        if len(request.body) > SMALL_BODY:
            reply.weight = len(request.body)
        self.owner.handler.answer(request, reply)

    def _refuse(self, refused: BadRequest) -> None:
        """Send the error and close the connection, because the start of the next request is unknown."""
        self.owner.refused += 1
        sending = self._reader.in_body
        reply, self._current = self._current, None
        if reply is None:
            why, more = refused.why.encode(), _MORE.get(refused.status)
            self.write(head_of(refused.status, len(why), "text/plain", more, keep=False) + why)
        else:
            self._leave(reply)
        if sending and self._transport is not None:
            # Closing while the client still sends would discard the response (TCP reset).
            self._closing = True
            self._waiting.clear()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(_LINGER_SECONDS, self._transport.close)
        else:
            self._close()

    def _close(self) -> None:
        self._closing = True
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()

    def _wait(self, seconds: float) -> None:
        """Set the deadline for the next bytes. One timer serves many requests."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._closing or self._deadline == 0.0:
            return
        if self._loop.time() >= self._deadline - 0.001:
            if self._reader.begun:
                self._refuse(BadRequest(408, "The request took too long."))
            else:
                self._close()
            return
        self._timer = self._loop.call_at(self._deadline, self._overdue)


class WriteBacklog:
    """How fast a client reads since its send buffer filled up."""

    __slots__ = ("_moved", "_rest", "given", "since", "start")

    def __init__(self, now: float, unsent: int) -> None:
        self.since = self._moved = now
        self.start = unsent
        self.given = 0
        """Bytes written since then."""
        self._rest = -1

    def pace(self, now: float, unsent: int) -> float:
        """Bytes per second that the client read."""
        return (self.start + self.given - unsent) / (now - self.since + 0.001)

    def stalled(self, now: float, unsent: int, seconds: float) -> bool:
        """Whether the client read nothing for so many seconds."""
        rest = unsent - self.given
        if rest != self._rest:
            self._rest, self._moved = rest, now
        return now - self._moved >= seconds
