"""The pipes of a server process: `LineReader` reads lines in fair portions, `PipeEnds` owns the descriptors."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from typing import IO, TypeVar, cast

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget

_COUNTED = 1 << 16  # bytes of a partial line between two updates of the budget
TOO_LONG = "the server sent a message above the size limit"
TOO_MUCH = "too many bytes of incomplete messages are in memory, and most are this server's"


class LineReader(asyncio.Protocol):
    """Bytes in, lines out. When lines come faster than they are processed, the writer is blocked by a full pipe."""

    def __init__(  # noqa: PLR0913, PLR0917  whom it tells, and its bounds
        self,
        take: Callable[[bytes], None],
        closed: Callable[[], None],
        too_long: Callable[[str], None] | None,
        most: int,
        limits: HttpLimits,
        budget: MemoryBudget | None = None,
    ) -> None:
        """``too_long`` is called with the reason if a line exceeds ``most`` bytes; without it the line is truncated."""
        self._on_line = take
        self._on_closed = closed
        self._on_too_long = too_long
        self._max_bytes = most
        self._limits = limits
        self._budget = budget
        self._transport: asyncio.ReadTransport | None = None
        self._partial = bytearray()
        """The start of a line, as one buffer: a list of tiny parts takes twenty times their size."""
        self._counted = 0
        self._unread = b""
        """Received bytes that are not processed yet, from `_offset` on."""
        self._offset = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pipe is connected."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if not self._partial and not self._paused and data[-1:] == b"\n" and data.count(b"\n") == 1:
            line = data.strip()  # nearly every message
            if line:
                self._on_line(line)
            return
        if self._paused:
            self._unread, self._offset = self._unread[self._offset :] + data, 0
            return
        self._unread, self._offset = data, 0
        self._process()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The process ended, or closed its output."""
        self._transport = None
        self._drop()
        self._on_closed()

    def _process(self) -> None:
        """Process a limited number of lines, then let other work run."""
        frames, size = self._limits.max_frames_at_once, self._limits.max_bytes_at_once
        while (end := self._unread.find(b"\n", self._offset)) >= 0:
            if frames <= 0 or size <= 0:
                self._pause()
                return
            line = self._unread[self._offset : end]
            self._offset = end + 1
            if self._partial:
                self._partial += line
                line = bytes(self._partial)
                self._forget()
            line = line.strip()
            frames -= 1
            size -= len(line)
            if line:
                self._on_line(line)
        rest = self._unread[self._offset :]
        self._unread, self._offset = b"", 0
        if rest:
            self._keep(rest)
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is None:
            self._drop()
            return
        try:
            self._process()
        except BaseException:
            self._transport.close()  # otherwise the pipe would never be read again
            raise

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    # Partial lines

    @property
    def pending_bytes(self) -> int:
        """Bytes of the partial line."""
        return len(self._partial)

    def overflow(self) -> None:
        """The shared budget is exceeded, and this partial line is the largest."""
        self._drop()
        if self._on_too_long is not None:
            self._on_too_long(TOO_MUCH)

    def _keep(self, rest: bytes) -> None:
        if len(self._partial) + len(rest) <= self._max_bytes:
            self._partial += rest
            if self._budget is not None and len(self._partial) - self._counted >= _COUNTED:
                self._counted = len(self._partial)
                self._budget.enter(self)
                self._budget.make()
        elif self._on_too_long is not None:
            self._drop()
            self._on_too_long(TOO_LONG)

    def _forget(self) -> None:
        self._partial = bytearray()
        if self._counted and self._budget is not None:
            self._budget.leave(self)
        self._counted = 0

    def _drop(self) -> None:
        self._forget()
        self._unread, self._offset = b"", 0


Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)
_FIRST_FREE = 3  # libuv does not close 0 to 2, so a server on one of them would never see the end of its input


class PipeEnd:
    """Owns one descriptor until an event loop takes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop_closes = False

    @classmethod
    def of_stream(cls, stream: IO[bytes]) -> PipeEnd:
        """Take the pipe of a file object, which is closed: it would close the number again when it is collected."""
        import fcntl

        try:
            return cls(fcntl.fcntl(stream.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        finally:
            stream.close()

    def fileno(self) -> int:
        """The descriptor, for the loop to register."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, unless that is up to the loop or was done."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and not self._loop_closes:
            os.close(descriptor)

    async def read_with(self, factory: Callable[[], Protocol]) -> asyncio.ReadTransport:
        """Let the loop read from the pipe, and own it. If this fails, the pipe is closed."""
        loop = self._begin()
        try:
            return (await loop.connect_read_pipe(factory, self))[0]
        except (OSError, ValueError):
            self._close_refused()
            raise

    async def write_with(self, factory: Callable[[], Protocol]) -> asyncio.WriteTransport:
        """Let the loop write to the pipe, and own it. If this fails, the pipe is closed."""
        loop = self._begin()
        try:
            return (await loop.connect_write_pipe(factory, self))[0]
        except (OSError, ValueError):
            self._close_refused()
            raise

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        self._loop_closes = not isinstance(loop, asyncio.BaseEventLoop)
        return loop

    def _close_refused(self) -> None:
        """The loop did not take the descriptor. After a cancellation it did, and closes it."""
        self._loop_closes = False
        self.close()


class PipeEnds:
    """The three pipes of one process."""

    def __init__(self, stdin: PipeEnd, stdout: PipeEnd, stderr: PipeEnd) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    def of_process(cls, process: subprocess.Popen[bytes]) -> PipeEnds:
        """Take the pipes of a process that was started with three. Its file objects are closed in any case."""
        streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
        ends: list[PipeEnd] = []
        try:
            ends += [PipeEnd.of_stream(stream) for stream in streams]
            return cls(*ends)
        except BaseException:
            for end in ends:
                end.close()
            for stream in streams:
                stream.close()
            raise

    def close(self) -> None:
        """Close those that no loop took."""
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()
