"""The HTTP client for registries: limits, retries, hashing, and a check of every address including redirects.

Hosts are resolved when a connection is made, and the connection goes to the addresses that were checked. A proxy from
the environment resolves hosts itself; then only literal IP addresses can be checked.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Protocol, TypeVar
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.response import BaseHTTPResponse

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.net.connections import (
    REDIRECTS,
    NetworkRules,
    ServiceEndpoint,
    address_error,
    check_proxied_address,
    connect_socket,
    create_tls_context,
    find_proxy,
    is_compressed,
    resolve_addresses,
    resolve_destinations,
    resolve_redirect,
)
from pinwarden.system.net.network_errors import (
    MAX_ERROR_BYTES,
    connection_error,
    fetch_error,
    find_first_cause,
    offline_error,
    status_error,
    too_large_error,
)
from pinwarden.system.target import HttpAddress

DEADLINE: ContextVar[float] = ContextVar("deadline")

"""When the current request must be complete, on the monotonic clock."""

_TRACK_SOCKET: ContextVar[Callable[[socket.socket], None]] = ContextVar("track_socket")
"""Registers a socket with the current fetcher, so that ``abort`` can end its wait."""

_CHUNK = 1 << 18

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})

_UPLOAD_STATUSES = frozenset({200, 201, 202, 204, 400, 401, 403, 404, 409, 413, 422, 429})

_NETWORK_ERRORS = (HTTPError, HTTPException, OSError)

_UNREAD_BYTES = 1 << 16  # an unwanted body is read only this far to reuse its connection

_UNREAD_SECONDS = 1.0

ResultT = TypeVar("ResultT")


class RequestPace(Protocol):
    """Limits how often hosts are asked, for example by all workers of a census together."""

    def wait(self, host: str) -> None:
        """Wait until a request may be sent to the host."""

    def defer(self, host: str, seconds: float) -> None:
        """Send nothing to the host for this time, because it asked for a pause."""


class FetchLimits(Record):
    """Limits for one request."""

    document_bytes: int = 64 * 1024 * 1024
    """The largest package documents of public registries have about 40 MB."""
    file_bytes: int = 2 * 1024 * 1024 * 1024
    """Wheels of machine-learning packages have up to 1.5 GB."""
    redirects: int = 5
    connect_seconds: float = 15.0
    idle_seconds: float = 60.0
    """How long a registry may send nothing."""
    total_seconds: float = 1800.0
    """The limit for a request and its retries: enough for a gigabyte over a slow connection."""
    attempts: int = 4
    longest_pause_seconds: float = 10.0
    """The longest pause between two attempts, even if ``Retry-After`` asks for more."""


class FetchRules(Record):
    """The network access that the user's options allow."""

    offline: bool = False
    allow_private: bool = False
    """Allow any host in a private network; otherwise only those in the user's own settings."""
    allow_plain_http: bool = False
    limits: FetchLimits = field(default_factory=FetchLimits)


class UploadBody(Record):
    """The method and body of an upload."""

    method: str
    body: bytes = field(repr=False)
    media_type: str


class FetchRequest(Record):
    """A request to an endpoint, or to a URL that the endpoint named."""

    endpoint: ServiceEndpoint
    url: str
    accept: str = "*/*"
    authorization: str | None = field(default=None, repr=False)
    """Replaces the endpoint's own credential, e.g. by a token issued for it. The same URL rules apply."""
    form: bytes | None = field(default=None, repr=False)
    """A form to POST, to exchange a credential. Redirects are not followed."""
    upload: UploadBody | None = None
    """A body to upload. Redirects are not followed."""
    etag: str = ""
    """If given, the document is fetched only if it has another entity tag; otherwise the status is 304."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers beside the usual ones, e.g. a signature of the body."""

    @property
    def effective_authorization(self) -> str | None:
        """The credential, sent only to URLs below the endpoint."""
        return self.authorization or self.endpoint.authorization


class FetchResponse(Record):
    """A response. From `Fetcher.get`, the body is empty unless the status is 200."""

    status: int
    address: HttpAddress
    """The address after redirects."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers by lower-case name."""
    body: bytes = field(repr=False)

    @property
    def found(self) -> bool:
        """Whether the document exists."""
        return self.status == 200


class DownloadResult(Record):
    """A downloaded file: its size and digests."""

    address: HttpAddress
    size: int
    digests: tuple[Digest, ...]


