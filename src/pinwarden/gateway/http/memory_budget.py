"""What waits in memory on the way to servers, for lists to be judged, and for the end of messages that are begun.

Each conversation has a bound of its own, but there are many of them. When all of them together hold too much, the one
that holds most is ended: whoever fills the memory loses that, and nobody else does.
"""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http_limits import HttpLimits


class BudgetHolder(Protocol):
    """Something that keeps messages until somebody takes them."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that it keeps."""

    def overflow(self) -> None:
        """Let go of all of them."""


class MemoryBudget:
    """The bound for all who keep messages."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: set[BudgetHolder] = set()
        self.overflows = 0
        """How often somebody had to let go."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that all of them keep."""
        return sum(each.pending_bytes for each in self._holders)

    def enter(self, holder: BudgetHolder) -> None:
        """From now on it keeps something."""
        self._holders.add(holder)

    def leave(self, holder: BudgetHolder) -> None:
        """It keeps nothing any more."""
        self._holders.discard(holder)

    def make(self) -> None:
        """See that what waits is within bounds."""
        while self._holders and self.pending_bytes > self._most:
            largest = max(self._holders, key=lambda each: each.pending_bytes)
            self.leave(largest)
            self.overflows += 1
            largest.overflow()


class BodyBudget:
    """Counts what came of large requests that are not answered yet. What is only announced takes nobody's room."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._of: dict[str, int] = {}
        self.size = 0

    def check(self, client: str, size: int) -> None:
        """Refuse what there is no room for now."""
        if self._of.get(client, 0) + size > self._limits.max_client_body_bytes:
            raise BadRequest(503, "Too many large requests of one client at once.")
        if self.size + size > self._limits.max_all_body_bytes:
            raise BadRequest(503, "Too many large requests at once.")

    def add(self, client: str, size: int) -> None:
        """So many bytes more of a client."""
        self.check(client, size)
        self._of[client] = self._of.get(client, 0) + size
        self.size += size

    def give_back(self, client: str, size: int) -> None:
        """A request is answered, or nobody waits for that."""
        self.size -= size
        left = self._of.get(client, 0) - size
        if left > 0:
            self._of[client] = left
        else:
            self._of.pop(client, None)

    def move(self, client: str, to: str, size: int) -> None:
        """Another client goes on with the connection of the first."""
        self.give_back(client, size)
        self._of[to] = self._of.get(to, 0) + size
        self.size += size
