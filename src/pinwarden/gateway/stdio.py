"""The gateway between a client's standard streams and a server that it starts. One line is one message.

Two threads read, one from each side, and write to the other side what may pass, which costs little more than a pipe.
Messages to the side that is read (refusals, the gateway's own list requests) are written by a separate thread, so that
a reader never waits for the side it reads from. So are messages that a timer causes.

The client waits from the read of a line to its write, so the loops of `StdioLoops` are short:

1. Read a chunk. Nearly always it is one line; several lines are read, recorded and written together.
2. Try the fast path (`CallFastPath`), which accepts calls and results in any spelling. The session gets all other
   messages, in order.
3. Record, then write the bytes that were read. A call that cannot be recorded is not forwarded.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
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
_FINAL_OUTPUT_SECONDS = 2.0  # how long children of a server that ended may still write to its output
_BOTH_SIDES = ("client", "server")


class StdioRelay:
    """One client, one server process, one session."""

    def __init__(self, session: Session, recorder: Recorder, process: subprocess.Popen[bytes], log: ServiceLog) -> None:
        from pinwarden.system.processes import ProcessTree

        if process.stdin is None or process.stdout is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the server has no standard streams")
        self._session = session
        self._recorder = recorder
        self._process = process
        self._tree: ProcessTree = ProcessTree(process)
        self._log_lines = log
        self._stdout = process.stdout.fileno()
        max_bytes = session.guard.limits.max_unwritten
        server_stalled = partial(self._stop, "the server does not read its input")
        client_stalled = partial(self._stop, "the client does not read its input")
        self._to_server = LineWriter(os.dup(process.stdin.fileno()), max_bytes, server_stalled, self._on_not_delivered)
        process.stdin.close()
        self._to_client = LineWriter(os.dup(1), max_bytes, client_stalled)
        self._loops = StdioLoops(session, recorder.log, self._to_server, self._to_client)
        self.ending = ""
        """Why the gateway ended the server; empty if the server ended by itself."""
        self._input_closed = False
        self._ended = Event()
        self._settled = Event()
        self._client_gone = False
        self._ticking = False
        self._grace = 5.0

    def run(self) -> int:
        """Relay until the server ends, at the latest when the client disconnects. Returns the server's exit code."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        for loop in (self._from_server, self._from_client, self._keep_time):
            Thread(target=loop, name=loop.__name__, daemon=True).start()
        try:
            self._ended.wait()
        finally:
            self._ended.set()
            self._send(self._session.on_server_closed(), later_to=_BOTH_SIDES)
            self._tree.end(self._grace if self._process.poll() is None else 0)
            self._to_client.flush(self._session.guard.limits.list_seconds)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _from_client(self) -> None:
        try:
            with suppress(OSError):
                self._loops.from_client(0, partial(self._send, later_to=("client",)))
        except PinwardenError as err:
            self._log_lines.warning(f"the gateway disconnected the client: {err.message}")
        finally:
            self._client_gone = True
            self.ending = self.ending or "the client disconnected"
            self._close_if_settled()
            if not self._settled.wait(self._session.guard.limits.list_seconds):
                self._to_server.close_later()
            if not self._ended.wait(self._grace):
                self._tree.end(self._grace)

    def _close_if_client_gone(self) -> None:
        if self._client_gone:
            self._close_if_settled()

    def _close_if_settled(self) -> None:
        """Close the server's input, once the server has everything that the client sent.

        A message that was deferred until now may not be written yet. The thread that writes it calls this again.
        """
        if not self._session.waits_for_list and not self._loops.answering and not self._ticking:
            self._to_server.close_later()
            self._settled.set()

    def _from_server(self) -> None:
        try:
            with suppress(OSError):
                send = partial(self._send, later_to=("server",))
                self._loops.from_server(self._stdout, send, self._close_if_client_gone)
        except PinwardenError as err:
            self._stop(err.message)
        finally:
            self._ended.set()

    def _stop(self, why: str) -> None:
        """Kill the server. The thread that reads its output then ends the relay, and open requests fail."""
        if why != self.ending:
            self.ending = why
            self._log_lines.warning(f"the gateway stopped the server: {why}")
            self._tree.kill()

    def _on_not_delivered(self, frames: Sequence[bytes]) -> None:
        """The server closed its input. Its output is still read, because it may answer earlier requests."""
        if not self._input_closed and self._process.poll() is None:
            self._input_closed = True
            self._log_lines.warning("the server closed its input, so it gets no more messages")
        self._send(self._session.on_not_delivered(frames), later_to=_BOTH_SIDES)

    def _send(self, output: SessionOutput, later_to: Sequence[str]) -> None:
        """Record, then write; what cannot be recorded is not written. Messages to the sides in ``later_to`` are written
        by a separate thread."""
        to_client, to_server = output.to_client, output.to_server
        if output.events or output.sightings:
            try:
                if output.durable:
                    self._log_refusals(output.events)
                self._recorder.record(output)
            except PinwardenError as err:
                self._log_lines.error(f"a message was not forwarded because it could not be recorded: {err.message}")
                refusal = self._session.undo(output, err)
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
        """Log what was blocked, and what was trusted on first use."""
        from pinwarden.core.text import show_invisible

        for event in events:
            if event.kind == "trusted":
                self._log_lines(
                    f"{event.reason} From now on, changes are blocked until you review them: pinwarden review"
                )
            elif event.kind == "blocked":
                item = f"{event.item_kind} {event.item[:120]!r}" if event.item else event.method or "a message"
                self._log_lines.warning(f"blocked {show_invisible(item)}: {event.reason} ({event.code})")

    def _keep_time(self) -> None:
        if not self._ended.wait(_PREPARE_SECONDS):
            self._loops.prepare()
            gc.freeze()  # exempt long-lived objects from garbage collection
        while not self._ended.wait(_TICK_SECONDS):
            self._ticking = True
            self._send(self._session.tick(monotonic()), later_to=_BOTH_SIDES)
            self._ticking = False
            self._close_if_client_gone()
            if self._process.poll() is not None:
                self._end_after_exit()

    def _end_after_exit(self) -> None:
        """End the relay after the server exited, even if a child of the server keeps its output open."""
        if not self._ended.wait(_FINAL_OUTPUT_SECONDS):
            self._tree.kill()  # output written before is still read
            if not self._ended.wait(_FINAL_OUTPUT_SECONDS) and self._all_is_read():
                self._ended.set()  # the child left the process group

    def _all_is_read(self) -> bool:
        busy = self._loops.answering or self._to_client.lock.locked()
        return not busy and not select.select((self._stdout,), (), (), 0)[0]

    def _on_signal(self, *_: object) -> None:
        """End the server, by force if it does not end in time. The relay ends with the server's output."""
        self.ending = self.ending or "the gateway received a signal to end"
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGTERM)
        Thread(target=self._tree.end, args=(self._grace,), name="ending", daemon=True).start()


