"""One conversation between a client and a server, without input or output: a message in, messages and facts out.

The same session serves stdio and HTTP. It keeps no clock; ``now`` is any number of seconds that never goes back.
"""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.guard import Guard
from pinwarden.gateway.step import NOTHING, Step

__all__ = ["NOTHING", "Session", "Step"]


class Session:
    """A client, a server, and the judge between them. Safe to call from several threads."""

    def __init__(self, guard: Guard, *, name: str, client: str = "") -> None:
        """``name`` is unique and hard to guess: it is part of the ids of our own requests and of correlation ids.

        ``client`` is the name that a token stands for; without one, the name that the client gives itself is used.
        """
        self.guard = guard
        self.name = name
        self.client = client

    def client_frame(self, frame: bytes, now: float, message: Any = None) -> Step:
        """A message from the client. ``message`` is its strictly parsed value, if the caller has it already."""
        raise NotImplementedError

    def server_frame(self, frame: bytes, now: float, message: Any = None) -> Step:
        """A message from the server."""
        raise NotImplementedError

    def tick(self, now: float) -> Step:
        """Whatever is due by now: lists asked for again, calls that waited too long. Call it about once a second."""
        raise NotImplementedError

    def server_gone(self, now: float) -> Step:
        """The server's end of the connection closed: every open request is answered with an error."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether nothing is open or held: a session that may be closed without anybody missing an answer."""
        raise NotImplementedError
