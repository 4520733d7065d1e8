"""Sentences for people on standard error, which somebody may or may not read."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic

MOST_IN_A_SECOND = 20
"""Sentences of one server that are told one by one; nobody reads more."""
_MOST_WAITING = 1_000  # sentences for somebody who does not read
_SECOND = 1.0
_COUNT = ""


class Telling:
    """Tells sentences on a thread, so that nobody waits for whoever reads them, and counts what is too much."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = monotonic, most: int = MOST_IN_A_SECOND
    ) -> None:
        """``most`` sentences are told in a second."""
        self._write = write
        self._most = most
        self._clock = clock
        self._lock = Lock()
        self._line: SimpleQueue[str | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._since = -_SECOND
        self._told = 0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Tell something, soon."""
        with self._lock:
            now = self._clock()
            if now - self._since >= _SECOND:
                self._since, self._told = now, 0
            self._told += 1
            if self._told > self._most or self._line.qsize() >= _MOST_WAITING:
                self._left_out += 1
                text = _COUNT
                if self._left_out > 1:
                    return  # it is known that there is something to count
            if self._thread is None:
                self._thread = Thread(target=self._run, name="telling", daemon=True)
                self._thread.start()
            self._line.put(text)

    def close(self, seconds: float) -> None:
        """Tell what waits, and wait no longer than that for somebody to read it."""
        if self._thread is not None:
            self._line.put(None)
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                text = self._line.get(timeout=_SECOND if self._left_out else None)
            except Empty:
                self._count()
                continue
            if text is None:
                break
            if text is not _COUNT:
                self._count()
                self._write(text)
        self._count()

    def _count(self) -> None:
        with self._lock:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._write(f"{left_out} more {'sentence was' if left_out == 1 else 'sentences were'} left out")
