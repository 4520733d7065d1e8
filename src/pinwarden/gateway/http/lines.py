"""The output of a process, line by line: so many of them at once, and then it is the turn of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from pinwarden.gateway.http.limits import HttpLimits
from pinwarden.gateway.http.memory_budget import Room

_COUNTED = 1 << 16  # bytes of a line that are held before it counts, and between two counts
TOO_LONG = "the server sent more than is taken for one message"
TOO_MUCH = "more is held of messages that are not complete than is kept, and most of it is this server's"


class Lines(asyncio.Protocol):
    """Bytes in, lines out. What comes faster than it is taken stays in the pipe, and its writer waits."""

    def __init__(  # noqa: PLR0913, PLR0917  whom it tells, and its bounds
        self,
        take: Callable[[bytes], None],
        closed: Callable[[], None],
        too_long: Callable[[str], None] | None,
        most: int,
        limits: HttpLimits,
        room: Room | None = None,
    ) -> None:
        """``too_long`` is told why no line of more than ``most`` bytes is taken; without it the rest is left out."""
        self._take = take
        self._closed = closed
        self._too_long = too_long
        self._most = most
        self._limits = limits
        self._room = room
        self._transport: asyncio.ReadTransport | None = None
        self._begun = bytearray()
        """A line without its end; a list of its parts might take twenty times as much."""
        self._counted = 0
        self._unread = b""
        """What came and was not looked at yet, from a place on."""
        self._place = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process was started."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Take lines."""
        if not self._begun and not self._paused and data[-1:] == b"\n" and data.count(b"\n") == 1:
            line = data.strip()  # what nearly always comes
            if line:
                self._take(line)
            return
        if self._paused:
            self._unread, self._place = self._unread[self._place :] + data, 0
            return
        self._unread, self._place = data, 0
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The process ended, or closed its output."""
        self._transport = None
        self._drop()
        self._closed()

    def _look(self) -> None:
        """Take so many lines as others can wait for, and come back."""
        frames, size = self._limits.max_frames_at_once, self._limits.max_bytes_at_once
        while (end := self._unread.find(b"\n", self._place)) >= 0:
            if frames <= 0 or size <= 0:
                self._pause()
                return
            line = self._unread[self._place : end]
            self._place = end + 1
            if self._begun:
                self._begun += line
                line = bytes(self._begun)
                self._forget()
            line = line.strip()
            frames -= 1
            size -= len(line)
            if line:
                self._take(line)
        rest = self._unread[self._place :]
        self._unread, self._place = b"", 0
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
            self._look()
        except BaseException:
            self._transport.close()  # nobody would read on
            raise

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    # A line without its end

    @property
    def waiting(self) -> int:
        """Bytes that are held of it."""
        return len(self._begun)

    def overflow(self) -> None:
        """All that is begun is too much together, and most of it is this line."""
        self._drop()
        if self._too_long is not None:
            self._too_long(TOO_MUCH)

    def _keep(self, rest: bytes) -> None:
        if len(self._begun) + len(rest) <= self._most:
            self._begun += rest
            if self._room is not None and len(self._begun) - self._counted >= _COUNTED:
                self._counted = len(self._begun)
                self._room.enter(self)
                self._room.make()
        elif self._too_long is not None:
            self._drop()
            self._too_long(TOO_LONG)

    def _forget(self) -> None:
        self._begun = bytearray()
        if self._counted and self._room is not None:
            self._room.leave(self)
        self._counted = 0

    def _drop(self) -> None:
        self._forget()
        self._unread, self._place = b"", 0