SMALL_READ = 400
"""Bytes to read while lines are shorter than that: Python keeps memory for small objects ready."""
_LARGE_READ = 1 << 16


class StdioLoops:
    """Both read loops: from the client to the server, and back."""

    def __init__(self, session: Session, log: AuditLog | None, to_server: LineWriter, to_client: LineWriter) -> None:
        """Without a log, no call takes the fast path."""
        self._session = session
        self._fast_path = session.fast_path
        self._log = log
        self._to_server = to_server
        self._to_client = to_client
        self._json = session.guard.limits.json
        self._max_frame = session.guard.limits.max_frame
        self._loads: Callable[[bytes], Any] | None = None
        self.answering = False
        """Whether the session handles a message of the server, so that deferred messages may be about to be written."""

    def prepare(self) -> None:
        """Enable the fast path. Call it after the server started, because its parser takes longer to load."""
        if self._log is not None:
            self._loads = self._fast_path.parser()

    def from_client(self, descriptor: int, send: Callable[[SessionOutput], None]) -> None:
        """Relay messages of the client until its stream ends. ``send`` gets the output of the session."""
        lines, writer = LineBuffer(self._max_frame), self._to_server
        admit = self._fast_path.admit
        note: Any = None if self._log is None else self._log.note
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = writer.lock.acquire, writer.lock.release, writer.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if chunk.find(b"\n") != length - 1 or -1 < chunk.find(b"\r") < length - 2 or not lines.empty:
                self._forward_client_lines(lines.add(chunk), send)
                continue
            now = monotonic()
            if (loads := self._loads) is not None:
                try:
                    message = loads(chunk)
                    if (event := admit(message, now, chunk)) is not None:
                        note(event, message["id"])
                        acquire()
                        try:
                            if writer.closed:
                                raise BrokenPipeError
                            if (written := write(out, chunk)) != length:
                                writer.finish(chunk, written)
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
        if not lines.empty and self._is_json(last := lines.rest()):
            self._forward_client_lines((last,), send)  # complete except for the line end

    def from_server(self, descriptor: int, send: Callable[[SessionOutput], None], settled: Callable[[], None]) -> None:
        """Relay messages of the server until its output ends. Calls ``settled`` after each chunk for the session."""
        lines = LineBuffer(self._max_frame)
        relays, writer = self._fast_path.may_relay, self._to_client
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = writer.lock.acquire, writer.lock.release, writer.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if chunk.find(b"\n") == length - 1 and not -1 < chunk.find(b"\r") < length - 2 and lines.empty:
                try:
                    if (loads := self._loads) is not None and relays(chunk, loads(chunk), True):
                        acquire()
                        try:
                            if not writer.closed and (written := write(out, chunk)) != length:
                                writer.finish(chunk, written)
                        finally:
                            release()
                        continue
                except ValueError:
                    pass  # not JSON: the session refuses it
                except OSError:
                    writer.closed = True  # the loop that reads from the client notices its end
                    continue
            frames = lines.add(chunk)
            self.answering = True
            self._forward_server_lines(frames, send)
            self.answering = False
            settled()

    def _forward_client_lines(self, frames: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        """Forward several lines. Consecutive lines on the fast path share one record and one write."""
        now = monotonic()
        passed: list[bytes] = []
        notes: list[tuple[AuditEvent, int | str]] = []
        for frame in frames:
            message = self._fast_parsed(frame)
            if (event := self._fast_path.admit(message, now, frame)) is not None:
                passed.append(frame)
                notes.append((event, message["id"]))
                continue
            self._record_and_write(passed, notes, send)
            passed, notes = [], []
            send(self._session.on_client_message(frame, now))
        self._record_and_write(passed, notes, send)

    def _record_and_write(
        self,
        passed: Sequence[bytes],
        notes: Sequence[tuple[AuditEvent, int | str]],
        send: Callable[[SessionOutput], None],
    ) -> None:
        if not passed or self._log is None:
            return
        try:
            self._log.note_all(notes)
        except PinwardenError:
            for frame, (_, request_id) in zip(passed, notes, strict=True):
                self._fast_path.withdraw(request_id)
                send(self._session.on_client_message(frame, monotonic()))
            return
        self._to_server.write(passed)

    def _forward_server_lines(self, frames: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        now = monotonic()
        passed: list[bytes] = []
        for frame in frames:
            if self._fast_path.may_relay(frame, self._fast_parsed(frame), True):
                passed.append(frame)
                continue
            if passed:
                self._to_client.write(passed)
                passed = []
            send(self._session.on_server_message(frame, now))
        if passed:
            self._to_client.write(passed)

    def _fast_parsed(self, frame: bytes) -> Any:
        """The message as the fast path needs it; None if the session has to parse the line."""
        try:
            return None if self._loads is None else self._loads(frame)
        except ValueError:
            return None

    def _is_json(self, frame: bytes) -> bool:
        try:
            parse_json(frame, self._json)
        except PinwardenError:
            return False
        return True


class LineBuffer:
    """Splits bytes into lines, without empty ones."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes`` limits the length of a line."""
        self.empty = True
        """Whether there is no partial line."""
        self._max_bytes = max_bytes
        self._partial = bytearray()  # a list of tiny parts would take forty times the memory

    def add(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now. Raises if the partial line is too long."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._partial:
            self._partial += ended[0]
            ended[0] = bytes(self._partial)
            self._partial = bytearray()
        if rest:
            self._partial += rest
            if len(self._partial) > self._max_bytes:
                raise PinwardenError("PROBE_LIMIT", f"a message has more than {self._max_bytes} bytes")
        self.empty = not self._partial
        return [line for line in ended if line and not line.isspace()]

    def rest(self) -> bytes:
        """The partial line, at the end of the stream."""
        return bytes(self._partial)


_PER_FRAME = 200  # bytes of memory, in addition to the message itself


def _ignore(*_: object) -> None:
    return None


class LineWriter:
    """Writes to the input of one side, from several threads."""

    def __init__(
        self,
        descriptor: int,
        max_bytes: int,
        overflow: Callable[[], None],
        on_not_delivered: Callable[[Sequence[bytes]], None] = _ignore,
    ) -> None:
        """``overflow`` is called if more than ``max_bytes`` would be queued, ``on_not_delivered`` with frames that
        cannot be written because the side closed its input. Both run on the thread of the caller."""
        self.descriptor = descriptor
        self.lock = Lock()
        """Taken for each write, so it is locked while the side does not read. `StdioLoops` does the same as
        `write_line` inline, to save a function call."""
        self.closed = False
        self.on_not_delivered = on_not_delivered
        self._max_bytes = max_bytes
        self._overflow = overflow
        # A second lock, so that queueing does not wait for a blocked write.
        self._queue_lock = Lock()
        self._queue: SimpleQueue[tuple[int, Sequence[bytes]]] | None = None
        self._thread: Thread | None = None
        self._queued_bytes = 0

    def write(self, frames: Sequence[bytes]) -> None:
        """Write frames now, one per line."""
        data = frames[0] if len(frames) == 1 else b"\n".join([frame.rstrip() for frame in frames])
        if b"\r" in data:  # white space in JSON, but a line end to some readers; inside strings it is always escaped
            data = data.replace(b"\r", b" ")
        if not self.write_line(data if data[-1:] == b"\n" else data + b"\n"):
            self.on_not_delivered(frames)

    def write_line(self, data: bytes) -> bool:
        """Write complete lines now. Returns False if the side closed its input."""
        with self.lock:
            if self.closed:
                return False
            try:
                self.finish(data, os.write(self.descriptor, data))
            except OSError:
                self.closed = True
            return not self.closed

    def finish(self, data: bytes, written: int) -> None:
        """Write the rest of ``data``, of which ``written`` bytes are written already."""
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]

    def write_later(self, frames: Sequence[bytes]) -> None:
        """Queue frames for the writer thread, so that the caller never waits for the side."""
        size = sum(map(len, frames)) + _PER_FRAME * len(frames)
        with self._queue_lock:
            fits = self._queued_bytes + size <= self._max_bytes
            if fits:
                self._queued_bytes += size
                if self._queue is None:
                    self._queue = SimpleQueue()
                    self._thread = Thread(target=self._run, args=(self._queue,), name="writer", daemon=True)
                    self._thread.start()
                self._queue.put((size, frames))
        if not fits:
            self._overflow()

    def close_later(self) -> None:
        """Close the side's input after everything in the queue is written."""
        with self._queue_lock:
            queue = self._queue
            if queue is not None:
                queue.put((0, ()))
        if queue is None:
            self.close()

    def flush(self, seconds: float) -> None:
        """Write the queue and close, within so many seconds."""
        if self._thread is not None:
            self.close_later()
            self._thread.join(seconds)

    def close(self) -> None:
        """Close the side's input."""
        with self.lock:
            if not self.closed:
                self.closed = True
                with suppress(OSError):
                    os.close(self.descriptor)

    def _run(self, queue: SimpleQueue[tuple[int, Sequence[bytes]]]) -> None:
        while True:
            size, frames = queue.get()
            if not frames:
                break
            self.write(frames)
            with self._queue_lock:
                self._queued_bytes -= size
        self.close()
