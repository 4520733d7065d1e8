"""The tokens of the gateway's clients. Only hashes are kept: whoever reads the database cannot ask the gateway."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.database import Database, Schema, load_schema

_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX = "pwt_"  # so that scanners for secrets know one when they see it
SHOWN = 12
"""How much of a hash names a token: enough to tell any two apart."""


class Token(Record):
    """What is kept of a token."""

    digest: str
    """SHA-256 of the token, in hex."""
    client: str
    servers: tuple[str, ...]
    """The servers that it is good for; all if none is named."""
    made_at: str
    revoked_at: str | None = None

    @property
    def id(self) -> str:
        """What people call it."""
        return self.digest[:SHOWN]


def tokens_schema() -> Schema:
    """The tables of this store."""
    return load_schema("tokens")


def new_token() -> str:
    """256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


class Tokens:
    """The tokens in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, digest: str, client: str, servers: Sequence[str], at: str) -> Token:
        """Let whoever has the token of this hash in, under the name of a client."""
        if not _CLIENT.fullmatch(client):
            raise PinwardenError(
                "USAGE", f"{client[:80]!a} is no name for a client: letters, digits, dots, dashes, at most 64"
            )
        token = Token(digest=digest, client=client, servers=tuple(servers), made_at=at)
        with self._database.transaction() as step:
            step.run(
                "INSERT INTO token (digest, client, servers, made_at) VALUES (?, ?, ?, ?)",
                (digest, client, json.dumps(list(servers)), at),
            )
        return token

    def all(self) -> list[Token]:
        """Every token that was ever made, the oldest first."""
        rows = self._database.rows(
            "SELECT digest, client, servers, made_at, revoked_at FROM token ORDER BY made_at, digest"
        )
        return [_token(*row) for row in rows]

    def valid(self) -> list[Token]:
        """Those that are not revoked."""
        return [token for token in self.all() if token.revoked_at is None]

    def revoke(self, name: str, at: str) -> list[Token]:
        """Revoke the token of an id, or all tokens of a client. Returns those that were still good."""
        found = [token for token in self.all() if name in (token.client, token.id, token.digest)]
        if not found:
            raise PinwardenError("TOKEN_UNKNOWN", f"there is no token or client {name[:80]!a}")
        good = [token for token in found if token.revoked_at is None]
        with self._database.transaction() as step:
            for token in good:
                step.run("UPDATE token SET revoked_at = ? WHERE digest = ? AND revoked_at IS NULL", (at, token.digest))
        return good


def _token(digest: str, client: str, servers: str, made_at: str, revoked_at: str | None) -> Token:
    try:
        named = json.loads(servers)
    except (ValueError, TypeError) as err:
        raise PinwardenError("DATABASE_CORRUPT", "the servers of a token cannot be read") from err
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise PinwardenError("DATABASE_CORRUPT", "the servers of a token cannot be read")
    if not isinstance(client, str):
        raise PinwardenError("DATABASE_CORRUPT", "the client of a token cannot be read")
    return Token(digest=digest, client=client, servers=tuple(named), made_at=made_at, revoked_at=revoked_at)
