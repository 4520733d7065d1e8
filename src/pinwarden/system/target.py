"""The target of a probe: a command that speaks MCP on stdin and stdout, or an address.

A target keeps placeholders such as ``${NAME}``, ``${env:NAME}`` and ``${NAME:-default}`` until it is used, so that no
secret is part of a target, its ``repr`` or a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import Record, field

Transport = Literal["auto", "streamable-http", "sse"]

_PLACEHOLDER = pattern(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TOKEN = pattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a header name, RFC 9110 section 5.6.2
_UNSAFE_IN_URL = pattern(r"[\x00-\x20\x7f\\]")  # URL parsers disagree about these
_UNSAFE_IN_HEADER = pattern(r"[\x00-\x08\x0a-\x1f\x7f]")
_PORTS = {"http": 80, "https": 443}


class StdioTarget(Record):
    """A command to run, without a shell."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            _invalid("the command has no program")
        texts = (*self.command, *self.env, *self.env.values(), self.cwd or "")
        if any("\0" in text for text in texts):
            _invalid("a command, variable or folder contains a NUL character")
        if any(not name or "=" in name for name in self.env):
            _invalid("the name of an environment variable is empty or contains =")

    def __repr__(self) -> str:
        return f"StdioTarget(command={self.command!r}, env={sorted(self.env)!r}, cwd={self.cwd!r})"


class HttpTarget(Record):
    """The address of a remote MCP server. ``auto`` tries Streamable HTTP first, then the older HTTP+SSE."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Transport = "auto"

    def __post_init__(self) -> None:
        if self.transport not in ("auto", "streamable-http", "sse"):
            _invalid(f"unknown transport {str(self.transport)[:40]!a}")
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name):
                _invalid(f"{name[:40]!a} is not a header name")
            if _UNSAFE_IN_HEADER.search(value) or not _fits_latin1(value):
                _invalid(f"the value of header {name} contains a character that cannot be sent")
        if not _PLACEHOLDER.search(self.url):
            HttpAddress.parse(self.url)

    def __repr__(self) -> str:
        url, headers = url_without_query(self.url), sorted(self.headers)
        return f"HttpTarget(url={url!r}, headers={headers!r}, transport={self.transport!r})"


Target = StdioTarget | HttpTarget


class HttpAddress(Record):
    """The parts of an HTTP address. It is parsed only here, so all code agrees on the host."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query, as in the request line."""

    @classmethod
    def parse(cls, url: str) -> HttpAddress:
        """Parse an http or https address. User names, passwords and fragments are refused."""
        if not url.isascii() or _UNSAFE_IN_URL.search(url):
            _invalid("the address must be ASCII without spaces, control characters and backslashes")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as err:
            raise PinwardenError("TARGET_INVALID", "the address is malformed") from err
        if parts.scheme not in _PORTS:
            _invalid("the address must begin with https:// or http://")
        if not parts.hostname or "@" in parts.netloc or parts.fragment:
            _invalid("the address must have a host, and no user name, password or fragment")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(
            scheme=parts.scheme, host=parts.hostname, port=_PORTS[parts.scheme] if port is None else port, path=path
        )

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port. Credentials are sent again only to the same origin."""
        return self.scheme, self.host, self.port

    @property
    def host_header(self) -> str:
        """The value of the Host header: IPv6 in brackets, the port only if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        # The query may contain a key.
        return f"{self.scheme}://{self.host_header}{self.path.partition('?')[0]}"

    __repr__ = __str__


def expand_placeholders(text: str, variables: Mapping[str, str]) -> str:
    """Replace each placeholder by its variable, or by its default if the variable is unset or empty."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise PinwardenError("VARIABLE_MISSING", f"the variable {name} is not set", data={"variable": name})
        return variables[name]

    return _PLACEHOLDER.sub(value, text)


def placeholder_names(text: str) -> set[str]:
    """The variables that a text names."""
    return {found[1] for found in _PLACEHOLDER.finditer(text)}


def placeholder_values(text: str, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables that a text names, with their values."""
    return [(found[1], expand_placeholders(found[0], variables)) for found in _PLACEHOLDER.finditer(text)]


def url_without_query(url: str) -> str:
    """An address for output, without its query, which may contain a key."""
    return url.partition("?")[0].partition("#")[0]


def _fits_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("TARGET_INVALID", why)
