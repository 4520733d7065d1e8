"""From what a session decided to what comes of it: first it is recorded, and then it happens.

A refusal has its effect when it is on disk. What cannot be recorded does not happen. What takes long to decide is
decided on a thread, and has its effect on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.gateway.http.messages import Frame, Id, from_server
from pinwarden.gateway.http.offloaded_work import Done, Work, worked_out
from pinwarden.gateway.http.recording import Recording
from pinwarden.gateway.http.session_queue import Turns
from pinwarden.gateway.session import Session
from pinwarden.gateway.step import Step

Then = Callable[[bool], None]
"""Is told whether a message may be the answer that was asked for."""


class Sender(Protocol):
    """Who lets a step happen."""

    def send(
        self, step: Step, frame: Frame | None, asked: Id | None, status: int, made: tuple[Frame, ...] = ()
    ) -> None:
        """Send its messages. ``made`` are those for the client, if they were read already."""

    def close(self, why: str) -> None:
        """End the conversation."""


class Effects:
    """The steps of one conversation, on their way to the log and to either side."""

    def __init__(  # noqa: PLR0913, PLR0917  what a conversation is made of
        self,
        sender: Sender,
        session: Session,
        recording: Recording,
        turns: Turns,
        json: Limits,
        most_waiting: int,
        abandoned: dict[Id, None],
    ) -> None:
        """``abandoned`` are the requests whose answers nobody waits for."""
        self._sender = sender
        self._session = session
        self._recording = recording
        self._turns = turns
        self._json = json
        self._most_waiting = most_waiting
        self._abandoned = abandoned
        self._waiting = 0
        """Refusals that have no effect yet, because they are not on disk."""
        self._after: list[Callable[[], None]] = []

    def after(self, work: Callable[[], None]) -> bool:
        """Do something when all refusals have had their effect. False if there are none, and then it is not done."""
        if self._waiting:
            self._after.append(work)
        return bool(self._waiting)

    def take(
        self, step: Step, frame: Frame | None, asked: Id | None, status: int, made: tuple[Frame, ...] = ()
    ) -> None:
        """Record a step, and let it happen."""
        if step.facts or step.sightings:
            try:
                if step.durable:
                    self._refuse(step, lambda: self._sender.send(step, frame, asked, status, made))
                    return
                self._recording.soon(step)
            except PinwardenError as err:
                self.unrecorded(step, err)
                return
        self._sender.send(step, frame, asked, status, made)

    def unrecorded(self, step: Step, err: PinwardenError) -> None:
        """What cannot be recorded does not happen: it is answered with the reason, and reaches nobody."""
        self._sender.send(self._session.take_back(step, err), None, None, 0)

    def _refuse(self, step: Step, then: Callable[[], None]) -> None:
        """Let a refusal have its effect when it is on disk. Who causes them faster than that is ended."""
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
            self._turns.do(partial(self.unrecorded, step, err))
            self._go_on()

        self._recording.durably(step, recorded, failed)

    def _go_on(self) -> None:
        if not self._waiting:
            after, self._after = self._after, []
            for work in after:
                self._turns.do(work)

    # What takes long

    def judge_aside(self, data: bytes, now: float, asked: Id | None, status: int, then: Then) -> None:
        """Let the session judge a message of the server on a thread."""
        self.aside(partial(self._judged, data, now), asked, status, then)

    def aside(self, work: Work, asked: Id | None = None, status: int = 0, then: Then | None = None) -> None:
        """Let the session do its work on a thread, and take what comes out of it."""
        on_thread = partial(worked_out, work, self._recording, self._json)
        self._turns.aside(on_thread, partial(self._worked_out, asked, status, then), self._not_worked_out)

    def _judged(self, data: bytes, now: float) -> tuple[Frame, Step | None]:
        """On a thread."""
        frame = from_server(data, self._json)
        if frame.is_answer and frame.id in self._abandoned:
            return frame, None
        return frame, self._session.server_frame(data, now, frame.message)

    def _worked_out(self, asked: Id | None, status: int, then: Then | None, done: Done) -> None:
        frame, step = done.frame, done.step
        if step is None:
            if frame is not None and frame.id is not None:
                self._abandoned.pop(frame.id, None)
        elif done.problem is not None:
            self.unrecorded(step, done.problem)
        elif done.recorded:
            self._recording.count(step)
            self._sender.send(step, frame, asked, status, done.made)
        else:
            self.take(step, frame, asked, status, done.made)
        if then is not None and frame is not None:
            then(step is None or frame.may_answer(asked))

    def _not_worked_out(self) -> None:
        self._sender.close("a message could not be judged")
