"""Creates, lists and revokes the tokens of the gateway's clients. Only the hashes of tokens are stored."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.gateway.audit.event import SIGN_IN_REFUSED, SIGNED_IN, TOKEN_ADDED, TOKEN_REVOKED, AuditEvent
from pinwarden.lock import lock_store
from pinwarden.system.database import Database, Schema, load_schema

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

TOPIC = "tokens"
"""The topic of notifications about tokens."""
_MAX_ADMITTED = 10_000  # clients of one run that are remembered
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TOKEN_PREFIX = "pwt_"  # noqa: S105  a prefix is no secret
"""What static tokens begin with, so that secret scanners recognize them. No access token of an issuer does."""
READ, CALLS, METRICS = "read", "call", "metrics"
"""The scopes: lists, prompts and resources; also calls of tools; the metrics of the gateway."""
ALL_SCOPES = frozenset({READ, CALLS, METRICS})
SCOPES = (READ, CALLS, METRICS)
MAX_DAYS = 3650
"""The longest lifetime of a token."""
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
    expires_at: str | None = None
    """None for tokens that an earlier release created: they do not expire."""
    scopes: frozenset[str] = ALL_SCOPES
    teams: tuple[str, ...] = ()
    """The client's teams, for the rules of the policy."""

    @property
    def expiry(self) -> float:
        """The expiry in seconds since 1970."""
        return inf if self.expires_at is None else datetime.fromisoformat(self.expires_at).timestamp()

    @property
    def id(self) -> str:
        """The short id that users see."""
        return self.digest[:ID_LENGTH]


def load_tokens_schema() -> Schema:
    """Return the tables of this store."""
    return load_schema("tokens")


def generate_token() -> str:
    """Return a new token with 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def check_client_name(client: str) -> None:
    """Raise ``USAGE`` unless a client may have this name."""
    if not _CLIENT.fullmatch(client):
        raise PinwardenError(
            "USAGE",
            f"{client[:80]!a} is not a valid client name",
            hint="Use at most 64 letters, digits, dots, dashes and underscores.",
        )


class Tokens:
    """The tokens in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, token: GatewayToken) -> None:
        """Store the hash of a client's token."""
        check_client_name(token.client)
        lists = (json.dumps(list(names)) for names in (token.servers, sorted(token.scopes), token.teams))
        with self._database.transaction() as transaction:
            transaction.run(
                "INSERT INTO token (digest, client, servers, made_at, expires_at, scopes, teams)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (token.digest, token.client, next(lists), token.made_at, token.expires_at, *lists),
            )
            transaction.notify(TOPIC)

    def list_all(self) -> list[GatewayToken]:
        """Return all tokens, including revoked ones, the oldest first."""
        rows = self._database.rows(
            "SELECT digest, client, servers, made_at, revoked_at, expires_at, scopes, teams"
            " FROM token ORDER BY made_at, digest"
        )
        return [_parse_token(*row) for row in rows]

    def list_valid(self) -> list[GatewayToken]:
        """Return the tokens that are neither revoked nor expired."""
        now = time.time()
        return [token for token in self.list_all() if token.revoked_at is None and now < token.expiry]

    def find_revocable(self, name: str) -> list[GatewayToken]:
        """Return the token with this id, or all tokens of the client with this name, that are not revoked yet."""
        tokens = [token for token in self.list_all() if name in (token.client, token.id, token.digest)]
        if not tokens:
            raise PinwardenError("TOKEN_UNKNOWN", f"there is no token or client {name[:80]!a}", hint=_LIST_HINT)
        return [token for token in tokens if token.revoked_at is None]

    def revoke(self, tokens: Sequence[GatewayToken], at: str) -> None:
        """Revoke tokens."""
        with self._database.transaction() as transaction:
            for token in tokens:
                transaction.run(
                    "UPDATE token SET revoked_at = ? WHERE digest = ? AND revoked_at IS NULL", (at, token.digest)
                )
            transaction.notify(TOPIC)


def _parse_token(  # noqa: PLR0913, PLR0917  the columns of the table
    digest: str,
    client: str,
    servers: str,
    made_at: str,
    revoked_at: str | None,
    expires_at: str | None,
    scopes: str | None,
    teams: str | None,
) -> GatewayToken:
    if not isinstance(client, str):
        raise _corrupt("client name")
    token = GatewayToken(
        digest=digest,
        client=client,
        servers=_parse_names(servers, "server names"),
        made_at=made_at,
        revoked_at=revoked_at,
        expires_at=expires_at,
        scopes=ALL_SCOPES if scopes is None else frozenset(_parse_names(scopes, "scopes")),
        teams=() if teams is None else _parse_names(teams, "teams"),
    )
    try:
        _ = token.expiry
    except (ValueError, TypeError) as err:
        raise _corrupt("expiry") from err
    return token


def _parse_names(text: str, what: str) -> tuple[str, ...]:
    try:
        names = json.loads(text)
    except (ValueError, TypeError) as err:
        raise _corrupt(what) from err
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _corrupt(what)
    return tuple(names)


def _corrupt(what: str) -> PinwardenError:
    return PinwardenError("DATABASE_CORRUPT", f"the {what} of a token in the database is malformed")


