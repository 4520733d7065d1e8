"""A client that reads slower than it is answered: how fast it reads, and whether it does."""

from __future__ import annotations


class Behind:
    """What is known since more waits for a reader than the system takes."""

    __slots__ = ("_moved", "_rest", "given", "since", "start")

    def __init__(self, now: float, unsent: int) -> None:
        self.since = self._moved = now
        self.start = unsent
        self.given = 0
        """Bytes that were added since."""
        self._rest = -1

    def pace(self, now: float, unsent: int) -> float:
        """Bytes a second."""
        return (self.start + self.given - unsent) / (now - self.since + 0.001)

    def stalled(self, now: float, unsent: int, seconds: float) -> bool:
        """Whether nothing was read for so long."""
        rest = unsent - self.given
        if rest != self._rest:
            self._rest, self._moved = rest, now
        return now - self._moved >= seconds
