"""The work queue of one session. Slow work runs on a thread, and later work is queued behind it.

A refusal is sent only after it is durable. `DurableRefusals` counts the refusals that are not durable yet, and runs
work that must come after them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.messages import ParsedMessage, parse_server_value
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.system.fair_executor import FairExecutor

T = TypeVar("T")
_ENTRY_BYTES = 512  # memory of one queue entry, in addition to the message


class SessionQueue:
    """Runs the work of one session in order."""

    __slots__ = (
        "_budget",
        "_client",
        "_executor",
        "_max_bytes",
        "_offloaded",
        "_queue",
        "busy",
        "overflow",
        "pending_bytes",
    )

    def __init__(
        self, executor: FairExecutor, client: str, max_bytes: int, budget: MemoryBudget, overflow: Callable[[], None]
    ) -> None:
        """``overflow`` is called if the shared budget is exceeded and this queue is the largest."""
        self._executor = executor
        self._client = client
        self._max_bytes = max_bytes
        self._budget = budget
        self.overflow = overflow
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self.pending_bytes = 0
        """Bytes in the queue."""
        self._offloaded = False
        self.busy = False
        """Whether new work must be queued. If not, callers may run it directly."""

    def run(self, work: Callable[[], None], size: int = 0) -> bool:
        """Run short work now, or queue it. If the queue is full, drop the work and return False."""
        if not self.busy:
            work()
            return True
        if size and self.pending_bytes + size > self._max_bytes:
            return False
        if not self._queue:
            self._budget.enter(self)
        self.pending_bytes += size + _ENTRY_BYTES
        self._queue.append((size + _ENTRY_BYTES, work))
        if size:
            self._budget.enforce()
        return True

    def offload(self, work: Callable[[], T], then: Callable[[T], None], on_error: Callable[[], None]) -> None:
        """Run slow work on the executor, and call ``then`` with its result. Call this only from work in this queue."""
        self.busy = self._offloaded = True
        future = self._executor.submit(self._client, work, required=True)  # at most one per session
        future.add_done_callback(lambda done: self._finish(done, then, on_error))

    def drop(self) -> None:
        """Drop all queued work."""
        self._queue.clear()
        self.pending_bytes = 0
        self._budget.leave(self)

    def _finish(self, done: asyncio.Future[T], then: Callable[[T], None], on_error: Callable[[], None]) -> None:
        self._offloaded = False
        try:
            if done.cancelled() or done.exception() is not None:
                on_error()
            if not done.cancelled():
                then(done.result())  # an unexpected exception goes to the loop's handler
        finally:
            self._run_next()

    def _run_next(self) -> None:
        """Run the next entry. Other sessions get a turn between two entries."""
        if self._offloaded:
            return
        if not self._queue:
            self.busy = False
            return
        size, work = self._queue.popleft()
        self.pending_bytes -= size
        if not self._queue:
            self._budget.leave(self)
        asyncio.get_running_loop().call_soon(self._run_next)
        work()


class DurableRefusals:
    """Refusals of one session that are not durable yet."""

    def __init__(self, recorder: LoopRecorder, queue: SessionQueue, limit: int) -> None:
        self._recorder = recorder
        self._queue = queue
        self._limit = limit
        self._waiting = 0
        self._after: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        """Whether the limit of refusals is reached."""
        return self._waiting >= self._limit

    def record(
        self, output: SessionOutput, send: Callable[[], None], on_error: Callable[[PinwardenError], None]
    ) -> None:
        """Record a refusal, and call ``send`` once it is durable. ``on_error`` runs in the queue if that fails."""
        self._waiting += 1

        def on_recorded() -> None:
            self._waiting -= 1
            send()
            self._run_after()

        def on_failed(err: PinwardenError) -> None:
            self._waiting -= 1
            self._queue.run(lambda: on_error(err))
            self._run_after()

        self._recorder.record_durably(output, on_recorded, on_failed)

    def after(self, work: Callable[[], None]) -> bool:
        """Run ``work`` after all refusals are sent. If there are none, return False without running it."""
        if self._waiting:
            self._after.append(work)
        return bool(self._waiting)

    def _run_after(self) -> None:
        if not self._waiting:
            after, self._after = self._after, []
            for work in after:
                self._queue.run(work)


Judgement = Callable[[], tuple[ParsedMessage | None, SessionOutput | None]]
"""Returns the message, if there is one, and the session's output; no output if the client disconnected."""


class OffloadResult:
    """The result of an evaluation on a thread."""

    __slots__ = ("frame", "output", "problem", "recorded", "to_client")

    def __init__(self, frame: ParsedMessage | None, output: SessionOutput | None) -> None:
        self.frame = frame
        """The message of the server."""
        self.output = output
        self.to_client: tuple[ParsedMessage, ...] = ()
        """The messages for the client, parsed."""
        self.recorded = False
        self.problem: PinwardenError | None = None
        """Why the output could not be recorded."""


def judge_on_thread(judge: Judgement, recorder: LoopRecorder, limits: Limits) -> OffloadResult:
    """Evaluate a message, record output that need not be durable, and parse the messages for the client."""
    frame, output = judge()
    result = OffloadResult(frame, output)
    if output is not None:
        result.to_client = tuple(
            frame if frame is not None and data is frame.data else ParsedMessage(data, parse_server_value(data, limits))
            for data in output.to_client
        )
        if (output.events or output.sightings) and not output.durable:
            result.recorded = True
            try:
                recorder.record_uncounted(output)
            except PinwardenError as err:
                result.problem = err
    return result
