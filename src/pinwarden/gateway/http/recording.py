"""Writing down what a session saw and did, without ever making the event loop wait for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.event import CALLED, Fact
from pinwarden.gateway.step import Step

if TYPE_CHECKING:
    from pinwarden.gateway.http.tracing import Tracing


class Recorder(Protocol):
    """Where steps are recorded. Called from any thread; what cannot be recorded raises ``PinwardenError``."""

    def record(self, step: Step) -> None:
        """Take it, at once."""

    def record_durably(self, step: Step) -> None:
        """Take it, and return when it would survive a power cut."""


class Recording:
    """A recorder for the event loop."""

    def __init__(self, recorder: Recorder, note: Callable[[Fact, int | str], None] | None = None) -> None:
        self._recorder = recorder
        self._note = note
        self._tasks: set[asyncio.Task[None]] = set()
        self.tracing: Tracing | None = None
        """Who makes spans of requests, if anybody wants them."""
        self.steps = 0
        self.refusals = 0
        self.kinds: dict[str, int] = {}
        """How many facts of each kind."""

    def soon(self, step: Step) -> None:
        """Record a step whose effect needs no proof."""
        self.count(step)
        self._recorder.record(step)

    @property
    def notes(self) -> bool:
        """Whether calls can be recorded by `note`."""
        return self._note is not None

    def note(self, form: Fact, request_id: int | str) -> None:
        """`soon` for a call on the fast path, whose event is like others but for its request id."""
        assert self._note is not None  # noqa: S101  see `notes`
        self._note(form, request_id)
        self.steps += 1
        self.kinds[CALLED] = self.kinds.get(CALLED, 0) + 1

    def durably(self, step: Step, then: Callable[[], None], failed: Callable[[PinwardenError], None]) -> None:
        """Record a step, and let it have its effect when it is on disk."""
        self.count(step)
        self.refusals += 1
        task = asyncio.get_running_loop().create_task(self._durably(step, then, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def record(self, step: Step) -> None:
        """Record a step whose effect needs no proof, on any thread; whoever does has to `count` it on the loop."""
        self._recorder.record(step)

    def count(self, step: Step) -> None:
        """Count what was recorded."""
        self.steps += 1
        for fact in step.facts:
            self.kinds[fact.kind] = self.kinds.get(fact.kind, 0) + 1

    async def _durably(self, step: Step, then: Callable[[], None], failed: Callable[[PinwardenError], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._recorder.record_durably, step)
        except PinwardenError as err:
            failed(err)
            return
        then()
