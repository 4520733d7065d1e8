"""The queue of one session: slow work runs on the executor, and later work of the session waits behind it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from pinwarden.gateway.http.memory_budget import Room
from pinwarden.system.fair_executor import FairExecutor

T = TypeVar("T")
_PER_ENTRY = 512  # bytes of memory, beside the message itself


class Turns:
    """The work on one session, in the order in which it came."""

    __slots__ = ("_away", "_client", "_executor", "_line", "_most", "_room", "busy", "overflow", "waiting")

    def __init__(
        self, executor: FairExecutor, client: str, most_bytes: int, room: Room, overflow: Callable[[], None]
    ) -> None:
        """``overflow`` is called if this is the line that has to go because all of them together are too long."""
        self._executor = executor
        self._client = client
        self._most = most_bytes
        self._room = room
        self.overflow = overflow
        self._line: deque[tuple[int, Callable[[], None]]] = deque()
        self.waiting = 0
        """Bytes that wait."""
        self._away = False
        self.busy = False
        """Whether new work has to wait for other work."""

    def do(self, work: Callable[[], None], size: int = 0) -> bool:
        """Do something short, now or in its turn. False if more waits than is kept in memory, and it is not done."""
        if not self.busy:
            work()
            return True
        if size and self.waiting + size > self._most:
            return False
        if not self._line:
            self._room.enter(self)
        self.waiting += size + _PER_ENTRY
        self._line.append((size + _PER_ENTRY, work))
        if size:
            self._room.make()
        return True

    def drop(self) -> None:
        """Nobody needs what waits any more."""
        self._line.clear()
        self.waiting = 0
        self._room.leave(self)

    def aside(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Do something long on the executor, and go on with what comes out. For work that has its turn."""
        self.busy = self._away = True
        doing = self._executor.submit(self._client, work, required=True)  # one of each session at most
        doing.add_done_callback(lambda done: self._back(done, then, failed))

    def _back(self, done: asyncio.Future[T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        self._away = False
        try:
            if done.cancelled() or done.exception() is not None:
                failed()
            if not done.cancelled():
                then(done.result())  # or let the loop tell what went wrong
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """One after the other, with room for the work on other sessions between them."""
        if self._away:
            return
        if not self._line:
            self.busy = False
            return
        size, work = self._line.popleft()
        self.waiting -= size
        if not self._line:
            self._room.leave(self)
        asyncio.get_running_loop().call_soon(self._go_on)
        work()
