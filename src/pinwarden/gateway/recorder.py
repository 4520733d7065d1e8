"""Writing down what a session saw and did: facts into the audit log, definitions into the store."""

from __future__ import annotations

from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.step import Step
from pinwarden.store.audit import AuditLog

if TYPE_CHECKING:
    from pinwarden.flows.gateway.sightings import Sightings
    from pinwarden.rules.gates.verdict import Verdict

_MOST_WAITING = 1000  # steps with new definitions; those of a session are few
_PATIENCE = 5.0


class Recorder:
    """The records of one server. Called from any thread.

    A refusal is written down, with the review that it makes, before it is answered. What passes costs its session no
    more than a line in the journal of the audit log: new definitions are written on another thread. Those are lost
    when the process is killed, and seen again by the next session.
    """

    def __init__(self, log: AuditLog, sightings: Sightings) -> None:
        self._log = log
        self._sightings = sightings
        self._queue: Queue[tuple[Verdict, ...] | None] = Queue(_MOST_WAITING)
        self._thread: Thread | None = None

    def record(self, step: Step) -> None:
        """Take it, at once. Raises AUDIT_UNAVAILABLE if it must not have its effect."""
        if step.facts:
            self._log.record(*step.facts)
        if step.sightings:
            self._later(step.sightings)

    def record_durably(self, step: Step) -> None:
        """Take it, and return when it would survive a power cut."""
        if step.facts:
            self._log.record_durably(*step.facts)
        if step.sightings:
            self._write(step.sightings)

    def close(self) -> None:
        """Write what waits."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_PATIENCE)

    def _later(self, verdicts: tuple[Verdict, ...]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="sightings", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(verdicts)
        except Full:
            self._write(verdicts)

    def _run(self) -> None:
        while (verdicts := self._queue.get()) is not None:
            self._write(verdicts)

    def _write(self, verdicts: tuple[Verdict, ...]) -> None:
        try:
            self._sightings.keep(verdicts)
        except PinwardenError:
            return  # the audit log tells that the database is away; the next session sees the definitions again
