"""Where the steps of sessions are written down: facts into the audit log, definitions into the store for review."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.session.output import SessionOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.gateway.audit.log import AuditLog
    from pinwarden.gateway.store.reviews import SightingRecorder

_MAX_WAITING = 1_000  # steps with definitions; a server that serves more than the store takes is not observed whole


class Recorder:
    """Records for the sessions of one server. Definitions are stored on a thread of their own, facts by the log."""

    def __init__(
        self, log: AuditLog | None, sightings: Callable[[], SightingRecorder] | None, say: Callable[[str], None]
    ) -> None:
        """``sightings`` opens the store when something is seen for the first time; it is called on the thread."""
        self._log = log
        self._open = sightings
        self._say = say
        self._queue: SimpleQueue[tuple[Verdict, ...] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()

    def record(self, step: SessionOutput) -> None:
        """Take a step, at once; durably if it says so."""
        self._take(step, durably=step.durable)

    @property
    def log(self) -> AuditLog | None:
        """Where facts go, for those who pack them themselves."""
        return self._log

    def record_durably(self, step: SessionOutput) -> None:
        """Take a step, and return when its facts would survive a power cut."""
        self._take(step, durably=True)

    def close(self) -> None:
        """Store what waits. The log is closed by whoever opened it."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(10)

    def _take(self, step: SessionOutput, *, durably: bool) -> None:
        if step.events and self._log is not None:
            if durably:
                if step.to_server:  # a refusal is kept in any case; what is let through beside it needs leave
                    self._log.admit()
                self._log.record_durably(*step.events)
            else:
                self._log.record(*step.events)
        if step.sightings and self._open is not None:
            self._see(step.sightings)

    def _see(self, verdicts: tuple[Verdict, ...]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._store, name="sightings", daemon=True)
                self._thread.start()
        if self._queue.qsize() > _MAX_WAITING:
            raise PinwardenError("DATABASE_UNAVAILABLE", "the store does not keep up with what the server serves")
        self._queue.put(verdicts)

    def _store(self) -> None:
        store: SightingRecorder | None = None
        while (verdicts := self._queue.get()) is not None:
            try:
                if store is None and self._open is not None:
                    store = self._open()
                held = () if store is None else store.keep(verdicts)
                if held and self._log is not None:
                    self._log.record(*held)
            except Exception as err:  # noqa: BLE001  whatever it is, the next definitions are to be kept
                why = err.message if isinstance(err, PinwardenError) else type(err).__name__
                self._say(f"what the server serves could not be kept for review: {why}")
