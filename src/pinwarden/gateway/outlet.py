"""Where lines for one side are written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread


class Outlet:
    """One side's input. Frames of two threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = Lock()
        """Who writes has it; who writes without `write_line` does what that does."""
        self.closed = False
        self._later: SimpleQueue[Sequence[bytes]] | None = None

    def write(self, frames: Sequence[bytes]) -> None:
        """Write them now, each on a line. A side that is gone is met by whoever reads from it."""
        data = frames[0] if len(frames) == 1 else b"\n".join([frame.rstrip() for frame in frames])
        if b"\r" in data:  # white space to JSON, the end of a line to some readers; in a text it is always escaped
            data = data.replace(b"\r", b" ")
        self.write_line(data if data[-1:] == b"\n" else data + b"\n")

    def write_line(self, data: bytes) -> None:
        """Write whole lines now."""
        with self.lock:
            if self.closed:
                return
            try:
                self.finish(data, os.write(self.descriptor, data))
            except OSError:
                self.closed = True

    def finish(self, data: bytes, written: int) -> None:
        """Write what is left of some bytes, so many of which were taken."""
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]

    def write_later(self, frames: Sequence[bytes]) -> None:
        """Let a thread write them, so that the caller does not wait."""
        with self.lock:
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
        with self.lock:
            if not self.closed:
                self.closed = True
                with suppress(OSError):
                    os.close(self.descriptor)

    def _run(self, later: SimpleQueue[Sequence[bytes]]) -> None:
        while frames := later.get():
            self.write(frames)
        self.close()
