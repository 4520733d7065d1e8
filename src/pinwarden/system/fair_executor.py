"""The one executor for work that judges or compares input: beside the event loop, and fair between clients.

Whoever sends the input decides how long the work takes, so it never runs on the event loop. It runs on a few threads:

1. The work of one client runs in the order in which it was submitted, one at a time. So a client uses one thread at
   most, and the others are left for other clients.
2. Clients take turns: one piece of work of each, round robin.
3. The queue of one client is bounded, and so are all queues together. `OverloadedError` says so at once.
4. Work that waited too long is not done any more. It ends with `OverloadedError` as well.

How much one piece of work may hold is for the caller to bound (`check_items`): Python cannot end a thread.

For use on one event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import Any, TypeVar

from pinwarden.core.errors import PinwardenError

T = TypeVar("T")
_THREADS = 2
"""Python runs one thread at a time: a second one is for another client, a third would only slow down the event loop."""
_SWITCH_SECONDS = 0.0005
"""How long a thread runs before it hands over to the event loop. Python's own 5 ms would be added to each step of
everything that the loop does meanwhile, and an answer to a client takes several."""
_RETRY_SECONDS = 1


class OverloadedError(PinwardenError):
    """Too much work waits; ask again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, of_all: bool = False) -> None:
        super().__init__("OVERLOADED", message, data={} if of_all else {"reason": "queue"})
        self.retry_after = _RETRY_SECONDS


class _Task:
    __slots__ = ("deadline", "future", "work")

    def __init__(self, work: Callable[[], Any], future: asyncio.Future[Any], deadline: float) -> None:
        self.work = work
        self.future = future
        self.deadline = deadline


class FairExecutor:
    """Runs work for clients, within the bounds above."""

    def __init__(
        self,
        *,
        threads: int = _THREADS,
        max_waiting: int = 64,
        max_all_waiting: int = 1024,
        wait_seconds: float = 30.0,
        pool: Executor | None = None,
    ) -> None:
        """``max_waiting`` is for one client. None of the threads is started before one is needed."""
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="judging")
        self._free = threads
        self._max_waiting = max_waiting
        self._max_all_waiting = max_all_waiting
        self._wait_seconds = wait_seconds
        self._queues: dict[str, deque[_Task]] = {}
        """By client, for clients whose work does not run. The first is next."""
        self._running: dict[str, deque[_Task]] = {}
        """By client, what waits behind the work of the client that runs."""
        self._reserved: dict[str, int] = {}
        """By client, places for work that waits elsewhere before it is submitted."""
        self._waiting = 0

    def submit(self, client: str, work: Callable[[], T], *, required: bool = False) -> asyncio.Future[T]:
        """Run work for a client when it is its turn. Raises `OverloadedError`, unless it is ``required``.

        Required is what a caller has taken on already and bounds by itself. It also waits as long as it takes.
        """
        if not required:
            self.check(client)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = _Task(work, future, inf if required else monotonic() + self._wait_seconds)
        queue = self._running.get(client)
        if queue is None:
            queue = self._queues.setdefault(client, deque())
        queue.append(task)
        self._waiting += 1
        self._start()
        return future

    def check(self, client: str) -> None:
        """Raise `OverloadedError` if no more work of a client is taken."""
        if self.waiting_of(client) + self._reserved.get(client, 0) >= self._max_waiting:
            limit = self._max_waiting
            raise OverloadedError(f"too many requests of this client wait to be judged; the limit is {limit}")
        if self._waiting + sum(self._reserved.values()) >= self._max_all_waiting:
            message = f"too many requests of all clients wait to be judged; the limit is {self._max_all_waiting}"
            raise OverloadedError(message, of_all=True)

    def waiting_of(self, client: str) -> int:
        """How many pieces of work of a client wait."""
        return len(self._running.get(client) or self._queues.get(client) or ())

    def reserve(self, client: str) -> None:
        """Take a place in the queue of a client for work that is submitted later. Raises `OverloadedError`."""
        self.check(client)
        self._reserved[client] = self._reserved.get(client, 0) + 1

    def release(self, client: str, count: int = 1) -> None:
        """Give such places back: the work is submitted now, or never."""
        left = self._reserved.get(client, 0) - count
        if left > 0:
            self._reserved[client] = left
        else:
            self._reserved.pop(client, None)

    def is_busy(self, client: str) -> bool:
        """Whether work of a client runs or waits."""
        return client in self._running or client in self._queues

    def shutdown(self) -> None:
        """Take no more work, and forget what waits."""
        for queue in (*self._queues.values(), *self._running.values()):
            for task in queue:
                task.future.cancel()
            queue.clear()
        self._queues.clear()
        self._waiting = 0
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._free and self._queues:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            task = self._next(queue)
            if task is None:
                continue
            self._free -= 1
            self._running[client] = queue
            if sys.getswitchinterval() > _SWITCH_SECONDS:
                sys.setswitchinterval(_SWITCH_SECONDS)
            done = asyncio.get_running_loop().run_in_executor(self._pool, task.work)
            done.add_done_callback(lambda done, client=client, task=task: self._done(client, task, done))  # type: ignore[misc]

    def _next(self, queue: deque[_Task]) -> _Task | None:
        """The next piece of work of a queue that somebody still waits for."""
        while queue:
            task = queue.popleft()
            self._waiting -= 1
            if task.future.cancelled():
                continue
            if monotonic() > task.deadline:
                task.future.set_exception(OverloadedError(f"it waited for more than {self._wait_seconds:g} seconds"))
                continue
            return task
        return None

    def _done(self, client: str, task: _Task, done: asyncio.Future[Any]) -> None:
        self._free += 1
        queue = self._running.pop(client, None)
        if queue:
            self._queues[client] = queue  # behind all others
        self._start()
        if task.future.cancelled():
            return
        if done.cancelled():
            task.future.cancel()
        elif (problem := done.exception()) is not None:
            task.future.set_exception(problem)
        else:
            task.future.set_result(done.result())


def check_items(count: int, most: int, what: str) -> None:
    """Raise if there are more items than are judged or compared at once; the message names the limit."""
    if count > most:
        raise PinwardenError("INPUT_LIMIT", f"{count} {what} are too many; the limit is {most}")
