"""Limits the requests to each host, for all workers of a census together, and remembers the pauses that hosts ask for.

The time of the next request is a row of the database. A worker reserves it in a short transaction, and waits after it.
"""

from __future__ import annotations

import time
from functools import partial

from pinwarden.census.job_queue import repeat_while_unavailable
from pinwarden.system.database import Database, Transaction

REQUESTS_PER_SECOND = 10.0
"""To one host. The registries of npm and Python serve thousands, and a small company's registry some hundreds."""


class SharedPace:
    """The pace of all workers that share a database."""

    def __init__(self, database: Database, per_second: float = REQUESTS_PER_SECOND) -> None:
        self._database = database
        self._gap = round(1000 / per_second)

    def wait(self, host: str) -> None:
        """Wait until a request may be sent to the host."""
        pause = repeat_while_unavailable(partial(self._reserve, host))
        if pause > 0:
            time.sleep(pause / 1000)

    def reserve(self, host: str, requests: int) -> None:
        """Reserve time for requests that a program sent by itself. Later requests wait for it."""
        if requests > 0:
            repeat_while_unavailable(partial(self._reserve, host, requests))

    def _reserve(self, host: str, requests: int = 1) -> int:
        """Reserve the next moments for requests, and return how far away the first is."""
        now = _now()
        with self._database.transaction(exclusive=f"census-host-{host}") as transaction:
            due = max(now, _read_due(transaction, host))
            _write_due(transaction, host, due + requests * self._gap)
        return due - now

    def defer(self, host: str, seconds: float) -> None:
        """Send nothing to the host for this time, because it asked for a pause."""
        repeat_while_unavailable(partial(self._defer, host, seconds))

    def _defer(self, host: str, seconds: float) -> None:
        with self._database.transaction(exclusive=f"census-host-{host}") as transaction:
            _write_due(transaction, host, max(_now() + round(seconds * 1000), _read_due(transaction, host)))


def _now() -> int:
    return round(time.time() * 1000)


def _read_due(transaction: Transaction, host: str) -> int:
    row = transaction.row("SELECT due FROM census_hosts WHERE host = ?", (host,))
    return 0 if row is None else int(row[0])


def _write_due(transaction: Transaction, host: str, due: int) -> None:
    if not transaction.run("UPDATE census_hosts SET due = ? WHERE host = ?", (due, host)):
        transaction.run("INSERT INTO census_hosts (host, due) VALUES (?, ?)", (host, due))
