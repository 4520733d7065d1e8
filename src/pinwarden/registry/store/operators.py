"""Database queries for the operator's decisions: takedowns, recoveries of namespaces, and requirements of pointers."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pinwarden.bundle.log_documents import Constraints
from pinwarden.core import strict_json
from pinwarden.core.record import Record
from pinwarden.registry.names import list_possible_namespaces
from pinwarden.registry.operator_documents import constraints_from_json, constraints_to_json
from pinwarden.system.database import Transaction


class Takedown(Record):
    """A version that was taken down; an empty version stands for the whole bundle."""

    tool: str
    version: str
    reason: str
    seq: int


class Recovery(Record):
    """A namespace that gets a new owner when the waiting period has passed."""

    namespace: str
    key_id: str
    due: int
    """Milliseconds since 1970."""
    seq: int


class Requirements(Record):
    """What the pointers of a namespace or bundle require; an empty channel stands for all channels."""

    name: str
    channel: str
    constraints: Constraints
    seq: int


def add_takedown(transaction: Transaction, takedown: Takedown) -> None:
    """Record a takedown."""
    values = (takedown.tool, takedown.version, takedown.reason, takedown.seq)
    transaction.run("INSERT INTO takedowns (tool, version, reason, seq) VALUES (?, ?, ?, ?)", values)


def remove_takedown(transaction: Transaction, tool: str, version: str) -> bool:
    """Remove a takedown. Returns whether it existed."""
    return transaction.run("DELETE FROM takedowns WHERE tool = ? AND version = ?", (tool, version)) == 1


def find_takedown(transaction: Transaction, tool: str, version: str) -> Takedown | None:
    """Return the takedown of a version or of its whole bundle; None if neither was taken down."""
    sql = "SELECT tool, version, reason, seq FROM takedowns WHERE tool = ? AND version IN (?, '') ORDER BY version DESC"
    row = transaction.row(sql, (tool, version))
    return None if row is None else Takedown(tool=row[0], version=row[1], reason=row[2], seq=row[3])


def count_takedowns(transaction: Transaction) -> int:
    """Return the number of takedowns in force."""
    row = transaction.row("SELECT COUNT(*) FROM takedowns") or (0,)
    return int(row[0])


def is_archive_taken_down(transaction: Transaction, archive_cid: str) -> bool:
    """Whether an archive belongs to versions that were all taken down."""
    sql = (
        "SELECT COUNT(*), COALESCE(SUM(CASE WHEN EXISTS (SELECT 1 FROM takedowns t WHERE t.tool = v.tool "
        "AND t.version IN ('', v.version)) THEN 1 ELSE 0 END), 0) FROM versions v WHERE v.archive_cid = ?"
    )
    count, taken_down = transaction.row(sql, (archive_cid,)) or (0, 0)
    return int(count) > 0 and int(count) == int(taken_down)


def set_recovery(transaction: Transaction, recovery: Recovery) -> None:
    """Record a recovery that waits. Raises a conflict error if there is one."""
    values = (recovery.namespace, recovery.key_id, recovery.due, recovery.seq)
    transaction.run("INSERT INTO recoveries (namespace, key_id, due, seq) VALUES (?, ?, ?, ?)", values)


def remove_recovery(transaction: Transaction, namespace: str) -> bool:
    """Remove a recovery. Returns whether it existed."""
    return transaction.run("DELETE FROM recoveries WHERE namespace = ?", (namespace,)) == 1


def find_recovery(transaction: Transaction, namespace: str) -> Recovery | None:
    """Return the recovery of a namespace that waits; None if there is none."""
    row = transaction.row("SELECT namespace, key_id, due, seq FROM recoveries WHERE namespace = ?", (namespace,))
    return None if row is None else Recovery(namespace=row[0], key_id=row[1], due=row[2], seq=row[3])


def list_recoveries(transaction: Transaction) -> list[Recovery]:
    """Return all recoveries that wait."""
    rows = transaction.rows("SELECT namespace, key_id, due, seq FROM recoveries ORDER BY due")
    return [Recovery(namespace=row[0], key_id=row[1], due=row[2], seq=row[3]) for row in rows]


def set_requirements(transaction: Transaction, required: Requirements) -> None:
    """Record requirements, in place of earlier ones of the same name and channel."""
    remove_requirements(transaction, required.name, required.channel)
    body = json.dumps(constraints_to_json(required.constraints), sort_keys=True)
    values = (required.name, required.channel, body, required.seq)
    transaction.run("INSERT INTO requirements (name, channel, body, seq) VALUES (?, ?, ?, ?)", values)


def remove_requirements(transaction: Transaction, name: str, channel: str) -> bool:
    """Remove requirements. Returns whether they existed."""
    return transaction.run("DELETE FROM requirements WHERE name = ? AND channel = ?", (name, channel)) == 1


def list_requirements(transaction: Transaction, names: Iterable[str] | None = None) -> list[Requirements]:
    """Return the requirements of these names, or all of them."""
    wanted = None if names is None else list(names)
    marks = "" if wanted is None else f" WHERE name IN ({', '.join('?' for _ in wanted)})"
    sql = f"SELECT name, channel, body, seq FROM requirements{marks} ORDER BY name, channel"  # noqa: S608
    return [
        Requirements(name=name, channel=channel, constraints=_parse_body(body), seq=seq)
        for name, channel, body, seq in transaction.rows(sql, wanted or ())
    ]


def find_requirements(transaction: Transaction, tool: str, channel: str) -> Constraints:
    """Return what the pointer of a channel requires: the most specific requirements, by name and then by channel."""
    matching = [
        required
        for required in list_requirements(transaction, list_possible_namespaces(tool))
        if required.channel in ("", channel)
    ]
    best = max(matching, key=lambda required: (len(required.name), required.channel != ""), default=None)
    return Constraints() if best is None else best.constraints


def _parse_body(body: str) -> Constraints:
    return constraints_from_json(strict_json.parse_json(body.encode()))
