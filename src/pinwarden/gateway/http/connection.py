"""`ClientConnection` handles the requests on one connection; `ClientConnections` enforces limits across all of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast

from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http1 import OK_HEAD, SMALL_BODY, Reply, Request, RequestReader, build_response_head
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import BodyBudget

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEAD_END = b"\r\n\r\n"
_STATUS_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
_LINGER_SECONDS = 1.0  # time for the client to read the error before the connection closes


class CallRoute(Protocol):
    """The route of calls whose head was checked before. `endpoint.CachedRoute` is the one."""

    length: int

    def relay_call(self, body: bytes, connection: ClientConnection) -> bool:
        """Handle the request. Returns False, without side effects, if it needs the general path."""


class OpenConnection(Protocol):
    """A TCP connection that counts against the limit, before or after its TLS handshake."""

    def abort(self) -> None:
        """Close the connection immediately."""


class CurrentRequest(Protocol):
    """The request to which a connection will send the next response: a `Reply`, or a `ToolCall` of `open_requests`."""

    @property
    def client(self) -> str:
        """The name of the client; empty before its token is checked."""

    def handle_disconnect(self) -> None:
        """Handle that the client disconnected before the response was complete."""


class RequestHandler(Protocol):
    """Handles requests. `endpoint.Endpoint` does it in the gateway."""

    @property
    def routes(self) -> Mapping[bytes, CallRoute]:
        """Cached routes by the exact bytes of a request head."""

    def handle_request(self, request: Request, reply: Reply) -> None:
        """Handle a request, and send the response through ``reply`` now or later."""

    def authenticate(self, headers: dict[bytes, bytes], path: str) -> str:
        """Authenticate the sender of a request head. Returns the client's name, or raises `BadRequest`."""


