"""The end of a gateway that is asked to end: in bounded time, whatever threads, servers, clients or the database do.

The first SIGTERM or SIGINT lets requests in flight end for the drain time; the second one cuts them off. After that
there are a few seconds to end servers and close the log. Then what is left is killed: events that are not in the
database yet are in the journal, and the next gateway takes them up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

from pinwarden.core.errors import EXIT_UNCHECKED
from pinwarden.system.processes import kill_all_trees

SIGNALS = (signal.SIGTERM, signal.SIGINT)
END_SECONDS = 5.0
"""To end servers (twice their grace time) and to close the log, after the drain time."""
_READ_SECONDS = 0.1  # for the last sentence to be written by the thread that writes them
_LAST_SECONDS = 3.0  # until the system ends the process, even if no Python code can run


class Ending:
    """Knows when the gateway is to end, and ends the process if that takes too long."""

    def __init__(self, drain_seconds: float, say: Callable[[str], None]) -> None:
        self._drain_seconds = drain_seconds
        self._say = say
        self._signals: SimpleQueue[float] = SimpleQueue()  # the one thing that a signal handler may use at any time
        self._loop = asyncio.get_running_loop()
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        """The second time: requests in flight are not waited for."""

    def begin(self) -> None:
        """Handle signals from now on."""
        # Started now: a signal handler may interrupt code that starts a thread, and must not start one itself.
        Thread(target=self._watch, name="ending", daemon=True).start()
        for number in SIGNALS:
            with suppress(ValueError):  # only the main thread can
                signal.signal(number, self._signalled)

    def _signalled(self, *_: object) -> None:
        """Runs between two instructions of the main thread, also while the event loop is busy."""
        self._signals.put(monotonic())

    def _watch(self) -> None:
        end = self._signals.get() + self._drain_seconds + END_SECONDS
        self._limit(end)
        self._tell(self.asked)
        with suppress(Empty):
            again = self._signals.get(timeout=max(0.0, end - monotonic()))
            end = min(end, again + END_SECONDS)
            self._limit(end)
            self._tell(self.hurry)
            while True:
                self._signals.get(timeout=max(0.0, end - monotonic()))
        self._say("the gateway did not end in time, so what was left of it is killed")
        kill_all_trees()
        sleep(_READ_SECONDS)
        os._exit(EXIT_UNCHECKED)

    def _tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(event.set)

    def _limit(self, end: float) -> None:
        """Let the system end the process soon after this thread should have. Servers do not inherit that."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max(0.0, end - monotonic()) + _LAST_SECONDS)
