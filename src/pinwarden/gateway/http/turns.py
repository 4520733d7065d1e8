"""What would keep the event loop from everybody else is done on a thread; what belongs behind it waits in line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_THREADS = 2  # Python does one thing at a time; the second is for another server, behind one that sends long lists
_PER_ENTRY = 512  # bytes of memory, beside the message itself


def judging_threads() -> Executor:
    """The threads of one gateway on which long messages are judged. None is started before one is needed."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="judging")


class Turns:
    """The work on one session, in the order in which it came."""

    __slots__ = ("_away", "_bytes", "_line", "_most", "_threads", "busy")

    def __init__(self, threads: Executor | None, most_bytes: int) -> None:
        self._threads = threads
        self._most = most_bytes
        self._line: deque[tuple[int, Callable[[], None]]] = deque()
        self._bytes = 0
        self._away = False
        self.busy = False
        """Whether new work has to wait for other work."""

    def do(self, work: Callable[[], None], size: int = 0) -> bool:
        """Do something short, now or in its turn. False if more waits than is kept in memory, and it is not done."""
        if not self.busy:
            work()
            return True
        if size and self._bytes + size > self._most:
            return False
        self._bytes += size + _PER_ENTRY
        self._line.append((size + _PER_ENTRY, work))
        return True

    def aside(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Do something long on a thread, and go on with what comes out. For work that has its turn."""
        self.busy = self._away = True
        doing = asyncio.get_running_loop().run_in_executor(self._threads, work)
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
        self._bytes -= size
        asyncio.get_running_loop().call_soon(self._go_on)
        work()
