"""The stdio gateway: relays between the client's standard streams and a server process. One line is one message.

Two threads relay, one per direction: each reads from one side and writes allowed messages to the other. Messages back
to the side that a thread reads from (refusals, the gateway's own list requests) and messages caused by a timer are
written by a separate writer thread, so that no relay thread ever waits for the side that it reads from.

Every microsecond between reading and writing a line delays a call, so the loops of `StdioLoops` are short:

1. Read a chunk. Nearly always it is one line; several lines are recorded and written together.
2. Try the fast path (`CallFastPath`), which accepts calls and results in any JSON formatting. The session handles all
   other messages, in order.
3. Record the message, then write the bytes that were read. A call that cannot be recorded is not forwarded.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum
from functools import partial
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse_json

if TYPE_CHECKING:
    from pinwarden.gateway.audit.event import AuditEvent
    from pinwarden.gateway.audit.log import AuditLog
    from pinwarden.gateway.recorder import Recorder
    from pinwarden.gateway.session.output import SessionOutput
    from pinwarden.gateway.session.session import Session
    from pinwarden.system.processes import ProcessTree
    from pinwarden.system.service_log import ServiceLog

_TICK_SECONDS = 1.0
_PREPARE_SECONDS = 0.2
_FINAL_OUTPUT_SECONDS = 2.0  # how long child processes of an exited server may keep its output open
_GRACE_SECONDS = 5.0  # time for the server to save its state and exit; clients wait about as long
_BOTH_SIDES = ("client", "server")


class RelayPhase(IntEnum):
    """The progress of a relay's shutdown. A relay can skip phases but never goes back."""

    RELAYING = 0
    """Messages pass in both directions."""
    DRAINING = 1
    """The client disconnected. The client's deferred messages are still sent to the server."""
    INPUT_CLOSED = 2
    """The gateway closed the server's input after the client's last message. The server may send its last responses."""
    ENDED = 3
    """The server's output ended, so the relay ends."""


