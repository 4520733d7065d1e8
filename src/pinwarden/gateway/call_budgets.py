"""Counts calls against the limits of the policy: token buckets for rates, a window for daily budgets. Pure.

All sessions with one server in this process share the counts. They are reset when the process starts or the policy
changes, and other gateways have their own, unless a `BudgetReporter` (`shared_budgets.py`) shares them in a database.
A call never waits for that: it is counted here, reported later, and the counts are then corrected by what other
gateways reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from threading import Lock
from typing import Protocol

from pinwarden.core.record import Record
from pinwarden.lock.call_rules import DAY, CallLimit

MAX_BUDGETS = 50_000
"""The maximum number of counted pairs of client and tool. Beyond it, the least recently created is forgotten."""
_WHOLE = 1.0 - 1e-9  # a bucket that was refilled in many small steps


_STALE_SECONDS = 1.0  # after which the first call is reported at once
_NEAR = 4  # a report is due at once when a fourth of what is left was used


class BudgetReporter(Protocol):
    """Reports used calls to where all gateways count them."""

    def add(self, budget: CallBudget, *, urgent: bool) -> None:
        """Report this budget soon, or at once."""

    def wake(self) -> None:
        """Report at once."""


class UsedCalls(Record):
    """Calls that were counted here and not reported yet."""

    count: int
    seconds: float
    """How long ago the first of them was."""


class CallBudget:
    """The calls that one client may still make of one tool. Thread-safe."""

    __slots__ = ("_corrected", "_counters", "_first", "_lock", "_reporter", "_used", "key", "limits")

    def __init__(
        self, limits: Sequence[CallLimit], reporter: BudgetReporter | None = None, key: tuple[str, ...] = ()
    ) -> None:
        """``key`` names the server, the client with its teams, and the tool, for the reporter."""
        self.limits = tuple(limits)
        self.key = key
        self._counters = [_Counter(limit) for limit in limits]
        self._lock = Lock()
        self._reporter = reporter
        self._used = 0
        self._first = 0.0
        self._corrected = -inf
        """When the counts were last corrected by those of other gateways."""
        if reporter is not None:
            reporter.add(self, urgent=True)  # reports no call, and gets what is left

    def take(self, now: float) -> str:
        """Count a call. Returns an empty string, or the reason for which it is refused, and then counts nothing."""
        with self._lock:
            for counter in self._counters:
                if counter.refill(now) < _WHOLE:
                    return counter.describe(now)
            for counter in self._counters:
                counter.left -= 1.0
            if self._reporter is not None:
                self._note_use(self._reporter, now)
        return ""

    def _note_use(self, reporter: BudgetReporter, now: float) -> None:
        self._used += 1
        is_near = any(self._used * _NEAR >= counter.left for counter in self._counters)
        if self._used == 1:
            self._first = now
            reporter.add(self, urgent=is_near or now - self._corrected > _STALE_SECONDS)
        elif is_near:
            reporter.wake()

    def begin_report(self, now: float) -> UsedCalls:
        """Return the calls to report. They count as reported."""
        with self._lock:
            used, self._used = self._used, 0
            return UsedCalls(count=used, seconds=max(0.0, now - self._first))

    def cancel_report(self, used: UsedCalls, now: float) -> None:
        """Count calls as not reported, because the report failed."""
        with self._lock:
            self._used += used.count
            self._first = now - used.seconds

    def correct(self, left: Sequence[tuple[float, float]], now: float) -> None:
        """Take over what all gateways together have left of each limit, and since how many seconds they count."""
        with self._lock:
            for counter, (calls, seconds) in zip(self._counters, left, strict=True):
                counter.correct(calls - self._used, now - seconds)
            self._corrected = now


class _Counter:
    __slots__ = ("_limit", "_since", "left")

    def __init__(self, limit: CallLimit) -> None:
        self._limit = limit
        self._since = -1.0
        """Of a bucket: when it was last refilled. Of a daily budget: when it began. Negative before the first call."""
        self.left = float(limit.count)

    def refill(self, now: float) -> float:
        """Return the calls that are left."""
        limit, since = self._limit, self._since
        if since < 0.0:
            self._since = now
        elif limit.seconds < DAY:
            self.left = min(float(limit.count), self.left + max(0.0, now - since) * limit.count / limit.seconds)
            self._since = now
        elif now - since >= DAY:
            self.left, self._since = float(limit.count), now
        return self.left

    def correct(self, left: float, since: float) -> None:
        """Replace what is left, and since when it is counted."""
        self.left, self._since = left, since

    def describe(self, now: float) -> str:
        limit = self._limit
        if limit.seconds >= DAY:
            wait, period = self._since + DAY - now, "day"
        else:
            wait = (1.0 - self.left) * limit.seconds / limit.count
            period = {1: "second", 60: "minute"}.get(limit.seconds, "hour")
        return (
            f"The policy allows {limit.count} calls of this tool per {period} ({limit.rule}). "
            f"Try again in {max(1, ceil(wait))} seconds."
        )


class CallBudgets:
    """The budgets of one server, by client and tool."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._budgets: dict[tuple[str, tuple[str, ...], str], CallBudget] = {}
        self.reporter: BudgetReporter | None = None
        """Shares the counts with other gateways; None if this process counts alone."""

    def get_or_create(self, client: str, teams: tuple[str, ...], tool: str, limits: Sequence[CallLimit]) -> CallBudget:
        """Return the budget of a client for a tool. It is created with these limits on first use."""
        key = client, teams, tool
        budget = self._budgets.get(key)
        if budget is None:
            while len(self._budgets) >= MAX_BUDGETS:
                self._budgets.pop(next(iter(self._budgets)), None)
            named = (self._server, tool, client, *sorted(teams))
            budget = self._budgets.setdefault(key, CallBudget(limits, self.reporter, named))
        return budget

    def clear(self) -> None:
        """Forget all counts."""
        self._budgets.clear()
