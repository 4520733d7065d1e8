"""Starts server processes: a growing pause after processes that end early, and slots that clients share fairly."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from pinwarden.gateway.gated_server import ServerCommand
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.process_transport import ProcessTransport
from pinwarden.gateway.http.upstream_transport import ProcessOwner


class ProcessSupervisor:
    """Starts the processes of one server, with a growing pause after each that ended early."""

    def __init__(
        self, name: str, command: Callable[[], ServerCommand], limits: HttpLimits, slots: ProcessSlots | None = None
    ) -> None:
        self.name = name
        self.slots = slots or ProcessSlots(limits.max_children)
        self._command = command
        self.limits = limits
        self.running: set[ProcessTransport] = set()
        self.starts = 0
        self.early_ends = 0
        self.retry_at = 0.0

    def open(self, owner: ProcessOwner, say: Callable[[str], None]) -> ProcessTransport:
        """Create a process, which starts after the pause and when a slot is free."""
        link = ProcessTransport(self, owner, say)
        self.running.add(link)
        link.start_when_due()
        return link

    def command(self) -> ServerCommand:
        """The command to start."""
        self.starts += 1
        return self._command()

    def ended(self, link: ProcessTransport, lived: float, now: float, *, wanted: bool) -> None:
        """A process ended."""
        self.running.discard(link)
        if wanted or lived >= self.limits.stable_seconds:
            self.early_ends = 0
            return
        self.early_ends += 1
        longest = self.limits.longest_backoff_seconds
        self.retry_at = now + min(longest, self.limits.first_backoff_seconds * 2 ** min(self.early_ends - 1, 20))


class SlotHolder(Protocol):
    """A process that occupies a slot."""

    @property
    def client(self) -> str:
        """The name of the client."""

    @property
    def idle(self) -> bool:
        """Whether no request is open in it."""

    @property
    def used(self) -> float:
        """When its client last sent something."""

    def evict(self) -> None:
        """End the process, because another client needs its slot."""


class ProcessSlots:
    """Limits how many processes run, of all servers together, and shares them fairly between clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.full = (
            f"the gateway runs {most} server processes already, which is its limit; end a session, try again later, or "
            "let the gateway's operator raise --max-processes"
        )
        """The error for a client that gets no slot."""
        self._holders: set[SlotHolder] = set()
        """Processes that are not being evicted."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0
        """Occupied slots, including processes that are ending."""

    async def take(self, holder: SlotHolder, seconds: float) -> bool:
        """Occupy a slot. If none is free, evict a process of the client with most slots; False if that fails."""
        if self.taken < self._most:
            self.taken += 1
        else:
            chosen = self._victim(holder.client)
            if chosen is None or not await self._slot_of(chosen, seconds):
                return False
        self._holders.add(holder)
        return True

    def give_back(self, holder: SlotHolder) -> None:
        """Release the slot of a process that ended."""
        self._holders.discard(holder)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # it takes over the slot
                return
        self.taken -= 1

    def _victim(self, client: str) -> SlotHolder | None:
        """The process to evict, of the client with most slots: an idle one, or any if the client has more than half."""
        of = Counter(each.client for each in self._holders)
        most = max(of.values(), default=0)
        if most < of[client] + 2:
            return None
        own = [each for each in self._holders if of[each.client] == most]
        idle = [each for each in own if each.idle]
        if not idle and most * 2 <= self._most:
            return None
        return min(idle or own, key=lambda each: each.used)

    async def _slot_of(self, chosen: SlotHolder, seconds: float) -> bool:
        pending_bytes = asyncio.get_running_loop().create_future()
        self._waiting.append(pending_bytes)
        self._holders.discard(chosen)
        chosen.evict()
        try:
            await asyncio.wait((pending_bytes,), timeout=seconds)
        finally:
            given = pending_bytes.done() or not pending_bytes.cancel()
        return given
