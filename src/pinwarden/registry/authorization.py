"""Who asks, whether they may, and how often: everything that is checked before a request is carried out."""

from __future__ import annotations

import secrets

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.registry import statement as statement_document
from pinwarden.registry.registry import Registry, milliseconds, new_id
from pinwarden.registry.statement import Statement
from pinwarden.registry.store import publishers
from pinwarden.registry.store.publishers import DONE, Asked, Token
from pinwarden.system.database import Transaction

_TOKEN_PREFIX = "pwt_"  # noqa: S105 - so that scanners of secrets find one
_HOUR = 3_600_000
_COUNTING = "registry tokens"


class Caller(Record):
    """Somebody with a token that counts."""

    token: Token


def new_token(step: Transaction, registry_now: str, namespace: str, label: str, days: int) -> tuple[str, Token]:
    """Make a token for a namespace. Its text is told once and not kept."""
    if namespace not in publishers.namespaces(step):
        raise PinwardenError(
            "NAMESPACE_REFUSED",
            f"there is no namespace {namespace[:80]!a}",
            hint="Make it first: pinwarden registry namespace add NAME --owner KEY.",
        )
    text = _TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = Token(
        id=new_id(),
        namespace=namespace,
        label=label,
        created_at=registry_now,
        expires=milliseconds(registry_now) + days * 24 * _HOUR,
        revoked=None,
    )
    publishers.add_token(step, token, token_digest(text))
    return text, token


def token_digest(text: str) -> str:
    """What is kept of a token. It is as long as a key, so a plain digest cannot be turned back."""
    return str(Digest.of_bytes(b"pinwarden registry token\0" + text.encode("utf-8", "surrogatepass")))


def caller_of(registry: Registry, token: str | None, action: str, size: int = 0) -> Caller:
    """Whose token this is, if it counts and was not used too often. The use is noted before anything else is done."""
    moment = registry.moment()
    with registry.database.transaction() as step:  # strangers are sent away without a wait for anybody
        _token_in(step, token, moment)
    with registry.database.transaction(exclusive=_COUNTING) as step:  # or two could count at once, and both be the last
        found = _token_in(step, token, moment)
        requests, used = publishers.used_since(step, found.id, moment - _HOUR)
        limits = registry.limits
        if requests >= limits.requests_per_hour or used + size > limits.bytes_per_hour:
            raise PinwardenError(
                "PUBLISH_LIMIT", f"the token {found.id} was used too often in the last hour", data={"reason": "rate"}
            )
        asked = Asked(
            id=new_id(),
            moment=moment,
            action=action,
            namespace=found.namespace,
            token=found.id,
            key_id=None,
            subject="",
            outcome="asked",
            size=size,
        )
        publishers.write_audit(step, asked)
    return Caller(token=found)


def _token_in(step: Transaction, token: str | None, moment: int) -> Token:
    found = publishers.token_of(step, token_digest(token)) if token else None
    if found is None or found.revoked is not None or found.expires <= moment:
        raise PinwardenError("PUBLISHER_UNKNOWN", "no token, or one that does not count")
    return found


def checked_statement(registry: Registry, document: object, action: str) -> Statement:
    """A signed request for this registry, for this action, made just now."""
    statement = statement_document.of(document)
    if statement.log_id != registry.identity.log_id or statement.action != action:
        raise PinwardenError("REQUEST_STALE", "the request was signed for another registry or another action")
    apart = abs(milliseconds(statement.issued_at_utc) - registry.moment())
    if apart > registry.limits.statement_seconds * 1000:
        raise PinwardenError(
            "REQUEST_STALE",
            f"the request was signed at {statement.issued_at_utc[:40]}, and the registry's clock says {registry.now()}",
            hint="Check this machine's clock; then make the request again.",
        )
    return statement


def check_namespace(step: Transaction, caller: Caller, statement: Statement, tool: str) -> str:
    """The namespace of a tool, if both the caller's token and the signer's key belong to it."""
    namespace = publishers.namespace_holding(step, tool)
    if namespace is None:
        raise PinwardenError("NAMESPACE_REFUSED", f"no namespace of this registry holds {tool[:80]!a}")
    if namespace != caller.token.namespace:
        raise PinwardenError(
            "NAMESPACE_REFUSED", f"the token is for {caller.token.namespace}, and {tool[:80]!a} is in {namespace}"
        )
    if statement.key_id not in publishers.keys_of(step, namespace):
        raise PinwardenError("NAMESPACE_REFUSED", f"{statement.key_id} is not a key of the namespace {namespace}")
    return namespace


def spend(step: Transaction, registry: Registry, statement: Statement, *, again: bool = False) -> None:
    """Note that a request is carried out; one that was before is refused, unless it may come ``again``."""
    if not publishers.spend_statement(step, str(statement.digest), registry.moment()) and not again:
        raise PinwardenError("REQUEST_STALE", "the request was carried out before")


def record(step: Transaction, registry: Registry, caller: Caller, statement: Statement, subject: str) -> None:
    """Write down that a request was carried out, in the same transaction."""
    publishers.write_audit(step, _asked(registry, caller, statement.action, subject, statement.key_id))


def record_refusal(registry: Registry, caller: Caller | None, action: str, subject: str, err: PinwardenError) -> None:
    """Write down that a request was refused, and why. Strangers write nothing: they could fill the disk."""
    if caller is not None:
        with registry.database.transaction() as step:
            publishers.write_audit(step, replace(_asked(registry, caller, action, subject, None), outcome=err.code))


def _asked(registry: Registry, caller: Caller, action: str, subject: str, key_id: str | None) -> Asked:
    return Asked(
        id=new_id(),
        moment=registry.moment(),
        action=action,
        namespace=caller.token.namespace,
        token=None,  # the use of the token was counted when it was shown
        key_id=key_id,
        subject=subject[:200],
        outcome=DONE,
    )
