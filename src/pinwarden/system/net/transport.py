"""How connections are made: TLS, proxies, resolving and checking in one step, deadlines, redirects."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError

from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.network_errors import fetch_failed
from pinwarden.system.net.network_guard import Destination, NetworkRules, resolve_destinations
from pinwarden.system.target import HttpAddress

DEADLINE: ContextVar[float] = ContextVar("deadline")
"""When the current request must be complete, on the monotonic clock."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})


def direct_pool(rules: NetworkRules, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Connections that resolve, check and contact a host in one step."""

    class Plain(_Guarded, _PlainConnection):
        scheme = "http"
        network_rules = rules

    class Tls(_Guarded, _TlsConnection):
        scheme = "https"
        network_rules = rules

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    manager = urllib3.PoolManager(num_pools=32, maxsize=32, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager


def proxy_pool(proxy: str, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Connections through a proxy, which resolves hosts itself."""
    try:
        parts = urlsplit(proxy)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as err:
        raise fetch_failed("connect", "the proxy in the environment is not an http(s) URL") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise fetch_failed("connect", "the proxy in the environment is not an http(s) URL")
    headers = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=pair)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    manager = urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": _PlainProxiedPool, "https": _TlsProxiedPool}
    return manager


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """The system's certificate authorities, plus those in a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as err:
            raise PinwardenError("FILE_UNREADABLE", f"{ca_file} has no usable CA certificates") from err
    return context


def connect_socket(
    destinations: Sequence[Destination],
    seconds: Callable[[], float],
    opened: Callable[[socket.socket], None] | None = None,
) -> socket.socket:
    """Connect to the first checked address that responds; raises the last ``OSError``.

    ``seconds`` gives the timeout of each attempt, ``opened`` is called with the connected socket.
    """
    last: OSError = ConnectionRefusedError("no address")
    for destination in destinations:
        connection = socket.socket(destination.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds())
            connection.connect(destination.sockaddr)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if opened is not None:
                opened(connection)
        except OSError as err:
            connection.close()
            last = err
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise last


def redirect_target(address: HttpAddress, location: str, status: int | None = None) -> HttpAddress:
    """Where a redirect leads. ``ADDRESS_REFUSED`` for malformed targets and from HTTPS to plain HTTP."""
    data: dict[str, object] = {"reason": "redirect"} if status is None else {"reason": "redirect", "status": status}
    try:
        target = HttpAddress.parse(urljoin(f"{address.scheme}://{address.host_header}{address.path}", location))
    except (PinwardenError, ValueError) as err:
        message = f"{address} redirects to something that is not a web address"
        raise PinwardenError("ADDRESS_REFUSED", message, data=data) from err
    if address.scheme == "https" and target.scheme != "https":
        raise PinwardenError("ADDRESS_REFUSED", f"{address} redirects to plain HTTP", data=data)
    return target


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Whether a body is compressed. Clients reject that: they did not ask for it, and it could expand enormously."""
    return headers.get("content-encoding", "identity").lower() not in ("identity", "")


class _Timed(RawIOBase):
    """Reads from a socket until the deadline, so that even a header sent byte by byte ends."""

    def __init__(self, raw: RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock
        self._idle = sock.gettimeout() or 60.0

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


class _TimedResponse(HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = BufferedReader(_Timed(self.fp.detach(), sock))


class _PlainConnection(HTTPConnection):
    response_class = _TimedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _PlainProxiedPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsProxiedPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Guarded:
    scheme: str
    network_rules: NetworkRules

    def _new_conn(self) -> socket.socket:
        host, port = self._dns_host.strip("[]"), self.port  # type: ignore[attr-defined]
        destinations = resolve_destinations(
            HttpAddress(scheme=self.scheme, host=host, port=port, path="/"), self.network_rules
        )
        try:
            return connect_socket(destinations, lambda: _seconds(self.timeout))  # type: ignore[attr-defined]
        except OSError as err:
            raise NewConnectionError(self, "not connected") from err  # type: ignore[arg-type]


def _seconds(timeout: Any) -> float:
    return float(timeout) if isinstance(timeout, int | float) else 30.0
