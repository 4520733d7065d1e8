"""The two loops of the stdio gateway: one reads from the client, one from the server.

What is done between reading a line and writing it is time that the client waits. So each loop does this:

1. Read a chunk. Nearly always it is one line; several lines are read, recorded and written together.
2. Ask the fast path (`CallFastPath`), which takes calls and results in any spelling. Whatever it leaves goes to the
   session, in its place among the others.
3. Record, then write the bytes that were read. A call whose event cannot be recorded is not forwarded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse_json

if TYPE_CHECKING:
    from pinwarden.gateway.audit.log import AuditLog
    from pinwarden.gateway.event import Fact
    from pinwarden.gateway.outlet import Outlet
    from pinwarden.gateway.session import Session
    from pinwarden.gateway.step import Step

SMALL = 400
"""Bytes to read while lines are shorter than that: Python has memory for so few at hand."""
_CHUNK = 1 << 16


class StdioLoops:
    """Both loops, for one client and one server."""

    def __init__(self, session: Session, log: AuditLog | None, to_server: Outlet, to_client: Outlet) -> None:
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
            self._loads = self._fast_path.reader()

    def from_client(self, descriptor: int, send: Callable[[Step], None]) -> None:
        """Relay what the client sends until it ends; ``send`` takes what the session decided."""
        lines, outlet = Lines(self._max_frame), self._to_server
        admit = self._fast_path.admit
        note: Any = None if self._log is None else self._log.note
        read, write, size = os.read, os.write, _CHUNK
        acquire, release, out = outlet.lock.acquire, outlet.lock.release, outlet.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL if length < SMALL else _CHUNK
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
            send(self._session.client_frame(chunk, now))
        if not lines.empty and self._is_json(last := lines.rest()):
            self._calls((last,), send)  # complete but for its line end

    def from_server(self, descriptor: int, send: Callable[[Step], None], settled: Callable[[], None]) -> None:
        """Relay what the server sends until it ends; ``settled`` is called whenever the session had a message."""
        lines = Lines(self._max_frame)
        relays, outlet = self._fast_path.relays, self._to_client
        read, write, size = os.read, os.write, _CHUNK
        acquire, release, out = outlet.lock.acquire, outlet.lock.release, outlet.descriptor
        while chunk := read(descriptor, size):
            length = len(chunk)
            size = SMALL if length < SMALL else _CHUNK
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

    def _calls(self, frames: Sequence[bytes], send: Callable[[Step], None]) -> None:
        """Several lines at once: one record and one write for all on the fast path between two that are not."""
        now = monotonic()
        passed: list[bytes] = []
        notes: list[tuple[Fact, int | str]] = []
        for frame in frames:
            message = self._skimmed(frame)
            if (event := self._fast_path.admit(message, now, frame)) is not None:
                passed.append(frame)
                notes.append((event, message["id"]))
                continue
            self._forward(passed, notes, send)
            passed, notes = [], []
            send(self._session.client_frame(frame, now))
        self._forward(passed, notes, send)

    def _forward(
        self, passed: Sequence[bytes], notes: Sequence[tuple[Fact, int | str]], send: Callable[[Step], None]
    ) -> None:
        if not passed or self._log is None:
            return
        try:
            self._log.note_all(notes)
        except PinwardenError:
            for frame, (_, request_id) in zip(passed, notes, strict=True):
                self._fast_path.withdraw(request_id)
                send(self._session.client_frame(frame, monotonic()))
            return
        self._to_server.write(passed)

    def _answers(self, frames: Sequence[bytes], send: Callable[[Step], None]) -> None:
        now = monotonic()
        passed: list[bytes] = []
        for frame in frames:
            if self._fast_path.relays(frame, self._skimmed(frame), True):
                passed.append(frame)
                continue
            if passed:
                self._to_client.write(passed)
                passed = []
            send(self._session.server_frame(frame, now))
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


class Lines:
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
