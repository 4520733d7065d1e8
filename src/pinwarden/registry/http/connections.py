"""Connections that cannot be held for nothing: whoever sends or reads slowly, or sends too much of a head, is let go.

uvicorn waits for the head of a request for ever, and with httptools takes one of any length. A registry answers
everybody, so each connection has bounds of its own, and all together leave files for the rest of the process.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pinwarden.system.processes import max_connections

HEAD_SECONDS = 20.0
"""For a head to arrive, from its first byte or from the connection on; and for a body that nobody reads any more."""
READ_SECONDS = 60.0
"""For a client to take anything of an answer that waits for it."""
MOST_HEAD = 64 * 1024
MOST_AHEAD = 32
"""Requests that are sent before those before them are answered."""


class _Bounds:
    """What is added to a protocol of uvicorn. `most` and `head_seconds` are there for tests to make smaller."""

    cycle: Any
    connections: set[Any]
    loop: AbstractEventLoop
    transport: Any
    most = max_connections()
    head_seconds = HEAD_SECONDS
    _late: TimerHandle | None = None
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if len(self.connections) > self.most:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late = _without(self._late)
        self._stalled = _without(self._stalled)
        super().connection_lost(exc)  # type: ignore[misc]

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._stalled is None:
            self._stalled = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._stalled = _without(self._stalled)

    def _watch(self) -> None:
        """A time for the next head, as long as no request is being answered."""
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting:
            self._late = _without(self._late)
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(self.head_seconds, self.transport.abort)


def _without(timer: TimerHandle | None) -> TimerHandle | None:
    """No timer, in the place of one that is not to come."""
    if timer is not None:
        timer.cancel()
    return None


class _BoundedH11(_Bounds, H11Protocol):
    """h11 bounds heads itself (``h11_max_incomplete_event_size``)."""


def bounded_protocol() -> type[Any]:
    """uvicorn's protocol over httptools if it is installed, otherwise over h11; with bounds."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return _BoundedH11

    class BoundedHttpTools(_Bounds, HttpToolsProtocol):
        """httptools takes heads of any length, so they are counted here."""

        _head: int | None = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None and not self.transport.is_closing():
                self._head += len(data)
                if self._head > MOST_HEAD:
                    self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= MOST_AHEAD:
                raise ValueError("too many requests ahead of their answers")  # answered by uvicorn, and closed
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

    return BoundedHttpTools
