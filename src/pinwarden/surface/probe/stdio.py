"""The stdio transport: the server is a child process that reads and writes one message per line."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, Queue
from threading import Lock, Thread
from time import monotonic
from typing import IO

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.surface.probe.message import NoMessage
from pinwarden.system.probe_budget import ProbeBudget, probe_error, probe_limit_error
from pinwarden.system.processes import ProcessTree

_CHUNK = 1 << 16
_QUEUED_CHUNKS = 64  # output that is buffered before the server has to wait
_HAS_POLL = hasattr(select, "poll")
_LAST_OUTPUT_SECONDS = 0.5  # time to read the last output after the server ended


class StdioCommand(Record):
    """A command line with its environment, all placeholders expanded."""

    words: Sequence[str]
    environment: Mapping[str, str]
    cwd: str | None


class StdioTransport:
    """Runs the server as a child process.

    One thread reads stdout and another stderr, so that the server never blocks on either of them.
    """

    name = "stdio"
    line_based = True

    def __init__(self, command: StdioCommand, budget: ProbeBudget) -> None:
        self._command = command
        self._budget = budget
        self._aborted = False
        self._closing = Lock()
        self._server = _ServerProcess(command, budget)

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Write one message as a line to the server's stdin."""
        del headers, expects_response, wait
        self._server.write(message + b"\n")

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """Return the next line of stdout that is not empty."""
        return self._server.read_line(wait)

    def restart(self) -> None:
        """Kill the server and start it again."""
        self._server.close(immediately=True)
        with self._closing:
            if self._aborted:
                raise probe_error("ended", "the probe was stopped")
            self._server = _ServerProcess(self._command, self._budget)

    def read_stderr_tail(self) -> str:
        """Return the last bytes that the server wrote to stderr, as text."""
        return self._server.stderr_tail.decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Stop the server and its descendants, with a grace period if the probe has time left."""
        self._server.close(immediately=self._budget.is_expired or self._aborted)

    def abort(self) -> None:
        """Kill the server immediately. Can be called from any thread."""
        with self._closing:
            self._aborted = True
            self._server.tree.kill()


class _ServerProcess:
    """One run of the server, with the threads that read its output."""

    def __init__(self, command: StdioCommand, budget: ProbeBudget) -> None:
        self._budget = budget
        self._limits = budget.limits
        self.stderr_tail = b""
        self._stderr_bytes = 0
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._lines: list[bytes] = []  # complete lines in reverse order
        self._chunks: Queue[bytes | PinwardenError] = Queue(_QUEUED_CHUNKS)
        self._ended = False
        self._stopping = False
        self._closed = False
        self._threads: list[Thread] = []
        self._wake_read, self._wake_write = os.pipe()
        try:
            self._process = _start_process(command)
        except BaseException:
            os.close(self._wake_read)
            os.close(self._wake_write)
            raise
        self.tree = ProcessTree(self._process)
        try:
            self._stdin, stdout, stderr = _require_streams(self._process)
            if _HAS_POLL:
                os.set_blocking(self._stdin.fileno(), False)
            self._start_thread(stdout, self._chunks.put)
            self._start_thread(stderr, self._keep_stderr)
        except BaseException:
            self.close(immediately=True)
            raise

    def _start_thread(self, stream: IO[bytes], deliver: Callable[[bytes], None]) -> None:
        thread = Thread(target=self._read_stream, args=(stream, deliver), name="probe-reader", daemon=True)
        thread.start()
        self._threads.append(thread)

    def write(self, data: bytes) -> None:
        """Write all data. Raises if the server does not read it in time.

        If the server has ended, nothing is raised here, and ``read_line`` reports it.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._stdin, select.POLLOUT)
                writable.poll(self._budget.remaining() * 1000)
            except OSError:
                return

    def read_line(self, wait: float | None) -> bytes | NoMessage:
        """Return the next line that is not empty. Waits at most ``wait`` seconds."""
        end = None if wait is None else monotonic() + wait
        while not self._lines:
            if self._ended:
                return NoMessage(reason="ended", detail=self._describe_end())
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                return NoMessage(reason="quiet", detail="the server sent nothing in time")
            try:
                chunk = self._chunks.get(timeout=self._budget.remaining(left))
            except Empty:
                continue
            if isinstance(chunk, PinwardenError):
                raise chunk
            self._add_chunk(chunk)
        return self._lines.pop()

    def close(self, *, immediately: bool) -> None:
        """Stop the process and the threads."""
        if self._closed:
            return
        self._closed = True
        self.tree.watch()
        with suppress(OSError):
            self._stdin.close()
        try:
            self._drain_queue()
            self.tree.end(self._limits.grace_seconds, immediately=immediately)
            self._join_threads(_LAST_OUTPUT_SECONDS)
        finally:
            self._stopping = True
            os.close(self._wake_write)
            self._join_threads(None)
            _close_all(self._process, self._wake_read)

    def _join_threads(self, seconds: float | None) -> None:
        end = None if seconds is None else monotonic() + seconds
        for thread in self._threads:
            while thread.is_alive() and (end is None or monotonic() < end):
                self._drain_queue()
                thread.join(0.02)

    def _drain_queue(self) -> None:
        """Empty the queue, so that neither the reader thread nor the server blocks on it."""
        with suppress(Empty):
            while True:
                self._chunks.get_nowait()

    def _add_chunk(self, chunk: bytes) -> None:
        if not chunk:
            self._ended = True
            return
        self._budget.count_bytes(len(chunk))
        *line_ends, rest = chunk.split(b"\n")
        lines: list[bytes] = []
        for line_end in line_ends:
            self._line.append(line_end)
            line = b"".join(self._line).strip()
            self._line.clear()
            self._line_bytes = 0
            if line:
                lines.append(line)
        self._lines = lines[::-1]
        self._line.append(rest)
        self._line_bytes += len(rest)
        if self._line_bytes > self._limits.max_message_bytes:
            raise probe_limit_error("bytes in one message", self._limits.max_message_bytes)

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(self._limits.grace_seconds)
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return f"the server {ending}{' in the middle of a message' if any(self._line) else ''}"
        return "the server closed its standard output"

    def _read_stream(self, stream: IO[bytes], deliver: Callable[[bytes], None]) -> None:
        chunk = b"-"
        while chunk and not self._stopping:
            chunk = self._read_chunk(stream)
            deliver(chunk)

    def _read_chunk(self, stream: IO[bytes]) -> bytes:
        try:
            if _HAS_POLL:
                # Also wake up when ``close`` is called: a detached descendant could keep the stream open forever.
                readable = select.poll()
                readable.register(stream, select.POLLIN)
                readable.register(self._wake_read, select.POLLIN)
                readable.poll()
                if self._stopping:
                    return b""
            return os.read(stream.fileno(), _CHUNK)
        except OSError:
            return b""

    def _keep_stderr(self, chunk: bytes) -> None:
        self.stderr_tail = (self.stderr_tail + chunk)[-self._limits.stderr_tail_bytes :]
        self._stderr_bytes += len(chunk)
        if self._stderr_bytes > self._limits.max_stderr_bytes and not self._stopping:
            self._stopping = True
            self._chunks.put(probe_limit_error("bytes on standard error", self._limits.max_stderr_bytes))


def _start_process(command: StdioCommand) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603  the user allowed this command, and it runs without a shell
            list(command.words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(command.environment),
            cwd=command.cwd,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise probe_error("start", f"{command.words[0]} could not be started: {reason}") from err


def _require_streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise probe_error("start", "the server was started without stdin, stdout and stderr")
    return process.stdin, process.stdout, process.stderr


def _close_all(process: subprocess.Popen[bytes], wake_read: int) -> None:
    for stream in _require_streams(process):
        with suppress(OSError):
            stream.close()
    with suppress(OSError):
        os.close(wake_read)
