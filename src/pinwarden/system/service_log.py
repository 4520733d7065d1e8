"""The log of a long-running service: lines on standard error, as text or JSON, with a level.

Logging never delays the service, even if stderr is not read: lines are queued, and a thread writes them. The rate is
limited, so that a hostile peer cannot flood the log. Lines above the limit are counted and dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from json import dumps
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import logging

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
MAX_LINES_PER_SECOND = 20
"""The most lines that one log writes in a second. Further lines are counted and dropped."""
_MAX_QUEUED = 1_000  # lines while stderr is not read
_RATE_SECONDS = 1.0


class ServiceLog:
    """Writes log lines on a thread. Call it, or one of its methods, from any thread.

    ``write`` gets each line of text, and ``write_json`` each JSON line (default: to stderr). `logging` is loaded with
    the first line, so a service that has nothing to log starts without it.
    """

    def __init__(  # noqa: PLR0913  options of one log
        self,
        write: Callable[[str], None],
        write_json: Callable[[str], None] | None = None,
        *,
        level: LogLevel = "info",
        log_format: LogFormat = "text",
        max_per_second: int = MAX_LINES_PER_SECOND,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._json = log_format == "json"
        self._write = (write_json or _write_to_stderr) if self._json else write
        self._level = level
        self._limit = _RateLimit(max_per_second, clock)
        self._lock = Lock()
        self._output: _LogWriter | None = None

    def __call__(self, text: str) -> None:
        """Log a line at level info."""
        self.log("info", text)

    def debug(self, text: str) -> None:
        """Log a detail."""
        self.log("debug", text)

    def warning(self, text: str) -> None:
        """Log something that was blocked, or that a person should look at."""
        self.log("warning", text)

    def error(self, text: str) -> None:
        """Log that the service cannot do its work."""
        self.log("error", text)

    def log(self, level: LogLevel, text: str, **members: str | int) -> None:
        """Queue a line for the log. Returns at once. A JSON line also has these members."""
        if LEVELS.index(level) < LEVELS.index(self._level):
            return
        with self._lock:
            if self._output is None:
                self._output = _start_writer(self._write, self._limit, as_json=self._json)
            self._output.logger.log(self._output.level_numbers[level], "%s", text, extra={"members": members})

    def close(self, seconds: float) -> None:
        """Write the queued lines. Gives up after ``seconds`` if stderr is not read."""
        with self._lock:
            if self._output is not None:
                self._output.stop(seconds)


class _RateLimit:
    """Limits the lines in one second, and counts those above the limit."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = Lock()
        self._since = -_RATE_SECONDS
        self._lines = 0
        self.dropped = 0

    def admit(self, *, is_full: bool) -> bool:
        """Whether a line may be written; if not, it is counted."""
        with self._lock:
            now = self._clock()
            if now - self._since >= _RATE_SECONDS:
                self._since, self._lines = now, 0
            self._lines += 1
            admitted = self._lines <= self._limit and not is_full
            self.dropped += not admitted
            return admitted

    def take_dropped(self) -> int:
        """Return how many lines were dropped since the last call."""
        with self._lock:
            dropped, self.dropped = self.dropped, 0
            return dropped


class _LogWriter:
    """A logger, its queue, and the thread that writes."""

    def __init__(
        self, logger: logging.Logger, level_numbers: dict[LogLevel, int], stop: Callable[[float], None]
    ) -> None:
        self.logger = logger
        self.level_numbers = level_numbers
        self.stop = stop


def _start_writer(write: Callable[[str], None], limit: _RateLimit, *, as_json: bool) -> _LogWriter:
    import logging
    from logging.handlers import QueueHandler, QueueListener
    from queue import Empty, SimpleQueue

    level_numbers: dict[LogLevel, int] = {level: getattr(logging, level.upper()) for level in LEVELS}

    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    wake = logging.makeLogRecord({})

    class LineHandler(logging.Handler):
        def createLock(self) -> None:  # noqa: N802  as in the base class
            """Create no lock: only one thread writes, and at exit `logging` would wait for a lock of a stuck stderr."""
            self.lock = None

        def handle(self, record: logging.LogRecord) -> bool:
            """Write the line. The base class would enter the lock, which from Python 3.13 on must exist."""
            self.emit(record)
            return True

        def emit(self, record: logging.LogRecord) -> None:
            write(_format_json(record) if as_json else record.getMessage())

    class ReportingListener(QueueListener):
        """Also reports dropped lines, within a second after they were dropped."""

        def dequeue(self, block: bool) -> logging.LogRecord:
            while True:
                try:
                    record: logging.LogRecord = queue.get(block, _RATE_SECONDS if limit.dropped else None)
                except Empty:
                    self.report_dropped()
                    continue
                self.report_dropped()
                if record is not wake:
                    return record

        def report_dropped(self) -> None:
            if dropped := limit.take_dropped():
                text = f"{dropped} more log {'line was' if dropped == 1 else 'lines were'} dropped"
                LineHandler().emit(logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None))

        def stop_within(self, seconds: float) -> None:
            thread = self._thread
            if thread is not None:
                self.enqueue_sentinel()
                thread.join(seconds)

    class LimitedQueueHandler(QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            if limit.admit(is_full=queue.qsize() >= _MAX_QUEUED):
                queue.put_nowait(record)
            elif limit.dropped == 1:
                queue.put_nowait(wake)  # so that the listener reports the dropped lines

    logger = logging.Logger("pinwarden", logging.DEBUG)
    logger.addHandler(LimitedQueueHandler(queue))
    listener = ReportingListener(queue, LineHandler())
    listener.start()
    return _LogWriter(logger, level_numbers, listener.stop_within)


def _write_to_stderr(line: str) -> None:
    with suppress(OSError):  # bypasses Python's buffer: its lock would block shutdown if the reader is stuck
        os.write(2, line.encode() + b"\n")


def _format_json(record: logging.LogRecord) -> str:
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
    return dumps({**line, **getattr(record, "members", {})})
