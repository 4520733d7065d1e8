"""What a session makes of a message on a thread, with everything that need not be done on the event loop."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.gateway.http.messages import Frame, read_server
from pinwarden.gateway.http.recording import Recording
from pinwarden.gateway.step import Step

Work = Callable[[], tuple[Frame | None, Step | None]]
"""Gives the message, if it is about one, and what the session made of it: nothing, if nobody waits for it."""


class Done:
    """What a thread made of a message."""

    __slots__ = ("frame", "made", "problem", "recorded", "step")

    def __init__(self, frame: Frame | None, step: Step | None) -> None:
        self.frame = frame
        """What came."""
        self.step = step
        self.made: tuple[Frame, ...] = ()
        """What goes to the client."""
        self.recorded = False
        self.problem: PinwardenError | None = None


def worked_out(work: Work, recording: Recording, limits: Limits) -> Done:
    """On a thread: judge, record what needs no commit, and read what was changed on the way."""
    frame, step = work()
    done = Done(frame, step)
    if step is not None:
        done.made = tuple(
            frame if frame is not None and data is frame.data else Frame(data, read_server(data, limits))
            for data in step.to_client
        )
        if (step.facts or step.sightings) and not step.durable:
            done.recorded = True
            try:
                recording.record(step)
            except PinwardenError as err:
                done.problem = err
    return done
