"""The HTTP client for MCP servers: fixed addresses, checked redirects, limited bytes, one deadline for the probe.

Proxies from the environment are not used, because a proxy would resolve the host again, perhaps to another address.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException
from threading import Lock, Timer
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.response import BaseHTTPResponse

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.connections import (
    REDIRECTS,
    Destination,
    HostNotFoundError,
    NetworkRules,
    connect_socket,
    create_tls_context,
    describe_connection_failure,
    is_compressed,
    redirect_error,
    resolve_destinations,
    resolve_redirect,
)
from pinwarden.system.probe_budget import ProbeBudget, probe_error, probe_limit_error
from pinwarden.system.target import HttpAddress

_CHUNK = 1 << 16
_KEEP_METHOD = frozenset({307, 308})
_NETWORK_ERRORS = (HTTPError, HTTPException, OSError)
_TIMEOUTS = (TimeoutError, ReadTimeoutError)


class HttpOptions(Record):
    """The server's address, the headers of every request, and what is allowed."""

    address: HttpAddress
    headers: Mapping[str, str]
    rules: NetworkRules
    allow_redirects: bool = False
    repeat_if_closed: bool = True
    """Whether to send a request again if the server closed the kept connection. Only for requests without effects."""


class HttpRequest(Record):
    """One request."""

    method: str
    address: HttpAddress
    headers: Mapping[str, str]
    body: bytes | None = None
    wait: float | None = None
    """How long the server may send nothing, in seconds; by default until the probe's deadline."""


class NoResponse(Exception):  # noqa: N818  handled by the callers, never reported
    """The server accepted a request but sent no complete response: it closed the connection, or ``wait`` passed."""

    def __init__(self, *, connection_closed: bool) -> None:
        super().__init__()
        self.connection_closed = connection_closed


class HttpResponse:
    """A response whose body is read only when the caller asks for it."""

    def __init__(self, client: HttpClient, raw: BaseHTTPResponse, connection: HTTPConnection) -> None:
        self._client = client
        self._raw = raw
        self._connection = connection
        self.status = raw.status
        self.content_type = raw.headers.get("content-type", "").partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        """Return one header of the response."""
        return self._raw.headers.get(name)

    def chunks(self) -> Iterator[bytes]:
        """Yield the body in chunks."""
        if is_compressed(self._raw.headers.get("content-encoding")):
            raise probe_error("protocol", "the server sent a compressed response, which was not requested")
        while True:
            try:
                chunk = self._raw.read1(_CHUNK, decode_content=False)
            except _NETWORK_ERRORS as err:
                self._client.budget.remaining()
                raise NoResponse(connection_closed=not isinstance(err, _TIMEOUTS)) from err
            if not chunk:
                return
            self._client.budget.count_bytes(len(chunk))
            self._client.budget.remaining()
            yield chunk

    def body(self, max_bytes: int) -> bytes:
        """Return the complete body. The next request can then reuse the connection."""
        parts: list[bytes] = []
        size = 0
        try:
            for chunk in self.chunks():
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    raise probe_limit_error("bytes in one message", max_bytes)
        except BaseException:
            self.close()
            raise
        self._client.keep(self._connection, self._raw)
        return b"".join(parts)

    def close(self) -> None:
        """Close the response and its connection."""
        with suppress(*_NETWORK_ERRORS):
            self._raw.close()
        self._client.drop(self._connection)


