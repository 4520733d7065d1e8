"""The gateway between a client's standard streams and a server that it starts: a line is a message.

Two threads read, one from each side, and write what the session lets through to the other side: nothing is nearer to
what a pipe costs. Whatever goes back to the side that it came from (a refusal, a list request of our own) is written by
a thread of that side's own, so that neither reader ever waits for the side that it reads from.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

if TYPE_CHECKING:
    from pinwarden.adapters.process_tree import ProcessTree
    from pinwarden.documents.gateway_event import Fact
    from pinwarden.gateway.recorder import Recorder
    from pinwarden.gateway.session import Session
    from pinwarden.gateway.step import Step

_CHUNK = 1 << 16
_PIPE = 1 << 20  # what a pipe is made to hold, where the system lets us
_TICK_SECONDS = 1.0


class Command(Record):
    """What to start, with everything filled in."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None


def start(command: Command) -> subprocess.Popen[bytes]:
    """Start the server. Its standard error stays ours, so that people see it as before."""
    try:
        process = subprocess.Popen(  # noqa: S603  running it is what the user asked for; there is no shell
            list(command.words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(command.environment),
            cwd=command.cwd,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as err:
        why = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{command.words[0][:200]} could not be started: {why}") from err
    for stream in (process.stdin, process.stdout):
        with suppress(OSError, AttributeError, ImportError):
            import fcntl

            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[union-attr]
    return process


class Outlet:
    """One side's input. Frames of two threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()
        self._closed = False
        self._later: SimpleQueue[Sequence[bytes]] | None = None

    def write(self, frames: Sequence[bytes]) -> None:
        """Write them now, each on a line. A side that is gone is met by whoever reads from it."""
        data = frames[0] if len(frames) == 1 else b"\n".join([frame.rstrip() for frame in frames])
        if data[-1:] != b"\n":
            data += b"\n"
        with self._lock:
            if self._closed:
                return
            try:
                written = os.write(self._descriptor, data)
                if written < len(data):
                    rest = memoryview(data)[written:]
                    while rest:
                        rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self._closed = True

    def write_later(self, frames: Sequence[bytes]) -> None:
        """Let a thread write them, so that the caller does not wait."""
        with self._lock:
            if self._later is None:
                self._later = SimpleQueue()
                Thread(target=self._run, args=(self._later,), name="outlet", daemon=True).start()
        self._later.put(frames)

    def close_later(self) -> None:
        """Close it after everything that is to be written later."""
        if self._later is None:
            self.close()
        else:
            self._later.put(())

    def close(self) -> None:
        """Tell the side that nothing more comes."""
        with self._lock:
            if not self._closed:
                self._closed = True
                with suppress(OSError):
                    os.close(self._descriptor)

    def _run(self, later: SimpleQueue[Sequence[bytes]]) -> None:
        while frames := later.get():
            self.write(frames)
        self.close()


class Relay:
    """One client, one server process, one session."""

    def __init__(
        self, session: Session, recorder: Recorder, process: subprocess.Popen[bytes], say: Callable[[str], None]
    ) -> None:
        from pinwarden.adapters.process_tree import ProcessTree

        if process.stdin is None or process.stdout is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the server has no standard streams")
        self._session = session
        self._recorder = recorder
        self._process = process
        self._tree: ProcessTree = ProcessTree(process)
        self._say = say
        self._max_frame = session.guard.limits.max_frame
        self._stdout = process.stdout.fileno()
        self._to_server = Outlet(os.dup(process.stdin.fileno()))
        process.stdin.close()
        self._to_client = Outlet(os.dup(1))
        self._ended = Event()
        self._settled = Event()
        self._client_gone = False
        self._grace = 5.0

    def run(self) -> int:
        """Relay until the server ends, which it does when the client goes. Returns the server's exit code."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._told_to_end)
        Thread(target=self._from_client, name="from-client", daemon=True).start()
        Thread(target=self._keep_time, name="time", daemon=True).start()
        try:
            self._from_server()
        finally:
            self._ended.set()
            self._send(self._session.server_gone(monotonic()), later_to="none")
            self._tree.end(self._grace if self._process.poll() is None else 0)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _from_client(self) -> None:
        try:
            self._pump(0, self._session.client_frame, later_to="client")
        except PinwardenError as err:
            self._say(f"the client's connection is closed: {err.message}")
        finally:
            self._client_gone = True
            self._close_if_settled()
            if not self._settled.wait(self._session.guard.limits.list_seconds):
                self._to_server.close()
            if not self._ended.wait(self._grace):
                self._tree.end(self._grace)

    def _close_if_settled(self) -> None:
        """Tell the server that the client is gone, once it has everything that the client sent."""
        if not self._session.holds:
            self._to_server.close_later()
            self._settled.set()

    def _from_server(self) -> None:
        try:
            self._pump(self._stdout, self._session.server_frame, later_to="server")
        except PinwardenError as err:
            self._say(f"the server is stopped: {err.message}")
            self._tree.kill()

    def _pump(self, descriptor: int, take: Callable[[bytes, float], Step], later_to: str) -> None:
        """Read lines from one side until it ends, and send what the session makes of them."""
        lines = _Lines(self._max_frame)
        read, send = os.read, self._send
        while True:
            try:
                chunk = read(descriptor, _CHUNK)
            except OSError:
                return
            if lines.empty and chunk.find(b"\n") == len(chunk) - 1 >= 0:
                send(take(chunk, monotonic()), later_to)  # one line, as nearly always
            elif chunk:
                frames = lines.add(chunk)
                if frames:
                    now = monotonic()
                    send(_together([take(frame, now) for frame in frames]), later_to)
            else:
                return  # what stands without a line end is no message
            if self._client_gone:
                self._close_if_settled()

    def _send(self, step: Step, later_to: str) -> None:
        """Record, then write. What cannot be recorded does not pass."""
        to_client, to_server = step.to_client, step.to_server
        if step.facts or step.sightings:
            try:
                if step.durable:
                    self._tell(step.facts)
                self._recorder.record(step)
            except PinwardenError as err:
                from pinwarden.gateway.recorder import unrecorded

                self._say(f"nothing passes that cannot be recorded: {err.message}")
                to_client, to_server = tuple(unrecorded((*to_client, *to_server), err)), ()
        if to_server:
            if later_to == "server":
                self._to_server.write_later(to_server)
            else:
                self._to_server.write(to_server)
        if to_client:
            if later_to == "client":
                self._to_client.write_later(to_client)
            else:
                self._to_client.write(to_client)

    def _tell(self, facts: Sequence[Fact]) -> None:
        """Say on standard error what a person should know."""
        from pinwarden.core.visible import show_invisible

        for fact in facts:
            if fact.kind == "trusted":
                self._say(f"{fact.reason} From now on, changes are withheld until you review them: pinwarden review")
            elif fact.kind == "blocked":
                what = show_invisible(
                    f"{fact.item_kind} {fact.item[:120]!r}" if fact.item else fact.method or "a message"
                )
                self._say(f"blocked {what}: {fact.reason} ({fact.code})")

    def _keep_time(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            self._send(self._session.tick(monotonic()), later_to="none")

    def _told_to_end(self, *_: object) -> None:
        """Pass the wish on, and see that it is followed; the reader of the server meets its end."""
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGTERM)
        Thread(target=self._tree.end, args=(self._grace,), name="ending", daemon=True).start()


def _together(steps: Sequence[Step]) -> Step:
    from pinwarden.gateway.step import Step

    return Step(
        to_client=tuple(frame for step in steps for frame in step.to_client),
        to_server=tuple(frame for step in steps for frame in step.to_server),
        facts=tuple(fact for step in steps for fact in step.facts),
        durable=any(step.durable for step in steps),
        sightings=tuple(verdict for step in steps for verdict in step.sightings),
    )


class _Lines:
    """Cuts bytes into lines; empty ones are none."""

    def __init__(self, most: int) -> None:
        self.empty = True
        """Whether no line is begun."""
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._parts:
            ended[0] = b"".join((*self._parts, ended[0]))
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._most:
                raise PinwardenError("PROBE_LIMIT", f"a message has more than {self._most} bytes")
        self.empty = not self._parts
        return [line for line in ended if line and not line.isspace()]
