"""Tell open pages that something changed, with server-sent events. A page then reads itself again.

One task looks for changes for all streams, and only while there are streams. An event says nothing but that something
changed, so a page that was updated shows exactly what it would show after a reload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pinwarden.core.errors import PinwardenError

_POLL_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0  # so that proxies keep the connection, and a browser that left is noticed
_MAX_STREAMS = 200
_RETRY_MILLISECONDS = 3000
MEDIA_TYPE = "text/event-stream"


class LiveChanges:
    """Watches for changes. Used only on the event loop."""

    def __init__(self, read_mark: Callable[[], Awaitable[Any]]) -> None:
        """``read_mark`` returns a value that differs after every change."""
        self._read_mark = read_mark
        self._streams: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End all streams. May be called from any thread."""
        self._is_closed = True

    async def stream(self, is_open: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield an event after each change, until ``is_open`` returns False or the dashboard stops."""
        if len(self._streams) >= _MAX_STREAMS:
            return
        changed = asyncio.Event()
        self._streams.add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield f"retry: {_RETRY_MILLISECONDS}\n\n".encode()
            quiet = 0.0
            while not self._is_closed and is_open():
                try:
                    await asyncio.wait_for(changed.wait(), _POLL_SECONDS)
                except TimeoutError:
                    quiet += _POLL_SECONDS
                    if quiet < _HEARTBEAT_SECONDS:
                        continue
                    quiet = 0.0
                    yield b": still here\n\n"
                else:
                    changed.clear()
                    yield b"event: changed\ndata: {}\n\n"
        finally:
            self._streams.discard(changed)

    async def _watch(self) -> None:
        """Look for changes while there are streams."""
        mark: Any = None
        while self._streams and not self._is_closed:
            try:
                current = await self._read_mark()
            except PinwardenError:
                current = mark  # the pages say what cannot be read
            if mark is not None and current != mark:
                for changed in self._streams:
                    changed.set()
            mark = current
            await asyncio.sleep(_POLL_SECONDS)
