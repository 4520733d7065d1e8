"""Creates, lists and revokes the tokens of the gateway's clients. Only the hashes of tokens are stored."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.system.database import Database, Schema, load_schema

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

TOPIC = "tokens"
"""The topic of notifications about tokens."""
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX = "pwt_"  # lets secret scanners recognize a token
ID_LENGTH = 12
"""Hex digits of the hash that identify a token."""


class GatewayToken(Record):
    """A stored token."""

    digest: str
    """SHA-256 of the token, in hex."""
    client: str
    servers: tuple[str, ...]
    """The servers that the token gives access to; empty for all."""
    made_at: str
    revoked_at: str | None = None

    @property
    def id(self) -> str:
        """The short id that users see."""
        return self.digest[:ID_LENGTH]


def load_tokens_schema() -> Schema:
    """Return the tables of this store."""
    return load_schema("tokens")


def generate_token() -> str:
    """Return a new token with 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


class Tokens:
    """The tokens in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, digest: str, client: str, servers: Sequence[str], at: str) -> GatewayToken:
        """Store the hash of a client's token."""
        if not _CLIENT.fullmatch(client):
            raise PinwardenError(
                "USAGE",
                f"{client[:80]!a} is not a valid client name",
                hint="Use at most 64 letters, digits, dots, dashes and underscores.",
            )
        token = GatewayToken(digest=digest, client=client, servers=tuple(servers), made_at=at)
        with self._database.transaction() as transaction:
            transaction.run(
                "INSERT INTO token (digest, client, servers, made_at) VALUES (?, ?, ?, ?)",
                (digest, client, json.dumps(list(servers)), at),
            )
            transaction.notify(TOPIC)
        return token

    def list_all(self) -> list[GatewayToken]:
        """Return all tokens, including revoked ones, the oldest first."""
        rows = self._database.rows(
            "SELECT digest, client, servers, made_at, revoked_at FROM token ORDER BY made_at, digest"
        )
        return [_parse_token(*row) for row in rows]

    def list_valid(self) -> list[GatewayToken]:
        """Return the tokens that are not revoked."""
        return [token for token in self.list_all() if token.revoked_at is None]

    def revoke(self, name: str, at: str) -> list[GatewayToken]:
        """Revoke the token with this id, or all tokens of the client with this name. Returns the revoked tokens."""
        tokens = [token for token in self.list_all() if name in (token.client, token.id, token.digest)]
        if not tokens:
            raise PinwardenError("TOKEN_UNKNOWN", f"there is no token or client {name[:80]!a}", hint=_LIST_HINT)
        valid = [token for token in tokens if token.revoked_at is None]
        with self._database.transaction() as transaction:
            for token in valid:
                transaction.run(
                    "UPDATE token SET revoked_at = ? WHERE digest = ? AND revoked_at IS NULL", (at, token.digest)
                )
            transaction.notify(TOPIC)
        return valid


def _parse_token(digest: str, client: str, servers: str, made_at: str, revoked_at: str | None) -> GatewayToken:
    try:
        names = json.loads(servers)
    except (ValueError, TypeError) as err:
        raise PinwardenError("DATABASE_CORRUPT", "the server names of a token in the database are malformed") from err
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PinwardenError("DATABASE_CORRUPT", "the server names of a token in the database are malformed")
    if not isinstance(client, str):
        raise PinwardenError("DATABASE_CORRUPT", "the client name of a token in the database is malformed")
    return GatewayToken(digest=digest, client=client, servers=tuple(names), made_at=made_at, revoked_at=revoked_at)


_COMMAND = "gateway token"
_LIST_HINT = "See pinwarden gateway token list."


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token. A plain hash suffices, because a token has 256 random bits."""
    return hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()


def add_token(
    state: GatewayState, project: Project, client: str, servers: Sequence[str], now: str
) -> tuple[Report, str]:
    """Create a token for a client. Returns the report and the token, which is not stored.

    Raises ``SERVER_NOT_LOCKED`` for a server that the project's lock does not have.
    """
    notes = _check_servers(project, servers)
    token = generate_token()
    stored = state.tokens.add(hash_token(token), client, servers, now)
    report = Report(
        command=_COMMAND,
        subject=client,
        summary=f"token {stored.id} for {client}",
        exit_code=EXIT_CLEAN,
        notes=("copy the token now: only its hash is stored, and it cannot be shown again", *notes),
        facts={"tokens": [_token_to_json(stored)], "token": token},
    )
    return report, token


def _check_servers(project: Project, servers: Sequence[str]) -> tuple[str, ...]:
    """Check that the lock has these servers. Returns a note if there is no lock."""
    if not servers:
        return ()
    lock = lock_store.read(project.lock)
    if lock is None:
        return (f"the server names ({', '.join(servers)}) were not checked, because {project.lock} does not exist",)
    locked = sorted({entry.name for entry in lock.entries})
    for name in servers:
        if name not in locked:
            raise PinwardenError(
                "SERVER_NOT_LOCKED",
                f"the lock has no entry for {name[:120]!a}",
                hint=f"Locked servers: {', '.join(locked)[:400]}. Use --file to name another lock.",
            )
    return ()


def list_tokens(state: GatewayState) -> Report:
    """Return the report of ``pinwarden gateway token list``."""
    tokens = state.tokens.list_all()
    valid = sum(token.revoked_at is None for token in tokens)
    return Report(
        command=_COMMAND,
        subject="tokens",
        summary=f"{plural(valid, 'valid token')}, {len(tokens) - valid} revoked",
        exit_code=EXIT_CLEAN,
        facts={"tokens": [_token_to_json(token) for token in tokens]},
    )


def revoke_tokens(state: GatewayState, name: str, now: str) -> Report:
    """Revoke one token by its id, or all tokens of a client."""
    revoked = state.tokens.revoke(name, now)
    return Report(
        command=_COMMAND,
        subject=name,
        summary=(
            f"{plural(len(revoked), 'token')} revoked; running gateways apply this within seconds"
            if revoked
            else f"nothing to revoke: every token of {name} is already revoked"
        ),
        exit_code=EXIT_CLEAN,
        facts={"tokens": [{**_token_to_json(token), "revoked_at": now} for token in revoked]},
    )


def _token_to_json(token: GatewayToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "client": token.client,
        "servers": list(token.servers),
        "made_at": token.made_at,
        "revoked_at": token.revoked_at,
    }
