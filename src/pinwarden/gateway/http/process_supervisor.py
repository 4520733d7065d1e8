"""Starts server processes, with a backoff after early exits, and shares process slots fairly between clients."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from pinwarden.core.text import plural
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.process_transport import ProcessTransport
from pinwarden.gateway.http.upstream_transport import ProcessOwner
from pinwarden.project.server_start import ServerCommand


class ProcessSupervisor:
    """Starts the processes of one server, with exponential backoff after early exits."""

    def __init__(
        self, name: str, command: Callable[[], ServerCommand], limits: HttpLimits, slots: ProcessSlots | None = None
    ) -> None:
        self.name = name
        self.slots = slots or ProcessSlots(limits.max_processes)
        self._command = command
        self.limits = limits
        self.running: set[ProcessTransport] = set()
        self.starts = 0
        self.early_exits = 0
        self.retry_at = 0.0

    def open(self, owner: ProcessOwner, write_log: Callable[[str], None]) -> ProcessTransport:
        """Create a transport. The server process starts after the backoff, as soon as a slot is free."""
        process = ProcessTransport(self, owner, write_log)
        self.running.add(process)
        process.start_when_due()
        return process

    def build_command(self) -> ServerCommand:
        """Build the command that starts the server."""
        self.starts += 1
        return self._command()

    def on_ended(self, process: ProcessTransport, lifetime: float, now: float, *, by_gateway: bool) -> None:
        """Update the backoff after a process ended. ``by_gateway`` is true if the gateway ended it."""
        self.running.discard(process)
        if by_gateway or lifetime >= self.limits.stable_seconds:
            self.early_exits = 0
            return
        self.early_exits += 1
        longest = self.limits.max_backoff_seconds
        self.retry_at = now + min(longest, self.limits.first_backoff_seconds * 2 ** min(self.early_exits - 1, 20))

    def describe_backoff(self, seconds: float) -> str:
        """Return the error for a client that asks for a server that keeps exiting. ``seconds`` is the pause left."""
        return (
            f"the server exited {plural(self.early_exits, 'time')} right after its start; the gateway starts it again "
            f"in {seconds:.0f} seconds at the earliest, and the gateway's log has what the server wrote"
        )


class SlotHolder(Protocol):
    """A process that occupies a slot."""

    @property
    def client(self) -> str:
        """The name of the client."""

    @property
    def is_idle(self) -> bool:
        """Whether the process has no open request."""

    @property
    def last_used(self) -> float:
        """When the client of the process last sent a message."""

    def evict(self) -> None:
        """End the process, because another client needs its slot."""


class ProcessSlots:
    """Limits the number of processes of all servers, and shares them fairly between clients."""

    def __init__(self, max_processes: int) -> None:
        self._max_processes = max_processes
        self.full_message = (
            f"the gateway runs {max_processes} server processes already, which is its limit; end a session, try again "
            "later, or ask the gateway's operator to raise --max-processes"
        )
        """The error for a client that gets no slot."""
        self._holders: set[SlotHolder] = set()
        """The processes in slots, except processes that are being evicted."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.occupied = 0
        """Occupied slots, including processes that are ending."""

    async def take(self, holder: SlotHolder, seconds: float) -> bool:
        """Occupy a slot. If all are in use, evict a process of the client with the most slots.

        Returns False if no process can be evicted, or if the evicted process does not end within ``seconds``.
        """
        if self.occupied < self._max_processes:
            self.occupied += 1
        else:
            chosen = self._choose_to_evict(holder.client)
            if chosen is None or not await self._evict(chosen, seconds):
                return False
        self._holders.add(holder)
        return True

    def release(self, holder: SlotHolder) -> None:
        """Release the slot of a process that ended."""
        self._holders.discard(holder)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # this waiter takes over the slot
                return
        self.occupied -= 1

    def _choose_to_evict(self, client: str) -> SlotHolder | None:
        """Choose a process of the client with the most slots: an idle process, or any if it has over half of all slots.

        Returns None if there is no such process, or if ``client`` would then have more slots than that client.
        """
        counts = Counter(holder.client for holder in self._holders)
        highest = max(counts.values(), default=0)
        if highest < counts[client] + 2:
            return None
        candidates = [holder for holder in self._holders if counts[holder.client] == highest]
        idle = [holder for holder in candidates if holder.is_idle]
        if not idle and highest * 2 <= self._max_processes:
            return None
        return min(idle or candidates, key=lambda holder: holder.last_used)

    async def _evict(self, chosen: SlotHolder, seconds: float) -> bool:
        """Evict a process and take over its slot; False if it does not end in time."""
        slot_free = asyncio.get_running_loop().create_future()
        self._waiting.append(slot_free)
        self._holders.discard(chosen)
        chosen.evict()
        try:
            await asyncio.wait((slot_free,), timeout=seconds)
        finally:
            taken_over = slot_free.done() or not slot_free.cancel()
        return taken_over
