"""Serves a registry with uvicorn, with limits on slow and oversized connections.

uvicorn waits for request headers without a timeout and, with httptools, accepts headers of any size. A registry is
public, so every connection has limits, and all connections together leave file descriptors for the rest of the process.
"""

from __future__ import annotations

import logging
import signal
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import show_invisible
from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.metrics import RequestMetrics
from pinwarden.registry.registry import Registry
from pinwarden.registry.witness_client import WitnessClient, WitnessEndpoint
from pinwarden.system.processes import limit_connections
from pinwarden.system.service_log import LogLevel, ServiceLog

_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 15
_MAX_LOGGED_PATH = 200


def open_listening_socket(host: str, port: int) -> tuple[socket.socket, str]:
    """Open a listening socket, and return it with its URL."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[4][:2], family=address[0], backlog=_BACKLOG)
    except (OSError, OverflowError) as err:
        raise PinwardenError("USAGE", f"cannot listen on {host[:80]!a} port {port}: {err}") from err
    url_host = f"[{host}]" if ":" in host else host
    return listener, f"http://{url_host}:{listener.getsockname()[1]}/"


def serve(registry: Registry, listening: socket.socket, log: ServiceLog) -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are completed first."""
    endpoints = [endpoint for text in registry.witnesses if (endpoint := WitnessEndpoint.parse(text)) is not None]
    witnesses = WitnessClient(registry, endpoints, log.warning) if endpoints else None
    app = RegistryApp(registry, witnesses)
    try:
        serve_app(LoggedApp(app, log, app.requests), listening, log)
    finally:
        if witnesses is not None:
            witnesses.close()


def serve_app(  # noqa: PLR0913
    app: ASGIApp,
    listening: socket.socket,
    log: ServiceLog,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Serve an application until SIGINT or SIGTERM, with limits on every connection; with a certificate, over TLS.

    ``on_stop`` is called when the server begins to stop, so that the application can end long responses.
    """
    _forward_uvicorn_log(log)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=20,
        http=build_bounded_protocol(),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = _StoppingServer(config, on_stop)

    def stop(_signal: int, _frame: object) -> None:
        server.should_exit = True

    # Handles signals that arrive before uvicorn installs its handlers. After shutdown uvicorn raises the signal again;
    # the default handler would end the process before the registry is closed.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    server.run(sockets=[listening])


class _StoppingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_stop is not None:
            self._on_stop()
        await super().shutdown(sockets)


class LoggedApp:
    """Logs each request with its status and duration: changes at level info, reads at debug, failures at error."""

    def __init__(self, app: ASGIApp, log: ServiceLog, requests: RequestMetrics) -> None:
        self._app = app
        self._log = log
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        started, status = monotonic(), 500

        async def send_and_record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_record_status)
        finally:
            if scope["type"] == "http":
                seconds = monotonic() - started
                self._requests.record(scope["path"][1:], scope["method"], status, seconds)
                self._log_request(scope, status, seconds)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        level: LogLevel = "debug" if scope["method"] in ("GET", "HEAD") else "info"
        path = show_invisible(scope["path"][:_MAX_LOGGED_PATH])
        text = f"{scope['method']} {path}: {status} in {seconds * 1000:.0f} ms"
        self._log.log("error" if status >= 500 else level, text)


def _forward_uvicorn_log(log: ServiceLog) -> None:
    """Write uvicorn's warnings and errors to the log of the service."""

    class ForwardingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.log("error" if record.levelno >= logging.ERROR else "warning", self.format(record))

    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(logging.WARNING)
    logger.handlers, logger.propagate = [ForwardingHandler()], False


HEADER_TIMEOUT_SECONDS = 20.0
"""Seconds in which request headers must arrive. After an early response, this also limits the rest of the body."""
WRITE_TIMEOUT_SECONDS = 60.0
"""Seconds in which a client must read at least some bytes of a pending response."""
MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 32
"""The maximum number of pipelined requests per connection."""


class _ConnectionLimits:
    """Adds limits to a uvicorn protocol. Tests lower `limit` and `head_seconds`."""

    cycle: Any
    connections: set[Any]
    loop: AbstractEventLoop
    transport: Any
    limit = limit_connections()
    head_seconds = HEADER_TIMEOUT_SECONDS
    _header_timer: TimerHandle | None = None
    _write_timer: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if len(self.connections) > self.limit:
            transport.abort()
        self._restart_header_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._restart_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer = _cancel_timer(self._header_timer)
        self._write_timer = _cancel_timer(self._write_timer)
        super().connection_lost(exc)  # type: ignore[misc]

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._write_timer = _cancel_timer(self._write_timer)

    def _restart_header_timer(self) -> None:
        """Start the timeout for the next request's headers, if no request is in progress."""
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting:
            self._header_timer = _cancel_timer(self._header_timer)
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.head_seconds, self.transport.abort)


def _cancel_timer(timer: TimerHandle | None) -> TimerHandle | None:
    """Cancel a timer. Returns None, which the caller assigns to the timer's attribute."""
    if timer is not None:
        timer.cancel()
    return None


class _BoundedH11(_ConnectionLimits, H11Protocol):
    """uvicorn's h11 protocol with limits. h11 limits the size of headers itself (``h11_max_incomplete_event_size``)."""


def build_bounded_protocol() -> type[Any]:
    """Build uvicorn's protocol with limits: httptools if it is installed, otherwise h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return _BoundedH11

    class BoundedHttpTools(_ConnectionLimits, HttpToolsProtocol):
        """uvicorn's httptools protocol with limits. Counts header bytes, because httptools does not limit them."""

        _header_bytes: int | None = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._header_bytes is not None and not self.transport.is_closing():
                self._header_bytes += len(data)
                if self._header_bytes > MAX_HEADER_BYTES:
                    self.send_400_response("Request headers are too large.")

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= MAX_PIPELINED:
                raise ValueError("too many pipelined requests")  # uvicorn responds and closes the connection
            self._header_bytes = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._header_bytes = None
            super().on_headers_complete()

    return BoundedHttpTools
