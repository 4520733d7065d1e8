"""The queue of one session: short work runs at once, slow work runs on a thread, and later work waits behind it.

A refusal is sent when it is durable, which takes a moment. `DurableRefusals` counts those that wait, and runs work that
must come after them.
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
from pinwarden.gateway.session.messages import Frame, parse_server
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.system.fair_executor import FairExecutor

T = TypeVar("T")
_ENTRY_BYTES = 512  # bytes of memory, in addition to the message


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
        """``overflow`` is called if this queue holds most when the shared budget is exceeded."""
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
        """Whether new work has to wait. If not, callers may run it themselves."""

    def run(self, work: Callable[[], None], size: int = 0) -> bool:
        """Run short work now, or queue it. Returns False, and drops it, if the queue is full."""
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

    def offload(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Run slow work on the executor, then ``then``. Call it only from work that runs in this queue."""
        self.busy = self._offloaded = True
        future = self._executor.submit(self._client, work, required=True)  # at most one per session
        future.add_done_callback(lambda done: self._finish(done, then, failed))

    def drop(self) -> None:
        """Drop all queued work."""
        self._queue.clear()
        self.pending_bytes = 0
        self._budget.leave(self)

    def _finish(self, done: asyncio.Future[T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        self._offloaded = False
        try:
            if done.cancelled() or done.exception() is not None:
                failed()
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
        """Whether as many wait as are allowed."""
        return self._waiting >= self._limit

    def record(self, output: SessionOutput, send: Callable[[], None], failed: Callable[[PinwardenError], None]) -> None:
        """Record a refusal, and ``send`` it when it is durable; ``failed`` runs in the queue."""
        self._waiting += 1

        def on_recorded() -> None:
            self._waiting -= 1
            send()
            self._run_after()

        def on_failed(err: PinwardenError) -> None:
            self._waiting -= 1
            self._queue.run(lambda: failed(err))
            self._run_after()

        self._recorder.record_durably(output, on_recorded, on_failed)

    def after(self, work: Callable[[], None]) -> bool:
        """Run ``work`` when all refusals are sent. Returns False, without running it, if none waits."""
        if self._waiting:
            self._after.append(work)
        return bool(self._waiting)

    def _run_after(self) -> None:
        if not self._waiting:
            after, self._after = self._after, []
            for work in after:
                self._queue.run(work)


Judgement = Callable[[], tuple[Frame | None, SessionOutput | None]]
"""Returns the message, if there is one, and the session's output; no output if the client left."""


class OffloadResult:
    """The outcome of a judgement on a thread."""

    __slots__ = ("frame", "output", "problem", "recorded", "to_client")

    def __init__(self, frame: Frame | None, output: SessionOutput | None) -> None:
        self.frame = frame
        """The message of the server."""
        self.output = output
        self.to_client: tuple[Frame, ...] = ()
        """The messages for the client, parsed."""
        self.recorded = False
        self.problem: PinwardenError | None = None
        """Why the output could not be recorded."""


def judge_on_thread(judge: Judgement, recorder: LoopRecorder, limits: Limits) -> OffloadResult:
    """Judge, record what need not be durable, and parse the messages for the client."""
    frame, output = judge()
    result = OffloadResult(frame, output)
    if output is not None:
        result.to_client = tuple(
            frame if frame is not None and data is frame.data else Frame(data, parse_server(data, limits))
            for data in output.to_client
        )
        if (output.events or output.sightings) and not output.durable:
            result.recorded = True
            try:
                recorder.record_uncounted(output)
            except PinwardenError as err:
                result.problem = err
    return result
