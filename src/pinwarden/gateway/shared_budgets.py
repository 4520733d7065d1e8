"""The limits of calls, counted across all gateways that share one PostgreSQL database.

A gateway decides about a call with its own counts, so no call waits for the database. A thread reports what was used,
at once when a limit is near and otherwise twice a second, and takes over what all gateways together have left. So
gateways can allow more than the limit by the calls that they allow in between: each of the others for half a second,
near the limit for a tenth. These calls are subtracted too, so a client that got more waits longer, and over time the
limit is exact. While the database is unavailable, each gateway enforces the whole limit by itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.call_budgets import CallBudget
from pinwarden.lock.call_rules import DAY, CallLimit
from pinwarden.system.database import Database, Transaction

REPORT_SECONDS = 0.5
"""Seconds between reports."""
_PAUSE_SECONDS = 0.05  # between two reports that are due at once, which bounds the load of the database
_MAX_TOGETHER = 500  # budgets in one transaction
_PART = 1000  # of a call and of a second, in the table
_CLEAN_SECONDS = 3600.0


class UseOfLimit(Record):
    """Calls to subtract from one limit."""

    name: str
    limit: CallLimit
    count: int
    seconds: float
    """How long ago the first of these calls was."""


class BudgetTable:
    """The table of what is left."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def subtract(self, uses: Sequence[UseOfLimit], now: float) -> list[tuple[float, float]]:
        """Subtract calls. Returns what is left of each limit, and since how many seconds it is counted.

        ``now`` is in seconds since 1970. Of several clocks, the one that is ahead refills; the others add nothing until
        they reach it.
        """
        with self._database.transaction(exclusive="call_budgets") as transaction:
            return [self._subtract_use(transaction, use, now) for use in uses]

    def delete_before(self, now: float) -> None:
        """Delete what is full again: no limit is longer than a day."""
        before = int((now - 2 * DAY) * _PART)
        with self._database.transaction(exclusive="call_budgets") as transaction:
            transaction.run("DELETE FROM call_budget WHERE since < ?", (before,))

    def _subtract_use(self, transaction: Transaction, use: UseOfLimit, now: float) -> tuple[float, float]:
        full, began = float(use.limit.count), now - use.seconds
        row = transaction.row("SELECT remaining, since FROM call_budget WHERE name = ?", (use.name,))
        left, since = (full, began) if row is None else (row[0] / _PART, row[1] / _PART)
        if use.limit.seconds < DAY:
            rate = full / use.limit.seconds
            left = min(full, left + max(0.0, began - since) * rate)  # until the first of these calls
            left = min(full, left + max(0.0, now - max(began, since)) * rate - use.count)
            since = max(since, now)
        else:
            if now - since >= DAY:
                left, since = full, began
            left -= use.count
        left = max(left, -full)
        values = (round(left * _PART), round(since * _PART), use.name)
        if row is None and use.count:
            transaction.run("INSERT INTO call_budget (remaining, since, name) VALUES (?, ?, ?)", values)
        elif row is not None:
            transaction.run("UPDATE call_budget SET remaining = ?, since = ? WHERE name = ?", values)
        return left, max(0.0, now - since)


class SharedBudgets:
    """Reports the budgets of one gateway to the table, on a thread."""

    def __init__(
        self,
        open_table: Callable[[], BudgetTable],
        write_log: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.time,
        call_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``call_clock`` is the clock of the calls that budgets count."""
        self._open_table = open_table
        self._write_log = write_log
        self._clock, self._call_clock = clock, call_clock
        self._used: deque[CallBudget] = deque()
        self._due = Event()
        self._stopped = Event()
        self._thread: Thread | None = None
        self._cleaned = 0.0
        self._is_failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(target=self._run, name="call budgets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report what is left to report, and stop the thread."""
        self._stopped.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def add(self, budget: CallBudget, *, urgent: bool) -> None:
        """Report a budget with the next report, or at once."""
        self._used.append(budget)
        if urgent:
            self.wake()

    def wake(self) -> None:
        """Report at once."""
        if not self._due.is_set():
            self._due.set()

    def report(self) -> None:
        """Report once. While the database is unavailable, the calls are kept for the next report."""
        budgets = [self._used.popleft() for _ in range(min(len(self._used), _MAX_TOGETHER))]
        if not budgets:
            return
        now = self._call_clock()
        used = [budget.begin_report(now) for budget in budgets]
        uses = [
            UseOfLimit(
                name=_name_limit(budget.key, index, limit), limit=limit, count=calls.count, seconds=calls.seconds
            )
            for budget, calls in zip(budgets, used, strict=True)
            for index, limit in enumerate(budget.limits)
        ]
        try:
            left = iter(self._subtract(uses))
        except PinwardenError as err:
            for budget, calls in zip(budgets, used, strict=True):
                budget.cancel_report(calls, now)
            self._used.extendleft(reversed(budgets))
            self._note_failure(err)
            return
        self._is_failing = False
        now = self._call_clock()
        for budget, calls in zip(budgets, used, strict=True):
            budget.correct([next(left) for _ in budget.limits], now)
            if calls.count:
                self._used.append(budget)  # once more, for what others report in the meantime

    def _subtract(self, uses: Sequence[UseOfLimit]) -> list[tuple[float, float]]:
        table, now = self._open_table(), self._clock()
        if now - self._cleaned > _CLEAN_SECONDS:
            table.delete_before(now)
            self._cleaned = now
        return table.subtract(uses, now)

    def _note_failure(self, err: PinwardenError) -> None:
        if not self._is_failing:
            self._write_log(f"limits of calls are counted by this gateway alone for now ({err.code}): {err.message}")
        self._is_failing = True

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._due.wait(REPORT_SECONDS)
            self._due.clear()
            self.report()
            self._stopped.wait(REPORT_SECONDS if self._is_failing else _PAUSE_SECONDS)
        self.report()


def _name_limit(key: tuple[str, ...], index: int, limit: CallLimit) -> str:
    """Return the name of a limit in the table. Another limit of the same calls is counted apart."""
    return Digest.of_bytes(ascii((key, index, limit.count, limit.seconds)).encode("ascii")).hex