class _Response:
    """A response whose body is read only when the caller asks for it."""

    def __init__(self, raw: BaseHTTPResponse, address: HttpAddress, fetcher: Fetcher, deadline: float) -> None:
        self._raw = raw
        self._fetcher = fetcher
        self._deadline = deadline
        self.address = address
        self.status = raw.status
        # Repeated headers are joined, so that no reader can choose between their values.
        self.headers = {name.lower(): raw.headers[name] for name in raw.headers}

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """Yield the body in chunks. Raises if it has more than ``max_bytes``."""
        if is_compressed(self.headers.get("content-encoding")):
            raise fetch_error("protocol", f"{self.address} sent a compressed response, which was not requested")
        length = self.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
            raise too_large_error(self.address, max_bytes)
        size = 0
        while chunk := self._raw.read1(_CHUNK, decode_content=False):
            size += len(chunk)
            if size > max_bytes:
                raise too_large_error(self.address, max_bytes)
            if time.monotonic() > self._deadline:
                raise fetch_error("timeout", f"{self.address} did not finish its response in time")
            self._fetcher.report_bytes(len(chunk))
            yield chunk

    def finish(self, *, complete: bool) -> None:
        """Return the connection to the pool, or close it if bytes of this response may be left in it."""
        with suppress(*_NETWORK_ERRORS):
            if complete and self._read_to_end():
                self._raw.release_conn()
            else:
                self._raw.close()

    def _read_to_end(self) -> bool:
        """Read the rest of the body, if it is short. Returns whether the body was read to its end."""
        left = self._raw.length_remaining
        if left is not None and left > _UNREAD_BYTES:
            return False
        DEADLINE.set(min(self._deadline, time.monotonic() + _UNREAD_SECONDS))
        size = 0
        while size <= _UNREAD_BYTES and (chunk := self._raw.read1(_CHUNK, decode_content=False)):
            size += len(chunk)
        return size <= _UNREAD_BYTES


