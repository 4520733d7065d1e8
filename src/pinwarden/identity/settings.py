"""Reads the table ``[identity]`` of ``pinwarden.toml``: whose tokens and logins count, and for which role. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.typed_json import JsonObject
from pinwarden.system.target import HttpAddress

Role = Literal["viewer", "reviewer", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "reviewer", "admin")
"""What a person may do: look; also approve and reject; also change tokens and settings."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The signature algorithms that may be allowed: none with a shared secret, and not ``none``."""
DEFAULT_ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "EdDSA")

_KEYS = ("issuer", "algorithms", "groups-claim", "ca-file", "clients", "login", "roles")
_CLIENT_KEYS = (
    *("url", "audiences", "leeway-seconds", "longest-seconds", "require-type"),
    *("read-scope", "call-scope", "metrics-scope"),
)
_LOGIN_KEYS = ("client-id", "client-secret-variable", "scopes")


_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, section 3.3


class LoginSettings(Record):
    """How people log in."""

    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty for a public client."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: tuple[str, ...] = ("groups",)
    """The path of the claim with a person's groups."""
    roles: Mapping[Role, frozenset[str]] = field(default_factory=dict)
    """The groups whose members have a role. Without such a group, a person has none, and cannot log in."""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS

    def find_role(self, groups: Iterable[str]) -> Role | None:
        """Return the highest role of a member of these groups; None without one."""
        listed = frozenset(groups)
        return next((role for role in reversed(ROLES) if listed & self.roles.get(role, frozenset())), None)


class TokenLimits(Record):
    """What access tokens may be like, apart from whom they are from and for."""

    leeway_seconds: int = 60
    """How far the issuer's clock may differ from ours."""
    longest_seconds: int = 24 * 3600
    """The maximum lifetime of a token: longer ones would be good long after a person has left."""
    require_type: bool = False
    """Whether the header must say ``typ: at+jwt``. Some providers write ``JWT`` for access tokens."""


DEFAULT_LIMITS = TokenLimits()


class ClientTokenSettings(Record):
    """Which access tokens of the issuer clients may use at the gateway."""

    url: str
    """The URL of the gateway for clients, without a path: the audiences of tokens are below it."""
    audiences: tuple[str, ...] = ()
    """Other audiences that are accepted, for providers that cannot name a URL."""
    limits: TokenLimits = DEFAULT_LIMITS
    read_scope: str = ""
    """The scope that a token needs for lists, prompts and resources; empty for none."""
    call_scope: str = ""
    """The scope that a token needs to call tools, which includes reading; empty: reading includes it."""
    metrics_scope: str = ""
    """The scope that a token needs for the metrics of the gateway; empty: no access token suffices."""


class IdentitySettings(Record):
    """The table ``[identity]``."""

    issuer: str
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    groups_claim: tuple[str, ...] = ("groups",)
    ca_file: str | None = None
    clients: ClientTokenSettings | None = None
    """None if clients may not use tokens of the issuer."""
    login: LoginSettings | None = None
    """None if people cannot log in."""


def parse_identity(data: bytes, variables: Mapping[str, str]) -> IdentitySettings | None:
    """Read the table from ``pinwarden.toml``; None if the file does not have it.

    The client secret is read from the environment variable that the table names. Raises IDENTITY_INVALID.
    """
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as err:
        raise identity_error("pinwarden.toml", "is not TOML") from err
    if "identity" not in document:
        return None
    return identity_from_table(document["identity"], variables)


def identity_from_table(value: Any, variables: Mapping[str, str]) -> IdentitySettings:
    """Build the settings from the parsed table."""
    table = _IdentityTable(value, "identity")
    table.refuse_unknown(_KEYS)
    algorithms = table.strings("algorithms", optional=True) or DEFAULT_ALGORITHMS
    for algorithm in algorithms:
        if algorithm not in ALGORITHMS:
            table.fail("algorithms", f"names {algorithm[:40]!a}; known: {', '.join(ALGORITHMS)}")
    claim = _parse_claim_path(table)
    login, clients = table.optional_object("login"), table.optional_object("clients")
    if login is None and clients is None:
        table.fail("login", "or identity.clients is missing; without both, the issuer is not used")
    return IdentitySettings(
        issuer=_parse_url(table, "issuer"),
        algorithms=algorithms,
        groups_claim=claim,
        ca_file=table.optional_string("ca-file"),
        clients=None if clients is None else _parse_clients(clients),
        login=None if login is None else _parse_login(login, table, claim, algorithms, variables),
    )


