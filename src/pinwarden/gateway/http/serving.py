"""Listening, keeping time, and ending without cutting anybody off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.http.certificate import Certificate, why_not
from pinwarden.gateway.http.connection import Connections
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.handshake import SecureServer, secure_server
from pinwarden.gateway.http.limits import HttpLimits
from pinwarden.gateway.http.session_manager import Hub
from pinwarden.gateway.http.shutdown import Ending
from pinwarden.system.processes import OPEN_FILE_LIMIT, max_connections

_BACKLOG = 1024
_THREADS = 32  # for everything else that waits for a disk, a database or a name


class Listening(Record):
    """Where to listen, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8642
    certificate: Path | None = None
    key: Path | None = None


class Serving:
    """A gateway that runs on the event loop of whoever made it."""

    def __init__(self, endpoint: Endpoint, hub: Hub, limits: HttpLimits) -> None:
        self._endpoint = endpoint
        self._hub = hub
        self._limits = limits
        self.connections = Connections(endpoint, limits)
        self._server: asyncio.Server | SecureServer | None = None
        self._certificate: Certificate | None = None
        self.say: Callable[[str], None] = _silent
        self._timekeeper: asyncio.Task[None] | None = None
        self.every_second: list[Callable[[], Awaitable[None]]] = []
        """What else is to be done about once a second."""

    async def start(self, listening: Listening) -> tuple[str, int]:
        """Begin to listen; returns the address that was taken."""
        if listening.certificate is not None:
            self._certificate = Certificate(listening.certificate, listening.key)
        tls = None if self._certificate is None else self._certificate.context
        loop = asyncio.get_running_loop()
        # Each process that is ending may keep a thread busy for seconds; refusals are not to wait in line behind them.
        loop.set_default_executor(
            ThreadPoolExecutor(self._limits.max_children + _THREADS, thread_name_prefix="waiting")
        )
        OPEN_FILE_LIMIT.raise_limit()
        most = self.connections.most = max_connections(self._limits.max_connections)
        # Those are taken all at once, before one of them is counted.
        backlog = max(1, min(_BACKLOG, most // 2))
        host, port = listening.host, listening.port
        try:
            if tls is None:
                self._server = await loop.create_server(self.connections, host, port, backlog=backlog)
            else:
                self._server = await secure_server(self.connections, tls, host, port, backlog)
        except (OSError, OverflowError) as err:
            raise PinwardenError(
                "GATEWAY_UNAVAILABLE",
                f"{listening.host}:{listening.port} cannot be listened on: {why_not(err)}",
                hint="Name another address with --listen HOST:PORT, or end the program that has this one.",
            ) from err
        self._timekeeper = loop.create_task(self._keep_time())
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def stop(self, *, drain: bool = True, hurry: asyncio.Event | None = None) -> bool:
        """Take no more requests, let those in flight end, then end everything; whether all ended in time."""
        if self._server is not None:
            self._server.close()
        self._hub.end_streams()
        drained = await self.connections.drain(self._limits.drain_seconds if drain else 0.0, hurry)
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._timekeeper
        self._hub.close()
        return drained

    async def run_until_asked_to_end(self) -> bool:
        """Serve until SIGTERM or SIGINT; whether all requests ended in time."""
        ending = Ending(self._limits.drain_seconds, self.say)
        ending.begin()
        await ending.asked.wait()
        return await self.stop(hurry=ending.hurry)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reload_seconds)
            self._hub.tick()
            self.connections.tick()
            if self._certificate is not None and (problem := self._certificate.look()):
                self.say(problem)
            for each in self.every_second:
                try:
                    await each()
                except Exception as err:  # noqa: BLE001 - whoever was shut out stays in if nobody looks any more
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "what is done every second failed", "exception": err}
                    )


def _silent(text: str) -> None:
    del text
