"""The gateway between a client's standard streams and a server that it starts. One line is one message.

Two threads read, one from each side, and write what may pass to the other side; nothing is closer to the cost of a
pipe. Messages back to the side they came from (refusals, our own list requests) are written by a thread of that side,
so a reader never waits for the side it reads from. So are messages that a timer causes.

What happens between reading and writing a line is time that the client waits, so each loop of `StdioLoops` does this:

1. Read a chunk. Nearly always it is one line; several lines are read, recorded and written together.
2. Ask the fast path (`CallFastPath`), which takes calls and results in any spelling. The session gets the rest, in
   order.
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
    from pinwarden.gateway.log_output import GatewayLog
    from pinwarden.gateway.recorder import Recorder
    from pinwarden.gateway.session.output import SessionOutput
    from pinwarden.gateway.session.session import Session
    from pinwarden.system.processes import ProcessTree

_TICK_SECONDS = 1.0
_PREPARE_SECONDS = 0.2
_FINAL_OUTPUT_SECONDS = 2.0  # how long what a server started may go on to write where it wrote
_BOTH_SIDES = ("client", "server")


class StdioRelay:
    """One client, one server process, one session."""

    def __init__(self, session: Session, recorder: Recorder, process: subprocess.Popen[bytes], log: GatewayLog) -> None:
        from pinwarden.system.processes import ProcessTree

        if process.stdin is None or process.stdout is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the server has no standard streams")
        self._session = session
        self._recorder = recorder
        self._process = process
        self._tree: ProcessTree = ProcessTree(process)
        self._log_lines = log
        self._stdout = process.stdout.fileno()
        most = session.guard.limits.max_unwritten
        unread = "{} does not read what it is sent"
        full = partial(self._stop, unread.format("the server"))
        self._to_server = LineWriter(os.dup(process.stdin.fileno()), most, full, self._not_taken)
        process.stdin.close()
        self._to_client = LineWriter(os.dup(1), most, partial(self._stop, unread.format("the client")))
        self._loops = StdioLoops(session, recorder.log, self._to_server, self._to_client)
        self.ending = ""
        """Why the server was ended, if it did not end by itself."""
        self._deaf = False
        self._ended = Event()
        self._settled = Event()
        self._client_gone = False
        self._ticking = False
        self._grace = 5.0

    def run(self) -> int:
        """Relay until the server ends, which it does when the client goes. Returns the server's exit code."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._told_to_end)
        for work in (self._from_server, self._from_client, self._keep_time):
            Thread(target=work, name=work.__name__, daemon=True).start()
        try:
            self._ended.wait()
        finally:
            self._ended.set()
            self._send(self._session.on_server_closed(), later_to=_BOTH_SIDES)
            self._tree.end(self._grace if self._process.poll() is None else 0)
            self._to_client.finished(self._session.guard.limits.list_seconds)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _from_client(self) -> None:
        try:
            with suppress(OSError):
                self._loops.from_client(0, partial(self._send, later_to=("client",)))
        except PinwardenError as err:
            self._log_lines.warning(f"the client's connection is closed: {err.message}")
        finally:
            self._client_gone = True
            self.ending = self.ending or "the client left"
            self._close_if_settled()
            if not self._settled.wait(self._session.guard.limits.list_seconds):
                self._to_server.close_later()
            if not self._ended.wait(self._grace):
                self._tree.end(self._grace)

    def _close_if_client_gone(self) -> None:
        if self._client_gone:
            self._close_if_settled()

    def _close_if_settled(self) -> None:
        """Tell the server that the client is gone, once it has everything that the client sent.

        What is held no longer may not be written yet: whoever is at it comes here when it is.
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
        """End the server now. Who reads from it meets its end, and everybody who waits is told."""
        if why != self.ending:
            self.ending = why
            self._log_lines.warning(f"the server is stopped: {why}")
            self._tree.kill()

    def _not_taken(self, frames: Sequence[bytes]) -> None:
        """The server closed its input. It may still answer what it has, so its output is read as ever."""
        if not self._deaf and self._process.poll() is None:
            self._deaf = True
            self._log_lines.warning("the server takes no more messages")
        self._send(self._session.on_not_delivered(frames), later_to=_BOTH_SIDES)

    def _send(self, step: SessionOutput, later_to: Sequence[str]) -> None:
        """Record, then write. What cannot be recorded does not pass."""
        to_client, to_server = step.to_client, step.to_server
        if step.events or step.sightings:
            try:
                if step.durable:
                    self._tell(step.events)
                self._recorder.record(step)
            except PinwardenError as err:
                self._log_lines.error(f"a message was not forwarded because it could not be recorded: {err.message}")
                instead = self._session.undo(step, err)
                to_client, to_server = instead.to_client, instead.to_server
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

    def _tell(self, facts: Sequence[AuditEvent]) -> None:
        """Say on standard error what a person should know."""
        from pinwarden.core.text import show_invisible

        for fact in facts:
            if fact.kind == "trusted":
                self._log_lines(
                    f"{fact.reason} From now on, changes are blocked until you review them: pinwarden review"
                )
            elif fact.kind == "blocked":
                what = show_invisible(
                    f"{fact.item_kind} {fact.item[:120]!r}" if fact.item else fact.method or "a message"
                )
                self._log_lines.warning(f"blocked {what}: {fact.reason} ({fact.code})")

    def _keep_time(self) -> None:
        if not self._ended.wait(_PREPARE_SECONDS):
            self._loops.prepare()
            gc.freeze()  # what is there now stays, so nobody has to look through it again
        while not self._ended.wait(_TICK_SECONDS):
            self._ticking = True
            self._send(self._session.tick(monotonic()), later_to=_BOTH_SIDES)
            self._ticking = False
            self._close_if_client_gone()
            if self._process.poll() is not None:
                self._see_to_the_end()

    def _see_to_the_end(self) -> None:
        """The server ended. Something that it started may hold its output open, and then nobody else would notice."""
        if not self._ended.wait(_FINAL_OUTPUT_SECONDS):
            self._tree.kill()  # what it wrote before is still read
            if not self._ended.wait(_FINAL_OUTPUT_SECONDS) and self._all_is_read():
                self._ended.set()  # whoever holds it left the group, too

    def _all_is_read(self) -> bool:
        at_work = self._loops.answering or self._to_client.lock.locked()
        return not at_work and not select.select((self._stdout,), (), (), 0)[0]

    def _told_to_end(self, *_: object) -> None:
        """Pass the wish on, and see that it is followed; the reader of the server meets its end."""
        self.ending = self.ending or "the gateway was told to end"
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGTERM)
        Thread(target=self._tree.end, args=(self._grace,), name="ending", daemon=True).start()


SMALL_READ = 400
"""Bytes to read while lines are shorter than that: Python has memory for so few at hand."""
_LARGE_READ = 1 << 16


class StdioLoops:
    """Both loops, for one client and one server."""

    def __init__(self, session: Session, log: AuditLog | None, to_server: LineWriter, to_client: LineWriter) -> None:
        """Without a log no call takes the fast path."""
        self._session = session
        self._fast_path = session.fast_path
        self._log = log
        self._to_server = to_server
        self._to_client = to_client
        self._json = session.guard.limits.json
        self._max_frame = session.guard.limits.max_frame
        self._loads: Callable[[bytes], Any] | None = None
        self.answering = False
        """Whether the session has a message of the server, so that what waited for it may be about to be written."""

    def prepare(self) -> None:
        """Open the fast path. Its reader takes longer to load than a server to start, so call this after that."""
        if self._log is not None:
            self._loads = self._fast_path.parser()

    def from_client(self, descriptor: int, send: Callable[[SessionOutput], None]) -> None:
        """Relay what the client sends until it ends; ``send`` takes what the session decided."""
        lines, outlet = LineBuffer(self._max_frame), self._to_server
        admit = self._fast_path.admit
        note: Any = None if self._log is None else self._log.note
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = outlet.lock.acquire, outlet.lock.release, outlet.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if chunk.find(b"\n") != length - 1 or -1 < chunk.find(b"\r") < length - 2 or not lines.empty:
                self._calls(lines.add(chunk), send)
                continue
            now = monotonic()
            if (loads := self._loads) is not None:
                try:
                    message = loads(chunk)
                    if (event := admit(message, now, chunk)) is not None:
                        note(event, message["id"])
                        acquire()
                        try:
                            if outlet.closed:
                                raise BrokenPipeError
                            if (written := write(out, chunk)) != length:
                                outlet.finish(chunk, written)
                        finally:
                            release()
                        continue
                except ValueError:
                    pass  # it is not JSON
                except PinwardenError:
                    self._fast_path.withdraw(message["id"])  # the session finds that it cannot be recorded, too
                except OSError:
                    outlet.closed = True
                    outlet.unsent((chunk,))
                    continue
            send(self._session.on_client_message(chunk, now))
        if not lines.empty and self._is_json(last := lines.rest()):
            self._calls((last,), send)  # complete but for its line end

    def from_server(self, descriptor: int, send: Callable[[SessionOutput], None], settled: Callable[[], None]) -> None:
        """Relay what the server sends until it ends; ``settled`` is called whenever the session had a message."""
        lines = LineBuffer(self._max_frame)
        relays, outlet = self._fast_path.relays, self._to_client
        read, write, size = os.read, os.write, _LARGE_READ
        acquire, release, out = outlet.lock.acquire, outlet.lock.release, outlet.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL_READ if length < SMALL_READ else _LARGE_READ
            if chunk.find(b"\n") == length - 1 and not -1 < chunk.find(b"\r") < length - 2 and lines.empty:
                try:
                    if (loads := self._loads) is not None and relays(chunk, loads(chunk), True):
                        acquire()
                        try:
                            if not outlet.closed and (written := write(out, chunk)) != length:
                                outlet.finish(chunk, written)
                        finally:
                            release()
                        continue
                except ValueError:
                    pass  # it is not JSON
                except OSError:
                    outlet.closed = True  # the loop that reads from the client finds its end
                    continue
            frames = lines.add(chunk)
            self.answering = True
            self._answers(frames, send)
            self.answering = False
            settled()

    def _calls(self, frames: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        """Several lines at once: one record and one write for all on the fast path between two that are not."""
        now = monotonic()
        passed: list[bytes] = []
        notes: list[tuple[AuditEvent, int | str]] = []
        for frame in frames:
            message = self._skimmed(frame)
            if (event := self._fast_path.admit(message, now, frame)) is not None:
                passed.append(frame)
                notes.append((event, message["id"]))
                continue
            self._forward(passed, notes, send)
            passed, notes = [], []
            send(self._session.on_client_message(frame, now))
        self._forward(passed, notes, send)

    def _forward(
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

    def _answers(self, frames: Sequence[bytes], send: Callable[[SessionOutput], None]) -> None:
        now = monotonic()
        passed: list[bytes] = []
        for frame in frames:
            if self._fast_path.relays(frame, self._skimmed(frame), True):
                passed.append(frame)
                continue
            if passed:
                self._to_client.write(passed)
                passed = []
            send(self._session.on_server_message(frame, now))
        if passed:
            self._to_client.write(passed)

    def _skimmed(self, frame: bytes) -> Any:
        """What the fast path looks at; None if the session has to read the line."""
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
    """Cuts bytes into lines; empty ones are none."""

    def __init__(self, most: int) -> None:
        self.empty = True
        """Whether no line is begun."""
        self._most = most
        self._begun = bytearray()  # and no list of parts: tiny ones would take forty times what is in them

    def add(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._begun:
            self._begun += ended[0]
            ended[0] = bytes(self._begun)
            self._begun = bytearray()
        if rest:
            self._begun += rest
            if len(self._begun) > self._most:
                raise PinwardenError("PROBE_LIMIT", f"a message has more than {self._most} bytes")
        self.empty = not self._begun
        return [line for line in ended if line and not line.isspace()]

    def rest(self) -> bytes:
        """The line that is begun, when no end of it will come."""
        return bytes(self._begun)


_PER_FRAME = 200  # bytes of memory, beside the message itself


def _ignore(*_: object) -> None:
    return None


class LineWriter:
    """One side's input. Frames of two threads do not mix."""

    def __init__(
        self,
        descriptor: int,
        most: int,
        overflow: Callable[[], None],
        unsent: Callable[[Sequence[bytes]], None] = _ignore,
    ) -> None:
        """``overflow`` is called if more than ``most`` bytes are to be written later, ``unsent`` with what the side
        does not take any more; both by whoever wanted it written."""
        self.descriptor = descriptor
        self.lock = Lock()
        """Held by the thread that writes, for as long as the side does not read. `StdioLoops` writes as `write_line`
        does, without a call."""
        self.closed = False
        self.unsent = unsent
        self._most = most
        self._overflow = overflow
        # Of its own, so that nobody who has something for later waits for somebody who writes.
        self._line = Lock()
        self._later: SimpleQueue[tuple[int, Sequence[bytes]]] | None = None
        self._thread: Thread | None = None
        self._waiting = 0

    def write(self, frames: Sequence[bytes]) -> None:
        """Write them now, each on a line."""
        data = frames[0] if len(frames) == 1 else b"\n".join([frame.rstrip() for frame in frames])
        if b"\r" in data:  # white space to JSON, the end of a line to some readers; in a text it is always escaped
            data = data.replace(b"\r", b" ")
        if not self.write_line(data if data[-1:] == b"\n" else data + b"\n"):
            self.unsent(frames)

    def write_line(self, data: bytes) -> bool:
        """Write whole lines now; whether the side took them."""
        with self.lock:
            if self.closed:
                return False
            try:
                self.finish(data, os.write(self.descriptor, data))
            except OSError:
                self.closed = True
            return not self.closed

    def finish(self, data: bytes, written: int) -> None:
        """Write what is left of some bytes, so many of which were taken."""
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]

    def write_later(self, frames: Sequence[bytes]) -> None:
        """Let a thread write them, so that the caller does not wait, whatever the side does."""
        size = sum(map(len, frames)) + _PER_FRAME * len(frames)
        with self._line:
            fits = self._waiting + size <= self._most
            if fits:
                self._waiting += size
                if self._later is None:
                    self._later = SimpleQueue()
                    self._thread = Thread(target=self._run, args=(self._later,), name="outlet", daemon=True)
                    self._thread.start()
                self._later.put((size, frames))
        if not fits:
            self._overflow()

    def close_later(self) -> None:
        """Close it after everything that is to be written later."""
        with self._line:
            later = self._later
            if later is not None:
                later.put((0, ()))
        if later is None:
            self.close()

    def finished(self, seconds: float) -> None:
        """Wait until what is to be written later is written, and no longer than that."""
        if self._thread is not None:
            self.close_later()
            self._thread.join(seconds)

    def close(self) -> None:
        """Tell the side that nothing more comes."""
        with self.lock:
            if not self.closed:
                self.closed = True
                with suppress(OSError):
                    os.close(self.descriptor)

    def _run(self, later: SimpleQueue[tuple[int, Sequence[bytes]]]) -> None:
        while True:
            size, frames = later.get()
            if not frames:
                break
            self.write(frames)
            with self._line:
                self._waiting -= size
        self.close()
