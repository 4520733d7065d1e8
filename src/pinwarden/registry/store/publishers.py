"""Database queries for access control: namespaces, their keys, tokens, used requests and the audit log."""

from __future__ import annotations

from pinwarden.core.record import Record
from pinwarden.registry.names import find_longest_namespace, list_possible_namespaces
from pinwarden.system.database import ConflictError, Row, Transaction

OWNER = "owner"
PUBLISHER = "publisher"
ROLES = (OWNER, PUBLISHER)
"""The roles of a key in a namespace. Both roles may publish; owners may also change keys and delegate namespaces."""
DONE = "done"
REQUESTED = "asked"
"""The outcome of a request that was counted and is not yet decided."""


class PublisherToken(Record):
    """A publisher's token. The registry stores only a digest of its secret text."""

    id: str
    namespace: str
    label: str
    created_at: str
    expires: int
    """Milliseconds since 1970."""
    revoked: int | None


class AuditRow(Record):
    """One row of the audit log."""

    id: str
    moment: int
    action: str
    namespace: str
    token: str | None
    key_id: str | None
    subject: str
    outcome: str
    """``done``, or the error code of the refusal."""
    size: int = 0


def add_namespace(transaction: Transaction, name: str, owner: str, now: str) -> None:
    """Add a namespace with its first owner. Raises a conflict error if the namespace exists."""
    transaction.run("INSERT INTO namespaces (name, created_at) VALUES (?, ?)", (name, now))
    set_key(transaction, name, owner, OWNER, now)


def list_namespaces(transaction: Transaction) -> list[str]:
    """Return all namespaces."""
    return [str(row[0]) for row in transaction.rows("SELECT name FROM namespaces ORDER BY name")]


def find_namespace(transaction: Transaction, tool: str) -> str | None:
    """Return the longest registered namespace that contains a bundle; None if there is none."""
    possible = list_possible_namespaces(tool)
    marks = ", ".join("?" for _ in possible)
    rows = transaction.rows(f"SELECT name FROM namespaces WHERE name IN ({marks})", possible)  # noqa: S608
    return find_longest_namespace(tool, [str(row[0]) for row in rows])


def list_namespace_keys(transaction: Transaction, namespace: str) -> dict[str, str]:
    """Return the role of each key of a namespace, by key id."""
    rows = transaction.rows("SELECT key_id, role FROM namespace_keys WHERE namespace = ? ORDER BY key_id", (namespace,))
    return {str(key_id): str(role) for key_id, role in rows}


def find_created_at(transaction: Transaction, namespace: str) -> str | None:
    """Return when a namespace was assigned; None if it is not registered."""
    row = transaction.row("SELECT created_at FROM namespaces WHERE name = ?", (namespace,))
    return None if row is None else str(row[0])


def set_key(transaction: Transaction, namespace: str, key_id: str, role: str, now: str) -> None:
    """Add a key or change its role."""
    remove_key(transaction, namespace, key_id)
    values = (namespace, key_id, role, now)
    transaction.run("INSERT INTO namespace_keys (namespace, key_id, role, added_at) VALUES (?, ?, ?, ?)", values)


def remove_key(transaction: Transaction, namespace: str, key_id: str) -> bool:
    """Remove a key. Returns whether it existed."""
    return transaction.run("DELETE FROM namespace_keys WHERE namespace = ? AND key_id = ?", (namespace, key_id)) == 1


# Tokens


def add_token(transaction: Transaction, token: PublisherToken, digest: str) -> None:
    """Store a token by its digest."""
    transaction.run(
        "INSERT INTO tokens (id, digest, namespace, label, created_at, expires) VALUES (?, ?, ?, ?, ?, ?)",
        (token.id, digest, token.namespace, token.label, token.created_at, token.expires),
    )


_TOKEN = "id, namespace, label, created_at, expires, revoked"  # noqa: S105 - columns


def find_token(transaction: Transaction, digest: str) -> PublisherToken | None:
    """Return the token with this digest; None if there is none."""
    row = transaction.row(f"SELECT {_TOKEN} FROM tokens WHERE digest = ?", (digest,))  # noqa: S608
    return None if row is None else _row_to_token(row)


def list_tokens(transaction: Transaction) -> list[PublisherToken]:
    """Return all tokens."""
    return [_row_to_token(row) for row in transaction.rows(f"SELECT {_TOKEN} FROM tokens ORDER BY created_at, id")]  # noqa: S608


def revoke_token(transaction: Transaction, token_id: str, moment: int) -> bool:
    """Revoke a token. Returns whether it was active."""
    return transaction.run("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", (moment, token_id)) == 1


def revoke_tokens(transaction: Transaction, namespace: str, moment: int) -> int:
    """Revoke all tokens of a namespace. Returns how many were active."""
    return transaction.run("UPDATE tokens SET revoked = ? WHERE namespace = ? AND revoked IS NULL", (moment, namespace))


def _row_to_token(row: Row) -> PublisherToken:
    token_id, namespace, label, created_at, expires, revoked = row
    return PublisherToken(
        id=token_id, namespace=namespace, label=label, created_at=created_at, expires=expires, revoked=revoked
    )


# Statements (signed requests)


def add_used_statement(transaction: Transaction, digest: str, moment: int) -> bool:
    """Record the digest of a used statement. Returns False if it was used before. Needs an exclusive transaction."""
    if transaction.row("SELECT 1 FROM statements WHERE digest = ?", (digest,)) is not None:
        return False
    try:
        transaction.run("INSERT INTO statements (digest, moment) VALUES (?, ?)", (digest, moment))
    except ConflictError:
        return False
    return True


def write_audit(transaction: Transaction, row: AuditRow) -> None:
    """Add a row to the audit log."""
    transaction.run(
        "INSERT INTO audit (id, moment, action, namespace, token, key_id, subject, outcome, size) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(row.id, row.moment, row.action, row.namespace, row.token, row.key_id),
            *(row.subject, row.outcome, row.size),
        ),
    )


_AUDIT_COLUMNS = ("id", "moment", "action", "namespace", "token", "key_id", "subject", "outcome", "size")


def list_audit(transaction: Transaction, limit: int = 1000) -> list[AuditRow]:
    """Return the latest rows of the audit log, newest first."""
    return _select_audit(transaction, "ORDER BY moment DESC, id LIMIT ?", (limit,))


def list_refused(transaction: Transaction, after: int, limit: int) -> list[AuditRow]:
    """Return the first rows about refused requests after a time in milliseconds."""
    condition = "WHERE moment > ? AND outcome NOT IN (?, ?) ORDER BY moment, id LIMIT ?"
    return _select_audit(transaction, condition, (after, DONE, REQUESTED, limit))


def _select_audit(transaction: Transaction, condition: str, values: tuple[str | int, ...]) -> list[AuditRow]:
    rows = transaction.rows(f"SELECT {', '.join(_AUDIT_COLUMNS)} FROM audit {condition}", values)  # noqa: S608
    return [AuditRow(**dict(zip(_AUDIT_COLUMNS, row, strict=True))) for row in rows]


def count_usage(transaction: Transaction, token_id: str, moment: int) -> tuple[int, int]:
    """Return the number of requests with a token since ``moment`` (milliseconds), and their total bytes."""
    sql = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM audit WHERE token = ? AND moment >= ?"
    row = transaction.row(sql, (token_id, moment)) or (0, 0)
    return int(row[0]), int(row[1])
