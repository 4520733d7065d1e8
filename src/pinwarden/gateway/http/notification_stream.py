"""Who hears what belongs to no request, and what waits until somebody does."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from pinwarden.gateway.http.limits import HttpLimits


class Hearing(Protocol):
    """A stream to a client."""

    @property
    def open(self) -> bool:
        """Whether anybody still listens."""

    def start_events(self) -> None:
        """Begin."""

    def event(self, frame: bytes) -> None:
        """One message."""

    def end_events(self) -> None:
        """No more will come."""


class Ears:
    """The stream of one conversation, if its client has one open."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._stream: Hearing | None = None
        self._unheard: deque[bytes] = deque()
        self._unheard_bytes = 0

    @property
    def open(self) -> bool:
        """Whether anybody listens."""
        return self._stream is not None and self._stream.open

    def listen(self, stream: Hearing) -> None:
        """Begin to listen, with what came before. A newer stream takes the place of an older one."""
        before, self._stream = self._stream, stream
        if before is not None and before.open:
            before.end_events()
        stream.start_events()
        while self._unheard:
            stream.event(self._unheard.popleft())
        self._unheard_bytes = 0

    def hear(self, data: bytes) -> bool:
        """A message; whether anybody heard it."""
        if self._stream is None or not self._stream.open:
            return False
        self._stream.event(data)
        return True

    def keep(self, data: bytes) -> None:
        """Keep a message until somebody listens; the oldest go when there are too many, or too much of them."""
        self._unheard.append(data)
        self._unheard_bytes += len(data)
        limits = self._limits
        while len(self._unheard) > limits.max_waiting_frames or self._unheard_bytes > limits.max_waiting_bytes:
            self._unheard_bytes -= len(self._unheard.popleft())

    def end(self) -> None:
        """Nothing more will come."""
        stream, self._stream = self._stream, None
        if stream is not None and stream.open:
            stream.end_events()
