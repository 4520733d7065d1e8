"""A request to a remote server on its way, and who waits for the answer."""

from __future__ import annotations

from typing import Protocol


class Cuttable(Protocol):
    """What a request is sent on."""

    def abort(self) -> None:
        """Cut it off."""


class Listener(Protocol):
    """Who waits for the answer to one request."""

    def on_head(self, status: int, session: str) -> None:
        """The status came, and the session that the server names, if it does."""

    def on_frame(self, frame: bytes) -> None:
        """A message came: the whole body, or one event."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """Head, message and end at once."""

    def on_lost(self, why: str, *, sent: bool) -> None:
        """There is no complete answer. Unless it was sent, the server has not seen the request."""


class SilentListener:
    """Does nothing by itself, and takes an answer in one piece as one in parts."""

    __slots__ = ()

    def on_head(self, status: int, session: str) -> None:
        """Nothing."""

    def on_frame(self, frame: bytes) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """One after the other."""
        self.on_head(status, session)
        body = body.strip()
        if body:
            self.on_frame(body)
        self.on_end()

    def on_lost(self, why: str, *, sent: bool) -> None:
        """Nothing."""


NOBODY = SilentListener()
"""Nobody waits."""


class Sending(Protocol):
    """One request on its way. Whoever asked may give it up."""

    data: bytes
    listener: Listener
    given_up: bool
    """Whether nobody waits any more."""
    upstream: Cuttable | None
    """The connection that it is sent on."""
    stream: bool
    """Whether it is answered by whatever the server tells from now on, and so may hold its connection for ever."""

    @property
    def client(self) -> str:
        """For whom it is sent."""

    def give_up(self) -> None:
        """Cut it off."""


class Outgoing:
    """Any request on its way."""

    __slots__ = ("client", "data", "given_up", "listener", "stream", "upstream")

    def __init__(self, data: bytes, listener: Listener, client: str = "", *, stream: bool = False) -> None:
        self.data = data
        self.listener = listener
        self.client = client
        self.stream = stream
        self.upstream: Cuttable | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Cut it off: the server sees that nobody waits for the answer."""
        self.given_up = True
        self.data = b""  # it may stay in line for as long as all connections are in use
        if self.upstream is not None:
            self.upstream.abort()
