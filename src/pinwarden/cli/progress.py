"""A sign of life on the terminal for work that takes longer than a second."""

from __future__ import annotations

import sys
import threading
import time

_FRAMES = "|/-\\"


class Progress:
    """Shows what is being done, on stderr and only on a terminal; leaves no trace when it is over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = self._total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def at(self, done: int, total: int) -> None:
        """So many are done."""
        self._done, self._total = done, total

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show(self) -> None:
        started = time.monotonic()
        if self._stop.wait(1.0):
            return
        frame = 0
        while not self._stop.is_set():
            seconds = int(time.monotonic() - started)
            sys.stderr.write(f"\r\x1b[K{_FRAMES[frame % 4]} {self._what}{self._bar()} {seconds}s")
            sys.stderr.flush()
            frame += 1
            self._stop.wait(0.2)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def _bar(self) -> str:
        if self._total < 2:
            return ""
        filled = 20 * self._done // self._total
        return f" [{'#' * filled}{'.' * (20 - filled)}] {self._done}/{self._total}"
