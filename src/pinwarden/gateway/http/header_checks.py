"""All checks of the headers of an HTTP request, in this order:

1. `refuse_repeated_header`, `check_head`, `check_framing`: while `http1` reads the head. A failure closes the
   connection.
2. `Access.check_host_and_origin` and `Access.authenticate`: host, origin and bearer token. `build_preflight_headers`
   is for the preflight requests of browsers.
3. `find_routing_mismatch`: the headers of revision 2026-07-28 repeat parts of the message. Headers and message must
   agree, because a proxy may route by the headers, while the server acts on the message.
4. `select_declared_headers`: headers that repeat an argument of a call (``x-mcp-header`` in the tool's schema) must
   agree with the argument.

`endpoint` caches the results of checks 1 to 3 by the exact bytes of the head.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Callable, Collection, Mapping, Set
from math import inf
from typing import Any, Protocol
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.session.messages import ParsedMessage
from pinwarden.gateway.store.tokens import ALL_SCOPES, TOKEN_PREFIX, hash_token
from pinwarden.surface.protocol import STATELESS_VERSIONS, VERSION_META

ITEM_NAME_PARAMETERS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that names the tool, prompt or resource, by method."""
ROUTING_PARAMETERS = {**ITEM_NAME_PARAMETERS, **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}
"""The parameter that the header Mcp-Name repeats, by method."""

