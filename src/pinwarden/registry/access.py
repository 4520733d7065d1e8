"""Access control of a registry: tokens, rate limits, namespaces, signed requests, and the operator's commands."""

from __future__ import annotations

import secrets
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.registry import registry_documents as statement_document
from pinwarden.registry.names import check_namespace
from pinwarden.registry.namespace_names import find_namespace_warning
from pinwarden.registry.registry import Registry, generate_row_id, to_milliseconds
from pinwarden.registry.registry_documents import PublisherStatement
from pinwarden.registry.store import publishers
from pinwarden.registry.store.publishers import DONE, REQUESTED, AuditRow, PublisherToken
from pinwarden.system.database import ConflictError, Transaction

_TOKEN_PREFIX = "pwt_"  # noqa: S105 - lets secret scanners recognise a token
_HOUR = 3_600_000
_TOKENS_LOCK = "registry tokens"
_NAMESPACES_LOCK = "registry namespaces"
_MAX_DAYS = 3650


class Caller(Record):
    """An authenticated publisher."""

    token: PublisherToken


def authenticate(registry: Registry, token: str | None, action: str, size: int = 0) -> Caller:
    """Authenticate a token and count its use against the rate limits. Call it before any other work on the request."""
    moment = registry.now_ms()
    with registry.database.transaction() as transaction:  # unknown tokens are refused without taking the lock
        _find_valid_token(transaction, token, moment)
    # Exclusive, so that concurrent requests cannot both pass the limit.
    with registry.database.transaction(exclusive=_TOKENS_LOCK) as transaction:
        valid = _find_valid_token(transaction, token, moment)
        requests, used = publishers.count_usage(transaction, valid.id, moment - _HOUR)
        limits = registry.limits
        if requests >= limits.requests_per_hour or used + size > limits.bytes_per_hour:
            raise PinwardenError(
                "PUBLISH_LIMIT",
                f"the token {valid.id} exceeded its rate limit for the last hour",
                data={"reason": "rate"},
            )
        row = AuditRow(
            id=generate_row_id(),
            moment=moment,
            action=action,
            namespace=valid.namespace,
            token=valid.id,
            key_id=None,
            subject="",
            outcome=REQUESTED,
            size=size,
        )
        publishers.write_audit(transaction, row)
    return Caller(token=valid)


def _find_valid_token(transaction: Transaction, token: str | None, moment: int) -> PublisherToken:
    row = publishers.find_token(transaction, hash_token(token)) if token else None
    if row is None or row.revoked is not None or row.expires <= moment:
        raise PinwardenError("PUBLISHER_UNKNOWN", "the token is missing, unknown, expired or revoked")
    return row


def hash_token(text: str) -> str:
    """Hash a token for storage. Tokens are long random values, so a plain hash is sufficient."""
    return str(Digest.of_bytes(b"pinwarden registry token\0" + text.encode("utf-8", "surrogatepass")))


def verify_statement(registry: Registry, document: object, action: str) -> PublisherStatement:
    """Verify that a statement (a signed request) is recent, and is for this registry and this action."""
    statement = statement_document.statement_from_json(document)
    if statement.log_id != registry.identity.log_id or statement.action != action:
        raise PinwardenError("REQUEST_STALE", "the request was signed for another registry or another action")
    difference = abs(to_milliseconds(statement.issued_at_utc) - registry.now_ms())
    if difference > registry.limits.statement_seconds * 1000:
        raise PinwardenError(
            "REQUEST_STALE",
            f"the request was signed at {statement.issued_at_utc[:40]}, but the registry's time is {registry.now()}",
            hint="Check this machine's clock, and repeat the command.",
        )
    return statement


def authorize_namespace(transaction: Transaction, caller: Caller, statement: PublisherStatement, tool: str) -> str:
    """Return the namespace of a bundle. Raises unless the caller's token and the signing key belong to it."""
    namespace = publishers.find_namespace(transaction, tool)
    if namespace is None:
        raise PinwardenError("NAMESPACE_REFUSED", f"no namespace of this registry contains {tool[:80]!a}")
    if namespace != caller.token.namespace:
        raise PinwardenError(
            "NAMESPACE_REFUSED", f"the token is for {caller.token.namespace}, but {tool[:80]!a} is in {namespace}"
        )
    if statement.key_id not in publishers.list_namespace_keys(transaction, namespace):
        raise PinwardenError("NAMESPACE_REFUSED", f"{statement.key_id} is not a key of the namespace {namespace}")
    return namespace


def mark_statement_used(
    transaction: Transaction, registry: Registry, statement: PublisherStatement, *, again: bool = False
) -> None:
    """Record that a statement was used. Raises if it was used before, unless ``again`` is set."""
    if not publishers.add_used_statement(transaction, str(statement.digest), registry.now_ms()) and not again:
        raise PinwardenError("REQUEST_STALE", "the request was already used")


def record_success(
    transaction: Transaction, registry: Registry, caller: Caller, statement: PublisherStatement, subject: str
) -> None:
    """Write a successful request to the audit log, in the request's transaction."""
    publishers.write_audit(transaction, _build_audit_row(registry, caller, statement.action, subject, statement.key_id))


def record_refusal(registry: Registry, caller: Caller | None, action: str, subject: str, err: PinwardenError) -> None:
    """Write a refused request to the audit log, unless it is unauthenticated: such requests could fill the disk."""
    if caller is not None:
        with registry.database.transaction() as transaction:
            publishers.write_audit(
                transaction, replace(_build_audit_row(registry, caller, action, subject, None), outcome=err.code)
            )


