"""The outbox: alerts that wait for their delivery, and what was reported already.

An alert is claimed before it is sent: while one process sends it, no other does, and if that process dies, another
process sends it after a while. So an alert arrives at least once, and its id tells repetitions apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from uuid import uuid4

from pinwarden.alerts.alert import Alert, alert_from_json, alert_to_json
from pinwarden.core import strict_json
from pinwarden.core.record import Record
from pinwarden.system.database import Database, Row, Transaction
from pinwarden.system.transactions import Schema, load_schema

PENDING = "pending"
SENT = "sent"
FAILED = "failed"
"""Tried too often. `Outbox.retry` makes it pending again."""

RETRY_SECONDS = (10, 60, 300, 1800, 7200, 21_600, 43_200)
"""The pause after each failed attempt. After the last one, an alert is tried once more, and then it failed."""
_CLAIM_SECONDS = 120  # longer than any delivery may take
_KEEP_SECONDS = 30 * 86_400  # how long alerts that were sent are kept
_MAX_ALERTS = 10_000  # alerts in the outbox; beyond them, the oldest that were sent or failed are deleted
_COLUMNS = "id, destination, source, subject, topic, created, alert, state, attempts, due, problem"


class StoredAlert(Record):
    """An alert for one destination. Times are seconds since 1970."""

    id: str
    destination: str
    topic: str
    created: int
    alert: Alert
    state: str
    attempts: int
    due: int
    problem: str
    """Why the last attempt failed, without addresses that may be secret."""


def load_alert_schema() -> Schema:
    """Return the tables of the outbox."""
    return load_schema("alerts")


class Outbox:
    """The tables of alerts and of what was reported."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_reported(self, source: str) -> frozenset[str]:
        """Return the items of a source that alerts were made about."""
        rows = self._database.rows("SELECT item FROM alert_reported WHERE source = ?", (source,))
        return frozenset(row[0] for row in rows)

    def find_newest(self, source: str, subject: str) -> int:
        """Return when the newest alert about a subject was made; 0 if there is none."""
        row = self._database.row("SELECT MAX(created) FROM alert WHERE source = ? AND subject = ?", (source, subject))
        return row[0] if row is not None and row[0] is not None else 0

    def read_position(self, source: str) -> int:
        """Return how far a source was read; -1 if never."""
        row = self._database.row("SELECT position FROM alert_position WHERE source = ?", (source,))
        return -1 if row is None else row[0]

    def save_position(self, source: str, position: int) -> None:
        """Store how far a source was read. A position never moves back."""
        with self._database.transaction(exclusive="alerts") as transaction:
            changed = transaction.run(
                "UPDATE alert_position SET position = ? WHERE source = ? AND position < ?", (position, source, position)
            )
            known = changed or transaction.row("SELECT position FROM alert_position WHERE source = ?", (source,))
            if not known:
                transaction.run("INSERT INTO alert_position (source, position) VALUES (?, ?)", (source, position))

    def add(self, source: str, items: Sequence[str], alert: Alert, destinations: Iterable[str], now: int) -> bool:
        """Store an alert about items for each destination. Returns False if another process reported one of them."""
        with self._database.transaction(exclusive="alerts") as transaction:
            for item in items:
                if transaction.row("SELECT item FROM alert_reported WHERE source = ? AND item = ?", (source, item)):
                    return False
            transaction.run_many(
                "INSERT INTO alert_reported (source, item, reported) VALUES (?, ?, ?)",
                [(source, item, now) for item in items],
            )
            text = json.dumps(alert_to_json(alert))
            transaction.run_many(
                f"INSERT INTO alert ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, '')",  # noqa: S608
                [
                    (uuid4().hex, destination, source, alert.subject, alert.topic, now, text, PENDING, now)
                    for destination in destinations
                ],
            )
            _delete_old_rows(transaction, now)
        return True

    def claim(self, destinations: Sequence[str], now: int) -> StoredAlert | None:
        """Return an alert that is due for one of the destinations, and keep other processes from it for a while."""
        marks = ", ".join("?" for _ in destinations)
        with self._database.transaction(exclusive="alerts") as transaction:
            row = transaction.row(
                f"SELECT {_COLUMNS} FROM alert WHERE state = ? AND due <= ? AND destination IN ({marks})"  # noqa: S608
                " ORDER BY due, created, id LIMIT 1",
                (PENDING, now, *destinations),
            )
            if row is None:
                return None
            transaction.run(
                "UPDATE alert SET attempts = attempts + 1, due = ? WHERE id = ?", (now + _CLAIM_SECONDS, row[0])
            )
        return _parse_row(row)

    def finish(self, claimed: StoredAlert, problem: str, now: int) -> str:
        """Record the outcome of an attempt, and return the new state. ``problem`` is empty if it succeeded."""
        state, due = SENT, now
        if problem:
            is_last = claimed.attempts >= len(RETRY_SECONDS)
            state = FAILED if is_last else PENDING
            due = now if is_last else now + RETRY_SECONDS[claimed.attempts]
        with self._database.transaction(exclusive="alerts") as transaction:
            transaction.run(
                "UPDATE alert SET state = ?, due = ?, problem = ? WHERE id = ?", (state, due, problem, claimed.id)
            )
        return state

    def select(self, states: Sequence[str] = (PENDING, FAILED)) -> list[StoredAlert]:
        """Return the alerts in these states, the oldest first."""
        marks = ", ".join("?" for _ in states)
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM alert WHERE state IN ({marks}) ORDER BY created, destination, id",  # noqa: S608
            tuple(states),
        )
        return [_parse_row(row) for row in rows]

    def retry(self, identifiers: Sequence[str], now: int) -> int:
        """Make alerts that failed pending again, all without identifiers. Returns how many."""
        failed = [alert.id for alert in self.select((FAILED,)) if not identifiers or alert.id in identifiers]
        with self._database.transaction(exclusive="alerts") as transaction:
            return sum(
                transaction.run(
                    "UPDATE alert SET state = ?, attempts = 0, due = ? WHERE id = ? AND state = ?",
                    (PENDING, now, identifier, FAILED),
                )
                for identifier in failed
            )


def _delete_old_rows(transaction: Transaction, now: int) -> None:
    transaction.run("DELETE FROM alert_reported WHERE reported < ?", (now - _KEEP_SECONDS,))
    transaction.run("DELETE FROM alert WHERE state = ? AND created < ?", (SENT, now - _KEEP_SECONDS))
    transaction.run(
        "DELETE FROM alert WHERE state <> ? AND id NOT IN (SELECT id FROM alert ORDER BY created DESC, id LIMIT ?)",
        (PENDING, _MAX_ALERTS),
    )


def _parse_row(row: Row) -> StoredAlert:
    identifier, destination, _, _, topic, created, text, state, attempts, due, problem = row
    return StoredAlert(
        id=identifier,
        destination=destination,
        topic=topic,
        created=created,
        alert=alert_from_json(strict_json.parse_json(text.encode())),
        state=state,
        attempts=attempts,
        due=due,
        problem=problem,
    )
