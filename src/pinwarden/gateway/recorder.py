"""Records the decisions of sessions: audit events in the log, definitions in the store for review.

`Recorder` records for all sessions of one server. `LoopRecorder` wraps it for the HTTP gateway: it never blocks the
event loop, and counts events for the metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import BLOCKED, CALLED, AuditEvent
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.session.output import SessionOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinwarden.gateway.audit.log import AuditLog
    from pinwarden.gateway.store.reviews import SightingRecorder

_SERVER_REQUEST = "request"  # the `item_kind` of a server request
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


BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets of a `Histogram`, in seconds. The event loop's clock counts milliseconds."""
_MAX_CLIENTS = 1000  # clients that are counted separately
OTHER_CLIENTS = "(other)"
"""The name under which all further clients are counted. No client can have this name."""


class Histogram:
    """Counts durations by bucket, and how many of the requests failed."""

    __slots__ = ("counts", "failures", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        """The sum of all durations."""
        self.failures = 0

    def add(self, seconds: float) -> None:
        """Count a request."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class ClientCounters:
    """Counts what clients used, and what was refused, for a bounded number of clients."""

    def __init__(self) -> None:
        self.uses: dict[str, int] = {}
        """Forwarded uses of tools, prompts and resources, by client."""
        self.refusals: dict[str, int] = {}
        """Messages that were refused, or from which something was removed, by client."""

    def count_use(self, client: str) -> None:
        """Count a use that was forwarded. Called for every call, so the usual case takes no further function."""
        try:
            self.uses[client] += 1
        except KeyError:
            increment_bounded(self.uses, client)

    def count_events(self, events: Sequence[AuditEvent]) -> None:
        """Count the events about one message: each use, and at most one refusal."""
        refused = ""
        for event in events:
            if event.kind == CALLED and event.item_kind != _SERVER_REQUEST:
                self.count_use(event.client)
            elif event.kind == BLOCKED:
                refused = event.client
        if refused:
            increment_bounded(self.refusals, refused)


def increment_bounded(counts: dict[str, int], client: str) -> None:
    """Count an event of a client; beyond a bounded number of clients, under `OTHER_CLIENTS`."""
    if client not in counts and len(counts) >= _MAX_CLIENTS:
        client = OTHER_CLIENTS
    counts[client] = counts.get(client, 0) + 1


class LoopRecorder:
    """Records outputs without blocking the event loop, and counts them and the time that requests take."""

    def __init__(
        self,
        recorder: OutputRecorder,
        record_call: Callable[[AuditEvent, int | str], None] | None = None,
        clients: ClientCounters | None = None,
    ) -> None:
        """``clients`` are the counters that all servers of a gateway share."""
        self._recorder = recorder
        self._record_call = record_call
        self._clients = clients or ClientCounters()
        self.durations: dict[str, Histogram] = {}
        """How long requests took, by their class."""
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
        self._clients.count_use(event.client)

    def count(self, output: SessionOutput) -> None:
        """Count a recorded output."""
        self.outputs += 1
        for event in output.events:
            self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1
        self._clients.count_events(output.events)

    def add_duration(self, request_class: str, seconds: float, *, failed: bool) -> None:
        """Count a request that got its response or timed out.

        ``request_class`` must be one of few words, never a tool's name.
        """
        histogram = self.durations.get(request_class)
        if histogram is None:
            histogram = self.durations[request_class] = Histogram()
        histogram.add(seconds)
        histogram.failures += failed