def _parse_clients(table: _IdentityTable) -> ClientTokenSettings:
    table.refuse_unknown(_CLIENT_KEYS)
    url = _parse_url(table, "url")
    if urlsplit(url).path not in ("", "/"):
        table.fail("url", "must be the address of the gateway without a path, such as https://mcp.example.com")

    def seconds(name: str, default: int, longest: int) -> int:
        return table.integer(name, maximum=longest) if name in table else default

    def scope(name: str) -> str:
        return table.string(name, _SCOPE, kind="one scope, without spaces and quotes") if name in table else ""

    return ClientTokenSettings(
        url=url.rstrip("/"),
        audiences=table.strings("audiences", max_items=100, optional=True),
        limits=TokenLimits(
            leeway_seconds=seconds("leeway-seconds", DEFAULT_LIMITS.leeway_seconds, 600),
            longest_seconds=seconds("longest-seconds", DEFAULT_LIMITS.longest_seconds, 30 * 24 * 3600),
            require_type=table.boolean("require-type", default=DEFAULT_LIMITS.require_type),
        ),
        read_scope=scope("read-scope"),
        call_scope=scope("call-scope"),
        metrics_scope=scope("metrics-scope"),
    )


def _parse_login(
    table: _IdentityTable,
    identity: _IdentityTable,
    claim: tuple[str, ...],
    algorithms: tuple[str, ...],
    variables: Mapping[str, str],
) -> LoginSettings:
    table.refuse_unknown(_LOGIN_KEYS)
    roles = identity.object("roles")
    roles.refuse_unknown(ROLES)
    by_role: dict[Role, frozenset[str]] = {}
    for role in ROLES:
        groups = roles.strings(role, max_items=1000, optional=True)
        if "" in groups:
            roles.fail(role, "has an empty group")
        by_role[role] = frozenset(groups)
    if not any(by_role.values()):
        identity.fail("roles", "names no group, so no person would have a role")
    secret = ""
    if "client-secret-variable" in table:
        variable = table.string("client-secret-variable")
        secret = variables.get(variable, "")
        if not secret:
            table.fail("client-secret-variable", f"names the variable {variable[:80]!a}, which is not set")
    scopes = table.strings("scopes", max_items=50, optional=True) or ("openid", "profile", "email")
    if "openid" not in scopes:
        table.fail("scopes", "does not have openid, without which there is no ID token")
    return LoginSettings(
        client_id=table.string("client-id"),
        client_secret=secret,
        scopes=scopes,
        groups_claim=claim,
        roles=by_role,
        algorithms=algorithms,
    )


def _parse_claim_path(table: _IdentityTable) -> tuple[str, ...]:
    """Return the path of the groups claim: a name, or a list of names for a claim inside others."""
    value = table.value.get("groups-claim", "groups")
    path = (value,) if isinstance(value, str) else table.strings("groups-claim", max_items=5)
    if not path or not all(path):
        table.fail("groups-claim", "is empty")
    return path


def _parse_url(table: _IdentityTable, name: str) -> str:
    table.parse_string(name, HttpAddress.parse)
    return table.string(name)


class _IdentityTable(JsonObject):
    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, identity_error, separator=".")

    def _wrap(self, value: Any, path: str) -> _IdentityTable:
        return type(self)(value, path)


def identity_error(path: str, problem: str) -> PinwardenError:
    """Return the error IDENTITY_INVALID for the key at a path."""
    return PinwardenError("IDENTITY_INVALID", f"{path[:200]} {problem}", data={"key": path})