class RelayState:
    """The phase of a relay, and the number of its threads that may release deferred messages. Thread-safe."""

    def __init__(self) -> None:
        self.phase = RelayPhase.RELAYING
        self.busy = 0
        """The number of threads on which the session is running now, apart from the thread that reads from the client.
        The session may release deferred messages there."""
        self._changed = Condition()

    def advance(self, phase: RelayPhase) -> None:
        """Enter a phase. Does nothing if the relay has already passed that phase."""
        with self._changed:
            self.phase = max(self.phase, phase)
            self._changed.notify_all()

    def wait_for(self, phase: RelayPhase, seconds: float | None = None) -> bool:
        """Wait until the relay reaches a phase. Returns False after ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.phase >= phase, seconds)

    def change_busy_count(self, change: int) -> None:
        """Add ``change`` to the number of busy threads."""
        with self._changed:
            self.busy += change


class StdioRelay:
    """Relays between one client and one server process, in one session.

    The relay ends in these steps (`RelayPhase`). If the server exits first, only the last step remains.

    1. The client's input ends, or the gateway disconnects the client.
    2. The server gets the messages that were deferred until a list arrived, at the latest after the list timeout. Then
       the gateway closes the server's input.
    3. The server exits, or is killed after ``_GRACE_SECONDS``.
    4. The server's output ends, and the client gets the rest of it. If a process outside the server's process group
       keeps the output open, the relay does not wait for that process.
    """

    def __init__(self, session: Session, recorder: Recorder, process: subprocess.Popen[bytes], log: ServiceLog) -> None:
        from pinwarden.system.processes import ProcessTree

        if process.stdin is None or process.stdout is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the server has no standard streams")
        self._session = session
        self._recorder = recorder
        self._process = process
        self._tree: ProcessTree = ProcessTree(process)
        self._service_log = log
        self._stdout = process.stdout.fileno()
        max_bytes = session.guard.limits.max_unwritten_bytes
        server_stalled = partial(self._kill_server, "the server does not read its input")
        client_stalled = partial(self._kill_server, "the client does not read its input")
        self._to_server = LineWriter(os.dup(process.stdin.fileno()), max_bytes, server_stalled, self._on_not_delivered)
        process.stdin.close()
        self._to_client = LineWriter(os.dup(1), max_bytes, client_stalled)
        self._loops = StdioLoops(session, recorder.log, self._to_server, self._to_client)
        self._state = RelayState()
        self.ending = ""
        """Why the gateway ended the server; empty if the server ended by itself."""
        self._reported_closed_input = False
        """Whether the gateway has already logged that the server closed its input."""

    def run(self) -> int:
        """Relay until the server ends, or until the client disconnects. Returns the server's exit code."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        for loop in (self._relay_from_server, self._relay_from_client, self._run_timer):
            Thread(target=loop, name=loop.__name__, daemon=True).start()
        try:
            self._state.wait_for(RelayPhase.ENDED)
        finally:
            self._state.advance(RelayPhase.ENDED)
            self._send(self._session.on_server_closed(), later_to=_BOTH_SIDES)
            self._tree.end(_GRACE_SECONDS if self._process.poll() is None else 0)
            self._to_client.flush(self._session.guard.limits.list_seconds)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _relay_from_client(self) -> None:
        try:
            with suppress(OSError):
                self._loops.relay_from_client(0, partial(self._send, later_to=("client",)))
        except PinwardenError as err:
            self._service_log.warning(f"the gateway disconnected the client: {err.message}")
        finally:
            self._state.advance(RelayPhase.DRAINING)
            self.ending = self.ending or "the client disconnected"
            self._close_input_if_drained()
            if not self._state.wait_for(RelayPhase.INPUT_CLOSED, self._session.guard.limits.list_seconds):
                self._close_input()
            if not self._state.wait_for(RelayPhase.ENDED, _GRACE_SECONDS):
                self._tree.end(_GRACE_SECONDS)

    def _relay_from_server(self) -> None:
        try:
            with suppress(OSError):
                send = partial(self._send, later_to=("server",))
                self._loops.relay_from_server(self._stdout, send, self._keep_input_open)
        except PinwardenError as err:
            self._kill_server(err.message)
        finally:
            self._state.advance(RelayPhase.ENDED)

    @contextmanager
    def _keep_input_open(self) -> Iterator[None]:
        """Keep the server's input open while the session runs in this block and may release deferred messages.

        After the client disconnected, the server's input is closed when a block ends and no deferred message is left.
        """
        self._state.change_busy_count(1)
        try:
            yield
        finally:
            self._state.change_busy_count(-1)
            self._close_input_if_drained()

    def _close_input_if_drained(self) -> None:
        """Close the server's input if the client disconnected and the server has every message of the client."""
        state = self._state
        if state.phase >= RelayPhase.DRAINING and not state.busy and not self._session.waits_for_list:
            self._close_input()

    def _close_input(self) -> None:
        self._to_server.close_later()
        self._state.advance(RelayPhase.INPUT_CLOSED)

    def _kill_server(self, reason: str) -> None:
        """Kill the server. The end of the server's output also ends the relay, and open requests get an error."""
        if reason != self.ending:
            self.ending = reason
            self._service_log.warning(f"the gateway stopped the server: {reason}")
            self._tree.kill()

    def _on_not_delivered(self, lines: Sequence[bytes]) -> None:
        """Fail requests that the server did not get, because it closed its input. Earlier requests stay open."""
        if not self._reported_closed_input and self._process.poll() is None:
            self._reported_closed_input = True
            self._service_log.warning("the server closed its input, so the gateway sends it no further messages")
        self._send(self._session.on_not_delivered(lines), later_to=_BOTH_SIDES)

    def _send(self, output: SessionOutput, later_to: Sequence[str]) -> None:
        """Record an output, then write its messages. If recording fails, write refusals instead.

        Messages to the sides in ``later_to`` are queued for the writer thread.
        """
        to_client, to_server = output.to_client, output.to_server
        if output.events or output.sightings:
            try:
                if output.durable:
                    self._log_refusals(output.events)
                self._recorder.record(output)
            except PinwardenError as err:
                self._service_log.error(f"a message was not forwarded because it could not be recorded: {err.message}")
                refusal = self._session.replace_unrecorded(output, err)
                to_client, to_server = refusal.to_client, refusal.to_server
        if to_server:
            if "server" in later_to:
                self._to_server.write_later(to_server)
            else:
                self._to_server.write(to_server)
        if to_client:
            if "client" in later_to:
                self._to_client.write_later(to_client)
            else:
                self._to_client.write(to_client)

    def _log_refusals(self, events: Sequence[AuditEvent]) -> None:
        """Log blocked messages, and surfaces that were trusted on first use."""
        from pinwarden.core.text import show_invisible

        for event in events:
            if event.kind == "trusted":
                self._service_log(
                    f"{event.reason} From now on, changes are blocked until you review them: pinwarden review"
                )
            elif event.kind == "blocked":
                item = f"{event.item_kind} {event.item[:120]!r}" if event.item else event.method or "a message"
                self._service_log.warning(f"blocked {show_invisible(item)}: {event.reason} ({event.code})")

    def _run_timer(self) -> None:
        """Do the periodic work, on a thread of its own.

        The thread also enables the fast path, a moment after the start. Importing the fast parser takes longer than a
        message, and on this thread it delays neither the start nor the threads that relay.
        """
        if not self._state.wait_for(RelayPhase.ENDED, _PREPARE_SECONDS):
            self._loops.enable_fast_path()
            gc.freeze()  # exempt long-lived objects from garbage collection, which would delay messages
        while not self._state.wait_for(RelayPhase.ENDED, _TICK_SECONDS):
            with self._keep_input_open():
                self._send(self._session.tick(monotonic()), later_to=_BOTH_SIDES)
            if self._process.poll() is not None:
                self._end_after_exit()

    def _end_after_exit(self) -> None:
        """End the relay after the server exited, even if a child of the server keeps its output open."""
        if not self._state.wait_for(RelayPhase.ENDED, _FINAL_OUTPUT_SECONDS):
            self._tree.kill()  # the relay thread still reads what was written before
            if not self._state.wait_for(RelayPhase.ENDED, _FINAL_OUTPUT_SECONDS) and self._has_read_all():
                self._state.advance(RelayPhase.ENDED)  # a process outside the group keeps the output open

    def _has_read_all(self) -> bool:
        is_busy = self._state.busy or self._to_client.lock.locked()
        return not is_busy and not select.select((self._stdout,), (), (), 0)[0]

    def _on_signal(self, *_: object) -> None:
        """Ask the server to exit, and kill it after the grace time. The relay ends when the server's output ends."""
        self.ending = self.ending or "the gateway received a termination signal"
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGTERM)
        Thread(target=self._tree.end, args=(_GRACE_SECONDS,), name="ending", daemon=True).start()


