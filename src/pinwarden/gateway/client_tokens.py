"""Letting clients of the gateway in, seeing who may come in, and shutting them out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, plural
from pinwarden.gateway.store.tokens import Token, new_token
from pinwarden.lock import lock_store

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

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
