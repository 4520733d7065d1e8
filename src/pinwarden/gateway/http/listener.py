"""Listens for clients with or without TLS, runs periodic work, and shuts down within a time limit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import errorcode
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

from pinwarden.core.errors import EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.http.connection import ClientConnections, RequestHandler
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.session_manager import SessionManager
from pinwarden.system.files import read_file_stamp
from pinwarden.system.processes import OPEN_FILE_LIMIT, kill_all_trees, limit_connections

_BACKLOG = 1024
STATUS_LIMITS = HttpLimits(max_connections=64)
"""The limits of the listener for operators."""
_STATUS_BACKLOG = 16
_THREADS = 32  # for disk, database and name lookups


class ListenAddress(Record):
    """The address to listen on, and the TLS certificate."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


class HttpServer:
    """The HTTP server, which runs on the event loop that is running when `start` is called."""

    def __init__(self, endpoint: Endpoint, manager: SessionManager, limits: HttpLimits) -> None:
        self._endpoint = endpoint
        self._manager = manager
        self._limits = limits
        self.connections = ClientConnections(endpoint, limits)
        self._server: asyncio.Server | SecureServer | None = None
        self._status_server: asyncio.Server | SecureServer | None = None
        self._certificate: Certificate | None = None
        self.write_log: Callable[[str], None] = _ignore
        self._ticker: asyncio.Task[None] | None = None
        self.periodic: list[Callable[[], Awaitable[None]]] = []
        """Functions to run about once a second."""

    async def start(
        self, listening: ListenAddress, status: tuple[RequestHandler, str, int] | None = None
    ) -> tuple[str, int]:
        """Listen for clients. Returns the host and port.

        ``status`` are the handler, host and port of another listener, without TLS, that stays open until the end.
        """
        if listening.certificate is not None:
            self._certificate = Certificate(listening.certificate, listening.key)
        tls = None if self._certificate is None else self._certificate.context
        loop = asyncio.get_running_loop()
        # Each exiting process may occupy a thread for seconds, and recording refusals must not wait for these threads.
        loop.set_default_executor(
            ThreadPoolExecutor(self._limits.max_processes + _THREADS, thread_name_prefix="waiting")
        )
        OPEN_FILE_LIMIT.raise_limit()
        max_open = self.connections.max_open = limit_connections(self._limits.max_connections)
        # asyncio accepts the whole backlog before it reports the first connection to `ClientConnections`.
        backlog = max(1, min(_BACKLOG, max_open // 2))
        self._server = await _listen(self.connections, "--listen", listening.host, listening.port, backlog, tls)
        if status is not None:
            handler, host, port = status
            operators = ClientConnections(handler, STATUS_LIMITS)
            self._status_server = await _listen(operators, "--metrics-listen", host, port, _STATUS_BACKLOG)
        self._ticker = loop.create_task(self._tick_forever())
        return _get_address(self._server)

    @property
    def status_address(self) -> tuple[str, int] | None:
        """Host and port of the other listener."""
        return None if self._status_server is None else _get_address(self._status_server)

    async def stop(self, *, drain: bool = True, stop_waiting: asyncio.Event | None = None) -> bool:
        """Stop listening, drain open requests, then end all conversations. Returns whether requests ended in time."""
        if self._server is not None:
            self._server.close()
        self._manager.end_streams()
        drained = await self.connections.drain(self._limits.drain_seconds if drain else 0.0, stop_waiting)
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        if self._status_server is not None:
            self._status_server.close()
        self._manager.close()
        return drained

    async def run_until_signal(self) -> bool:
        """Serve until SIGTERM or SIGINT. Returns whether all requests ended in time."""
        shutdown = Shutdown(self._limits.drain_seconds, self.write_log)
        shutdown.install()
        await shutdown.requested.wait()
        return await self.stop(stop_waiting=shutdown.stop_waiting)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.reload_seconds)
            self._manager.tick()
            self.connections.tick()
            if self._certificate is not None and (problem := self._certificate.refresh()):
                self.write_log(problem)
            for work in self.periodic:
                try:
                    await work()
                except Exception as err:  # noqa: BLE001 - one failure must not stop later token checks
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "periodic work failed", "exception": err}
                    )


def _ignore(text: str) -> None:
    del text


async def _listen(  # noqa: PLR0913, PLR0917  what to listen on, and the option that names it
    connections: ClientConnections, option: str, host: str, port: int, backlog: int, tls: ssl.SSLContext | None = None
) -> asyncio.Server | SecureServer:
    try:
        if tls is not None:
            return await start_secure_server(connections, tls, host, port, backlog)
        return await asyncio.get_running_loop().create_server(connections, host, port, backlog=backlog)
    except (OSError, OverflowError) as err:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"the gateway cannot listen on {host}:{port}: {describe_os_error(err)}",
            hint=f"Choose another address with {option} HOST:PORT, or stop the program that uses this one.",
        ) from err


def _get_address(server: asyncio.Server | SecureServer) -> tuple[str, int]:
    """Return the host and port that a server listens on."""
    host, port, *_ = server.sockets[0].getsockname()
    return host, port


class Certificate:
    """The TLS certificate, which may be renewed while the gateway runs."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._stamps = self._read_file_stamps()
        self.context = self._load()

    def refresh(self) -> str:
        """Load a renewed certificate. Returns the error if it cannot be used; the old certificate then stays in use."""
        stamps = self._read_file_stamps()
        if stamps == self._stamps:
            return ""
        self._stamps = stamps
        try:
            self._load()  # try it in another context first: a failed load would leave this one without a certificate
            self.context.load_cert_chain(self._certificate, self._key, _refuse_password)
        except PinwardenError as err:
            return f"the old certificate is still used: {err.message}"
        except (OSError, ValueError) as err:
            return f"the old certificate is still used: {describe_os_error(err)}"
        return ""

    def _read_file_stamps(self) -> tuple[object, ...]:
        return tuple(read_file_stamp(path) for path in (self._certificate, self._key) if path is not None)

    def _load(self) -> ssl.SSLContext:
        certificate, key = self._certificate, self._key
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for file in (certificate, key or certificate):
            try:
                file.open("rb").close()
            except OSError as err:
                raise _build_tls_error(f"{file} cannot be read: {describe_os_error(err)}") from err
        files = str(certificate) if key is None else f"{certificate} with the key {key}"
        try:
            context.load_cert_chain(certificate, key, _refuse_password)
        except (OSError, ValueError) as err:  # includes ssl.SSLError
            mismatch = "it is not in PEM form, or certificate and key do not belong together"
            reason = mismatch if isinstance(err, ssl.SSLError) else describe_os_error(err)
            raise _build_tls_error(f"the certificate {files} cannot be used: {reason}") from err
        return context


def _build_tls_error(message: str) -> PinwardenError:
    return PinwardenError(
        "GATEWAY_UNAVAILABLE",
        message,
        hint="Pass a certificate in PEM form with --tls-cert, and its key without a password with --tls-key.",
    )


def _refuse_password() -> str:
    """Raise an error, so that OpenSSL does not ask for a password on the terminal."""
    raise ValueError("the key is encrypted with a password")


def describe_os_error(err: Exception) -> str:
    """Return the operating system's error message, without the text that the event loop adds."""
    if isinstance(err, OSError) and err.errno is not None and err.errno in errorcode:
        return os.strerror(err.errno)
    return getattr(err, "strerror", None) or str(err)


_RETRY_SECONDS = 0.1  # after a failed accept, for example at the limit of open files


