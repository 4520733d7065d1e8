"""Connections that look a name up, check the answer and contact exactly that, with an end to every wait."""

from __future__ import annotations

import socket
import ssl
import time
from contextvars import ContextVar
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError

from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.fetch_failures import fetch_failed
from pinwarden.system.net.network_guard import NetworkRules, resolve_destinations
from pinwarden.system.target import HttpAddress

DEADLINE: ContextVar[float] = ContextVar("deadline")
"""Until when whoever asks wants to be kept waiting, on the monotonic clock."""


def guarded_connections(rules: NetworkRules, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Connections that look up, check and contact in one step."""

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


def proxied_connections(proxy: str, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Connections through a proxy, which looks names up itself."""
    try:
        parts = urlsplit(proxy)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as err:
        raise fetch_failed("connect", "the proxy of the environment is not an http address") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise fetch_failed("connect", "the proxy of the environment is not an http address")
    headers = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=pair)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    manager = urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": _PlainProxiedPool, "https": _TlsProxiedPool}
    return manager


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """What proves who a registry is: the authorities of the system, and those of a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as err:
            raise PinwardenError("FILE_UNREADABLE", f"{ca_file} is not a file of certificates") from err
    return context


class _Timed(RawIOBase):
    """What a socket receives, until the deadline: also a header that comes in byte by byte has an end."""

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
        places = resolve_destinations(
            HttpAddress(scheme=self.scheme, host=host, port=port, path="/"), self.network_rules
        )
        last: OSError = ConnectionRefusedError("no address")
        for place in places:
            made = socket.socket(place.family, socket.SOCK_STREAM)
            try:
                made.settimeout(_seconds(self.timeout))  # type: ignore[attr-defined]
                made.connect(place.sockaddr)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as err:
                made.close()
                last = err
            else:
                return made
        raise NewConnectionError(self, "not connected") from last  # type: ignore[arg-type]


def _seconds(timeout: Any) -> float:
    return float(timeout) if isinstance(timeout, int | float) else 30.0
