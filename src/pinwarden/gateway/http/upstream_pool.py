"""The connection pool of one remote server.

`pinwarden.system.net.connections` decides which addresses may be contacted and how: TLS, proxies, redirects.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.upstream_connection import (
    CachedHead,
    GeneralRequest,
    ResponseListener,
    UpstreamConnection,
    UpstreamRequest,
)
from pinwarden.system.net.connections import (
    Destination,
    NetworkRules,
    connect_protocol,
    create_tls_context,
    describe_connection_failure,
    resolve_destinations,
)
from pinwarden.system.target import HttpAddress


class UpstreamPool:
    """Keeps connections to a remote server open, with a limit for all clients and a limit per client."""

    def __init__(self, address: HttpAddress, rules: NetworkRules, limits: HttpLimits) -> None:
        self.address = address
        self._rules = rules
        self._limits = limits
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._opening = 0
        self._queue: deque[UpstreamRequest] = deque()
        self._max_per_client = limits.max_client_upstream_connections
        self._deferred: deque[UpstreamRequest] = deque()
        """Requests of clients that have reached their connection limit."""
        self._destinations: tuple[Destination, ...] = ()
        self._tls = create_tls_context(None) if address.scheme == "https" else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.budget: MemoryBudget | None = None
        """The budget for incomplete responses."""
        self.heads: dict[bytes, CachedHead] = {}
        """Parsed response heads by their exact bytes. Servers send the same heads again, and parsing a head takes
        longer than all other work on a response."""

    def send(
        self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False
    ) -> GeneralRequest:
        """Send a request, in the same way as `start`. Returns the request, so that it can be cancelled."""
        outgoing = GeneralRequest(data, listener, client, stream=stream)
        self.start(outgoing)
        return outgoing

    def allows_stream(self, client: str) -> bool:
        """Whether a client may open one more stream. If not, the caller must not pass the stream to `start`."""
        requests = [*(connection.current_request for connection in self._open), *self._queue, *self._deferred]
        streams = [
            request.client for request in requests if request is not None and request.stream and not request.cancelled
        ]
        limits = self._limits
        return len(streams) < limits.max_upstream_streams and streams.count(client) < limits.max_client_streams

    def start(self, outgoing: UpstreamRequest) -> None:
        """Send a request, on an idle connection or a new one. At the limits, queue it."""
        if len(self._open) >= self._max_per_client and self._count_in_use()[outgoing.client] >= self._max_per_client:
            self._deferred.append(outgoing)
            return
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                connection.start(outgoing)
                return
        self._queue.append(outgoing)
        self._open_connection()

    def _open_connection(self) -> None:
        """Open a connection for the queue, unless the limit is reached."""
        if len(self._open) + self._opening < self._limits.max_upstream_connections and not self._closed:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _open_for_queue(self) -> None:
        """Open another connection if more requests are queued than connections are being opened."""
        if len(self._queue) > self._opening:
            self._open_connection()

    def release(self, connection: UpstreamConnection) -> None:
        """Use a free connection for the next request, or keep it idle."""
        while self._queue:
            outgoing = self._queue.popleft()
            if not outgoing.cancelled:
                connection.start(outgoing)
                return
        if self._deferred and (deferred := self._take_next_deferred()) is not None:
            connection.start(deferred)
            return
        self._idle.append(connection)
        connection.expire_later(self._limits.idle_upstream_seconds)

    def _count_in_use(self) -> Counter[str]:
        """Return the number of connections in use, by client."""
        return Counter(
            connection.current_request.client for connection in self._open if connection.current_request is not None
        )

    def _take_next_deferred(self) -> UpstreamRequest | None:
        """Remove and return the first deferred request whose client is below its limit."""
        used = self._count_in_use()
        for _ in range(len(self._deferred)):
            outgoing = self._deferred.popleft()
            if not outgoing.cancelled:
                if used[outgoing.client] < self._max_per_client:
                    return outgoing
                self._deferred.append(outgoing)
        return None

    def on_connection_lost(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection, and open another one if requests are queued."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._deferred and (deferred := self._take_next_deferred()) is not None:
            self._queue.append(deferred)
        self._open_for_queue()

    def on_connection_made(self, connection: UpstreamConnection) -> None:
        """Add an opened connection."""
        self._open.add(connection)

    @property
    def is_unused(self) -> bool:
        """Whether there is no connection and no request."""
        return not (self._open or self._opening or self._queue or self._deferred)

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
            connection = await asyncio.wait_for(self._create_connection(), self._limits.connect_seconds)
        except (OSError, PinwardenError, TimeoutError, ssl.SSLError) as err:
            self._destinations = ()  # the next attempt resolves and checks the name again
            self._fail_next_request(describe_connection_failure(err, self.address).text)
        finally:
            self._opening -= 1
        if connection is not None:
            self.release(connection)
        self._open_for_queue()

    def _fail_next_request(self, reason: str) -> None:
        while self._queue:
            outgoing = self._queue.popleft()
            if not outgoing.cancelled:
                outgoing.listener.on_lost(reason, was_sent=False)
                return

    async def _create_connection(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        if not self._destinations:
            self._destinations = await loop.run_in_executor(None, resolve_destinations, self.address, self._rules)
        return await connect_protocol(
            loop,
            self._destinations,
            lambda: UpstreamConnection(self, self._limits),
            self._tls,
            self.address.host,
        )
