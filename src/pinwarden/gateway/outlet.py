"""Where lines for one side are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

_PER_FRAME = 200  # bytes of memory, beside the message itself


def _nothing(*_: object) -> None:
    return None


class Outlet:
    """One side's input. Frames of two threads do not mix."""

    def __init__(
        self,
        descriptor: int,
        most: int,
        overflow: Callable[[], None],
        unsent: Callable[[Sequence[bytes]], None] = _nothing,
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
