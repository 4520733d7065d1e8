"""Runs the work of a session in order, records each decision, and then sends its messages.

A refusal is sent once it is durable. A step that cannot be recorded is undone. Slow decisions are made on a thread, and
their messages are sent on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.audit.event import CALLED, AuditEvent
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.session.messages import Frame, RequestId, frame_from_server, parse_server
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.session.session import Session
from pinwarden.system.fair_executor import FairExecutor

if TYPE_CHECKING:
    from pinwarden.gateway.http.telemetry import Tracing

Then = Callable[[bool], None]
"""Called with whether a message may be the expected response."""


class StepSender(Protocol):
    """Sends the messages of a step."""

    def send(
        self,
        step: SessionOutput,
        frame: Frame | None,
        expected_id: RequestId | None,
        status: int,
        made: tuple[Frame, ...] = (),
    ) -> None:
        """Send the messages. ``made`` are those for the client, if they are parsed already."""

    def close(self, why: str) -> None:
        """End the conversation."""


class RecordThenSend:
    """Records the steps of one conversation, then sends their messages."""

    def __init__(  # noqa: PLR0913, PLR0917  what a conversation is made of
        self,
        sender: StepSender,
        session: Session,
        recording: StepRecorder,
        session_queue: SessionQueue,
        json: Limits,
        most_waiting: int,
        abandoned: dict[RequestId, None],
    ) -> None:
        """``abandoned`` are requests whose clients left."""
        self._sender = sender
        self._session = session
        self._recording = recording
        self._session_queue = session_queue
        self._json = json
        self._most_waiting = most_waiting
        self._abandoned = abandoned
        self._waiting = 0
        """Refusals that are not durable yet."""
        self._after: list[Callable[[], None]] = []

    def after(self, work: Callable[[], None]) -> bool:
        """Run ``work`` once all refusals are durable and sent. Returns False, without running it, if there are none."""
        if self._waiting:
            self._after.append(work)
        return bool(self._waiting)

    def take(
        self,
        step: SessionOutput,
        frame: Frame | None,
        expected_id: RequestId | None,
        status: int,
        made: tuple[Frame, ...] = (),
    ) -> None:
        """Record a step, then send its messages. A refusal is sent once it is durable."""
        if step.events or step.sightings:
            try:
                if step.durable:
                    self._refuse(step, lambda: self._sender.send(step, frame, expected_id, status, made))
                    return
                self._recording.soon(step)
            except PinwardenError as err:
                self.unrecorded(step, err)
                return
        self._sender.send(step, frame, expected_id, status, made)

    def unrecorded(self, step: SessionOutput, err: PinwardenError) -> None:
        """A step could not be recorded: undo it, and answer with the reason."""
        self._sender.send(self._session.undo(step, err), None, None, 0)

    def _refuse(self, step: SessionOutput, then: Callable[[], None]) -> None:
        """Send a refusal once it is durable. Closes the conversation if too many are pending."""
        if self._waiting >= self._most_waiting:
            self._sender.close("the server causes refusals faster than they can be recorded")
            return
        self._waiting += 1

        def recorded() -> None:
            self._waiting -= 1
            then()
            self._go_on()

        def failed(err: PinwardenError) -> None:
            self._waiting -= 1
            self._session_queue.do(partial(self.unrecorded, step, err))
            self._go_on()

        self._recording.durably(step, recorded, failed)

    def _go_on(self) -> None:
        if not self._waiting:
            after, self._after = self._after, []
            for work in after:
                self._session_queue.do(work)

    # Offloaded work

    def judge_offloaded(self, data: bytes, now: float, expected_id: RequestId | None, status: int, then: Then) -> None:
        """Judge a message of the server on a thread."""
        self.offload(partial(self._judged, data, now), expected_id, status, then)

    def offload(
        self, work: OffloadedWork, expected_id: RequestId | None = None, status: int = 0, then: Then | None = None
    ) -> None:
        """Run work of the session on a thread, then record and send the step."""
        on_thread = partial(run_offloaded, work, self._recording, self._json)
        self._session_queue.offload(
            on_thread, partial(self._worked_out, expected_id, status, then), self._not_worked_out
        )

    def _judged(self, data: bytes, now: float) -> tuple[Frame, SessionOutput | None]:
        """Runs on a thread."""
        frame = frame_from_server(data, self._json)
        if frame.is_response and frame.id in self._abandoned:
            return frame, None
        return frame, self._session.on_server_message(data, now, frame.message)

    def _worked_out(self, expected_id: RequestId | None, status: int, then: Then | None, done: OffloadResult) -> None:
        frame, step = done.frame, done.step
        if step is None:
            if frame is not None and frame.id is not None:
                self._abandoned.pop(frame.id, None)
        elif done.problem is not None:
            self.unrecorded(step, done.problem)
        elif done.recorded:
            self._recording.count(step)
            self._sender.send(step, frame, expected_id, status, done.made)
        else:
            self.take(step, frame, expected_id, status, done.made)
        if then is not None and frame is not None:
            then(step is None or frame.may_answer(expected_id))

    def _not_worked_out(self) -> None:
        self._sender.close("a message could not be judged")


OffloadedWork = Callable[[], tuple[Frame | None, SessionOutput | None]]
"""Returns the message, if there is one, and the session's step; no step if the client left."""