class TlsHandshake:
    """A connection during its TLS handshake, which counts against the limit of connections."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted

    def abort(self) -> None:
        """Shut down the socket; the event loop closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class SecureServer:
    """Accepts connections and completes their TLS handshakes."""

    def __init__(self, connections: ClientConnections, tls: ssl.SSLContext, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._handshaking: set[asyncio.Task[None]] = set()
        self._accepting = [self._listen(listener) for listener in sockets]

    def close(self) -> None:
        """Stop accepting connections. Handshakes in progress continue."""
        for task in self._accepting:
            task.cancel()

    def _listen(self, listener: socket.socket) -> asyncio.Task[None]:
        task = self._loop.create_task(self._accept(listener))
        # Close the listener only after the task ended: until then, the event loop polls its descriptor.
        task.add_done_callback(lambda _: listener.close())
        return task

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            handshake = TlsHandshake(accepted)
            if self._connections.add(handshake):
                task = self._loop.create_task(self._complete_handshake(handshake, accepted))
                self._handshaking.add(task)
                task.add_done_callback(self._handshaking.discard)
            else:
                self._connections.refused += 1
                accepted.close()  # no response is possible before the handshake
            await asyncio.sleep(0)  # let other work run between two accepts

    async def _complete_handshake(self, handshake: TlsHandshake, accepted: socket.socket) -> None:
        connection = self._connections()
        connection.handshake = handshake
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=self._connections.limits.head_seconds
            )
        except OSError:  # the client hung up, timed out, or does not speak TLS
            accepted.close()
        finally:
            self._connections.remove(handshake)


async def start_secure_server(
    connections: ClientConnections, tls: ssl.SSLContext, host: str, port: int, backlog: int
) -> SecureServer:
    """Listen with TLS on all addresses of a host."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in addresses):
            listener = socket.create_server(address, family=family, backlog=backlog)
            listener.setblocking(False)
            sockets.append(listener)
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return SecureServer(connections, tls, sockets)


SIGNALS = (signal.SIGTERM, signal.SIGINT)
END_SECONDS = 5.0
"""Time to stop servers and close the log after the drain time."""
_LOG_SECONDS = 0.1  # time for the log thread to write the last line
_KERNEL_SECONDS = 3.0  # after this time, a kernel timer ends the process even if no Python code can run


class Shutdown:
    """Handles SIGTERM and SIGINT, and kills the process if the shutdown takes too long."""

    def __init__(self, drain_seconds: float, write_log: Callable[[str], None]) -> None:
        self._drain_seconds = drain_seconds
        self._write_log = write_log
        self._signals: SimpleQueue[float] = SimpleQueue()  # safe to use in a signal handler
        self._loop = asyncio.get_running_loop()
        self.requested = asyncio.Event()
        """Set by the first signal."""
        self.stop_waiting = asyncio.Event()
        """Set by a second signal: stop waiting for open requests."""

    def install(self) -> None:
        """Install the signal handlers."""
        # Started here, because a signal handler must not start a thread.
        Thread(target=self._watch, name="ending", daemon=True).start()
        for name in SIGNALS:
            with suppress(ValueError):  # not the main thread
                signal.signal(name, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        """Queue the time of the signal. Python calls this even while the event loop is busy."""
        self._signals.put(monotonic())

    def _watch(self) -> None:
        end = self._signals.get() + self._drain_seconds + END_SECONDS
        self._set_kernel_timer(end)
        self._set_event(self.requested)
        with suppress(Empty):
            second = self._signals.get(timeout=max(0.0, end - monotonic()))
            end = min(end, second + END_SECONDS)
            self._set_kernel_timer(end)
            self._set_event(self.stop_waiting)
            while True:
                self._signals.get(timeout=max(0.0, end - monotonic()))
        self._write_log("the gateway did not shut down in time, so it kills its servers and exits")
        kill_all_trees()
        sleep(_LOG_SECONDS)
        os._exit(EXIT_UNCHECKED)

    def _set_event(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(event.set)

    def _set_kernel_timer(self, end: float) -> None:
        """Set a kernel timer that ends the process if this thread does not."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max(0.0, end - monotonic()) + _KERNEL_SECONDS)
