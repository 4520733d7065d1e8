"""The target of a probe: a command that speaks MCP on stdin and stdout, or an address. Also the words of command lines.

A target keeps placeholders such as ``${NAME}``, ``${env:NAME}`` and ``${NAME:-default}`` until it is used, so that no
secret is part of a target, its ``repr`` or a file.

`parse_options` and `split_command_line` parse words as common launchers do. `surely_has_no_secret` is for a server's
start, where loading the patterns of ``masking.py`` would take too long. It only looks for characters and
prefixes without which none of these patterns matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern

PROJECT_FOLDER = "${workspaceFolder}"
"""The placeholder that clients replace by the project's folder."""
Transport = Literal["auto", "streamable-http", "sse"]

_PLACEHOLDER = lazy_pattern(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER_NAME = lazy_pattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a header name, RFC 9110 section 5.6.2
_UNSAFE_IN_URL = lazy_pattern(r"[\x00-\x20\x7f\\]")  # URL parsers disagree about these
_UNSAFE_IN_HEADER = lazy_pattern(r"[\x00-\x08\x0a-\x1f\x7f]")
_PORTS = {"http": 80, "https": 443}


class StdioTarget(Record):
    """A command to run, without a shell."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            _refuse_target("the command has no program")
        texts = (*self.command, *self.env, *self.env.values(), self.cwd or "")
        if any("\0" in text for text in texts):
            _refuse_target("a command, variable or folder contains a NUL character")
        if any(not name or "=" in name for name in self.env):
            _refuse_target("the name of an environment variable is empty or contains =")

    def __repr__(self) -> str:
        return f"StdioTarget(command={self.command!r}, env={sorted(self.env)!r}, cwd={self.cwd!r})"


class HttpTarget(Record):
    """The address of a remote MCP server. ``auto`` tries Streamable HTTP first, then the older HTTP+SSE."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Transport = "auto"

    def __post_init__(self) -> None:
        if self.transport not in ("auto", "streamable-http", "sse"):
            _refuse_target(f"unknown transport {str(self.transport)[:40]!a}")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                _refuse_target(f"{name[:40]!a} is not a header name")
            if _UNSAFE_IN_HEADER.search(value) or not _fits_latin1(value):
                _refuse_target(f"the value of header {name} contains a character that cannot be sent")
        if not _PLACEHOLDER.search(self.url):
            HttpAddress.parse(self.url)

    def __repr__(self) -> str:
        url, headers = strip_query(self.url), sorted(self.headers)
        return f"HttpTarget(url={url!r}, headers={headers!r}, transport={self.transport!r})"


Target = StdioTarget | HttpTarget


class HttpAddress(Record):
    """The parts of an HTTP address. MCP servers are contacted only at addresses that `parse` accepted."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query, as in the request line."""

    @classmethod
    def parse(cls, url: str) -> HttpAddress:
        """Parse an http or https address. User names, passwords and fragments are refused."""
        if not url.isascii() or _UNSAFE_IN_URL.search(url):
            _refuse_target("the address must be ASCII without spaces, control characters and backslashes")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as err:
            raise PinwardenError("TARGET_INVALID", "the address is malformed") from err
        if parts.scheme not in _PORTS:
            _refuse_target("the address must begin with https:// or http://")
        if not parts.hostname or "@" in parts.netloc or parts.fragment:
            _refuse_target("the address must have a host, and no user name, password or fragment")
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
    """Replace each placeholder by its variable, or by its default if the variable is unset or empty.

    Raises VARIABLE_MISSING if a variable is unset and its placeholder has no default.
    """

    def expand(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if default is not None:
            return variables.get(name) or default
        if name not in variables:
            raise PinwardenError("VARIABLE_MISSING", f"the variable {name} is not set", data={"variable": name})
        return variables[name]

    return _PLACEHOLDER.sub(expand, text)


def find_placeholder_names(text: str) -> set[str]:
    """Return the names of the variables that placeholders in a text refer to."""
    return {match[1] for match in _PLACEHOLDER.finditer(text)}


def find_placeholder_values(text: str, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return name and value of each variable that a placeholder in a text refers to."""
    return [(match[1], expand_placeholders(match[0], variables)) for match in _PLACEHOLDER.finditer(text)]


def strip_query(url: str) -> str:
    """Return an address for output, without query and fragment, which may contain a key."""
    return url.partition("?")[0].partition("#")[0]


def _fits_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_target(why: str) -> NoReturn:
    raise PinwardenError("TARGET_INVALID", why)


MAX_COMMAND_LINE = 20_000  # splitting takes a microsecond for each character

_PROGRAM_SUFFIX = lazy_pattern(r"\.(?:exe|cmd|bat|ps1|com)$", re.IGNORECASE)
_ABSOLUTE = lazy_pattern(r"(?:/|~|[A-Za-z]:[\\/]|\\\\|\$|%[A-Za-z_]+%)")


class ParsedOptions(Record):
    """The options before the first positional word, and the words from there on."""

    values: Mapping[str, tuple[str, ...]]
    rest: tuple[str, ...]

    def get(self, *names: str) -> str | None:
        """Return the value of the first of these options that was given."""
        return next((self.values[name][0] for name in names if self.values.get(name)), None)

    def has(self, *names: str) -> bool:
        """Whether one of these options was given."""
        return any(name in self.values for name in names)

    def settings(self, long_names: Mapping[str, str], *, ignored: frozenset[str], first_of: str) -> tuple[str, ...]:
        """Return the options in one spelling and order, without ``ignored`` and the first value of ``first_of``."""
        merged: dict[str, list[str]] = {}
        for name, values in self.values.items():
            if name not in ignored:
                merged.setdefault(long_names.get(name, name), []).extend(values)
        if first_of in merged:
            del merged[first_of][0]
        return tuple(f"{name}={value}" for name in sorted(merged) for value in merged[name])


def parse_name_set(text: str) -> frozenset[str]:
    """Parse a set of names, which are separated by spaces."""
    return frozenset(text.split())


def parse_options(words: Sequence[str], with_value: frozenset[str]) -> ParsedOptions:
    """Parse the options before the first positional word.

    An option in ``with_value`` takes the next word as its value, unless it has the form ``NAME=VALUE``.
    """
    values: dict[str, tuple[str, ...]] = {}
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        index += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not equals and name in with_value and index < len(words):
            value = words[index]
            index += 1
        elif not equals and not name.startswith("--") and len(name) > 2 and name[:2] in with_value:
            name, value = name[:2], name[2:]
        values[name] = (*values.get(name, ()), value)
    return ParsedOptions(values=values, rest=tuple(words[index:]))


def split_command_line(line: str) -> list[str]:
    """Split a line into words like a shell; empty if a quote is not closed or the line is too long."""
    import shlex

    try:
        return shlex.split(line) if len(line) <= MAX_COMMAND_LINE else []
    except ValueError:
        return []


def program_name(program: str) -> str:
    """Return the name of a program, without its folder and Windows suffix, in lower case."""
    return _PROGRAM_SUFFIX.sub("", re.split(r"[\\/]", program)[-1]).lower()


def is_absolute(path: str) -> bool:
    """Whether a path is absolute. A path that begins with a variable counts as absolute."""
    return bool(_ABSOLUTE.match(path))


_SYNTAX = frozenset("=: \t\r\n\v\f")
"""Every assignment, header and URL contains one of these characters."""
_TOKEN_PREFIXES = (
    *("gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "sk_", "rk_", "AKIA", "ASIA", "xox"),
    *("xapp-", "AIza", "ya29.", "npm_", "pypi-", "hf_", "dop_v1_", "SG.", "ntn_", "secret_", "lin_api_", "shpat_"),
    *("dckr_pat_", "figd_", "eyJ"),
)
"""Every key in the known format of a service contains one of these prefixes."""
_MIN_KEY_LENGTH = 24  # a shorter run of characters without a dot or slash is never taken for a key
_MAX_WORD = 4096


def surely_has_no_secret(words: Sequence[str]) -> bool:
    """Whether it is safe to store and show these words: none is, contains or announces a secret. False if in doubt."""
    return all(_is_plain_word(word) for word in words)


def _is_plain_word(word: str) -> bool:
    if not word.isascii() or len(word) > _MAX_WORD or not _SYNTAX.isdisjoint(word):
        return False
    if word.startswith("-") and len(word) > 2:  # the name of an option; its value may be the next word
        return False
    if any(mark in word for mark in _TOKEN_PREFIXES):
        return False
    return all(len(part) < _MIN_KEY_LENGTH for part in word.replace("/", ".").split("."))
