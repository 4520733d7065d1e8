"""Notices and progress on stderr, and pipes whose reader closed them."""

from __future__ import annotations

import os
import sys

_SPINNER = "|/-\\"


def print_notice(text: str) -> None:
    """Write a notice to stderr. Invisible characters and CI log commands in it are escaped."""
    from contextlib import suppress

    from pinwarden.core.text import neutralize_log_commands, show_invisible

    line = neutralize_log_commands(f"pinwarden: {show_invisible(text)}\n")
    with suppress(OSError):  # not through Python's buffer, whose lock would block shutdown if the reader hangs
        os.write(2, line.encode("utf-8", "backslashreplace"))


def wait_for_closed_pipe(descriptor: int, seconds: float) -> bool:
    """Wait up to ``seconds``; return whether the reader closed the pipe in the meantime."""
    try:
        from select import poll
    except ImportError:  # Windows
        import time

        time.sleep(seconds)
        return False
    poller = poll()
    poller.register(descriptor, 0)
    return bool(poller.poll(seconds * 1000))


class Progress:
    """A spinner on stderr for work that takes longer than a second. Only on a terminal; removed at the end."""

    def __init__(self, activity: str) -> None:
        import threading

        self._activity = activity
        self._done = self._total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def update(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items are finished."""
        self._done, self._total = done, total

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _spin(self) -> None:
        import time

        started = time.monotonic()
        if self._stop.wait(1.0):
            return
        frame = 0
        while not self._stop.is_set():
            seconds = int(time.monotonic() - started)
            sys.stderr.write(f"\r\x1b[K{_SPINNER[frame % 4]} {self._activity}{self._bar()} {seconds}s")
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