_COMMAND = "gateway token"
_LIST_HINT = "See pinwarden gateway token list."


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token. A plain hash suffices, because a token has 256 random bits."""
    return hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()


class TokenOptions(Record):
    """What a new token is for."""

    servers: tuple[str, ...] = ()
    days: int = 90
    scopes: tuple[str, ...] = ()
    """Empty for all."""
    teams: tuple[str, ...] = ()


def add_token(  # noqa: PLR0913, PLR0917 - who creates which token, where and when
    state: GatewayState, project: Project, client: str, options: TokenOptions, now: str, by: str
) -> tuple[Report, str]:
    """Create a token for a client, and record that ``by`` did. Returns the report and the token, which is not stored.

    Raises ``SERVER_NOT_LOCKED`` for a server that the project's lock does not have.
    """
    if not 1 <= options.days <= MAX_DAYS:
        raise PinwardenError("USAGE", f"a token is valid for 1 to {MAX_DAYS} days")
    for team in options.teams:
        if not _CLIENT.fullmatch(team):
            raise PinwardenError("USAGE", f"{team[:80]!a} is not a valid team name")
    notes = _check_servers(project, options.servers)
    secret = generate_token()
    scopes = set(options.scopes) or ALL_SCOPES
    stored = GatewayToken(
        digest=hash_token(secret),
        client=client,
        servers=options.servers,
        made_at=now,
        expires_at=_add_days(now, options.days),
        scopes=frozenset(scopes | {READ} if CALLS in scopes else scopes),
        teams=options.teams,
    )
    check_client_name(client)
    state.record_events(build_token_event(TOKEN_ADDED, stored, by))
    state.tokens.add(stored)
    report = Report(
        command=_COMMAND,
        subject=client,
        summary=f"token {stored.id} for {client}, valid for {plural(options.days, 'day')}",
        exit_code=EXIT_CLEAN,
        notes=("copy the token now: only its hash is stored, and it cannot be shown again", *notes),
        facts={"tokens": [_token_to_json(stored)], "token": secret},
    )
    return report, secret


def _add_days(now: str, days: int) -> str:
    moment = datetime.fromisoformat(now) + timedelta(days=days)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


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
    valid, revoked = len(state.tokens.list_valid()), sum(token.revoked_at is not None for token in tokens)
    expired = len(tokens) - valid - revoked
    return Report(
        command=_COMMAND,
        subject="tokens",
        summary=f"{plural(valid, 'valid token')}, {revoked} revoked" + (f", {expired} expired" if expired else ""),
        exit_code=EXIT_CLEAN,
        facts={"tokens": [_token_to_json(token) for token in tokens]},
    )


def revoke_tokens(state: GatewayState, name: str, now: str, by: str) -> Report:
    """Revoke one token by its id, or all tokens of a client, and record that ``by`` did."""
    revoked = state.tokens.find_revocable(name)
    if revoked:
        state.record_events(*(build_token_event(TOKEN_REVOKED, token, by) for token in revoked))
        state.tokens.revoke(revoked, now)
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


def build_token_event(kind: str, token: GatewayToken, by: str) -> AuditEvent:
    """Return the audit event about a token, which contains its id and never the token."""
    scopes = ", ".join(sorted(token.scopes))
    teams = f", teams {', '.join(token.teams)}" if token.teams else ""
    reason = f"for {', '.join(token.servers) or 'all servers'}, scopes {scopes}{teams}, until {token.expires_at}"
    return AuditEvent(kind=kind, client=token.client, item_kind="token", item=token.id, reason=reason, by=by)


class SignInEvents:
    """The audit events about sign-ins in one run: each client once, and of refusals the 1st, 10th, 100th and so on.

    Anyone who reaches the address can cause refusals, so their number must not fill the log.
    """

    def __init__(self) -> None:
        self._admitted: set[tuple[str, str]] = set()
        self._refused = 0

    def build_admitted(self, client: str, digest: str, teams: Sequence[str]) -> AuditEvent | None:
        """Return the event for a client with a valid token; None if there was one in this run.

        ``digest`` is the digest of a static token, or the issuer of an access token.
        """
        if (client, digest) in self._admitted:
            return None
        if len(self._admitted) >= _MAX_ADMITTED:
            self._admitted.clear()
        self._admitted.add((client, digest))
        is_issuer = "://" in digest
        return AuditEvent(
            kind=SIGNED_IN,
            client=client,
            item_kind="issuer" if is_issuer else "token",
            item=digest if is_issuer else digest[:ID_LENGTH],
            reason=f"teams {', '.join(teams)}" if teams else "",
        )

    def build_refused(self, item_kind: str, reason: str, code: str = "") -> AuditEvent | None:
        """Return the event for a refused token, code or login; None for most of many."""
        self._refused = count = self._refused + 1
        if count != 10 ** (len(str(count)) - 1):
            return None
        times = f" {count} refusals in this run." if count > 1 else ""
        return AuditEvent(kind=SIGN_IN_REFUSED, item_kind=item_kind, code=code, reason=f"{reason}{times}")


def _token_to_json(token: GatewayToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "client": token.client,
        "servers": list(token.servers),
        "scopes": sorted(token.scopes, key=SCOPES.index) if token.scopes <= ALL_SCOPES else sorted(token.scopes),
        "teams": list(token.teams),
        "made_at": token.made_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }
