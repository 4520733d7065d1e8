"""Notices and progress on stderr, and pipes whose reader closed them."""

from __future__ import annotations

import os
import sys

from pinwarden.cli.global_arguments import is_verbose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pinwarden.project.parallel import RunningServer, ServerProgress

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
    """A spinner on stderr for work that takes longer than a second. Only on a terminal; removed at the end.

    For several servers, it names those that are being worked on, with their seconds; with ``--verbose``, a line stays
    for each that was finished.
    """

    paused = False
    """Set while a question waits for its answer: a spinner would write over the question."""

    def __init__(self, activity: str) -> None:
        import threading

        self._activity = activity
        self._note = ""
        self._done = self._total = 0
        self._running: tuple[RunningServer, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def update(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items are finished."""
        self._done, self._total = done, total

    def set_note(self, note: str) -> None:
        """Show a text after the bar, such as the rate."""
        self._note = note

    def update_servers(self, progress: ServerProgress) -> None:
        """Show which of several servers are being worked on."""
        self._done, self._total, self._running = progress.done, progress.total, progress.running
        if progress.finished is not None and is_verbose():
            name, seconds = progress.finished
            print_notice(f"{self._activity}: {name} took {seconds:.1f} s")

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
            if Progress.paused:
                self._stop.wait(0.2)
                continue
            now = time.monotonic()
            activity = f"{_SPINNER[frame % 4]} {self._activity}{self._format_bar()}"
            line = f"{activity} {int(now - started)}s{self._note}{self._format_servers(now)}"
            sys.stderr.write(f"\r\x1b[K{_cut_to_terminal(line)}")
            sys.stderr.flush()
            frame += 1
            self._stop.wait(0.2)
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def _format_servers(self, now: float) -> str:
        """Return the servers that are being worked on; the one that takes longest comes first."""
        from pinwarden.core.text import show_invisible

        names = (f"{show_invisible(server.name)} {int(now - server.started)}s" for server in self._running)
        return f": {', '.join(names)}" if self._total > 1 and self._running else ""

    def _format_bar(self) -> str:
        if self._total < 2:
            return ""
        filled = 20 * self._done // self._total
        return f" [{'#' * filled}{'.' * (20 - filled)}] {self._done}/{self._total}"


def _cut_to_terminal(line: str) -> str:
    """Return a line that fits the terminal: the spinner can erase only one line."""
    from shutil import get_terminal_size

    width = get_terminal_size((80, 24)).columns
    return line if len(line) < width else f"{line[: width - 2]}…"
