"""An executor for checks and comparisons of input, which keeps them off the event loop and is fair between clients.

The sender of the input determines how long such work takes, so it must not run on the event loop. It runs on a few
threads:

- The work of one client runs in order, one task at a time. So a client uses at most one thread.
- Clients take turns, one task each (round robin).
- The queue of each client and all queues together are bounded. A full queue raises `OverloadedError` immediately.
- A task that was queued for too long is not run. It also fails with `OverloadedError`.

The caller must bound the size of a task (`check_items`), because Python cannot stop a thread.

One executor belongs to one event loop.
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
_DEFAULT_THREADS = 2
"""Python runs one thread at a time. With two, a slow task of one client does not block all others; a third thread would
only slow down the event loop."""
_SWITCH_SECONDS = 0.0005
"""How long a thread runs before Python switches to the event loop. The default of 5 ms would delay every iteration of
the loop, and a response takes several iterations."""
_RETRY_SECONDS = 1


class OverloadedError(PinwardenError):
    """Too much work is queued. Retry after ``retry_after`` seconds."""

    def __init__(self, message: str, *, for_all_clients: bool = False) -> None:
        super().__init__("OVERLOADED", message, data={} if for_all_clients else {"reason": "queue"})
        self.retry_after = _RETRY_SECONDS


class _Task:
    __slots__ = ("deadline", "future", "work")

    def __init__(self, work: Callable[[], Any], future: asyncio.Future[Any], deadline: float) -> None:
        self.work = work
        self.future = future
        self.deadline = deadline


class FairExecutor:
    """Runs the work of many clients on a few threads, one task per client at a time."""

    def __init__(
        self,
        *,
        threads: int = _DEFAULT_THREADS,
        max_queued: int = 64,
        max_queued_in_total: int = 1024,
        max_queue_seconds: float = 30.0,
        pool: Executor | None = None,
    ) -> None:
        """``max_queued`` is the limit per client. Threads are started when they are needed."""
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="pinwarden-check")
        self._free = threads
        self._max_queued = max_queued
        self._max_queued_in_total = max_queued_in_total
        self._max_queue_seconds = max_queue_seconds
        self._queues: dict[str, deque[_Task]] = {}
        """Queues of clients without a running task, in the order in which they get their turn."""
        self._running: dict[str, deque[_Task]] = {}
        """Queues of clients with a running task."""
        self._reserved: dict[str, int] = {}
        """Queue places reserved for work that is submitted later, by client."""
        self._waiting = 0

    def submit(self, client: str, work: Callable[[], T], *, required: bool = False) -> asyncio.Future[T]:
        """Queue work for a client. Raises `OverloadedError` if a queue is full, unless the work is ``required``.

        Required work was accepted before and is bounded by the caller. It has no deadline.
        """
        if not required:
            self.check(client)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = _Task(work, future, inf if required else monotonic() + self._max_queue_seconds)
        queue = self._running.get(client)
        if queue is None:
            queue = self._queues.setdefault(client, deque())
        queue.append(task)
        self._waiting += 1
        self._start_tasks()
        return future

    def check(self, client: str) -> None:
        """Raise `OverloadedError` if the queue of the client, or all queues together, are full."""
        if self.count_queued(client) + self._reserved.get(client, 0) >= self._max_queued:
            limit = self._max_queued
            raise OverloadedError(f"this client has too many queued requests; the limit is {limit}")
        if self._waiting + sum(self._reserved.values()) >= self._max_queued_in_total:
            message = f"all clients together have too many queued requests; the limit is {self._max_queued_in_total}"
            raise OverloadedError(message, for_all_clients=True)

    def count_queued(self, client: str) -> int:
        """Return the number of queued tasks of a client."""
        return len(self._running.get(client) or self._queues.get(client) or ())

    def reserve(self, client: str) -> None:
        """Reserve a place in the queue of a client. Raises `OverloadedError`."""
        self.check(client)
        self._reserved[client] = self._reserved.get(client, 0) + 1

    def release(self, client: str, count: int = 1) -> None:
        """Release reserved places, when the work is submitted or dropped."""
        left = self._reserved.get(client, 0) - count
        if left > 0:
            self._reserved[client] = left
        else:
            self._reserved.pop(client, None)

    def is_busy(self, client: str) -> bool:
        """Whether a client has running or queued work."""
        return client in self._running or client in self._queues

    def shutdown(self) -> None:
        """Cancel queued work and stop."""
        for queue in (*self._queues.values(), *self._running.values()):
            for task in queue:
                task.future.cancel()
            queue.clear()
        self._queues.clear()
        self._waiting = 0
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_tasks(self) -> None:
        while self._free and self._queues:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            task = self._take_next(queue)
            if task is None:
                continue
            self._free -= 1
            self._running[client] = queue
            if sys.getswitchinterval() > _SWITCH_SECONDS:
                sys.setswitchinterval(_SWITCH_SECONDS)
            done = asyncio.get_running_loop().run_in_executor(self._pool, task.work)
            done.add_done_callback(lambda done, client=client, task=task: self._finish(client, task, done))  # type: ignore[misc]

    def _take_next(self, queue: deque[_Task]) -> _Task | None:
        """Remove and return the next task that is not cancelled. Tasks past their deadline are removed and fail."""
        while queue:
            task = queue.popleft()
            self._waiting -= 1
            if task.future.cancelled():
                continue
            if monotonic() > task.deadline:
                problem = f"the request was queued for more than {self._max_queue_seconds:g} seconds"
                task.future.set_exception(OverloadedError(problem))
                continue
            return task
        return None

    def _finish(self, client: str, task: _Task, done: asyncio.Future[Any]) -> None:
        self._free += 1
        queue = self._running.pop(client, None)
        if queue:
            self._queues[client] = queue  # the client goes to the end of the round
        self._start_tasks()
        if task.future.cancelled():
            return
        if done.cancelled():
            task.future.cancel()
        elif (problem := done.exception()) is not None:
            task.future.set_exception(problem)
        else:
            task.future.set_result(done.result())


def check_items(count: int, max_count: int, what: str) -> None:
    """Raise INPUT_LIMIT if there are more items than one request may have."""
    if count > max_count:
        raise PinwardenError("INPUT_LIMIT", f"{count} {what} are too many; the limit is {max_count}")
