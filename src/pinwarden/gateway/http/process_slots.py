"""Places for processes: as many as may run at once, of all servers together, and shared fairly between clients."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Protocol


class Tenant(Protocol):
    """A process of one client."""

    @property
    def client(self) -> str:
        """For whom it runs."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything from it."""

    @property
    def used(self) -> float:
        """When it was last asked something."""

    def make_way(self) -> None:
        """End, as another client needs the place."""


class Places:
    """How many processes may run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.full = (
            f"the gateway runs {most} server processes already, which is its limit; end a session, try again later, or "
            "let the gateway's operator raise --max-processes"
        )
        """What a client gets to know that asks for one more."""
        self._tenants: set[Tenant] = set()
        """Those that were not told to make way."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0
        """Also by processes that are ending."""

    async def take(self, tenant: Tenant, seconds: float) -> bool:
        """Take a place, if there is one; or that of whoever has most of them, if it is gone after so many seconds."""
        if self.taken < self._most:
            self.taken += 1
        else:
            chosen = self._chosen(tenant.client)
            if chosen is None or not await self._place_of(chosen, seconds):
                return False
        self._tenants.add(tenant)
        return True

    def give_back(self, tenant: Tenant) -> None:
        """The process is gone."""
        self._tenants.discard(tenant)
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)  # it takes over the place
                return
        self.taken -= 1

    def _chosen(self, client: str) -> Tenant | None:
        """Which process is missed least of the client that has most: an idle one; any, if it has more than half."""
        of = Counter(each.client for each in self._tenants)
        most = max(of.values(), default=0)
        if most < of[client] + 2:
            return None
        own = [each for each in self._tenants if of[each.client] == most]
        idle = [each for each in own if each.idle]
        if not idle and most * 2 <= self._most:
            return None
        return min(idle or own, key=lambda each: each.used)

    async def _place_of(self, chosen: Tenant, seconds: float) -> bool:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._tenants.discard(chosen)
        chosen.make_way()
        try:
            await asyncio.wait((waiting,), timeout=seconds)
        finally:
            given = waiting.done() or not waiting.cancel()
        return given