class ClientConnections:
    """All client connections, with their limits."""

    def __init__(self, handler: RequestHandler, limits: HttpLimits) -> None:
        self.handler = handler
        self.routes = handler.routes
        self.limits = limits
        self.max_open = limits.max_connections
        self.open: set[ClientConnection] = set()
        self.unauthenticated: dict[OpenConnection, None] = {}
        """Connections that have not sent a valid token yet, oldest first."""
        self._handshaking: set[OpenConnection] = set()
        """Connections in their TLS handshake."""
        self.draining = False
        self.refused = 0
        self.evicted = 0
        """Connections that were closed to make room for a new connection."""
        self.slow_disconnects = 0
        """Connections that were closed because the client read too slowly."""
        self.on_slow_disconnect: Callable[[str], None] = _ignore
        self.slow_readers: set[ClientConnection] = set()
        """Connections with a write backlog."""
        self.body_budget = BodyBudget(limits)

    @property
    def unsent_bytes(self) -> int:
        """Bytes in all write backlogs."""
        return sum(connection.unsent_bytes for connection in self.slow_readers)

    @property
    def large_body_bytes(self) -> int:
        """Bytes of large requests without a response."""
        return self.body_budget.size

    def disconnect_slowest(self) -> None:
        """Close the slowest connections until all backlogs together are within the limit."""
        while self.slow_readers and (unsent := self.unsent_bytes) > self.limits.max_all_unsent_bytes:
            slowest = min(self.slow_readers, key=lambda connection: (connection.read_rate, -connection.unsent_bytes))
            slowest.disconnect(f"{unsent} bytes are queued for slow clients, and this one reads slowest")

    def tick(self) -> None:
        """Close connections whose client stopped reading. Called about once a second."""
        for connection in tuple(self.slow_readers):
            if connection.is_stalled:
                connection.disconnect("the client stopped reading")

    def __call__(self) -> ClientConnection:
        """Create the protocol for a new connection."""
        return ClientConnection(self)

    def add(self, connection: OpenConnection) -> bool:
        """Add a connection. At the limit, closes an older connection first.

        Returns False if no connection can be closed, or if the gateway is shutting down.
        """
        if self.draining or (len(self.open) + len(self._handshaking) >= self.max_open and not self._evict_one()):
            return False
        self.unauthenticated[connection] = None
        if isinstance(connection, ClientConnection):
            self.open.add(connection)
        else:
            self._handshaking.add(connection)
        return True

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection."""
        self.unauthenticated.pop(connection, None)
        self._handshaking.discard(connection)
        self.open.discard(connection)

    def _evict_one(self) -> bool:
        """Close the oldest unauthenticated connection, or an idle one of the client with the most connections.

        Returns False if there is neither.
        """
        chosen: OpenConnection | None = next(iter(self.unauthenticated), None)
        if chosen is None:
            counts = Counter(connection.client for connection in self.open)
            busiest_client = max(counts, key=lambda client: counts[client], default="")
            idle = (
                connection for connection in self.open if connection.client == busiest_client and not connection.is_busy
            )
            chosen = min(idle, key=lambda connection: connection.last_used, default=None)
        if chosen is None:
            return False
        self.evicted += 1
        self.remove(chosen)
        chosen.abort()
        return True

    async def drain(self, seconds: float, stop_waiting: asyncio.Event | None = None) -> bool:
        """Close idle connections, and wait for busy ones until ``seconds`` passed or ``stop_waiting`` is set.

        Returns whether all connections ended in time. Connections that are still open are aborted.
        """
        self.draining = True
        for open_connection in tuple(self.open):
            open_connection.close_when_idle()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (
            self.open and loop.time() < end and not (stop_waiting and stop_waiting.is_set())
        ):  # a connection stays open until a slow client has read its complete response
            await asyncio.sleep(0.02)
        drained = not self.open
        for connection in (*self.open, *self._handshaking):
            connection.abort()
        return drained


def _ignore(reason: str) -> None:
    del reason


class ClientConnection(asyncio.Protocol):
    """One client connection. The gateway stops reading from it while too many requests are pipelined."""

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
        """The TLS handshake that this connection replaces; None without TLS."""
        self.client = ""
        """The client whose token was used last on this connection."""
        self._loop = asyncio.get_running_loop()

    @property
    def last_used(self) -> float:
        """A number that orders idle connections by their last use."""
        return self._deadline

    def set_client(self, client: str) -> None:
        """Set the client whose token was used last, and count received bodies for that client."""
        if client != self.client:
            if self._reserved:
                self.owner.body_budget.move(self.client, client, self._reserved)
            self.client = client
            self.owner.unauthenticated.pop(self, None)

    @property
    def is_busy(self) -> bool:
        """Whether a request has no response yet."""
        return self._current is not None or bool(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the new connection, or send status 503 if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        if self.handshake is not None:
            self.owner.remove(self.handshake)
        if not self.owner.add(self):
            self.owner.refused += 1
            self._closing = True
            self._transport.write(build_response_head(503, 0, "", {"retry-after": "1"}, keep=False))
            self._transport.close()
            return
        self._set_deadline(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancel the current request, stop the timers, and release the memory budget."""
        self._closing = True
        self.owner.remove(self)
        self.owner.slow_readers.discard(self)
        reply, self._current = self._current, None
        if reply is not None:
            self._detach(reply)
        self._release_body_budget()
        for timer in (self._timer, self._pinger):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. A call whose head is cached takes its `CachedRoute`."""
        if self._closing:
            return
        if self._current is None and not self._waiting and not self._reader.in_request:
            end = data.find(_HEAD_END) + 4
            route = self._routes.get(data[:end])
            if route is not None and len(data) - end == route.length and route.relay_call(data[end:], self):
                return
        was_in_body = self._reader.in_body
        try:
            requests = self._reader.feed(data)
        except BadRequest as error:
            self._refuse(error)
            return
        if requests:
            self._waiting.extend(requests)
            if len(self._waiting) > self._limits.max_pipelined and self._transport is not None:
                self._transport.pause_reading()
                self._paused = True
            if self._current is None:
                self._handle_next()
        if self._reader.awaits_continue and self._current is None:
            self._reader.awaits_continue = False
            self.write(_CONTINUE)
        if self._current is None:
            in_body = self._reader.in_body
            if in_body != was_in_body or (requests and self._reader.in_request):
                self._set_deadline(self._limits.body_seconds if in_body else self._limits.head_seconds)

    def eof_received(self) -> bool:
        """Close the connection, because a client that stops sending counts as disconnected."""
        return False

    def begin_response(self, reply: CurrentRequest) -> None:
        """Start the response to a request. From here on, the deadlines of the conversation apply."""
        self._current = reply
        self._deadline = 0.0
        if not self.client:
            self.set_client(reply.client)

    def send_result(self, body: bytes) -> None:
        """Send the result of a tool call, as `Reply.send` does, but in fewer steps."""
        transport = self._transport
        if self._waiting or self.owner.draining or transport is None or transport.get_write_buffer_size():
            Reply(self, keep_alive=True).send(200, body)
            return
        transport.write(OK_HEAD % len(body) + body)
        self._current = None
        self._deadline = self._loop.time() + self._limits.idle_connection_seconds
        if self._timer is None:  # a running timer fires before this deadline, because no timeout is longer
            self._timer = self._loop.call_at(self._deadline, self._on_deadline)

    def write(self, data: bytes) -> None:
        """Send bytes. Closes the connection if its write buffer exceeds the limit."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
            self.disconnect(f"{transport.get_write_buffer_size()} bytes are queued for this client")
            return
        transport.write(data)
        if self._backlog is not None:
            self._backlog.written += len(data)
            self.owner.disconnect_slowest()

    # Slow readers

    def pause_writing(self) -> None:
        """Read no further requests until the client reads its responses, because the write buffer is full."""
        if self._transport is None or self._closing:
            return
        self._backlog = WriteBacklog(self._loop.time(), self.unsent_bytes)
        self.owner.slow_readers.add(self)
        self._transport.pause_reading()
        self.owner.disconnect_slowest()

    def resume_writing(self) -> None:
        """Continue reading from this client, because it has read its responses."""
        self._backlog = None
        self.owner.slow_readers.discard(self)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the write buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def read_rate(self) -> float:
        """Bytes per second that the client has read since the backlog began."""
        backlog = self._backlog
        return 0.0 if backlog is None else backlog.read_rate(self._loop.time(), self.unsent_bytes)

    @property
    def is_stalled(self) -> bool:
        """Whether the client read nothing for ``unread_seconds``."""
        backlog = self._backlog
        return backlog is not None and backlog.is_stalled(
            self._loop.time(), self.unsent_bytes, self._limits.unread_seconds
        )

    def disconnect(self, reason: str) -> None:
        """Close the connection of a client that reads too slowly."""
        transport = self._transport
        self._closing = True
        self.owner.slow_readers.discard(self)
        if transport is not None:
            peer = transport.get_extra_info("peername")
            self.owner.slow_disconnects += 1
            self.owner.on_slow_disconnect(
                f"{peer[0] if isinstance(peer, tuple) else 'a client'} was disconnected: {reason}"
            )
            transport.abort()

    # Large requests

    def admit_body(self, path: str, headers: dict[bytes, bytes], size: int) -> None:
        """Raise `BadRequest` unless the client is authenticated and the budget allows a body of this size."""
        self.set_client(self.owner.handler.authenticate(headers, path))
        self.owner.body_budget.check(self.client, size)

    def count_body_bytes(self, size: int) -> None:
        """Count received bytes of a large body against the budget."""
        self.owner.body_budget.add(self.client, size)
        self._reserved += size

    def _detach(self, reply: CurrentRequest) -> None:
        """Handle a disconnect during a request. A request in a session continues and keeps its memory budget."""
        if isinstance(reply, Reply) and reply.large_body_bytes and reply.on_disconnect is None:
            self._reserved -= reply.large_body_bytes
            reply.on_finished = partial(self.owner.body_budget.release, self.client)
        reply.handle_disconnect()

    def _release_body_budget(self) -> None:
        self.owner.body_budget.release(self.client, self._reserved)
        self._reserved = 0

    def finish_response(self, *, keep: bool) -> None:
        """End the current request. The next pipelined request starts after other connections had a turn."""
        self._current = None
        if self._reserved and not self._waiting and not self._reader.in_request:
            self._release_body_budget()
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        if not keep:
            self._close()
        elif self._waiting:
            self._loop.call_soon(self._handle_next)
        else:
            # Unauthenticated connections get the short timeout.
            self._set_deadline(self._limits.idle_connection_seconds if self.client else self._limits.head_seconds)

    def ping_later(self, reply: Reply) -> None:
        """Send comments on an idle event stream, so that proxies keep it open."""

        def ping() -> None:
            if reply.is_open:
                reply.ping()
                self.ping_later(reply)

        self._pinger = self._loop.call_later(self._limits.ping_seconds, ping)

    def close_when_idle(self) -> None:
        """Close the connection if all its requests have responses."""
        if not self.is_busy:
            self._close()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def _handle_next(self) -> None:
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
            reply.large_body_bytes = len(request.body)
        self.owner.handler.handle_request(request, reply)

    def _refuse(self, error: BadRequest) -> None:
        """Send the error and close the connection, because the start of the next request is unknown."""
        self.owner.refused += 1
        sending = self._reader.in_body
        reply, self._current = self._current, None
        if reply is None:
            reason, more = error.reason.encode(), error.headers or _STATUS_HEADERS.get(error.status)
            self.write(build_response_head(error.status, len(reason), "text/plain", more, keep=False) + reason)
        else:
            self._detach(reply)
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

    def _set_deadline(self, seconds: float) -> None:
        """Set the deadline for the next bytes. One timer serves many requests."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        if self._closing or self._deadline == 0.0:
            return
        if self._loop.time() >= self._deadline - 0.001:
            if self._reader.in_request:
                self._refuse(BadRequest(408, "The request took too long."))
            else:
                self._close()
            return
        self._timer = self._loop.call_at(self._deadline, self._on_deadline)


class WriteBacklog:
    """Measures how fast a client reads after its write buffer filled up."""

    __slots__ = ("_last_progress", "_unread", "initial_bytes", "since", "written")

    def __init__(self, now: float, unsent_bytes: int) -> None:
        self.since = self._last_progress = now
        self.initial_bytes = unsent_bytes
        self.written = 0
        """Bytes that were added to the write buffer since the backlog began."""
        self._unread = -1

    def read_rate(self, now: float, unsent_bytes: int) -> float:
        """Return how many bytes per second the client has read."""
        return (self.initial_bytes + self.written - unsent_bytes) / (now - self.since + 0.001)

    def is_stalled(self, now: float, unsent_bytes: int, seconds: float) -> bool:
        """Whether the client has read nothing for ``seconds``."""
        unread = unsent_bytes - self.written
        if unread != self._unread:
            self._unread, self._last_progress = unread, now
        return now - self._last_progress >= seconds
