"""HTTP for a server that is not trusted: pinned addresses, checked redirects, bounded bytes, one deadline for all.

Proxies of the environment are not used: they would look names up again, out of our sight.
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
from urllib.parse import urljoin

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.response import BaseHTTPResponse

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.system.net.network_guard import Destination, HostNotFoundError, NetworkRules, resolve_destinations
from pinwarden.system.probe_budget import ProbeBudget, probe_failed, probe_limit_exceeded
from pinwarden.system.target import HttpAddress

_CHUNK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEP_METHOD = frozenset({307, 308})
_FOREIGN = (HTTPError, HTTPException, OSError)
_TIMEOUTS = (TimeoutError, ReadTimeoutError)


class HttpOptions(Record):
    """Where to go, with which headers, and what is allowed on the way."""

    address: HttpAddress
    headers: Mapping[str, str]
    rules: NetworkRules
    allow_redirects: bool = False


class HttpRequest(Record):
    """One request."""

    method: str
    address: HttpAddress
    headers: Mapping[str, str]
    body: bytes | None = None
    wait: float | None = None
    """How long the server may say nothing; otherwise for as long as the probe may take."""


class NoResponse(Exception):  # noqa: N818  a turn of events inside this room, not a failure to report
    """The server took a request and gave no complete response: it hung up, or nothing came within the wait."""

    def __init__(self, *, hung_up: bool) -> None:
        super().__init__()
        self.hung_up = hung_up


class HttpResponse:
    """A response whose body is still to be read."""

    def __init__(self, client: HttpClient, raw: BaseHTTPResponse, connection: HTTPConnection) -> None:
        self._client = client
        self._raw = raw
        self._connection = connection
        self.status = raw.status
        self.content_type = raw.headers.get("content-type", "").partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        """One header of the response."""
        return self._raw.headers.get(name)

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes in."""
        if self._raw.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            # None was asked for, and a small compressed body can be an enormous one.
            raise probe_failed("protocol", "the server compressed its answer without being asked to")
        while True:
            try:
                chunk = self._raw.read1(_CHUNK, decode_content=False)
            except _FOREIGN as err:
                self._client.allowance.remaining()
                raise NoResponse(hung_up=not isinstance(err, _TIMEOUTS)) from err
            if not chunk:
                return
            self._client.allowance.count_bytes(len(chunk))
            self._client.allowance.remaining()
            yield chunk

    def body(self, max_bytes: int) -> bytes:
        """The whole body; after that the connection is used again."""
        parts: list[bytes] = []
        size = 0
        try:
            for chunk in self.chunks():
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    raise probe_limit_exceeded("bytes in one message", max_bytes)
        except BaseException:
            self.close()
            raise
        self._client.keep(self._connection, self._raw)
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the response and its connection."""
        with suppress(*_FOREIGN):
            self._raw.close()
        self._client.drop(self._connection)


class HttpClient:
    """Requests to one address. A timer cuts every connection when the time of the probe is over."""

    def __init__(self, options: HttpOptions, allowance: ProbeBudget) -> None:
        self.allowance = allowance
        self.address = options.address
        self._headers = dict(options.headers)
        self._options = options
        self._first_host = options.address.host
        self._places: dict[tuple[str, str, int], tuple[Destination, ...]] = {}
        self._idle: HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None
        self._handles: dict[HTTPConnection, socket.socket] = {}
        self._lock = Lock()
        self._aborted = False
        self._timer = Timer(allowance.remaining(), self.abort)
        self._timer.daemon = True
        self._timer.start()

    def request(self, request: HttpRequest) -> HttpResponse:
        """The response to one request, after the redirects that are allowed."""
        for _ in range(self.allowance.limits.max_redirects + 1):
            response = self._exchange(request)
            location = response.header("location")
            if response.status not in _REDIRECTS or location is None:
                return response
            response.close()
            request = replace(request, address=self._redirected(request, response.status, location))
        raise PinwardenError("ADDRESS_REFUSED", "the server redirects too often", data={"reason": "redirect"})

    def keep(self, connection: HTTPConnection, raw: BaseHTTPResponse) -> None:
        """Take back a connection whose response was read to its end."""
        raw.close()  # of the connection only the response, which then is in nobody's way
        if self._idle is None and connection.sock is not None:
            self._idle = connection
        else:
            self.drop(connection)

    def drop(self, connection: HTTPConnection) -> None:
        """Close a connection for good."""
        with suppress(*_FOREIGN):
            connection.close()
        with self._lock:
            handle = self._handles.pop(connection, None)
        if handle is not None:
            handle.close()

    def abort(self) -> None:
        """Cut every connection, from any thread."""
        with self._lock:
            self._aborted = True
            for handle in self._handles.values():
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of everything."""
        self._timer.cancel()
        for connection in list(self._handles):
            self.drop(connection)

    def open_socket(self, connection: HTTPConnection, places: tuple[Destination, ...], timeout: float) -> socket.socket:
        """A connection to the first of the checked addresses that answers."""
        last: OSError = ConnectionRefusedError("no address")
        for place in places:
            made = socket.socket(place.family, socket.SOCK_STREAM)
            try:
                made.settimeout(self.allowance.remaining(timeout))
                made.connect(place.sockaddr)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._watch(connection, made)
            except OSError as err:
                made.close()
                last = err
            except BaseException:
                made.close()
                raise
            else:
                return made
        raise last

    def _watch(self, connection: HTTPConnection, made: socket.socket) -> None:
        """Remember a second handle of the connection, to cut it with: TLS and HTTP take the first one away."""
        handle = socket.socket(fileno=os.dup(made.fileno()))
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
            return self._on(self._connection(request.address), request)
        except NoResponse as unanswered:
            # A server may close a kept connection at any time; only then the request is sent again.
            if not (reused and unanswered.hung_up):
                raise
            return self._on(self._connection(request.address), request)

    def _on(self, connection: HTTPConnection, request: HttpRequest) -> HttpResponse:
        address = request.address
        timeout = self.allowance.remaining(request.wait)
        try:
            connection.timeout = timeout
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(timeout)
        except _FOREIGN as err:
            self.drop(connection)
            raise self._not_connected(err, address) from err
        fixed = {"Host": address.host_header, "Accept-Encoding": "identity"}
        headers = _merged({"User-Agent": "pinwarden"}, self._headers, fixed, request.headers)
        try:
            connection.request(request.method, address.path, request.body, headers, preload_content=False)
            raw = connection.getresponse()
        except _FOREIGN as err:
            self.drop(connection)
            self.allowance.remaining()
            raise NoResponse(hung_up=not isinstance(err, _TIMEOUTS)) from err
        return HttpResponse(self, raw, connection)

    def _connection(self, address: HttpAddress) -> HTTPConnection:
        idle, self._idle = self._idle, None
        if idle is not None:
            if idle.address == address.origin:  # type: ignore[attr-defined]
                return idle
            self.drop(idle)
        places = self._checked(address)
        if address.scheme == "http":
            return _PlainConnection(self, address, places)
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return _TlsConnection(self, address, places, self._tls)

    def _checked(self, address: HttpAddress) -> tuple[Destination, ...]:
        """Looked up once for the whole probe, so that a second answer of the resolver changes nothing."""
        if address.origin not in self._places:
            rules = self._options.rules
            if address.host != self._first_host:
                # What the caller allowed was said of the host that was named, not of those it points to.
                rules = replace(rules, allow_private=False)
            try:
                self._places[address.origin] = resolve_destinations(address, rules)
            except HostNotFoundError as err:
                raise probe_failed("connect", str(err)) from err
        return self._places[address.origin]

    def _redirected(self, request: HttpRequest, status: int, location: str) -> HttpAddress:
        address = request.address

        def refuse(why: str) -> PinwardenError:
            return PinwardenError("ADDRESS_REFUSED", why, data={"reason": "redirect", "status": status})

        if not self._options.allow_redirects:
            raise refuse(f"{address} redirects to another address")
        if request.method != "GET" and status not in _KEEP_METHOD:
            raise refuse(f"{address} redirects in a way that would change the request")
        try:
            following = HttpAddress.parse(urljoin(f"{address.scheme}://{address.host_header}{address.path}", location))
        except (PinwardenError, ValueError) as err:
            raise refuse(f"{address} redirects to something that is not a web address") from err
        if address.scheme == "https" and following.scheme != "https":
            raise refuse(f"{address} redirects to an address that is not encrypted")
        if following.origin != address.origin:
            self._headers = {}  # credentials were given for the first host only
        self.address = following
        return following

    def _not_connected(self, err: Exception, address: HttpAddress) -> PinwardenError:
        if self.allowance.is_expired:
            return self.allowance.timed_out()
        if isinstance(err, ssl.SSLError):
            why = getattr(err, "verify_message", "") or err.reason or "TLS failed"
            return probe_failed("connect", f"{address} did not prove who it is: {why}")
        return probe_failed("connect", f"{address} could not be reached: {_reason(err)}")


class _PlainConnection(HTTPConnection):
    def __init__(self, client: HttpClient, address: HttpAddress, places: tuple[Destination, ...]) -> None:
        super().__init__(address.host, address.port)
        self.address = address.origin
        self._open = client.open_socket
        self._places = places

    def _new_conn(self) -> socket.socket:
        return self._open(self, self._places, _seconds(self.timeout))


class _TlsConnection(HTTPSConnection):
    def __init__(
        self, client: HttpClient, address: HttpAddress, places: tuple[Destination, ...], context: ssl.SSLContext
    ) -> None:
        # The name of the host stays what the certificate is checked against; only the look-up is ours.
        super().__init__(address.host, address.port, ssl_context=context)
        self.address = address.origin
        self._open = client.open_socket
        self._places = places

    def _new_conn(self) -> socket.socket:
        return self._open(self, self._places, _seconds(self.timeout))


def _seconds(timeout: Any) -> float:
    return timeout if isinstance(timeout, float) else 30.0


def _reason(err: Exception) -> str:
    return (isinstance(err, OSError) and err.strerror) or type(err).__name__


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their lower-case names; a later one replaces an earlier one, so that none is sent twice."""
    return {name.lower(): value for layer in layers for name, value in layer.items()}