def list_refused_requests(registry: Registry, after: int, limit: int) -> list[AuditRow]:
    """Return the first requests that were refused after a time in milliseconds."""
    with registry.database.transaction() as transaction:
        return publishers.list_refused(transaction, after, limit)


def _build_audit_row(registry: Registry, caller: Caller, action: str, subject: str, key_id: str | None) -> AuditRow:
    return AuditRow(
        id=generate_row_id(),
        moment=registry.now_ms(),
        action=action,
        namespace=caller.token.namespace,
        token=None,  # authentication has already counted this use of the token
        key_id=key_id,
        subject=subject[:200],
        outcome=DONE,
    )


# Operator commands


def add_namespace(registry: Registry, name: str, owner: str) -> Report:
    """Create a namespace, with the key ``owner`` as its first owner."""
    check_namespace(name)
    key = PublicKey.parse(owner)
    try:
        with registry.database.transaction(exclusive=_NAMESPACES_LOCK) as transaction:
            warning = find_namespace_warning(transaction, name)
            publishers.add_namespace(transaction, name, key.did, registry.now())
    except ConflictError as err:
        raise PinwardenError(
            "NAMESPACE_REFUSED",
            f"the namespace {name} already exists",
            hint="Its owners can change its keys with pinwarden registry keys.",
        ) from err
    facts = {"namespaces": [_namespace_to_json(registry, name)]}
    report = _build_report("registry namespace", name, f"{name} belongs to {key.did}", facts)
    return report if warning is None else replace(report, notes=(f"warning: {warning}",))


def list_namespaces(registry: Registry) -> Report:
    """List the namespaces and their keys."""
    with registry.database.transaction() as transaction:
        names = publishers.list_namespaces(transaction)
    rows = [_namespace_to_json(registry, name) for name in names]
    return _build_report("registry namespace", "", plural(len(rows), "namespace"), {"namespaces": rows})


def _namespace_to_json(registry: Registry, name: str) -> dict[str, Any]:
    with registry.database.transaction() as transaction:
        return {"namespace": name, "keys": publishers.list_namespace_keys(transaction, name)}


def add_token(registry: Registry, namespace: str, label: str, days: int) -> Report:
    """Create a token for a namespace. Only this report shows the token."""
    if not 1 <= days <= _MAX_DAYS:
        raise PinwardenError("USAGE", f"a token is valid for 1 to {_MAX_DAYS} days")
    with registry.database.transaction(exclusive=_TOKENS_LOCK) as transaction:
        text, token = create_token(transaction, registry.now(), namespace, label, days)
    return Report(
        command="registry token",
        subject=token.id,
        summary=text,
        exit_code=EXIT_CLEAN,
        notes=(
            f"the token {token.id} of {namespace} is valid for {days} days; only its digest is stored, so copy it now",
        ),
        facts={"token": text, "tokens": [_token_to_json(token)]},
    )


def create_token(
    transaction: Transaction, registry_now: str, namespace: str, label: str, days: int
) -> tuple[str, PublisherToken]:
    """Create a token for a namespace. Return its text, which is not stored, and its record."""
    if namespace not in publishers.list_namespaces(transaction):
        raise PinwardenError(
            "NAMESPACE_REFUSED",
            f"there is no namespace {namespace[:80]!a}",
            hint="Create it first: pinwarden registry namespace add NAME --owner KEY.",
        )
    text = _TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = PublisherToken(
        id=generate_row_id(),
        namespace=namespace,
        label=label,
        created_at=registry_now,
        expires=to_milliseconds(registry_now) + days * 24 * _HOUR,
        revoked=None,
    )
    publishers.add_token(transaction, token, hash_token(text))
    return text, token


def list_tokens(registry: Registry) -> Report:
    """List the tokens, without their text."""
    with registry.database.transaction() as transaction:
        tokens = publishers.list_tokens(transaction)
    facts = {"tokens": [_token_to_json(token) for token in tokens]}
    return _build_report("registry token", "", plural(len(tokens), "token"), facts)


def revoke_token(registry: Registry, token_id: str) -> Report:
    """Revoke a token immediately."""
    with registry.database.transaction() as transaction:
        revoked = publishers.revoke_token(transaction, token_id, registry.now_ms())
        tokens = [token for token in publishers.list_tokens(transaction) if token.id == token_id]
    if not revoked:
        raise PinwardenError("PUBLISHER_UNKNOWN", f"there is no active token {token_id[:80]!a}")
    return _build_report(
        "registry token", token_id, f"{token_id} is revoked", {"tokens": [_token_to_json(token) for token in tokens]}
    )


def _token_to_json(token: PublisherToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "namespace": token.namespace,
        "label": token.label,
        "created_at_utc": token.created_at,
        "expires_ms": token.expires,
        "revoked": token.revoked is not None,
    }


def report_audit_log(registry: Registry, limit: int) -> Report:
    """Report the latest rows of the registry's audit log, newest first."""
    with registry.database.transaction() as transaction:
        entries = publishers.list_audit(transaction, limit)
    rows = [
        {
            "at_ms": entry.moment,
            "action": entry.action,
            "namespace": entry.namespace,
            "token": entry.token,
            "key_id": entry.key_id,
            "subject": entry.subject,
            "outcome": entry.outcome,
            "size": entry.size,
        }
        for entry in entries
    ]
    return _build_report("registry audit", "", plural(len(rows), "request"), {"requests": rows})


def _build_report(command: str, subject: str, summary: str, facts: dict[str, Any]) -> Report:
    return Report(command=command, subject=subject, summary=summary, exit_code=EXIT_CLEAN, facts=facts)
