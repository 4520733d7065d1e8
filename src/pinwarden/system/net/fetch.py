"""The one HTTP client for registries: every byte is counted and hashed, every hop of a redirect is checked again.

Names are looked up at the moment of connecting, and exactly what was checked is contacted. Behind a proxy of the
environment the proxy looks names up; then only addresses that are written as numbers can be checked here.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.net.connections import DEADLINE, guarded_connections, proxied_connections, tls_context
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch_failures import (
    MAX_ERROR_BYTES,
    connection_failed,
    fetch_failed,
    first_cause,
    offline_refused,
    status_failed,
    too_large,
)
from pinwarden.system.net.network_guard import NetworkRules, address_refused, resolve_addresses
from pinwarden.system.net.proxies import check_proxied_address, proxy_for
from pinwarden.system.target import HttpAddress

_CHUNK = 1 << 18
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_SENT_ANSWERS = frozenset({200, 201, 202, 204, 400, 401, 403, 404, 409, 413, 422, 429})
_FOREIGN = (HTTPError, HTTPException, OSError)
_UNREAD_BYTES = 1 << 16  # a body that nobody wants is read only this far, to use its connection again
_UNREAD_SECONDS = 1.0
Read = TypeVar("Read")


class FetchLimits(Record):
    """Bounds on one fetch, with the reason beside each."""

    document_bytes: int = 64 * 1024 * 1024
    """The largest package documents of public registries have about 40 MB."""
    file_bytes: int = 2 * 1024 * 1024 * 1024
    """Wheels of machine-learning packages reach about one and a half gigabytes."""
    redirects: int = 5
    connect_seconds: float = 15.0
    idle_seconds: float = 60.0
    """How long a registry may say nothing."""
    total_seconds: float = 1800.0
    """A gigabyte over a slow line."""
    attempts: int = 4
    longest_pause_seconds: float = 10.0
    """Between two attempts, whatever the registry asks for."""


class FetchRules(Record):
    """What the user allows."""

    offline: bool = False
    allow_private: bool = False
    """Any host may be in a private network; otherwise only those that the user's own settings name."""
    allow_plain_http: bool = False
    limits: FetchLimits = field(default_factory=FetchLimits)


class RequestBody(Record):
    """What is sent to a registry."""

    method: str
    body: bytes = field(repr=False)
    media_type: str


class FetchRequest(Record):
    """What to ask for, at an endpoint or where it points to."""

    endpoint: Endpoint
    url: str
    accept: str = "*/*"
    authorization: str | None = field(default=None, repr=False)
    """Stands in for the endpoint's own, for a token that was got for it. It goes where that one would go."""
    form: bytes | None = field(default=None, repr=False)
    """Sent instead of only asking (POST), for a credential that is exchanged. A redirect is then not followed."""
    sent: RequestBody | None = None
    """What is put there instead of asking for it. A redirect is then not followed."""

    @property
    def secret(self) -> str | None:
        """What is sent along, below the endpoint and nowhere else."""
        return self.authorization or self.endpoint.authorization


class FetchResponse(Record):
    """A document that was fetched, or the word that there is none (404 and 410)."""

    status: int
    address: HttpAddress
    """Where it came from in the end."""
    headers: Mapping[str, str] = field(repr=False)
    """By lower-case name."""
    body: bytes = field(repr=False)

    @property
    def found(self) -> bool:
        """Whether there is such a document."""
        return self.status == 200


class DownloadResult(Record):
    """A file that was fetched."""

    address: HttpAddress
    size: int
    digests: tuple[Digest, ...]


class _Response:
    """A response whose body is still to be read."""

    def __init__(self, raw: BaseHTTPResponse, address: HttpAddress, fetcher: Fetcher, deadline: float) -> None:
        self._raw = raw
        self._fetcher = fetcher
        self._deadline = deadline
        self.address = address
        self.status = raw.status
        # A header that came twice is joined, so that no reader can pick the value that suits.
        self.headers = {name.lower(): raw.headers[name] for name in raw.headers}

    def chunks(self, max_bytes: int) -> Iterator[bytes]:
        """The body as it comes in, up to a limit."""
        if self.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            # None was asked for, and a small compressed body can be an enormous one.
            raise fetch_failed("protocol", f"{self.address} compressed its answer without being asked to")
        said = self.headers.get("content-length", "")
        if said.isdecimal() and (len(said) > 18 or int(said) > max_bytes):
            raise too_large(self.address, max_bytes)
        size = 0
        while chunk := self._raw.read1(_CHUNK, decode_content=False):
            size += len(chunk)
            if size > max_bytes:
                raise too_large(self.address, max_bytes)
            if time.monotonic() > self._deadline:
                raise fetch_failed("timeout", f"{self.address} did not finish in time")
            self._fetcher.count(len(chunk))
            yield chunk

    def finish(self, *, complete: bool) -> None:
        """Give the connection back, or close it where bytes of this response may still be in it."""
        with suppress(*_FOREIGN):
            if complete and self._read_up():
                self._raw.release_conn()
            else:
                self._raw.close()

    def _read_up(self) -> bool:
        """Whether the whole body was read, or what is left of it is short and could be."""
        left = self._raw.length_remaining
        if left is not None and left > _UNREAD_BYTES:
            return False
        DEADLINE.set(min(self._deadline, time.monotonic() + _UNREAD_SECONDS))
        size = 0
        while size <= _UNREAD_BYTES and (chunk := self._raw.read1(_CHUNK, decode_content=False)):
            size += len(chunk)
        return size <= _UNREAD_BYTES


class Fetcher:
    """Fetches documents and files. May be used from several threads at once."""

    def __init__(
        self,
        rules: FetchRules,
        variables: Mapping[str, str] | None = None,
        *,
        on_bytes: Callable[[int], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rules = rules
        self._variables = dict(variables or {})
        self._on_bytes = on_bytes
        self._pause = pause
        self._managers: dict[tuple[Any, ...], urllib3.PoolManager] = {}
        self._places: dict[tuple[str, str, int], frozenset[str]] = {}
        self._lock = Lock()

    @property
    def rules(self) -> FetchRules:
        """What may be asked; resolvers that fetch for themselves are held to the same."""
        return self._rules

    def get(self, wanted: FetchRequest, *, max_bytes: int | None = None) -> FetchResponse:
        """A document. 404 and 410 are answers, any other status but 200 is a failure."""
        limit = max_bytes or self._rules.limits.document_bytes

        def read(response: _Response) -> FetchResponse:
            body = b"".join(response.chunks(limit)) if response.status == 200 else b""
            return FetchResponse(status=response.status, address=response.address, headers=response.headers, body=body)

        return self._attempts(wanted, {}, read, frozenset({200, 404, 410}))

    def download(
        self,
        wanted: FetchRequest,
        to: BinaryIO,
        *,
        algorithms: tuple[str, ...] = ("sha256",),
        max_bytes: int | None = None,
    ) -> DownloadResult:
        """A file, hashed while it comes in. What was written before a failed attempt is written over."""
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
                _write(to, chunk)
                size += len(chunk)
            digests = tuple(Digest(each.digest(), name) for each, name in zip(hashers, algorithms, strict=True))
            return DownloadResult(address=response.address, size=size, digests=digests)

        return self._attempts(wanted, {}, read, frozenset({200}))

    def send(self, wanted: FetchRequest, *, max_bytes: int = 1 << 20) -> FetchResponse:
        """Send something, and return whatever the registry says of it, its refusals too.

        It may be sent again after a failure that may pass, so it must be something that can be done twice.
        """

        def read(response: _Response) -> FetchResponse:
            body = b"".join(response.chunks(max_bytes))
            return FetchResponse(status=response.status, address=response.address, headers=response.headers, body=body)

        return self._attempts(wanted, {}, read, _SENT_ANSWERS)

    def challenge(self, wanted: FetchRequest) -> tuple[int, str]:
        """The status of a request without credentials, and whom the answer asks for (``www-authenticate``)."""

        def read(response: _Response) -> tuple[int, str]:
            return response.status, response.headers.get("www-authenticate", "")

        bare = replace(wanted, authorization=None, endpoint=replace(wanted.endpoint, authorization=None))
        return self._attempts(bare, {}, read, frozenset({200, 401, 403, 404}))

    def close(self) -> None:
        """Close every connection."""
        for manager in self._managers.values():
            manager.clear()

    def count(self, size: int) -> None:
        """So many more bytes came in."""
        if self._on_bytes:
            self._on_bytes(size)

    def _attempts(
        self, wanted: FetchRequest, headers: Mapping[str, str], read: Callable[[_Response], Read], good: frozenset[int]
    ) -> Read:
        """One request, tried again after failures that may pass. What the bytes are is never a reason to try again."""
        address = HttpAddress.parse(wanted.url)
        if self._rules.offline:
            raise offline_refused(address)
        limits = self._rules.limits
        deadline = time.monotonic() + limits.total_seconds
        DEADLINE.set(deadline)
        for attempt in range(1, limits.attempts + 1):
            last = attempt == limits.attempts or time.monotonic() > deadline
            wait = min(0.25 * 2**attempt, limits.longest_pause_seconds)
            try:
                response = self._follow(wanted, address, headers, deadline)
                try:
                    if response.status in good:
                        result = read(response)
                        response.finish(complete=True)
                        return result
                    if last or response.status not in _TRY_AGAIN:
                        raise _bad_status(response)
                    wait = _asked_pause(response.headers.get("retry-after", ""), wait, limits.longest_pause_seconds)
                finally:
                    response.finish(complete=False)
            except _FOREIGN as err:
                if last or isinstance(first_cause(err), ssl.SSLError):
                    raise connection_failed(err, address) from err
            self._pause(wait)
        raise AssertionError("the last attempt answers or raises")

    def _follow(
        self, wanted: FetchRequest, address: HttpAddress, headers: Mapping[str, str], deadline: float
    ) -> _Response:
        for _ in range(self._rules.limits.redirects + 1):
            response = self._ask(wanted, address, headers, deadline)
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or location is None or wanted.form is not None or wanted.sent:
                return response
            response.finish(complete=False)
            address = _redirected(address, location)
        raise address_refused(f"{address} redirects too often", "redirect")

    def _ask(
        self, wanted: FetchRequest, address: HttpAddress, headers: Mapping[str, str], deadline: float
    ) -> _Response:
        limits, endpoint = self._rules.limits, wanted.endpoint
        rules = self._network_rules(endpoint, address)
        sent = {
            "user-agent": "pinwarden",
            "accept-encoding": "identity",
            "accept": wanted.accept,
            **headers,
            "host": address.host_header,
        }
        if wanted.secret is not None and endpoint.owns(address):
            sent["authorization"] = wanted.secret
        method, body = ("GET", None) if wanted.form is None else ("POST", wanted.form)
        if wanted.form is not None:
            sent["content-type"] = "application/x-www-form-urlencoded"
        if wanted.sent is not None:
            method, body = wanted.sent.method, wanted.sent.body
            sent["content-type"] = wanted.sent.media_type
        idle = max(0.1, min(limits.idle_seconds, deadline - time.monotonic()))
        raw = self._manager(address, rules, endpoint.ca_file).urlopen(
            method,
            f"{address.scheme}://{address.host_header}{address.path}",
            body=body,
            headers=sent,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=min(idle, limits.connect_seconds), read=idle),
        )
        return _Response(raw, address, self, deadline)

    def _network_rules(self, endpoint: Endpoint, address: HttpAddress) -> NetworkRules:
        """What may be contacted: public addresses, the endpoint, and other names of the machine that it is on.

        The last is for mirrors, which answer for the registry and for the host that its files are on.
        """
        plain = self._rules.allow_plain_http
        if self._rules.allow_private or (endpoint.private_allowed and address.host == endpoint.address.host):
            return NetworkRules(allow_private=True, allow_plain_http=plain)
        if not endpoint.private_allowed or proxy_for(address, self._variables):
            return NetworkRules(allow_plain_http=plain)
        origin = endpoint.address.origin
        with self._lock:
            known = self._places.get(origin)
        if known is None:
            known = resolve_addresses(endpoint.address)
            with self._lock:
                self._places[origin] = known
        return NetworkRules(allow_plain_http=plain, allowed_places=known)

    def _manager(self, address: HttpAddress, rules: NetworkRules, ca_file: Path | None) -> urllib3.PoolManager:
        """The connections that were made under these rules; one made under others is never used again."""
        proxy = proxy_for(address, self._variables)
        key = (proxy, rules, ca_file)
        with self._lock:
            if key not in self._managers:
                context = tls_context(ca_file)
                if proxy is None:
                    self._managers[key] = guarded_connections(rules, context)
                else:
                    self._managers[key] = proxied_connections(proxy, context)
            manager = self._managers[key]
        if proxy is not None:
            check_proxied_address(address, rules)
        return manager


def _bad_status(response: _Response) -> PinwardenError:
    body = b""
    if "json" in response.headers.get("content-type", ""):
        with suppress(PinwardenError, *_FOREIGN):  # a sentence that cannot be read in full is not told
            body = b"".join(response.chunks(MAX_ERROR_BYTES))
    return status_failed(response.address, response.status, body)


def _write(to: BinaryIO, chunk: bytes) -> None:
    try:
        to.write(chunk)
    except OSError as err:  # a full disk is not the registry's fault, and asking again does not help
        raise PinwardenError("FILE_UNWRITABLE", f"a download could not be kept: {err.strerror or err}") from err


def _asked_pause(text: str, otherwise: float, longest: float) -> float:
    return min(float(text), longest) if text.isdecimal() and len(text) < 6 else otherwise


def _redirected(address: HttpAddress, location: str) -> HttpAddress:
    try:
        following = HttpAddress.parse(urljoin(f"{address.scheme}://{address.host_header}{address.path}", location))
    except (PinwardenError, ValueError) as err:
        raise address_refused(f"{address} redirects to something that is not a web address", "redirect") from err
    if address.scheme == "https" and following.scheme != "https":
        raise address_refused(f"{address} redirects to an address that is not encrypted", "redirect")
    return following