class Fetcher:
    """Fetches documents and files. Thread-safe."""

    def __init__(  # noqa: PLR0913 - options of one client
        self,
        rules: FetchRules,
        variables: Mapping[str, str] | None = None,
        *,
        on_bytes: Callable[[int], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
        pace: RequestPace | None = None,
        user_agent: str = "pinwarden",
    ) -> None:
        self._rules = rules
        self._pace = pace
        self._user_agent = user_agent
        self._variables = dict(variables or {})
        self._on_bytes = on_bytes
        self._pause = pause
        self._managers: dict[tuple[Any, ...], urllib3.PoolManager] = {}
        self._endpoint_addresses: dict[tuple[str, str, int], frozenset[str]] = {}
        self._lock = Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._aborted = False

    @property
    def rules(self) -> FetchRules:
        """The user's rules. Resolvers that download files themselves must follow them too."""
        return self._rules

    def get(self, wanted: FetchRequest, *, max_bytes: int | None = None) -> FetchResponse:
        """Fetch a document. Status 404 and 410 are returned; any other status but 200 raises ``FETCH_FAILED``.

        With an entity tag, status 304 is returned as well.
        """
        limit = max_bytes or self._rules.limits.document_bytes

        def read(response: _Response) -> FetchResponse:
            body = b"".join(response.chunks(limit)) if response.status == 200 else b""
            return FetchResponse(status=response.status, address=response.address, headers=response.headers, body=body)

        if wanted.etag:
            return self._send_with_retries(
                wanted, {"if-none-match": wanted.etag}, read, frozenset({200, 304, 404, 410})
            )
        return self._send_with_retries(wanted, {}, read, frozenset({200, 404, 410}))

    def download(
        self,
        wanted: FetchRequest,
        to: BinaryIO,
        *,
        algorithms: tuple[str, ...] = ("sha256",),
        max_bytes: int | None = None,
    ) -> DownloadResult:
        """Download a file and hash it. A retry overwrites what a failed attempt wrote."""
        limit = max_bytes or self._rules.limits.file_bytes
        start = to.tell()

        def read(response: _Response) -> DownloadResult:
            to.seek(start)
            to.truncate()
            hashers = [hashlib.new(name) for name in algorithms]
            size = 0
            for chunk in response.chunks(limit):
                for hasher in hashers:
                    hasher.update(chunk)
                _write_chunk(to, chunk)
                size += len(chunk)
            digests = tuple(Digest(hasher.digest(), name) for hasher, name in zip(hashers, algorithms, strict=True))
            return DownloadResult(address=response.address, size=size, digests=digests)

        return self._send_with_retries(wanted, {}, read, frozenset({200}))

    def send(self, wanted: FetchRequest, *, max_bytes: int = 1 << 20) -> FetchResponse:
        """Send an upload and return the response, even if the server refuses it.

        The upload may be repeated after a temporary failure, so it must be idempotent.
        """

        def read(response: _Response) -> FetchResponse:
            body = b"".join(response.chunks(max_bytes))
            return FetchResponse(status=response.status, address=response.address, headers=response.headers, body=body)

        return self._send_with_retries(wanted, {}, read, _UPLOAD_STATUSES)

    def request_challenge(self, wanted: FetchRequest) -> tuple[int, str]:
        """Send a request without credentials. Returns the status and the ``WWW-Authenticate`` header."""

        def read(response: _Response) -> tuple[int, str]:
            return response.status, response.headers.get("www-authenticate", "")

        bare = replace(wanted, authorization=None, endpoint=replace(wanted.endpoint, authorization=None))
        return self._send_with_retries(bare, {}, read, frozenset({200, 401, 403, 404}))

    def close(self) -> None:
        """Close every connection."""
        for manager in self._managers.values():
            manager.clear()

    def abort(self) -> None:
        """End all requests, also those that wait on other threads. They and later ones raise ``FETCH_FAILED``."""
        with self._lock:
            self._aborted = True
            open_sockets = tuple(self._sockets)
        for sock in open_sockets:
            _shut_down(sock)

    def report_bytes(self, size: int) -> None:
        """Report received bytes to ``on_bytes``."""
        if self._on_bytes:
            self._on_bytes(size)

    def _track_socket(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
            aborted = self._aborted
        if aborted:
            _shut_down(sock)

    def _send_with_retries(
        self,
        wanted: FetchRequest,
        headers: Mapping[str, str],
        read: Callable[[_Response], ResultT],
        accepted_statuses: frozenset[int],
    ) -> ResultT:
        """Send a request and retry it after temporary failures."""
        address = HttpAddress.parse(wanted.url)
        if self._rules.offline:
            raise offline_error(address)
        limits = self._rules.limits
        deadline = time.monotonic() + limits.total_seconds
        DEADLINE.set(deadline)
        _TRACK_SOCKET.set(self._track_socket)
        for attempt in range(1, limits.attempts + 1):
            if self._aborted:
                raise fetch_error("ended", f"the request to {address.host} was interrupted")
            last = attempt == limits.attempts or time.monotonic() > deadline
            wait = min(0.25 * 2**attempt, limits.longest_pause_seconds)
            try:
                response = self._follow_redirects(wanted, address, headers, deadline)
                try:
                    if response.status in accepted_statuses:
                        result = read(response)
                        response.finish(complete=True)
                        return result
                    if last or response.status not in _RETRIED:
                        raise _read_status_error(response)
                    wait = _choose_pause(response.headers.get("retry-after", ""), wait, limits.longest_pause_seconds)
                    if self._pace is not None:
                        self._pace.defer(response.address.host, wait)
                finally:
                    response.finish(complete=False)
            except _NETWORK_ERRORS as err:
                if last or self._aborted or isinstance(find_first_cause(err), ssl.SSLError):
                    raise connection_error(err, address) from err
            self._pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _follow_redirects(
        self, wanted: FetchRequest, address: HttpAddress, headers: Mapping[str, str], deadline: float
    ) -> _Response:
        for _ in range(self._rules.limits.redirects + 1):
            response = self._send_once(wanted, address, headers, deadline)
            location = response.headers.get("location")
            if response.status not in REDIRECTS or location is None or wanted.form is not None or wanted.upload:
                return response
            response.finish(complete=False)
            address = resolve_redirect(address, location)
        raise address_error(f"{address} redirects too many times", "redirect")

    def _send_once(
        self, wanted: FetchRequest, address: HttpAddress, headers: Mapping[str, str], deadline: float
    ) -> _Response:
        limits, endpoint = self._rules.limits, wanted.endpoint
        if self._pace is not None:
            self._pace.wait(address.host)
        rules = self._build_network_rules(endpoint, address)
        request_headers = {
            "user-agent": self._user_agent,
            "accept-encoding": "identity",
            "accept": wanted.accept,
            **wanted.headers,
            **headers,
            "host": address.host_header,
        }
        if wanted.effective_authorization is not None and endpoint.owns(address):
            request_headers["authorization"] = wanted.effective_authorization
        method, body = ("GET", None) if wanted.form is None else ("POST", wanted.form)
        if wanted.form is not None:
            request_headers["content-type"] = "application/x-www-form-urlencoded"
        if wanted.upload is not None:
            method, body = wanted.upload.method, wanted.upload.body
            request_headers["content-type"] = wanted.upload.media_type
        idle = max(0.1, min(limits.idle_seconds, deadline - time.monotonic()))
        raw = self._get_pool(address, rules, endpoint.ca_file).urlopen(
            method,
            f"{address.scheme}://{address.host_header}{address.path}",
            body=body,
            headers=request_headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=min(idle, limits.connect_seconds), read=idle),
        )
        return _Response(raw, address, self, deadline)

    def _build_network_rules(self, endpoint: ServiceEndpoint, address: HttpAddress) -> NetworkRules:
        """Allow public addresses, the endpoint itself, and hosts with the same IP addresses as the endpoint.

        Some mirrors serve the registry and the host of its files under the same IP address.
        """
        plain = self._rules.allow_plain_http
        if self._rules.allow_private or (endpoint.private_allowed and address.host == endpoint.address.host):
            return NetworkRules(allow_private=True, allow_plain_http=plain)
        if not endpoint.private_allowed or find_proxy(address, self._variables):
            return NetworkRules(allow_plain_http=plain)
        origin = endpoint.address.origin
        with self._lock:
            known = self._endpoint_addresses.get(origin)
        if known is None:
            known = resolve_addresses(endpoint.address)
            with self._lock:
                self._endpoint_addresses[origin] = known
        return NetworkRules(allow_plain_http=plain, allowed_addresses=known)

    def _get_pool(self, address: HttpAddress, rules: NetworkRules, ca_file: Path | None) -> urllib3.PoolManager:
        """Return the connection pool for these rules. Connections made under other rules are never reused."""
        proxy = find_proxy(address, self._variables)
        key = (proxy, rules, ca_file)
        with self._lock:
            if key not in self._managers:
                context = create_tls_context(ca_file)
                if proxy is None:
                    self._managers[key] = create_direct_pool(rules, context)
                else:
                    self._managers[key] = create_proxy_pool(proxy, context)
            manager = self._managers[key]
        if proxy is not None:
            check_proxied_address(address, rules)
        return manager


def _read_status_error(response: _Response) -> PinwardenError:
    """Return the error for a response's status, with the error text in its body."""
    body = b""
    if "json" in response.headers.get("content-type", ""):
        with suppress(PinwardenError, *_NETWORK_ERRORS):  # omit the error text if it cannot be read completely
            body = b"".join(response.chunks(MAX_ERROR_BYTES))
    return status_error(response.address, response.status, body)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # without the TLS layer, whose reader is on another thread


def _write_chunk(to: BinaryIO, chunk: bytes) -> None:
    try:
        to.write(chunk)
    except OSError as err:  # a full disk, where a retry does not help
        raise PinwardenError("FILE_UNWRITABLE", f"cannot store a download: {err.strerror or err}") from err


def _choose_pause(text: str, otherwise: float, longest: float) -> float:
    return min(float(text), longest) if text.isdecimal() and len(text) < 6 else otherwise


def create_direct_pool(rules: NetworkRules, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Return a connection pool that resolves a host, checks its addresses and connects to one of them."""

    class CheckedPlainConnection(_CheckedConnection, _PlainConnection):
        scheme = "http"
        network_rules = rules

    class CheckedTlsConnection(_CheckedConnection, _TlsConnection):
        scheme = "https"
        network_rules = rules

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = CheckedPlainConnection

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = CheckedTlsConnection

    manager = urllib3.PoolManager(num_pools=32, maxsize=32, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager


def create_proxy_pool(proxy: str, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Return a connection pool that connects through a proxy. The proxy resolves hosts."""
    try:
        parts = urlsplit(proxy)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as err:
        raise fetch_error("connect", "the proxy in the environment is not an http(s) URL") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise fetch_error("connect", "the proxy in the environment is not an http(s) URL")
    headers = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=pair)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    manager = urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": _PlainProxiedPool, "https": _TlsProxiedPool}
    return manager


class _DeadlineReader(RawIOBase):
    """Reads from a socket until the deadline, even if the server sends its headers byte by byte."""

    def __init__(self, raw: RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock
        self._idle = sock.gettimeout() or 60.0
        _TRACK_SOCKET.get()(sock)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = DEADLINE.get() - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(min(left, self._idle))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = BufferedReader(_DeadlineReader(self.fp.detach(), sock))


class _PlainConnection(HTTPConnection):
    response_class = _DeadlineResponse


class _TlsConnection(HTTPSConnection):
    response_class = _DeadlineResponse


class _PlainProxiedPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsProxiedPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _CheckedConnection:
    scheme: str
    network_rules: NetworkRules

    def _new_conn(self) -> socket.socket:
        host, port = self._dns_host.strip("[]"), self.port  # type: ignore[attr-defined]
        destinations = resolve_destinations(
            HttpAddress(scheme=self.scheme, host=host, port=port, path="/"), self.network_rules
        )
        try:
            return connect_socket(destinations, lambda: _get_timeout_seconds(self.timeout))  # type: ignore[attr-defined]
        except OSError as err:
            raise NewConnectionError(self, "not connected") from err  # type: ignore[arg-type]


def _get_timeout_seconds(timeout: Any) -> float:
    return float(timeout) if isinstance(timeout, int | float) else 30.0
