"""Connections to one remote server: kept open, counted, and only ever to the network addresses that were checked."""

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
from pinwarden.system.net.network_guard import Destination, HostNotFoundError, NetworkRules, resolve_destinations
from pinwarden.system.target import HttpAddress


class UpstreamPool:
    """Connections to the one host of a remote server."""

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
        """Requests of clients that have as many connections as one of them may have."""
        self._destinations: tuple[Destination, ...] = ()
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.budget: MemoryBudget | None = None
        """Where answers count that are not complete."""
        self.heads: dict[bytes, CachedHead] = {}
        """What heads mean that httptools has read before, by their exact bytes: servers repeat theirs, and reading one
        takes longer than all else that is done about an answer."""

    def send(self, data: bytes, listener: ResponseListener, client: str = "", *, stream: bool = False) -> QueuedRequest:
        """Send one request, on a connection that is free or on a new one."""
        outgoing = QueuedRequest(data, listener, client, stream=stream)
        self.start(outgoing)
        return outgoing

    def takes_stream(self, client: str) -> bool:
        """Whether a client may open one more request that has no end. Nobody waits in line for that."""
        used = [*(each.outgoing for each in self._open), *self._queue, *self._held_back]
        streams = [each.client for each in used if each is not None and each.stream and not each.given_up]
        limits = self._limits
        return len(streams) < limits.max_upstream_streams and streams.count(client) < limits.max_client_streams

    def start(self, outgoing: UpstreamRequest) -> None:
        """Send one request that whoever asks keeps by himself."""
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
        """Open a connection for who is first in line, unless there are as many as may be."""
        if len(self._open) + self._opening < self._limits.max_upstream_connections and not self._closed:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _open_for_queue(self) -> None:
        """There is room again: whoever came when there was none may have nobody else to wait for."""
        if len(self._queue) > self._opening:
            self._open_one()

    def free(self, connection: UpstreamConnection) -> None:
        """A connection has nothing to do."""
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
        """How many connections each client has."""
        return Counter(each.outgoing.client for each in self._open if each.outgoing is not None)

    def _next_held_back(self) -> UpstreamRequest | None:
        """The first request that was held back whose client has fewer connections now."""
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
            self._destinations = ()  # the next try looks the name up anew, and checks what it finds
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
        # The name of the host stays what the certificate is checked against.
        name = self.address.host if self._tls is not None else None
        last: OSError = ConnectionRefusedError("no address")
        for destination in self._destinations:
            try:
                # The loop makes the socket, so that nothing but the loop ever closes it.
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
    """The checked address, with the zone that a link-local one needs."""
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
