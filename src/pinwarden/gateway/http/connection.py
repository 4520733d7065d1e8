"""The connection of one client: requests are answered one after the other, in the order they came."""

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
_LINGER_SECONDS = 1.0  # for a client to read why its request is refused


class FastRoute(Protocol):
    """A short way for requests that begin with a head that is known."""

    length: int

    def take(self, body: bytes, connection: ClientConnection) -> bool:
        """Answer the request, unless it has to go the general way."""


class OpenConnection(Protocol):
    """A connection that is open, whatever came of it so far."""

    def abort(self) -> None:
        """End now."""


class CurrentRequest(Protocol):
    """What a connection is to answer next."""

    @property
    def client(self) -> str:
        """Whose request it is; nobody's, as long as no token was shown."""

    def gone(self) -> None:
        """The client went away."""


class RequestHandler(Protocol):
    """Who answers requests."""

    @property
    def routes(self) -> Mapping[bytes, FastRoute]:
        """Short ways by the exact bytes of a head."""

    def answer(self, request: Request, reply: Reply) -> None:
        """Answer one request, now or later, through its reply."""

    def admit(self, headers: dict[bytes, bytes]) -> str:
        """Whose request it is, by its head; or refuse it."""


class ClientConnections:
    """All connections of clients, their count and their bounds."""

    def __init__(self, handler: RequestHandler, limits: HttpLimits) -> None:
        self.handler = handler
        self.routes = handler.routes
        self.limits = limits
        self.max_open = limits.max_connections
        self.open: set[ClientConnection] = set()
        self.unauthenticated: dict[OpenConnection, None] = {}
        """Those that showed no token yet; the oldest are first."""
        self._handshaking: set[OpenConnection] = set()
        """Those that are being secured."""
        self.draining = False
        self.refused = 0
        self.evicted = 0
        """How many were ended to let others in."""
        self.cut = 0
        """How many were ended because they did not read."""
        self.on_cut: Callable[[str], None] = _ignore
        self.slow_readers: set[ClientConnection] = set()
        """Those whose reader is slower than we are."""
        self.body_budget = BodyBudget(limits)

    @property
    def unsent(self) -> int:
        """Bytes that wait for slow readers."""
        return sum(each.unsent for each in self.slow_readers)

    @property
    def bodies(self) -> int:
        """Bytes of large requests that are not answered yet."""
        return self.body_budget.size

    def cut_slowest(self) -> None:
        """Cut those that read slowest, until what waits for all of them is within bounds."""
        while self.slow_readers and (unsent := self.unsent) > self.limits.max_all_unsent_bytes:
            slowest = min(self.slow_readers, key=lambda each: (each.pace, -each.unsent))
            slowest.give_up(f"{unsent} bytes wait for slow readers, and it is the slowest")

    def tick(self) -> None:
        """Cut those that do not read at all. Called about once a second."""
        for each in tuple(self.slow_readers):
            if each.stalled:
                each.give_up("it reads nothing of what waits for it")

    def __call__(self) -> ClientConnection:
        """A protocol for the next connection."""
        return ClientConnection(self)

    def enter(self, connection: OpenConnection) -> bool:
        """Let a connection in, in the place of another one if need be; False if there is none."""
        if self.draining or (len(self.open) + len(self._handshaking) >= self.max_open and not self._evict_one()):
            return False
        self.unauthenticated[connection] = None
        if isinstance(connection, ClientConnection):
            self.open.add(connection)
        else:
            self._handshaking.add(connection)
        return True

    def leave(self, connection: OpenConnection) -> None:
        """It is gone, or another one took its place."""
        self.unauthenticated.pop(connection, None)
        self._handshaking.discard(connection)
        self.open.discard(connection)

    def _evict_one(self) -> bool:
        """Close the oldest connection of a stranger; if there is none, an idle one of the client that has most."""
        chosen: OpenConnection | None = next(iter(self.unauthenticated), None)
        if chosen is None:
            of = Counter(each.client for each in self.open)
            max_open = max(of, key=lambda each: of[each], default="")
            chosen = min(
                (each for each in self.open if each.client == max_open and not each.busy),
                key=lambda each: each.used,
                default=None,
            )
        if chosen is None:
            return False
        self.evicted += 1
        self.leave(chosen)
        chosen.abort()
        return True

    async def drain(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Let what is in flight end, and close what is idle; whether all ended in time, and before ``hurry``."""
        self.draining = True
        for each in tuple(self.open):
            each.close_when_idle()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (
            self.open and loop.time() < end and not (hurry and hurry.is_set())
        ):  # an answer that is given may still be on its way to a slow reader
            await asyncio.sleep(0.02)
        drained = not self.open
        for connection in (*self.open, *self._handshaking):
            connection.abort()
        return drained


def _ignore(why: str) -> None:
    del why


class ClientConnection(asyncio.Protocol):
    """One connection. Reading stops while its client sends ahead of the answers."""

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
        """What it was until it was secured."""
        self.client = ""
        """Who showed a token on it, last."""
        self._loop = asyncio.get_running_loop()

    @property
    def used(self) -> float:
        """The later, the later something came or went."""
        return self._deadline

    def set_client(self, client: str) -> None:
        """A client showed its token."""
        if client != self.client:
            if self._reserved:
                self.owner.body_budget.move(self.client, client, self._reserved)
            self.client = client
            self.owner.unauthenticated.pop(self, None)

    @property
    def busy(self) -> bool:
        """Whether a request is not answered yet."""
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
        """The client went away."""
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
        """The client sends no more; without that, it is gone for us."""
        return False

    def begin(self, reply: CurrentRequest) -> None:
        """What is answered next. It has its own time."""
        self._current = reply
        self._deadline = 0.0
        if not self.client:
            self.set_client(reply.client)

    def result(self, body: bytes) -> None:
        """The whole answer to a call: what nearly always is sent."""
        transport = self._transport
        if self._waiting or self.owner.draining or transport is None or transport.get_write_buffer_size():
            Reply(self, keep_alive=True).send(200, body)
            return
        transport.write(USUAL % len(body) + body)
        self._current = None
        self._deadline = self._loop.time() + self._limits.idle_seconds
        if self._timer is None:  # no other wait is longer, so one that is set is early enough
            self._timer = self._loop.call_at(self._deadline, self._overdue)

    def write(self, data: bytes) -> None:
        """Send bytes, unless the reader is too slow for what waits already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
            self.give_up(f"{transport.get_write_buffer_size()} bytes wait for it")
            return
        transport.write(data)
        if self._backlog is not None:
            self._backlog.given += len(data)
            self.owner.cut_slowest()

    # A slow reader

    def pause_writing(self) -> None:
        """More waits than the system takes. Nothing is read from whoever does not read."""
        if self._transport is None or self._closing:
            return
        self._backlog = WriteBacklog(self._loop.time(), self.unsent)
        self.owner.slow_readers.add(self)
        self._transport.pause_reading()
        self.owner.cut_slowest()

    def resume_writing(self) -> None:
        """Nearly everything was read."""
        self._backlog = None
        self.owner.slow_readers.discard(self)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def pace(self) -> float:
        """Bytes a second that were read since more waits than the system takes."""
        backlog = self._backlog
        return 0.0 if backlog is None else backlog.pace(self._loop.time(), self.unsent)

    @property
    def stalled(self) -> bool:
        """Whether nothing was read for long."""
        backlog = self._backlog
        return backlog is not None and backlog.stalled(self._loop.time(), self.unsent, self._limits.unread_seconds)

    def give_up(self, why: str) -> None:
        """Cut the connection of a reader that is too slow."""
        transport = self._transport
        self._closing = True
        self.owner.slow_readers.discard(self)
        if transport is not None:
            peer = transport.get_extra_info("peername")
            self.owner.cut += 1
            self.owner.on_cut(f"{peer[0] if isinstance(peer, tuple) else 'a client'} was cut off: {why}")
            transport.abort()

    # Large requests

    def admit(self, headers: dict[bytes, bytes], size: int) -> None:
        """Take a large request from clients only. What it announces is not counted: that costs its client nothing."""
        self.set_client(self.owner.handler.admit(headers))
        self.owner.body_budget.check(self.client, size)

    def add(self, size: int) -> None:
        """Make room for a part of its body."""
        self.owner.body_budget.add(self.client, size)
        self._reserved += size

    def _leave(self, reply: CurrentRequest) -> None:
        """The client is gone. In a session the request goes on without it, and so does its body in memory."""
        if isinstance(reply, Reply) and reply.weight and reply.on_gone is None:
            self._reserved -= reply.weight
            reply.on_over = partial(self.owner.body_budget.give_back, self.client)
        reply.gone()

    def _release(self) -> None:
        self.owner.body_budget.give_back(self.client, self._reserved)
        self._reserved = 0

    def answered(self, *, keep: bool) -> None:
        """The request in work is answered; take the next one, in a turn of its own so that none starves others."""
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
            # Pages for everybody keep no connection for long.
            self._wait(self._limits.idle_seconds if self.client else self._limits.head_seconds)

    def ping_later(self, reply: Reply) -> None:
        """Keep a quiet stream open."""

        def ping() -> None:
            if reply.open:
                reply.ping()
                self.ping_later(reply)

        self._pinger = self._loop.call_later(self._limits.ping_seconds, ping)

    def close_when_idle(self) -> None:
        """End now if nothing is in work."""
        if not self.busy:
            self._close()

    def abort(self) -> None:
        """End now."""
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
        """Say why, and end the connection: where the next request begins is not known any more."""
        self.owner.refused += 1
        sending = self._reader.in_body
        reply, self._current = self._current, None
        if reply is None:
            why, more = refused.why.encode(), _MORE.get(refused.status)
            self.write(head_of(refused.status, len(why), "text/plain", more, keep=False) + why)
        else:
            self._leave(reply)
        if sending and self._transport is not None:
            # Who hangs up on what is still being sent takes back what was said last.
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
        """Set the time until which something must have come. One timer serves many requests."""
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
    """What is known since more waits for a reader than the system takes."""

    __slots__ = ("_moved", "_rest", "given", "since", "start")

    def __init__(self, now: float, unsent: int) -> None:
        self.since = self._moved = now
        self.start = unsent
        self.given = 0
        """Bytes that were added since."""
        self._rest = -1

    def pace(self, now: float, unsent: int) -> float:
        """Bytes a second."""
        return (self.start + self.given - unsent) / (now - self.since + 0.001)

    def stalled(self, now: float, unsent: int, seconds: float) -> bool:
        """Whether nothing was read for so long."""
        rest = unsent - self.given
        if rest != self._rest:
            self._rest, self._moved = rest, now
        return now - self._moved >= seconds