SMALL_READ = 400
"""The read size after a chunk with fewer bytes, because Python allocates small objects faster than large ones."""
_LARGE_READ = 1 << 16


class StdioLoops:
    """The two relay loops: from the client to the server, and from the server to the client."""

    def __init__(self, session: Session, log: AuditLog | None, to_server: LineWriter, to_client: LineWriter) -> None:
        """Without a log, no call takes the fast path."""
        self._session = session
        self._fast_path = session.fast_path
        self._log = log
        self._to_server = to_server
        self._to_client = to_client
        self._json = session.guard.limits.json_limits
        self._max_bytes = session.guard.limits.max_message_bytes
        self._loads: Callable[[bytes], Any] | None = None

    def enable_fast_path(self) -> None:
        """Enable the fast path. The fast parser is slow to import, so call this after the server was started."""
        if self._log is not None:
            self._loads = self._fast_path.load_parser()

    def relay_from_client(self, descriptor: int, send: Callable[[SessionOutput], None]) -> None:
        """Relay messages of the client until its stream ends. ``send`` records and writes outputs of the session."""
        buffer, writer = LineBuffer("client", self._max_bytes), self._to_server
        admit = self._fast_path.admit
        record_call: Any = None if self._log is None else self._log.record_call
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = writer.lock.acquire, writer.lock.release, writer.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if not _is_one_line(chunk, length) or not buffer.is_empty:
                self._forward_client_lines(buffer.add(chunk), send)
                continue
            now = monotonic()
            if (loads := self._loads) is not None:
                try:
                    message = loads(chunk)
                    if (event := admit(message, now, chunk)) is not None:
                        record_call(event, message["id"])
                        acquire()
                        try:
                            if writer.closed:
                                raise BrokenPipeError
                            if (written := write(out, chunk)) != length:
                                writer.finish_write(chunk, written)
                        finally:
                            release()
                        continue
                except ValueError:
                    pass  # not JSON: the session refuses it
                except PinwardenError:
                    self._fast_path.withdraw(message["id"])  # the session fails to record it too, and refuses it
                except OSError:
                    writer.closed = True
                    writer.on_not_delivered((chunk,))
                    continue
            send(self._session.on_client_message(chunk, now))
        if not buffer.is_empty and self._is_json(last := buffer.get_partial()):
            self._forward_client_lines((last,), send)  # complete except for the line end

    def relay_from_server(
        self,
        descriptor: int,
        send: Callable[[SessionOutput], None],
        keep_input_open: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Relay messages of the server until its output ends. ``send`` records and writes outputs of the session.

        ``keep_input_open`` is entered while the session handles a chunk that does not take the fast path.
        """
        buffer = LineBuffer("server", self._max_bytes)
        take, writer = self._fast_path.take_relayable, self._to_client
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = writer.lock.acquire, writer.lock.release, writer.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if _is_one_line(chunk, length) and buffer.is_empty:
                try:
                    if (loads := self._loads) is not None and take(chunk, loads(chunk), True):
                        acquire()
                        try:
                            if not writer.closed and (written := write(out, chunk)) != length:
                                writer.finish_write(chunk, written)
                        finally:
                            release()
                        continue
                except ValueError:
                    pass  # not JSON: the session refuses it
                except OSError:
                    writer.closed = True  # the other loop notices that the client is gone
                    continue
            with keep_input_open():
                self._forward_server_lines(buffer.add(chunk), send)

    def _forward_client_lines(self, lines: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        """Forward several lines. Consecutive lines on the fast path are recorded together and written together."""
        now = monotonic()
        allowed: list[bytes] = []
        calls: list[tuple[AuditEvent, int | str]] = []
        for line in lines:
            message = self._parse_fast(line)
            if (event := self._fast_path.admit(message, now, line)) is not None:
                allowed.append(line)
                calls.append((event, message["id"]))
                continue
            self._record_and_write(allowed, calls, send)
            allowed, calls = [], []
            send(self._session.on_client_message(line, now))
        self._record_and_write(allowed, calls, send)

    def _record_and_write(
        self,
        allowed: Sequence[bytes],
        calls: Sequence[tuple[AuditEvent, int | str]],
        send: Callable[[SessionOutput], None],
    ) -> None:
        if not allowed or self._log is None:
            return
        try:
            self._log.record_calls(calls)
        except PinwardenError:
            for line, (_, request_id) in zip(allowed, calls, strict=True):
                self._fast_path.withdraw(request_id)
                send(self._session.on_client_message(line, monotonic()))
            return
        self._to_server.write(allowed)

    def _forward_server_lines(self, lines: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        now = monotonic()
        allowed: list[bytes] = []
        for line in lines:
            if self._fast_path.take_relayable(line, self._parse_fast(line), True):
                allowed.append(line)
                continue
            if allowed:
                self._to_client.write(allowed)
                allowed = []
            send(self._session.on_server_message(line, now))
        if allowed:
            self._to_client.write(allowed)

    def _parse_fast(self, line: bytes) -> Any:
        """Parse a line for the fast path. Returns None if the session has to parse it."""
        try:
            return None if self._loads is None else self._loads(line)
        except ValueError:
            return None

    def _is_json(self, line: bytes) -> bool:
        try:
            parse_json(line, self._json)
        except PinwardenError:
            return False
        return True


_TOO_LONG = {
    "client": ("INPUT_LIMIT", "Send large content in several calls, or let the server read it from a file."),
    "server": ("PROBE_LIMIT", None),
}
"""The error code and hint for a line above the size limit, by sender."""


def _is_one_line(chunk: bytes, length: int) -> bool:
    """Whether a chunk of this length is one whole line. A carriage return is only allowed before its line feed."""
    return chunk.find(b"\n") == length - 1 and not -1 < chunk.find(b"\r") < length - 2


class LineBuffer:
    """Splits a byte stream into lines, and skips blank ones."""

    def __init__(self, sender: str, max_bytes: int) -> None:
        """``sender`` names the side that sends the lines, for errors. ``max_bytes`` limits the length of a line."""
        self.is_empty = True
        """Whether there is no partial line."""
        self._sender = sender
        self._max_bytes = max_bytes
        self._partial = bytearray()  # a list of tiny parts would take forty times the memory

    def add(self, chunk: bytes) -> list[bytes]:
        """Add received bytes. Returns the lines that they complete; raises if the partial line is too long."""
        *lines, partial_line = chunk.split(b"\n")
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial = bytearray()
        if partial_line:
            self._partial += partial_line
            if len(self._partial) > self._max_bytes:
                code, hint = _TOO_LONG[self._sender]
                message = f"the {self._sender} sent a message of more than {self._max_bytes} bytes"
                raise PinwardenError(code, message, hint=hint)
        self.is_empty = not self._partial
        return [line for line in lines if line and not line.isspace()]

    def get_partial(self) -> bytes:
        """Return the partial line: the last line of a stream that ended without a line end."""
        return bytes(self._partial)


_BYTES_PER_LINE = 200  # bytes of memory, in addition to the message itself


def _ignore(*_: object) -> None:
    return None


class LineWriter:
    """Writes lines to one side, the client or the server. Thread-safe."""

    def __init__(
        self,
        descriptor: int,
        max_bytes: int,
        on_overflow: Callable[[], None],
        on_not_delivered: Callable[[Sequence[bytes]], None] = _ignore,
    ) -> None:
        """``on_overflow`` is called if more than ``max_bytes`` would be queued, and ``on_not_delivered`` with lines
        that cannot be written because the side closed its input. Both run on the caller's thread."""
        self.descriptor = descriptor
        self.lock = Lock()
        """A lock that is held during each write, so it stays locked while the side does not read. `StdioLoops` inlines
        `write_line` to save a function call."""
        self.closed = False
        self.on_not_delivered = on_not_delivered
        self._max_bytes = max_bytes
        self._on_overflow = on_overflow
        # A second lock, so that queueing does not wait for a blocked write.
        self._queue_lock = Lock()
        self._queue: SimpleQueue[tuple[int, Sequence[bytes]]] | None = None
        self._thread: Thread | None = None
        self._queued_bytes = 0

    def write(self, lines: Sequence[bytes]) -> None:
        """Write messages now, each on its own line."""
        data = lines[0] if len(lines) == 1 else b"\n".join([line.rstrip() for line in lines])
        if b"\r" in data:  # a carriage return is whitespace in JSON, but some readers take it for a line end
            data = data.replace(b"\r", b" ")
        if not self.write_line(data if data[-1:] == b"\n" else data + b"\n"):
            self.on_not_delivered(lines)

    def write_line(self, data: bytes) -> bool:
        """Write bytes that end with a line end now. Returns False if the side closed its input."""
        with self.lock:
            if self.closed:
                return False
            try:
                self.finish_write(data, os.write(self.descriptor, data))
            except OSError:
                self.closed = True
            return not self.closed

    def finish_write(self, data: bytes, written: int) -> None:
        """Write the rest of ``data`` after its first ``written`` bytes were written."""
        if written < len(data):
            remaining = memoryview(data)[written:]
            while remaining:
                remaining = remaining[os.write(self.descriptor, remaining) :]

    def write_later(self, lines: Sequence[bytes]) -> None:
        """Queue lines for the writer thread, so that the caller does not wait until the side reads."""
        size = sum(map(len, lines)) + _BYTES_PER_LINE * len(lines)
        with self._queue_lock:
            fits = self._queued_bytes + size <= self._max_bytes
            if fits:
                self._queued_bytes += size
                if self._queue is None:
                    self._queue = SimpleQueue()
                    self._thread = Thread(target=self._write_queued, args=(self._queue,), name="writer", daemon=True)
                    self._thread.start()
                self._queue.put((size, lines))
        if not fits:
            self._on_overflow()

    def close_later(self) -> None:
        """Close the side's input after the writer thread wrote all queued lines."""
        with self._queue_lock:
            queue = self._queue
            if queue is not None:
                queue.put((0, ()))
        if queue is None:
            self.close()

    def flush(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the writer thread wrote all queued lines, and closed the side's input."""
        if self._thread is not None:
            self.close_later()
            self._thread.join(seconds)

    def close(self) -> None:
        """Close the stream to this side. Later writes fail."""
        with self.lock:
            if not self.closed:
                self.closed = True
                with suppress(OSError):
                    os.close(self.descriptor)

    def _write_queued(self, queue: SimpleQueue[tuple[int, Sequence[bytes]]]) -> None:
        while True:
            size, lines = queue.get()
            if not lines:
                break
            self.write(lines)
            with self._queue_lock:
                self._queued_bytes -= size
        self.close()
