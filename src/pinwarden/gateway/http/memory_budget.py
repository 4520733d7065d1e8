"""Memory budgets that all clients share.

`MemoryBudget` limits what waits for servers, for judging, and for the end of partial messages. Each conversation has a
limit of its own; when all together exceed the budget, the one that holds most is ended. `BodyBudget` limits the bodies
of large requests.
"""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http_limits import HttpLimits


class BudgetHolder(Protocol):
    """Something that holds messages in memory."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that it holds."""

    def overflow(self) -> None:
        """Drop everything: it holds most when the budget is exceeded."""


class MemoryBudget:
    """The limit for all holders together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: set[BudgetHolder] = set()
        self.overflows = 0
        """How often a holder had to drop its messages."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that all holders hold."""
        return sum(each.pending_bytes for each in self._holders)

    def enter(self, holder: BudgetHolder) -> None:
        """Start to count a holder."""
        self._holders.add(holder)

    def leave(self, holder: BudgetHolder) -> None:
        """Stop counting a holder."""
        self._holders.discard(holder)

    def make(self) -> None:
        """Make the largest holders drop their messages until the total is within the limit."""
        while self._holders and self.pending_bytes > self._most:
            largest = max(self._holders, key=lambda each: each.pending_bytes)
            self.leave(largest)
            self.overflows += 1
            largest.overflow()


class BodyBudget:
    """Counts the received bytes of large requests until they are answered, per client and in all."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._of: dict[str, int] = {}
        self.size = 0

    def check(self, client: str, size: int) -> None:
        """Raise `BadRequest` if so many more bytes would exceed a limit."""
        if self._of.get(client, 0) + size > self._limits.max_client_body_bytes:
            raise BadRequest(503, "Too many large requests of one client at once.")
        if self.size + size > self._limits.max_all_body_bytes:
            raise BadRequest(503, "Too many large requests at once.")

    def add(self, client: str, size: int) -> None:
        """Count bytes of a client; raises `BadRequest` if a limit is exceeded."""
        self.check(client, size)
        self._of[client] = self._of.get(client, 0) + size
        self.size += size

    def give_back(self, client: str, size: int) -> None:
        """Release the bytes of a request that is over."""
        self.size -= size
        left = self._of.get(client, 0) - size
        if left > 0:
            self._of[client] = left
        else:
            self._of.pop(client, None)

    def move(self, client: str, to: str, size: int) -> None:
        """Count bytes for another client, which uses the same connection now."""
        self.give_back(client, size)
        self._of[to] = self._of.get(to, 0) + size
        self.size += size
