"""Who may ask: the host that was asked for, the web page that asks, and the token that the client shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Set
from typing import Any
from urllib.parse import urlsplit

from pinwarden.core.record import Record, field
from pinwarden.gateway.client_tokens import token_digest
from pinwarden.gateway.http.frames import plain_value
from pinwarden.gateway.http.http1 import Request

_REMEMBERED = 4096  # headers that were found right, so that they are not looked at again


class Client(Record):
    """What a token stands for."""

    name: str
    servers: tuple[str, ...] = ()
    """The servers that this client may see; all of them if none is named."""
    token: str = field(default="", repr=False)
    """The digest of the token: whatever was opened with it ends with it, also if the client has others."""

    def sees(self, server: str) -> bool:
        """Whether a server is one of this client's."""
        return not self.servers or server in self.servers


class Denied(Exception):  # noqa: N818  an answer to give, not a failure to report
    """Not for this client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Access:
    """The rules of admission. A page of another site can make a browser ask us, and can make its own name point at us;
    it cannot make the browser lie about either."""

    def __init__(self, hosts: Collection[str], origins: Collection[str], clients: Mapping[str, Client]) -> None:
        self._hosts = frozenset(each.lower() for each in hosts)
        self._origins = frozenset(each.lower().rstrip("/") for each in origins)
        self._clients = dict(clients)
        self._counting = self._clients
        """Those who are let in now, which may be fewer than are known."""
        self._in_doubt = False
        self._admitted: dict[bytes, Client] = {}
        self._sites: set[bytes] = set()
        self.denied = 0
        self.turn = 0
        """Counts the changes of who is let in."""
        self.on_shut_out: Callable[[Set[Client]], None] = lambda _: None
        """Called with those whose tokens are good no more."""

    def set_clients(self, clients: Mapping[str, Client]) -> None:
        """Let these in from now on, by the digest of their token. Whoever is not among them is shut out."""
        gone = set(self._clients.values()).difference(clients.values())
        self._clients = dict(clients)
        self._in_doubt = False
        self._let_in(self._clients)
        if gone:
            self.on_shut_out(gone)

    def doubt(self, only: Mapping[str, Client] | None = None) -> None:
        """Nobody can say which tokens are good. Those who are known are let in, or ``only`` some of them; nobody is
        shut out for good, and a token that is not let in is told that it may be good."""
        self._in_doubt = True
        self._let_in(self._clients if only is None else dict(only))

    def _let_in(self, clients: dict[str, Client]) -> None:
        if clients != self._counting:
            self._counting = clients
            self._admitted.clear()
            self.turn += 1

    def check_site(self, request: Request) -> str:
        """Refuse a host or an origin that is not ours. Returns the origin of the page that asks, if it is one."""
        given = request.headers[b"host"]
        if given in self._sites and b"origin" not in request.headers:
            return ""
        host = _host_of(given.decode("latin-1"))
        if host is None or host not in self._hosts:
            self.denied += 1
            raise Denied(421, "this gateway does not answer for that host; --allow-host names those that it has")
        given_origin = request.headers.get(b"origin")
        origin = "" if given_origin is None else given_origin.decode("latin-1").lower()
        if given_origin is not None and origin not in self._origins:
            self.denied += 1
            raise Denied(403, "web pages of that origin may not ask this gateway")
        if len(self._sites) < _REMEMBERED:
            self._sites.add(given)
        return origin

    def client_of(self, request: Request) -> Client:
        """Whose token the request shows."""
        given = request.headers.get(b"authorization", b"")
        known = self._admitted.get(given)
        if known is not None:
            return known
        scheme, _, token = given.decode("latin-1").partition(" ")
        is_token = scheme.lower() == "bearer"
        client = self._counting.get(token_digest(token.strip())) if is_token else None
        if client is None:
            self.denied += 1
            if is_token and self._in_doubt:
                raise Denied(503, "nobody can say now whether this token is good; /readyz says why")
            raise Denied(401, "a bearer token is needed")
        if len(self._admitted) < _REMEMBERED:
            self._admitted[given] = client
        return client


def _host_of(header: str) -> str | None:
    """The host of a Host header; None if it is not one."""
    try:
        parts = urlsplit(f"//{header}")
        if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not header.isascii():
            return None
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname


_METHODS = "GET, POST, DELETE"
_HEADERS = (
    *("authorization", "content-type", "accept", "last-event-id"),
    *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
)
_PARAMETER = re.compile(r"mcp-param-[a-z0-9_-]{1,200}")
_MOST_PARAMETERS = 100
_EXPOSED = "mcp-session-id, www-authenticate, retry-after"
_REMEMBERED_SECONDS = 600  # browsers keep the answer for at most some hours; a changed gateway should be heard sooner


def readable_by(origin: str) -> dict[str, str]:
    """The headers of an answer that a page of this origin may read."""
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED, "vary": "origin"}


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what a page may ask."""
    return request.method == "OPTIONS" and b"access-control-request-method" in request.headers


def preflight(request: Request) -> dict[str, str]:
    """What a page may ask: the methods and headers of MCP, and arguments that a tool wants as headers."""
    wanted = request.header(b"access-control-request-headers").lower().split(",", _MOST_PARAMETERS)
    parameters = sorted({each.strip() for each in wanted if _PARAMETER.fullmatch(each.strip())})
    return {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": ", ".join((*_HEADERS, *parameters)),
        "access-control-max-age": str(_REMEMBERED_SECONDS),
    }


_MARK = "x-mcp-header"
_PREFIX = b"mcp-param-"
_DEEPEST = 32  # objects inside of each other, in which a declaration is looked for


class Mismatch(Exception):  # noqa: N818  an answer to give, not a failure to report
    """A header that says something else than the message."""


def checked(lines: bytes, definition: Any, arguments: Any) -> bytes:
    """Of these header lines of a call those that the tool declares. Raises if one of them is not its argument."""
    declared = _declared(definition.get("inputSchema") if type(definition) is dict else None)
    kept = b""
    for line in lines.splitlines(keepends=True):
        name, _, value = line.partition(b":")
        path = declared.get(name.removeprefix(_PREFIX).decode("latin-1"))
        if path is None:
            continue
        if plain_value(value.strip().decode("latin-1")) not in _spellings(_at(arguments, path)):
            raise Mismatch(f"the header {name.decode('latin-1')} is not the argument of the message")
        kept += line
    return kept


def _declared(schema: Any) -> dict[str, tuple[str, ...] | None]:
    """By their names in lower case, the arguments that headers stand for; None for a name that stands for two."""
    found: dict[str, tuple[str, ...] | None] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, each = pending.pop()
        if type(each) is not dict:
            continue
        name = each.get(_MARK)
        if type(name) is str and path:
            found[name.lower()] = None if name.lower() in found else path
        properties = each.get("properties")
        if type(properties) is dict and len(path) < _DEEPEST:
            pending += [((*path, key), value) for key, value in properties.items()]
    return found


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        arguments = arguments.get(name) if type(arguments) is dict else None
    return arguments


def _spellings(value: Any) -> tuple[str, ...]:
    """How a header may say a value; not at all if there is none, or one that no header can say."""
    if type(value) is bool:
        return ("true" if value else "false",)
    if type(value) is str:
        return (value,)
    if type(value) is int:
        return (f"{value:d}",)
    if type(value) is float:
        return (repr(value), f"{value:.0f}") if value.is_integer() else (repr(value),)
    return ()
