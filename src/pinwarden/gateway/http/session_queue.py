"""The queue of one session: slow work runs in a task, and later work of the session waits until it is done.

`PendingRefusals` keeps track of the session's refusals that are still being recorded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from pinwarden.gateway.http.memory_budget import MemoryBudget

_ENTRY_BYTES = 512  # memory of one queue entry, in addition to the message


class SessionQueue:
    """Runs the work of one session in order: functions directly, and coroutines (slow work) in a task."""

    __slots__ = (
        "_budget",
        "_max_bytes",
        "_on_error",
        "_queue",
        "_slow",
        "_task",
        "busy",
        "on_overflow",
        "pending_bytes",
    )

    def __init__(
        self,
        max_bytes: int,
        budget: MemoryBudget,
        on_overflow: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """``on_overflow`` is called if the shared budget is exceeded and this queue is the largest.

        ``on_error`` is called with an exception that slow or queued work raised.
        """
        self._max_bytes = max_bytes
        self._budget = budget
        self.on_overflow = on_overflow
        self._on_error = on_error
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._slow: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.pending_bytes = 0
        """Bytes in the queue."""
        self.busy = False
        """Whether slow work is running, so that new work must be queued."""

    def run(self, work: Callable[[], None], size: int = 0) -> bool:
        """Run work now, or queue it behind slow work. ``size`` is the number of bytes that queued work keeps in memory.

        If the queue is full, drops the work and returns False. Work of size 0 is never dropped.
        """
        if not self.busy:
            work()
            return True
        if size and self.pending_bytes + size > self._max_bytes:
            return False
        if not self._queue:
            self._budget.add(self)
        self.pending_bytes += size + _ENTRY_BYTES
        self._queue.append((size + _ENTRY_BYTES, work))
        if size:
            self._budget.enforce()
        return True

    def start(self, slow: Coroutine[Any, Any, None]) -> None:
        """Start slow work. Each function that this queue runs may call this once."""
        self._slow = slow
        if not self.busy:
            self.busy = True
            self._task = asyncio.get_running_loop().create_task(self._run_all())

    def drop(self) -> None:
        """Drop all queued work. Slow work that has started continues."""
        self._queue.clear()
        self.pending_bytes = 0
        self._budget.remove(self)

    async def _run_all(self) -> None:
        """Finish the slow work, then run the queued work in order, which may start slow work again."""
        while self._slow is not None or self._queue:
            try:
                if self._slow is not None:
                    slow, self._slow = self._slow, None
                    await slow
                else:
                    self._take_next()()
            except (Exception, asyncio.CancelledError) as err:  # noqa: BLE001  reported by ``on_error``
                self._on_error(err)
            else:
                await asyncio.sleep(0)  # other sessions get a turn
        self.busy = False

    def _take_next(self) -> Callable[[], None]:
        size, work = self._queue.popleft()
        self.pending_bytes -= size
        if not self._queue:
            self._budget.remove(self)
        return work


class PendingRefusals:
    """The refusals of one session that are being recorded. A refusal is sent when it is durable."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._when_sent: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def is_full(self) -> bool:
        """Whether the limit of refusals is reached."""
        return len(self._tasks) >= self._limit

    def start(self, refusal: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that records and then sends a refusal."""
        task = asyncio.get_running_loop().create_task(refusal)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def run_when_sent(self, work: Callable[[], object]) -> None:
        """Run ``work`` after all refusals are sent; immediately if there are none."""
        if self._tasks:
            self._when_sent.append(work)
        else:
            work()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            works, self._when_sent = self._when_sent, []
            for work in works:
                work()
