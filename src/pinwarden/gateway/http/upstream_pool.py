"""The connection pool of one remote server. It connects only to network addresses that were checked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter, deque

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.upstream_connection import (
    CachedHead,
    QueuedRequest,
    ResponseListener,
    UpstreamConnection,
    UpstreamRequest,
)
from pinwarden.system.net.connections import Destination, HostNotFoundError, NetworkRules, resolve_destinations
from pinwarden.system.target import HttpAddress


class UpstreamPool:
    """Keeps connections to a remote server open, within limits for all clients and for each."""

    def __init__(self, address: HttpAddress, rules: NetworkRules, limits: HttpLimits) -> None:
        self.address = address
        self._rules = rules
        self._limits = limits
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._opening = 0
        self._queue: deque[UpstreamRequest] = deque()
        self._max_per_client = limits.max_client_upstream_connections
        self._held_back: deque[UpstreamRequest] = deque()
        """Requests of clients that use their share of connections."""
        self._destinations: tuple[Destination, ...] = ()
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.budget: MemoryBudget | None = None
        """The budget for incomplete responses."""
        self.heads: dict[bytes, CachedHead] = {}
        """Parsed response heads by their exact bytes. Servers repeat theirs, and parsing one takes longer than all
        other work on a response."""

    def send(self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False) -> QueuedRequest:
        """Send a request, on a free connection or a new one."""
        outgoing = QueuedRequest(data, listener, client, stream=stream)
        self.start(outgoing)
        return outgoing

    def takes_stream(self, client: str) -> bool:
        """Whether a client may open one more stream. Streams are not queued."""
        used = [*(each.outgoing for each in self._open), *self._queue, *self._held_back]
        streams = [each.client for each in used if each is not None and each.stream and not each.given_up]
        limits = self._limits
        return len(streams) < limits.max_upstream_streams and streams.count(client) < limits.max_client_streams

    def start(self, outgoing: UpstreamRequest) -> None:
        """Send a request object of the caller."""
        if len(self._open) >= self._max_per_client and self._in_use()[outgoing.client] >= self._max_per_client:
            self._held_back.append(outgoing)
            return
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                connection.start(outgoing)
                return
        self._queue.append(outgoing)
        self._open_one()

    def _open_one(self) -> None:
        """Open a connection for the queue, unless the limit is reached."""
        if len(self._open) + self._opening < self._limits.max_upstream_connections and not self._closed:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _open_for_queue(self) -> None:
        """A connection ended: open another one if more requests are queued than connections are being opened."""
        if len(self._queue) > self._opening:
            self._open_one()

    def free(self, connection: UpstreamConnection) -> None:
        """A connection is free."""
        while self._queue:
            outgoing = self._queue.popleft()
            if not outgoing.given_up:
                connection.start(outgoing)
                return
        if self._held_back and (next_one := self._next_held_back()) is not None:
            connection.start(next_one)
            return
        self._idle.append(connection)
        connection.expire_later(self._limits.idle_upstream_seconds)

    def _in_use(self) -> Counter[str]:
        """The number of connections in use, by client."""
        return Counter(each.outgoing.client for each in self._open if each.outgoing is not None)

    def _next_held_back(self) -> UpstreamRequest | None:
        """The first held-back request whose client is below its share now."""
        used = self._in_use()
        for _ in range(len(self._held_back)):
            outgoing = self._held_back.popleft()
            if not outgoing.given_up:
                if used[outgoing.client] < self._max_per_client:
                    return outgoing
                self._held_back.append(outgoing)
        return None

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection ended."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._held_back and (next_one := self._next_held_back()) is not None:
            self._queue.append(next_one)
        self._open_for_queue()

    def made(self, connection: UpstreamConnection) -> None:
        """A connection was opened."""
        self._open.add(connection)

    def close(self) -> None:
        """Close all connections."""
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
            self._destinations = ()  # the next attempt resolves and checks the name again
            self._fail_one(_why_not(err, self.address))
        finally:
            self._opening -= 1
        if connection is not None:
            self.free(connection)
        self._open_for_queue()

    def _fail_one(self, why: str) -> None:
        while self._queue:
            outgoing = self._queue.popleft()
            if not outgoing.given_up:
                outgoing.listener.on_lost(why, sent=False)
                return

    async def _connected(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        if not self._destinations:
            self._destinations = await loop.run_in_executor(None, resolve_destinations, self.address, self._rules)
        # The certificate is checked against the host name, not the address.
        name = self.address.host if self._tls is not None else None
        last: OSError = ConnectionRefusedError("no address")
        for destination in self._destinations:
            try:
                # The loop creates the socket, so only the loop closes it.
                _, protocol = await loop.create_connection(
                    lambda: UpstreamConnection(self, self._limits),
                    _numeric_host(destination),
                    destination.sockaddr[1],
                    ssl=self._tls,
                    family=destination.family,
                    flags=socket.AI_NUMERICHOST,
                    server_hostname=name,
                )
            except OSError as err:
                last = err
            else:
                return protocol
        raise last


def _numeric_host(destination: Destination) -> str:
    """The checked address, with the zone of a link-local one."""
    host, _, *more = destination.sockaddr
    return f"{host}%{more[1]}" if len(more) > 1 and more[1] else str(host)


def _why_not(err: Exception, address: HttpAddress) -> str:
    if isinstance(err, PinwardenError):
        return err.message
    if isinstance(err, HostNotFoundError):
        return str(err)
    if isinstance(err, ssl.SSLError):
        return f"{address} did not prove who it is: {getattr(err, 'verify_message', '') or err.reason or 'TLS failed'}"
    if isinstance(err, TimeoutError):
        return f"{address} did not answer in time"
    return f"{address} could not be reached: {(isinstance(err, OSError) and err.strerror) or type(err).__name__}"
