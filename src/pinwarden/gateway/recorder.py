"""Records the decisions of sessions: audit events in the log, definitions in the store for review.

`Recorder` records for all sessions of one server. `LoopRecorder` wraps it for the HTTP gateway: it never blocks the
event loop, and counts events for the metrics.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import CALLED, AuditEvent
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.session.output import SessionOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.gateway.audit.log import AuditLog
    from pinwarden.gateway.store.reviews import SightingRecorder

_MAX_QUEUED = 1_000  # outputs whose definitions wait to be stored


class OutputRecorder(Protocol):
    """Records outputs, from any thread. Raises ``PinwardenError`` if an output cannot be recorded."""

    def record(self, output: SessionOutput) -> None:
        """Record an output. Waits for the disk only if ``output.durable`` is set."""

    def record_durably(self, output: SessionOutput) -> None:
        """Record an output, and return when its events would survive a power failure."""


class Recorder:
    """Writes events to the audit log, and definitions to the review store on a separate thread."""

    def __init__(
        self, log: AuditLog | None, sightings: Callable[[], SightingRecorder] | None, print_line: Callable[[str], None]
    ) -> None:
        """``sightings`` opens the review store. The recorder's thread calls it for the first definition."""
        self.log = log
        self._open_store = sightings
        self._print_line = print_line
        self._queue: SimpleQueue[tuple[Verdict, ...] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()

    def record(self, output: SessionOutput) -> None:
        """Record an output. Waits for the disk only if ``output.durable`` is set."""
        self._record(output, durably=output.durable)

    def record_durably(self, output: SessionOutput) -> None:
        """Record an output, and return when its events would survive a power failure."""
        self._record(output, durably=True)

    def close(self) -> None:
        """Store the queued definitions. The log is closed by its owner."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(10)

    def _record(self, output: SessionOutput, *, durably: bool) -> None:
        log = self.log
        if output.events and log is not None:
            if durably:
                if output.to_server:  # refusals are always recorded; forwarding needs a log that accepts events
                    log.check_available()
                log.record_durably(*output.events)
            else:
                log.record(*output.events)
        if output.sightings and self._open_store is not None:
            self._queue_definitions(output.sightings)

    def _queue_definitions(self, verdicts: tuple[Verdict, ...]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._store_definitions, name="sightings", daemon=True)
                self._thread.start()
        if self._queue.qsize() > _MAX_QUEUED:
            raise PinwardenError("DATABASE_UNAVAILABLE", "the server lists definitions faster than they can be stored")
        self._queue.put(verdicts)

    def _store_definitions(self) -> None:
        store: SightingRecorder | None = None
        while (verdicts := self._queue.get()) is not None:
            try:
                if store is None and self._open_store is not None:
                    store = self._open_store()
                events = () if store is None else store.record(verdicts)
                if events and self.log is not None:
                    self.log.record(*events)
            except Exception as err:  # noqa: BLE001  the next definitions must still be stored
                reason = err.message if isinstance(err, PinwardenError) else type(err).__name__
                self._print_line(f"definitions could not be stored for review: {reason}")


class LoopRecorder:
    """Records outputs without blocking the event loop, and counts them."""

    def __init__(
        self, recorder: OutputRecorder, record_call: Callable[[AuditEvent, int | str], None] | None = None
    ) -> None:
        self._recorder = recorder
        self._record_call = record_call
        self.outputs = 0
        self.refusals = 0
        self.kinds: dict[str, int] = {}
        """Number of recorded events by kind."""

    def record(self, output: SessionOutput) -> None:
        """Record an output that need not be durable."""
        self.count(output)
        self._recorder.record(output)

    def record_uncounted(self, output: SessionOutput) -> None:
        """Record an output on another thread. Call `count` with it on the event loop afterwards."""
        self._recorder.record(output)

    async def record_durably(self, output: SessionOutput) -> None:
        """Record an output on a thread, and return when it is durable. Raises ``PinwardenError``."""
        import asyncio

        self.count(output)
        self.refusals += 1
        await asyncio.get_running_loop().run_in_executor(None, self._recorder.record_durably, output)

    @property
    def can_record_calls(self) -> bool:
        """Whether calls can be recorded by `record_call`."""
        return self._record_call is not None

    def record_call(self, event: AuditEvent, request_id: int | str) -> None:
        """Record a call on the fast path: ``event`` lacks only the request id."""
        assert self._record_call is not None  # noqa: S101  see `can_record_calls`
        self._record_call(event, request_id)
        self.outputs += 1
        self.kinds[CALLED] = self.kinds.get(CALLED, 0) + 1

    def count(self, output: SessionOutput) -> None:
        """Count a recorded output."""
        self.outputs += 1
        for event in output.events:
            self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1
