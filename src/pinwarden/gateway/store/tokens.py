"""Tokens of the gateway's clients: create, list and revoke. Only their hashes are stored."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, plural
from pinwarden.lock import lock_store
from pinwarden.system.database import Database, Schema, load_schema

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

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


_COMMAND = "gateway token"


def token_digest(token: str) -> str:
    """What is kept of a token. It is 256 random bits, so a plain hash of it cannot be guessed back."""
    return hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()


def add_token(
    state: GatewayState, project: Project, client: str, servers: Sequence[str], now: str
) -> tuple[Report, str]:
    """A new token for a client, and the report. The token itself is told once, and kept nowhere.

    A server that the project's lock does not have is refused: a token with a typing error in it opens nothing.
    """
    unchecked = _check_servers(project, servers)
    token = new_token()
    kept = state.tokens.add(token_digest(token), client, servers, now)
    report = Report(
        command=_COMMAND,
        subject=client,
        summary=f"token {kept.id} for {client}",
        exit_code=EXIT_CLEAN,
        notes=("this is the only time that the token is shown; only its hash is kept", *unchecked),
        facts={"tokens": [_facts(kept)], "token": token},
    )
    return report, token


def _check_servers(project: Project, servers: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that the lock does not have; what to tell where there is no lock."""
    if not servers:
        return ()
    lock = lock_store.read(project.lock)
    if lock is None:
        return (f"there is no {project.lock} here, so nobody looked whether there is a server {', '.join(servers)}",)
    locked = sorted({entry.name for entry in lock.entries})
    for name in servers:
        if name not in locked:
            raise PinwardenError(
                "SERVER_NOT_LOCKED",
                f"the lock has no entry for {name[:120]!a}",
                hint=f"Locked are: {', '.join(locked)[:400]}. Another lock is named with --file.",
            )
    return ()


def list_tokens(state: GatewayState) -> Report:
    """All tokens, without what would let anybody use them."""
    found = state.tokens.all()
    good = sum(token.revoked_at is None for token in found)
    return Report(
        command=_COMMAND,
        subject="tokens",
        summary=f"{plural(good, 'token')} in use, {len(found) - good} revoked",
        exit_code=EXIT_CLEAN,
        facts={"tokens": [_facts(token) for token in found]},
    )


def revoke_tokens(state: GatewayState, name: str, now: str) -> Report:
    """Revoke one token by its id, or all of a client."""
    revoked = state.tokens.revoke(name, now)
    return Report(
        command=_COMMAND,
        subject=name,
        summary=(
            f"{plural(len(revoked), 'token')} revoked; running gateways shut out who shows it within seconds"
            if revoked
            else f"nothing to revoke: every token of {name} was revoked before"
        ),
        exit_code=EXIT_CLEAN,
        facts={"tokens": [{**_facts(token), "revoked_at": now} for token in revoked]},
    )


def _facts(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "client": token.client,
        "servers": list(token.servers),
        "made_at": token.made_at,
        "revoked_at": token.revoked_at,
    }