class HttpClient:
    """Sends requests to one server. A timer aborts every connection at the probe's deadline."""

    def __init__(self, options: HttpOptions, budget: ProbeBudget) -> None:
        self.budget = budget
        self.address = options.address
        self._headers = dict(options.headers)
        self._options = options
        self._first_host = options.address.host
        self._destinations: dict[tuple[str, str, int], tuple[Destination, ...]] = {}
        self._idle: HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None
        self._handles: dict[HTTPConnection, socket.socket] = {}
        self._lock = Lock()
        self._aborted = False
        self._timer = Timer(budget.remaining(), self.abort)
        self._timer.daemon = True
        self._timer.start()

    def request(self, request: HttpRequest) -> HttpResponse:
        """Send a request and follow allowed redirects."""
        for _ in range(self.budget.limits.max_redirects + 1):
            response = self._exchange(request)
            location = response.header("location")
            if response.status not in REDIRECTS or location is None:
                return response
            response.close()
            request = replace(request, address=self._follow_redirect(request, response.status, location))
        raise PinwardenError("ADDRESS_REFUSED", "the server redirects too many times", data={"reason": "redirect"})

    def keep(self, connection: HTTPConnection, raw: BaseHTTPResponse) -> None:
        """Keep a connection for the next request, after its response was read to the end."""
        raw.close()  # closes only the response, not the connection
        if self._idle is None and connection.sock is not None:
            self._idle = connection
        else:
            self.drop(connection)

    def drop(self, connection: HTTPConnection) -> None:
        """Close a connection."""
        with suppress(*_NETWORK_ERRORS):
            connection.close()
        with self._lock:
            handle = self._handles.pop(connection, None)
        if handle is not None:
            handle.close()

    def abort(self) -> None:
        """Abort every connection. Callable from any thread."""
        with self._lock:
            self._aborted = True
            for handle in self._handles.values():
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called; no further request succeeds."""
        return self._aborted

    def close(self) -> None:
        """Close every connection and stop the timer."""
        self._timer.cancel()
        for connection in list(self._handles):
            self.drop(connection)

    def open_socket(
        self, connection: HTTPConnection, destinations: tuple[Destination, ...], timeout: float
    ) -> socket.socket:
        """Connect to the first checked address that responds."""
        return connect_socket(
            destinations,
            lambda: self.budget.remaining(timeout),
            lambda opened: self._keep_abort_handle(connection, opened),
        )

    def _keep_abort_handle(self, connection: HTTPConnection, connected: socket.socket) -> None:
        """Keep a second handle of the socket for ``abort``, because TLS and HTTP take over the first one."""
        handle = socket.socket(fileno=os.dup(connected.fileno()))
        with self._lock:
            before = self._handles.pop(connection, None)
            self._handles[connection] = handle
            if self._aborted:
                handle.shutdown(socket.SHUT_RDWR)
        if before is not None:
            before.close()

    def _exchange(self, request: HttpRequest) -> HttpResponse:
        reused = self._idle is not None
        try:
            return self._send_on(self._get_connection(request.address), request)
        except NoResponse as no_response:
            # A server may close an idle connection at any time. Only in that case the request is repeated.
            if not (reused and no_response.connection_closed and self._options.repeat_if_closed):
                raise
            return self._send_on(self._get_connection(request.address), request)

    def _send_on(self, connection: HTTPConnection, request: HttpRequest) -> HttpResponse:
        address = request.address
        timeout = self.budget.remaining(request.wait)
        try:
            connection.timeout = timeout
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(timeout)
        except _NETWORK_ERRORS as err:
            self.drop(connection)
            raise self._connect_error(err, address) from err
        fixed = {"Host": address.host_header, "Accept-Encoding": "identity"}
        headers = _merge_headers({"User-Agent": "pinwarden"}, self._headers, fixed, request.headers)
        try:
            connection.request(request.method, address.path, request.body, headers, preload_content=False)
            raw = connection.getresponse()
        except _NETWORK_ERRORS as err:
            self.drop(connection)
            self.budget.remaining()
            raise NoResponse(connection_closed=not isinstance(err, _TIMEOUTS)) from err
        return HttpResponse(self, raw, connection)

    def _get_connection(self, address: HttpAddress) -> HTTPConnection:
        idle, self._idle = self._idle, None
        if idle is not None:
            if idle.address == address.origin and idle.is_connected:  # type: ignore[attr-defined]
                return idle
            self.drop(idle)
        destinations = self._resolve(address)
        if address.scheme == "http":
            return _PlainConnection(self, address, destinations)
        if self._tls is None:
            self._tls = create_tls_context(None)
        return _TlsConnection(self, address, destinations, self._tls)

    def _resolve(self, address: HttpAddress) -> tuple[Destination, ...]:
        """Resolve a host once per probe, so that a later DNS answer changes nothing."""
        if address.origin not in self._destinations:
            rules = self._options.rules
            if address.host != self._first_host:
                # The caller's permission is for the configured host, not for hosts it redirects to.
                rules = replace(rules, allow_private=False)
            try:
                self._destinations[address.origin] = resolve_destinations(address, rules)
            except HostNotFoundError as err:
                raise probe_error("connect", str(err)) from err
        return self._destinations[address.origin]

    def _follow_redirect(self, request: HttpRequest, status: int, location: str) -> HttpAddress:
        address = request.address

        if not self._options.allow_redirects:
            raise redirect_error(address, status)
        if request.method != "GET" and status not in _KEEP_METHOD:
            why = f"{address} redirects with a status that would change the request method"
            raise PinwardenError("ADDRESS_REFUSED", why, data={"reason": "redirect", "status": status})
        following = resolve_redirect(address, location, status)
        if following.origin != address.origin:
            self._headers = {}  # credentials are for the first host only
        self.address = following
        return following

    def _connect_error(self, err: Exception, address: HttpAddress) -> PinwardenError:
        if self.budget.is_expired:
            return self.budget.timeout_error()
        failure = describe_connection_failure(err, address)
        reason = "tls" if failure.reason == "tls" else "connect"  # "timeout" is a server that responds too late
        return probe_error(reason, failure.message, hint=failure.hint)


class _PlainConnection(HTTPConnection):
    def __init__(self, client: HttpClient, address: HttpAddress, destinations: tuple[Destination, ...]) -> None:
        super().__init__(address.host, address.port)
        self.address = address.origin
        self._open = client.open_socket
        self._destinations = destinations

    def _new_conn(self) -> socket.socket:
        return self._open(self, self._destinations, _get_timeout_seconds(self.timeout))


class _TlsConnection(HTTPSConnection):
    def __init__(
        self, client: HttpClient, address: HttpAddress, destinations: tuple[Destination, ...], context: ssl.SSLContext
    ) -> None:
        # The certificate is checked against the host name; only the resolution is ours.
        super().__init__(address.host, address.port, ssl_context=context)
        self.address = address.origin
        self._open = client.open_socket
        self._destinations = destinations

    def _new_conn(self) -> socket.socket:
        return self._open(self, self._destinations, _get_timeout_seconds(self.timeout))


def _get_timeout_seconds(timeout: Any) -> float:
    return timeout if isinstance(timeout, float) else 30.0


def _merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by lower-case name. Later ones replace earlier ones, so that none is sent twice."""
    return {name.lower(): value for layer in layers for name, value in layer.items()}
