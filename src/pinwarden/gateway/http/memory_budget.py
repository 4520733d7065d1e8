"""What waits in memory on the way to servers, for lists to be judged, and for the end of messages that are begun.

Each conversation has a bound of its own, but there are many of them. When all of them together hold too much, the one
that holds most is ended: whoever fills the memory loses that, and nobody else does.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """Something that keeps messages until somebody takes them."""

    @property
    def waiting(self) -> int:
        """Bytes that it keeps."""

    def overflow(self) -> None:
        """Let go of all of them."""


class Room:
    """The bound for all who keep messages."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: set[Holder] = set()
        self.overflows = 0
        """How often somebody had to let go."""

    @property
    def waiting(self) -> int:
        """Bytes that all of them keep."""
        return sum(each.waiting for each in self._holders)

    def enter(self, holder: Holder) -> None:
        """From now on it keeps something."""
        self._holders.add(holder)

    def leave(self, holder: Holder) -> None:
        """It keeps nothing any more."""
        self._holders.discard(holder)

    def make(self) -> None:
        """See that what waits is within bounds."""
        while self._holders and self.waiting > self._most:
            largest = max(self._holders, key=lambda each: each.waiting)
            self.leave(largest)
            self.overflows += 1
            largest.overflow()
