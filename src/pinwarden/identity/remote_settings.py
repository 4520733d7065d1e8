"""Reads the tables ``[remotes.NAME]`` of ``pinwarden.toml``: how Pinwarden gets access to remote servers. Pure."""

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

Account = Literal["person", "shared", "machine"]
ACCOUNTS: tuple[Account, ...] = ("person", "shared", "machine")
"""Whose account a server is used with: each person's own, one for all that an admin connects, or the gateway's."""
_KEYS = (
    *("account", "issuer", "client-id", "client-secret-variable", "scopes", "resource"),
    *("allow-registration", "ca-file"),
)
_SECRET_VARIABLE = re.compile(r"PINWARDEN_(?:[A-Z0-9]+_)*SECRET(?:_[A-Z0-9]+)*")
"""Only these: a project's file must not be able to send any other variable to an issuer that it names."""
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, section 3.3
_MAX_REMOTES = 1000


class RemoteSettings(Record):
    """How Pinwarden gets access to one remote server, as an OAuth client."""

    account: Account = "person"
    issuer: str = ""
    """The only issuer that may be used; empty for the one that the server names."""
    client_id: str = ""
    """The client that is registered at the issuer, or the HTTPS address of a client metadata document."""
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    """What is requested; empty for what the server asks for."""
    resource: str = ""
    """What tokens are requested for, if that is not the server's own address."""
    allow_registration: bool = False
    """Whether Pinwarden may register itself as a client at the issuer."""
    ca_file: str | None = None

    @property
    def has_metadata_document(self) -> bool:
        """Whether the client id is the address of a document about the client."""
        return self.client_id.startswith("https://")


def parse_remotes(data: bytes, variables: Mapping[str, str]) -> dict[str, RemoteSettings]:
    """Read the tables from ``pinwarden.toml``, by the name of the server. Raises REMOTES_INVALID.

    Client secrets are read from the environment variables that the tables name.
    """
    if b"remotes" not in data:
        return {}
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as err:
        raise _settings_error("pinwarden.toml", "is not TOML") from err
    if "remotes" not in document:
        return {}
    tables = _RemotesTable(document["remotes"], "remotes")
    if len(tables.value) > _MAX_REMOTES:
        raise _settings_error("remotes", f"has more than {_MAX_REMOTES} servers")
    return {name: _parse_remote(table, variables) for name, table in tables.members()}


def _parse_remote(table: _RemotesTable, variables: Mapping[str, str]) -> RemoteSettings:
    table.refuse_unknown(_KEYS)
    settings = RemoteSettings(
        account=table.one_of("account", ACCOUNTS, default="person"),
        issuer=_parse_url(table, "issuer"),
        client_id=table.string("client-id", default=""),
        client_secret=_read_secret(table, variables),
        scopes=table.strings("scopes", max_items=50, optional=True),
        resource=_parse_url(table, "resource"),
        allow_registration=table.boolean("allow-registration", default=False),
        ca_file=table.optional_string("ca-file"),
    )
    if not all(_SCOPE.fullmatch(scope) for scope in settings.scopes):
        table.fail("scopes", "has an item that is not one scope, without spaces and quotes")
    if settings.client_id and not settings.has_metadata_document and not settings.issuer:
        # Otherwise the server would choose who gets the id and the secret.
        table.fail("client-id", "needs issuer, at which the client is registered")
    if settings.has_metadata_document and urlsplit(settings.client_id).path in ("", "/"):
        table.fail("client-id", "is the address of a client metadata document without a path")
    if settings.client_secret and (not settings.client_id or settings.has_metadata_document):
        table.fail("client-secret-variable", "needs client-id, the id of a registered client")
    if settings.account == "machine" and not settings.client_secret:
        table.fail("account", 'is "machine", which needs client-id and client-secret-variable')
    return settings


def _read_secret(table: _RemotesTable, variables: Mapping[str, str]) -> str:
    if "client-secret-variable" not in table:
        return ""
    variable = table.string("client-secret-variable")
    if not _SECRET_VARIABLE.fullmatch(variable):
        table.fail("client-secret-variable", "must begin with PINWARDEN_ and contain SECRET")
    secret = variables.get(variable, "")
    if not secret:
        table.fail("client-secret-variable", f"names the variable {variable[:80]!a}, which is not set")
    return secret


def _parse_url(table: _RemotesTable, name: str) -> str:
    if name not in table:
        return ""
    table.parse_string(name, HttpAddress.parse)
    return table.string(name)


class _RemotesTable(JsonObject):
    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, _settings_error, separator=".")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        for key in self.value:
            if key not in known:
                self.fail(key[:80], f"is not a known key; known: {', '.join(known)}")

    def _wrap(self, value: Any, path: str) -> _RemotesTable:
        return type(self)(value, path)


def _settings_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("REMOTES_INVALID", f"{path[:200]} {problem}", data={"key": path})
