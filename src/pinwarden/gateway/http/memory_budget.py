"""Memory budgets that all clients share.

`MemoryBudget` limits the messages that are queued for servers, wait for a check, or are incomplete. Each conversation
also has its own limit. If all conversations together exceed the budget, the conversation with the most bytes ends.
`BodyBudget` limits the bodies of large requests.
"""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.http.header_checks import BadRequest
from pinwarden.gateway.http.http_limits import HttpLimits


class BudgetHolder(Protocol):
    """An object that keeps messages in memory, such as a queue."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of its messages."""

    def on_overflow(self) -> None:
        """Drop all messages: the budget is exceeded, and this holder has the most bytes."""


class MemoryBudget:
    """Limits the bytes that all conversations together keep in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holders: set[BudgetHolder] = set()
        self.overflows = 0
        """How often a holder had to drop its messages, because the budget was exceeded."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the messages of all holders."""
        return sum(holder.pending_bytes for holder in self._holders)

    def add(self, holder: BudgetHolder) -> None:
        """Start counting the bytes of a holder."""
        self._holders.add(holder)

    def remove(self, holder: BudgetHolder) -> None:
        """Stop counting the bytes of a holder."""
        self._holders.discard(holder)

    def enforce(self) -> None:
        """Make the largest holders drop their messages until the total is within the limit."""
        while self._holders and self.pending_bytes > self._max_bytes:
            largest = max(self._holders, key=lambda holder: holder.pending_bytes)
            self.remove(largest)
            self.overflows += 1
            largest.on_overflow()


class BodyBudget:
    """Counts the bytes of large requests until their responses are sent, per client and in total."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._by_client: dict[str, int] = {}
        self.size = 0

    def check(self, client: str, size: int) -> None:
        """Raise `BadRequest` if ``size`` more bytes would exceed a limit."""
        if self._by_client.get(client, 0) + size > self._limits.max_client_body_bytes:
            raise BadRequest(503, "Too many large requests of one client at once.")
        if self.size + size > self._limits.max_all_body_bytes:
            raise BadRequest(503, "Too many large requests at once.")

    def add(self, client: str, size: int) -> None:
        """Count bytes of a client; raises `BadRequest` if a limit is exceeded."""
        self.check(client, size)
        self._by_client[client] = self._by_client.get(client, 0) + size
        self.size += size

    def release(self, client: str, size: int) -> None:
        """Stop counting the bytes of a finished request."""
        self.size -= size
        remaining = self._by_client.get(client, 0) - size
        if remaining > 0:
            self._by_client[client] = remaining
        else:
            self._by_client.pop(client, None)

    def move(self, client: str, new_client: str, size: int) -> None:
        """Count bytes for another client whose token is now used on the same connection."""
        self.release(client, size)
        self._by_client[new_client] = self._by_client.get(new_client, 0) + size
        self.size += size
