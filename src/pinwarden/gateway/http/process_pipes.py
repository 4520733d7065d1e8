"""The pipes of a server process. `PipeEnds` owns the descriptors until an event loop takes them over."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from typing import IO, TypeVar

ProtocolType = TypeVar("ProtocolType", bound=asyncio.BaseProtocol)
_FIRST_FREE = 3  # libuv never closes descriptors 0 to 2, so the server would not see the end of its input


class PipeEnd:
    """Owns one descriptor until an event loop takes it over."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop_closes = False

    @classmethod
    def from_stream(cls, stream: IO[bytes]) -> PipeEnd:
        """Duplicate the descriptor of a file object, and close the file object."""
        import fcntl

        try:
            return cls(fcntl.fcntl(stream.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        finally:
            stream.close()

    def fileno(self) -> int:
        """Return the file descriptor, which the event loop registers."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, unless the loop owns it or it is closed already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and not self._loop_closes:
            os.close(descriptor)

    async def connect_reader(self, factory: Callable[[], ProtocolType]) -> asyncio.ReadTransport:
        """Hand the pipe over to the event loop, which reads from it. If this fails, the pipe is closed."""
        loop = self._prepare_handover()
        try:
            return (await loop.connect_read_pipe(factory, self))[0]
        except (OSError, ValueError):
            self._close_after_failure()
            raise

    async def connect_writer(self, factory: Callable[[], ProtocolType]) -> asyncio.WriteTransport:
        """Hand the pipe over to the event loop, which writes to it. If this fails, the pipe is closed."""
        loop = self._prepare_handover()
        try:
            return (await loop.connect_write_pipe(factory, self))[0]
        except (OSError, ValueError):
            self._close_after_failure()
            raise

    def _prepare_handover(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        self._loop_closes = not isinstance(loop, asyncio.BaseEventLoop)
        return loop

    def _close_after_failure(self) -> None:
        """Close the descriptor that the event loop did not take over."""
        self._loop_closes = False
        self.close()


class PipeEnds:
    """The three pipes of one process."""

    def __init__(self, stdin: PipeEnd, stdout: PipeEnd, stderr: PipeEnd) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    def from_process(cls, process: subprocess.Popen[bytes]) -> PipeEnds:
        """Take over stdin, stdout and stderr of a process. The process's own file objects are always closed."""
        streams = [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]
        ends: list[PipeEnd] = []
        try:
            ends += [PipeEnd.from_stream(stream) for stream in streams]
            return cls(*ends)
        except BaseException:
            for end in ends:
                end.close()
            for stream in streams:
                stream.close()
            raise

    def close(self) -> None:
        """Close the pipes that no event loop took over."""
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()
