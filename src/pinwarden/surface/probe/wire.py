"""What the MCP conversation needs from a transport: raw messages out, raw messages in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from pinwarden.core.record import Record


class Silence(Record):
    """No message came. Which kind of silence decides whether another era or transport is worth a try."""

    reason: Literal["quiet", "refused", "ended"]
    """Nothing within the wait; an HTTP status instead of an answer; or the stream is over."""
    detail: str
    status: int | None = None


class Wire(Protocol):
    """One connection to one server."""

    transport: str
    line_based: bool
    """One stream of lines each way: lines that are no message may come between, and questions need not wait."""

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_answer: bool, wait: float | None = None
    ) -> None:
        """Send one message. The headers matter to HTTP only."""

    def receive(self, wait: float | None = None) -> bytes | Silence:
        """The text of the next message; without ``wait``, for as long as the probe may take."""

    def restart(self) -> None:
        """Begin afresh after the server ended."""

    def close(self) -> None:
        """Let go of everything, politely."""

    def abort(self) -> None:
        """Let go of everything, now, from any thread."""
