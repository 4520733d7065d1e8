"""Counts calls against the limits of the policy: token buckets for rates, a window for daily budgets. Pure.

All sessions with one server in this process share the counts. They are reset when the process starts or the policy
changes, and other gateways have their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from threading import Lock

from pinwarden.lock.call_rules import DAY, CallLimit

MAX_BUDGETS = 50_000
"""The maximum number of counted pairs of client and tool. Beyond it, the least recently created is forgotten."""
_WHOLE = 1.0 - 1e-9  # a bucket that was refilled in many small steps


class CallBudget:
    """The calls that one client may still make of one tool. Thread-safe."""

    __slots__ = ("_counters", "_lock")

    def __init__(self, limits: Sequence[CallLimit]) -> None:
        self._counters = [_Counter(limit) for limit in limits]
        self._lock = Lock()

    def take(self, now: float) -> str:
        """Count a call. Returns an empty string, or the reason for which it is refused, and then counts nothing."""
        with self._lock:
            for counter in self._counters:
                if counter.refill(now) < _WHOLE:
                    return counter.describe(now)
            for counter in self._counters:
                counter.left -= 1.0
        return ""


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

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, tuple[str, ...], str], CallBudget] = {}

    def get_or_create(self, client: str, teams: tuple[str, ...], tool: str, limits: Sequence[CallLimit]) -> CallBudget:
        """Return the budget of a client for a tool. It is created with these limits on first use."""
        key = client, teams, tool
        budget = self._budgets.get(key)
        if budget is None:
            while len(self._budgets) >= MAX_BUDGETS:
                self._budgets.pop(next(iter(self._budgets)), None)
            budget = self._budgets.setdefault(key, CallBudget(limits))
        return budget

    def clear(self) -> None:
        """Forget all counts."""
        self._budgets.clear()
