"""What an operator does at the registry's own database: namespaces, tokens, the audit log."""

from __future__ import annotations

from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report, plural
from pinwarden.registry.authorization import new_token
from pinwarden.registry.names import check_namespace
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import publishers
from pinwarden.registry.store.publishers import Token
from pinwarden.system.database import ConflictError

_MOST_DAYS = 3650


def add_namespace(registry: Registry, name: str, owner: str) -> Report:
    """A namespace for whoever holds the key."""
    check_namespace(name)
    key = PublicKey.parse(owner)
    try:
        with registry.database.transaction() as step:
            publishers.add_namespace(step, name, key.did, registry.now())
    except ConflictError as err:
        raise PinwardenError(
            "NAMESPACE_REFUSED",
            f"there is a namespace {name} already",
            hint="Its owners change its keys: pinwarden registry keys.",
        ) from err
    facts = {"namespaces": [_namespace(registry, name)]}
    return _report("registry namespace", name, f"{name} belongs to {key.did}", facts)


def list_namespaces(registry: Registry) -> Report:
    """Every namespace with its keys."""
    with registry.database.transaction() as step:
        names = publishers.namespaces(step)
    rows = [_namespace(registry, name) for name in names]
    return _report("registry namespace", "", plural(len(rows), "namespace"), {"namespaces": rows})


def _namespace(registry: Registry, name: str) -> dict[str, Any]:
    with registry.database.transaction() as step:
        return {"namespace": name, "keys": publishers.keys_of(step, name)}


def add_token(registry: Registry, namespace: str, label: str, days: int) -> Report:
    """A token for a namespace. It is told here and never again."""
    if not 1 <= days <= _MOST_DAYS:
        raise PinwardenError("USAGE", f"a token lasts from 1 to {_MOST_DAYS} days")
    with registry.database.transaction(exclusive="registry tokens") as step:
        text, token = new_token(step, registry.now(), namespace, label, days)
    return Report(
        command="registry token",
        subject=token.id,
        summary=text,
        exit_code=EXIT_CLEAN,
        notes=(f"the token {token.id} of {namespace} lasts {days} days; only its digest is kept",),
        facts={"token": text, "tokens": [_token(token)]},
    )


def list_tokens(registry: Registry) -> Report:
    """Every token, without the tokens."""
    with registry.database.transaction() as step:
        found = publishers.tokens(step)
    facts = {"tokens": [_token(each) for each in found]}
    return _report("registry token", "", plural(len(found), "token"), facts)


def revoke_token(registry: Registry, token_id: str) -> Report:
    """Let a token count no longer, from this moment."""
    with registry.database.transaction() as step:
        done = publishers.revoke_token(step, token_id, registry.moment())
        left = [each for each in publishers.tokens(step) if each.id == token_id]
    if not done:
        raise PinwardenError("PUBLISHER_UNKNOWN", f"no token {token_id[:80]!a} that still counts")
    return _report("registry token", token_id, f"{token_id} is revoked", {"tokens": [_token(each) for each in left]})


def _token(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "namespace": token.namespace,
        "label": token.label,
        "created_at_utc": token.created_at,
        "expires_ms": token.expires,
        "revoked": token.revoked is not None,
    }


def audit(registry: Registry, most: int) -> Report:
    """The latest of what was asked of the registry, newest first."""
    with registry.database.transaction() as step:
        found = publishers.audit(step, most)
    rows = [
        {
            "at_ms": each.moment,
            "action": each.action,
            "namespace": each.namespace,
            "token": each.token,
            "key_id": each.key_id,
            "subject": each.subject,
            "outcome": each.outcome,
            "size": each.size,
        }
        for each in found
    ]
    return _report("registry audit", "", plural(len(rows), "request"), {"requests": rows})


def _report(command: str, subject: str, summary: str, facts: dict[str, Any]) -> Report:
    return Report(command=command, subject=subject, summary=summary, exit_code=EXIT_CLEAN, facts=facts)