MCP_PREFIX = "/mcp/"
"""What the paths of single servers begin with."""
Headers = Mapping[bytes, bytes]
"""Header values by lower-case name."""
PARAMETER_PREFIX = b"mcp-param-"
"""The prefix of headers that repeat an argument of a tool call."""
FRAMING_HEADERS = frozenset({b"transfer-encoding", b"content-encoding", b"expect"})
"""Headers that change how the body is read."""
_UNREPEATABLE = frozenset(
    {
        *(b"host", b"content-length", b"content-type", b"transfer-encoding", b"authorization", b"origin"),
        *(b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id", b"last-event-id", b"expect"),
    }
)
_TOKEN_REQUIRED = "A valid bearer token is required."  # noqa: S105
_HTTP_VERSIONS = ("1.1", "1.0")
_MAX_CACHED_HEADERS = 4096

_CORS_METHODS = "GET, POST, DELETE"
_CORS_HEADERS = (
    *("authorization", "content-type", "accept", "last-event-id"),
    *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
)
_CORS_PARAMETER = re.compile(r"mcp-param-[a-z0-9_-]{1,200}")
_MAX_CORS_PARAMETERS = 100
_CORS_EXPOSED = "mcp-session-id, www-authenticate, retry-after"
_CORS_CACHE_SECONDS = 600  # short, so that browsers notice changed settings

_PARAMETER_MARK = "x-mcp-header"
_MAX_SCHEMA_DEPTH = 32


class BadRequest(Exception):  # noqa: N818  a response, not a failure of the gateway
    """Refuses a request with an HTTP status, and closes the connection."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class AccessDenied(Exception):  # noqa: N818  a response, not a failure of the gateway
    """Refuses a request with an HTTP status, and keeps the connection open."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class KeysOutdatedError(Exception):
    """The keys of the issuer must be fetched before an access token can be verified."""


class HeaderMismatch(Exception):  # noqa: N818  a response, not a failure of the gateway
    """A header contradicts the message."""


# 1. While the head is read


def refuse_repeated_header(name: bytes) -> None:
    """Refuse a header that may occur only once: a proxy and the gateway could use different values."""
    if name in _UNREPEATABLE or name.startswith(PARAMETER_PREFIX):
        raise BadRequest(400, f"The header {name.decode('latin-1')} occurs twice.")


def check_head(version: str, url: bytes, headers: Headers, limits: HttpLimits) -> int | None:
    """Check a complete head. Returns the content length, or None without one."""
    if version not in _HTTP_VERSIONS:
        raise BadRequest(505, "Only HTTP/1.1 and HTTP/1.0 are supported.")
    if b"host" not in headers:
        raise BadRequest(400, "The header host is missing.")
    if url[:1] != b"/":
        raise BadRequest(400, "The request target is not a path.")
    length = headers.get(b"content-length")
    if length is not None and int(length) > limits.max_body_bytes:
        raise BadRequest(413, "The body is too long.")
    return None if length is None else int(length)


def check_framing(headers: Headers) -> bool:
    """Check the headers in `FRAMING_HEADERS`. Returns whether the client waits for ``100 Continue``."""
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        raise BadRequest(501, "The only supported transfer encoding is chunked.")
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise BadRequest(415, "Compressed bodies are not supported.")
    expect = headers.get(b"expect")
    if expect is not None and expect.strip().lower() != b"100-continue":
        raise BadRequest(417, "The only supported expectation is 100-continue.")
    return expect is not None


# 2. Host, origin and token


class GatewayClient(Record):
    """The client that a bearer token identifies.

    Equal clients share sessions. What may differ between two access tokens of one client is not compared, so that a
    renewed token continues the sessions of the one before; it is checked with the token of each request.
    """

    name: str
    servers: tuple[str, ...] = ()
    """The servers that this client may use; empty for all."""
    token: str = field(default="", repr=False)
    """The digest of a static token, or the issuer of an access token. Revoking a static token ends all sessions and
    streams that were opened with it, even if the client has other tokens."""
    teams: tuple[str, ...] = ()
    """The client's teams, for the rules of the policy."""
    person: tuple[str, str] = ("", "")
    """Whose grants of remote servers the client may use: issuer and subject. Empty for none."""
    scopes: frozenset[str] = field(default=ALL_SCOPES, compare=False)
    resources: tuple[str, ...] = field(default=(), compare=False)
    """The paths below ``/mcp/`` that an access token was issued for; empty for all, and for ``/mcp`` itself."""
    expires_at: float = field(default=inf, compare=False)
    """When the token expires, in seconds since 1970."""

    def may_use(self, server: str) -> bool:
        """Whether the client may use a server."""
        return not self.servers or server in self.servers


class TokenVerifier(Protocol):
    """Verifies access tokens of an issuer, and tells clients where to get one (`resource_server`)."""

    def verify(self, token: str, now: float) -> GatewayClient:
        """Return the client of a token. Raises ``ACCESS_TOKEN_INVALID``, or ``ISSUER_UNAVAILABLE`` without any key.

        Raises `KeysOutdatedError` if the keys have to be fetched first.
        """

    def build_challenge(self, path: str, error: str = "") -> str:
        """Return the header ``WWW-Authenticate`` of a refusal at a path."""

    def build_metadata(self, path: str) -> bytes | None:
        """Return the protected resource metadata (RFC 9728) at a path of the gateway; None at other paths."""

    async def refresh_keys(self) -> None:
        """Fetch the keys of the issuer, if that is due. Never raises."""


class Access:
    """Checks host, origin and bearer token of requests.

    Checking the host prevents DNS rebinding. Checking the origin prevents requests from foreign web pages.
    """

    def __init__(
        self,
        hosts: Collection[str],
        origins: Collection[str],
        clients: Mapping[str, GatewayClient],
        verifier: TokenVerifier | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns seconds since 1970, which the expiry of tokens is compared with."""
        self.verifier = verifier
        """Verifies access tokens; None if only static tokens are valid."""
        self._clock = clock
        self._expiries: dict[GatewayClient, float] = {}
        """When the newest token of each client expires."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._clients = dict(clients)
        self._admitted_clients = self._clients
        """The clients that are admitted now: all known clients, or fewer while tokens cannot be validated."""
        self._unverified = False
        self._by_header: dict[bytes, GatewayClient] = {}
        self._checked_hosts: set[bytes] = set()
        self.denied = 0
        self.generation = 0
        """Incremented when the set of admitted clients changes."""
        self.on_revoked: Callable[[Set[GatewayClient]], None] = lambda _: None
        """Called with the clients whose tokens were revoked."""
        self.on_admitted: Callable[[GatewayClient], None] = lambda _: None
        """Called with a client whose token was verified. Tokens are verified again from time to time."""
        self.on_refused: Callable[[str], None] = lambda _: None
        """Called with the reason for which a token was refused."""

    def set_clients(self, clients: Mapping[str, GatewayClient]) -> None:
        """Admit exactly these clients, by the digest of their token."""
        revoked = set(self._clients.values()).difference(clients.values())
        self._clients = dict(clients)
        self._unverified = False
        self._admit(self._clients)
        if revoked:
            self.on_revoked(revoked)

    def admit_unverified(self, only: Mapping[str, GatewayClient] | None = None) -> None:
        """Admit the known clients, or the clients in ``only`` if it is set, while tokens cannot be validated.

        A client that is not admitted gets status 503 instead of 401, because its token may still be valid.
        """
        self._unverified = True
        self._admit(self._clients if only is None else dict(only))

    def _admit(self, clients: dict[str, GatewayClient]) -> None:
        if clients != self._admitted_clients:
            self._admitted_clients = clients
            self._by_header.clear()
            self.generation += 1

    def set_hosts(self, hosts: Collection[str]) -> None:
        """Replace the hosts that the gateway serves."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._checked_hosts.clear()

    def check_host_and_origin(self, headers: Headers) -> str:
        """Deny a request for another host or from a foreign origin. Returns the origin; empty without one."""
        host_header = headers[b"host"]
        if host_header in self._checked_hosts and b"origin" not in headers:
            return ""
        host = parse_host(host_header.decode("latin-1"))
        if host is None or host not in self._hosts:
            self.denied += 1
            raise AccessDenied(421, "The gateway does not serve this host. Start it with --allow-host HOST to add it.")
        origin_header = headers.get(b"origin")
        origin = "" if origin_header is None else origin_header.decode("latin-1").lower()
        if origin_header is not None and origin not in self._origins:
            self.denied += 1
            raise AccessDenied(403, "Web pages of this origin may not use the gateway.")
        if len(self._checked_hosts) < _MAX_CACHED_HEADERS:
            self._checked_hosts.add(host_header)
        return origin

    def authenticate(self, headers: Headers, path: str = "") -> GatewayClient:
        """Authenticate a request by its bearer token. Returns the client, or raises `AccessDenied`.

        ``path`` is the path of the request. Raises `KeysOutdatedError` if the keys of the issuer have to be fetched.
        """
        authorization = headers.get(b"authorization", b"")
        client = self._by_header.get(authorization)
        if client is None or self._clock() >= client.expires_at:
            client = self._verify(authorization, path)
            self.on_admitted(client)
            if len(self._by_header) >= _MAX_CACHED_HEADERS:
                self._by_header.clear()
            self._by_header[authorization] = client
        if client.resources and path.removeprefix(MCP_PREFIX) not in client.resources:
            raise self._deny(path, "The access token was issued for another server.")
        return client

    def require_scope(self, client: GatewayClient, scope: str, path: str) -> None:
        """Deny a request with status 403 if the client's token does not have a scope."""
        if scope not in client.scopes:
            self.denied += 1
            challenge = "Bearer" if self.verifier is None else self.verifier.build_challenge(path, "insufficient_scope")
            reason = f"The token does not have the scope that this request needs ({scope})."
            raise AccessDenied(403, reason, {"www-authenticate": challenge})

    def is_expired(self, expires_at: float) -> bool:
        """Whether a token with this expiry is no longer valid."""
        return self._clock() >= expires_at

    def forget_expired(self) -> set[GatewayClient]:
        """Return the clients whose newest token has expired, once. Their event streams must end."""
        now = self._clock()
        expired = {client for client, expires in self._expiries.items() if now >= expires}
        for client in expired:
            del self._expiries[client]
        if expired:
            self._by_header = {key: client for key, client in self._by_header.items() if now < client.expires_at}
        return expired

    def forget_verified(self) -> None:
        """Verify all access tokens again, because the keys or the settings of the issuer changed."""
        self._by_header.clear()
        self.generation += 1

    def _verify(self, authorization: bytes, path: str) -> GatewayClient:
        scheme, _, token = authorization.decode("latin-1").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise self._deny(path, _TOKEN_REQUIRED, is_refused=bool(authorization))
        now = self._clock()
        client = self._admitted_clients.get(hash_token(token))
        if client is not None and now < client.expires_at:
            if client.expires_at != inf:
                self._expiries[client] = client.expires_at
            return client
        if self.verifier is not None and not token.startswith(TOKEN_PREFIX):
            try:
                client = self.verifier.verify(token, now)
            except PinwardenError as err:
                if err.code != "ACCESS_TOKEN_INVALID":
                    self.denied += 1
                    raise AccessDenied(503, "Token validation is unavailable; see /readyz.") from err
                raise self._deny(path, f"The access token was refused: {err.message}.") from err
            self._expiries[client] = max(client.expires_at, self._expiries.get(client, 0.0))
            return client
        if self._unverified:
            self.denied += 1
            raise AccessDenied(503, "Token validation is unavailable; see /readyz.")
        raise self._deny(path, _TOKEN_REQUIRED)

    def _deny(self, path: str, reason: str, *, is_refused: bool = True) -> AccessDenied:
        """Count a refusal. Returns status 401, which says where to get a token if there is an issuer."""
        self.denied += 1
        if is_refused:
            self.on_refused(reason)
        if self.verifier is None:
            return AccessDenied(401, reason)
        challenge = self.verifier.build_challenge(path, "invalid_token" if is_refused else "")
        return AccessDenied(401, reason, {"www-authenticate": challenge})


def parse_host(header: str) -> str | None:
    """Return the host name in a Host header; None if the header is malformed."""
    try:
        parts = urlsplit(f"//{header}")
        if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not header.isascii():
            return None
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname


def build_cors_headers(origin: str) -> dict[str, str]:
    """Return the response headers that let a web page of an allowed origin read the response."""
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _CORS_EXPOSED, "vary": "origin"}


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a request is a CORS preflight. Browsers send it without a token."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


def build_preflight_headers(headers: Headers) -> dict[str, str]:
    """Return the response headers of a CORS preflight.

    The headers are the same for every path, so they do not reveal servers.
    """
    requested = headers.get(b"access-control-request-headers", b"").decode("latin-1").lower()
    names = {name.strip() for name in requested.split(",", _MAX_CORS_PARAMETERS)}
    parameters = sorted(name for name in names if _CORS_PARAMETER.fullmatch(name))
    return {
        "access-control-allow-methods": _CORS_METHODS,
        "access-control-allow-headers": ", ".join((*_CORS_HEADERS, *parameters)),
        "access-control-max-age": str(_CORS_CACHE_SECONDS),
    }


# 3. Headers that repeat the message


def find_routing_mismatch(headers: Headers, message: ParsedMessage) -> str:
    """Compare the routing headers of revision 2026-07-28 with the message. Returns the error; empty if they agree."""
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if not message.is_request:
        return "" if version in STATELESS_VERSIONS else "The header mcp-protocol-version is missing."
    if version != message.meta.get(VERSION_META):
        return "The header mcp-protocol-version differs from the protocol version of the message."
    if headers.get(b"mcp-method", b"").decode("latin-1") != message.method:
        return "The header mcp-method differs from the method of the message."
    parameter = ROUTING_PARAMETERS.get(message.method)
    if parameter is None:
        return ""
    expected = message.params.get(parameter)
    name = headers.get(b"mcp-name")
    if expected is None:
        return "" if name is None else "The header mcp-name has no counterpart in the message."
    if name is None and parameter == "taskId":
        return ""  # the tasks extension requires it, but not every client sends it
    if name is None or decode_header(name.decode("latin-1")) != expected:
        return f"The header mcp-name differs from the {parameter} of the message."
    return ""


# 4. Headers that repeat arguments


def select_declared_headers(lines: bytes, definition: Any, arguments: Any) -> bytes:
    """Select the ``mcp-param-`` header lines that the tool declares. Other lines are not forwarded.

    Raises `HeaderMismatch` if a header differs from its argument.
    """
    paths = _find_declared_paths(definition.get("inputSchema") if type(definition) is dict else None)
    declared = b""
    for line in lines.splitlines(keepends=True):
        name, _, value = line.partition(b":")
        path = paths.get(name.removeprefix(PARAMETER_PREFIX).decode("latin-1"))
        if path is None:
            continue
        if decode_header(value.strip().decode("latin-1")) not in _list_header_values(_get_argument(arguments, path)):
            raise HeaderMismatch(f"The header {name.decode('latin-1')} differs from the argument of the message.")
        declared += line
    return declared


def _find_declared_paths(schema: Any) -> dict[str, tuple[str, ...] | None]:
    """Return the path of each argument that is declared as a header, by lower-case name; None for a repeated name."""
    paths: dict[str, tuple[str, ...] | None] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, subschema = pending.pop()
        if type(subschema) is not dict:
            continue
        name = subschema.get(_PARAMETER_MARK)
        if type(name) is str and path:
            paths[name.lower()] = None if name.lower() in paths else path
        properties = subschema.get("properties")
        if type(properties) is dict and len(path) < _MAX_SCHEMA_DEPTH:
            pending += [((*path, key), value) for key, value in properties.items()]
    return paths


def _get_argument(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        arguments = arguments.get(name) if type(arguments) is dict else None
    return arguments


def _list_header_values(value: Any) -> tuple[str, ...]:
    """Return the accepted header values for an argument; empty if its type cannot be sent in a header."""
    if type(value) is bool:
        return ("true" if value else "false",)
    if type(value) is str:
        return (value,)
    if type(value) is int:
        return (f"{value:d}",)
    if type(value) is float:
        return (repr(value), f"{value:.0f}") if value.is_integer() else (repr(value),)
    return ()


_PLAIN_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_ENCODED_VALUE = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=")


def encode_header(text: str) -> str:
    """Encode text as a header value: unchanged if HTTP allows it, otherwise in the base64 form of the protocol."""
    if _PLAIN_VALUE.fullmatch(text) and not _ENCODED_VALUE.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_header(value: str) -> str | None:
    """Decode a header value; None if it is malformed."""
    if not value.startswith("=?"):
        return value
    match = _ENCODED_VALUE.fullmatch(value)
    if match is None:
        return value
    try:
        return base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