class OffloadResult:
    """The outcome of offloaded work."""

    __slots__ = ("frame", "made", "problem", "recorded", "step")

    def __init__(self, frame: Frame | None, step: SessionOutput | None) -> None:
        self.frame = frame
        """The message of the server."""
        self.step = step
        self.made: tuple[Frame, ...] = ()
        """The messages for the client."""
        self.recorded = False
        self.problem: PinwardenError | None = None


def run_offloaded(work: OffloadedWork, recording: StepRecorder, limits: Limits) -> OffloadResult:
    """Runs on a thread: judge, record what need not be durable, and parse the messages for the client."""
    frame, step = work()
    done = OffloadResult(frame, step)
    if step is not None:
        done.made = tuple(
            frame if frame is not None and data is frame.data else Frame(data, parse_server(data, limits))
            for data in step.to_client
        )
        if (step.events or step.sightings) and not step.durable:
            done.recorded = True
            try:
                recording.record(step)
            except PinwardenError as err:
                done.problem = err
    return done


T = TypeVar("T")
_PER_ENTRY = 512  # bytes of memory, in addition to the message


class SessionQueue:
    """Runs the work of one session in order. Slow work runs on the executor, and later work queues behind it."""

    __slots__ = (
        "_budget",
        "_client",
        "_executor",
        "_most",
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
        self._most = max_bytes
        self._budget = budget
        self.overflow = overflow
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self.pending_bytes = 0
        """Bytes in the queue."""
        self._offloaded = False
        self.busy = False
        """Whether new work is queued."""

    def do(self, work: Callable[[], None], size: int = 0) -> bool:
        """Run short work now, or queue it. Returns False, and drops it, if the queue is full."""
        if not self.busy:
            work()
            return True
        if size and self.pending_bytes + size > self._most:
            return False
        if not self._queue:
            self._budget.enter(self)
        self.pending_bytes += size + _PER_ENTRY
        self._queue.append((size + _PER_ENTRY, work))
        if size:
            self._budget.make()
        return True

    def drop(self) -> None:
        """Drop all queued work."""
        self._queue.clear()
        self.pending_bytes = 0
        self._budget.leave(self)

    def offload(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Run long work on the executor, then ``then``. Call it only from work that runs in this queue."""
        self.busy = self._offloaded = True
        doing = self._executor.submit(self._client, work, required=True)  # at most one per session
        doing.add_done_callback(lambda done: self._back(done, then, failed))

    def _back(self, done: asyncio.Future[T], then: Callable[[T], None], failed: Callable[[], None]) -> None:
        self._offloaded = False
        try:
            if done.cancelled() or done.exception() is not None:
                failed()
            if not done.cancelled():
                then(done.result())  # an unexpected exception goes to the loop's handler
        finally:
            self._go_on()

    def _go_on(self) -> None:
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
        asyncio.get_running_loop().call_soon(self._go_on)
        work()


class StepLog(Protocol):
    """Where steps are recorded, from any thread. Raises ``PinwardenError`` if a step cannot be recorded."""

    def record(self, step: SessionOutput) -> None:
        """Record a step without waiting for the disk."""

    def record_durably(self, step: SessionOutput) -> None:
        """Record a step, and return once it is durable."""


class StepRecorder:
    """Records steps without blocking the event loop, and counts them."""

    def __init__(self, recorder: StepLog, note: Callable[[AuditEvent, int | str], None] | None = None) -> None:
        self._recorder = recorder
        self._note = note
        self._tasks: set[asyncio.Task[None]] = set()
        self.tracing: Tracing | None = None
        """Creates spans, if tracing is configured."""
        self.steps = 0
        self.refusals = 0
        self.kinds: dict[str, int] = {}
        """Number of recorded facts by kind."""

    def soon(self, step: SessionOutput) -> None:
        """Record a step that need not be durable."""
        self.count(step)
        self._recorder.record(step)

    @property
    def notes(self) -> bool:
        """Whether calls can be recorded by `note`."""
        return self._note is not None

    def note(self, form: AuditEvent, request_id: int | str) -> None:
        """Record a call on the fast path: its event differs from ``form`` only in the request id."""
        assert self._note is not None  # noqa: S101  see `notes`
        self._note(form, request_id)
        self.steps += 1
        self.kinds[CALLED] = self.kinds.get(CALLED, 0) + 1

    def durably(self, step: SessionOutput, then: Callable[[], None], failed: Callable[[PinwardenError], None]) -> None:
        """Record a step, and call ``then`` once it is durable, or ``failed``."""
        self.count(step)
        self.refusals += 1
        task = asyncio.get_running_loop().create_task(self._durably(step, then, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def record(self, step: SessionOutput) -> None:
        """`soon` for any thread. The caller has to `count` the step on the event loop."""
        self._recorder.record(step)

    def count(self, step: SessionOutput) -> None:
        """Count a recorded step."""
        self.steps += 1
        for fact in step.events:
            self.kinds[fact.kind] = self.kinds.get(fact.kind, 0) + 1

    async def _durably(
        self, step: SessionOutput, then: Callable[[], None], failed: Callable[[PinwardenError], None]
    ) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._recorder.record_durably, step)
        except PinwardenError as err:
            failed(err)
            return
        then()
