"""Messages on their way: what was asked, and what waits."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.surface.surface import ItemKind


class Asked:
    """A request of the client that went to the server."""

    __slots__ = ("cursor", "kind", "method", "notices", "number", "order", "use", "warning")

    def __init__(self, number: Any, method: str, use: str = "", warning: Verdict | None = None) -> None:
        self.number = number
        self.method = method
        self.use = use
        """What it uses, to count how often in a row the server asks back."""
        self.warning = warning
        """What the client is to be told with the answer."""
        self.kind: ItemKind | None = None
        """Which list it asks for; None for anything else."""
        self.order = 0
        """When it was asked for, among all lists that were."""
        self.notices = 0
        """How often the server had told by then that this list changed: an answer knows of no later time."""
        self.cursor = False
        """Whether it asks for a further page."""


class Request:
    """A request of the client, from when it came until it is decided. It may wait for a list."""

    __slots__ = ("frame", "message", "since")

    def __init__(self, frame: bytes, message: Any, since: float) -> None:
        self.frame = frame
        self.message = message
        self.since = since

    @property
    def number(self) -> Any:
        """Its id."""
        return self.message["id"]

    @property
    def method(self) -> str:
        """What it asks for."""
        return str(self.message["method"])


class Notice:
    """A notification of the server that holds the result of a task. It may wait for the list of tools."""

    __slots__ = ("frame", "message", "since")
    number = None

    def __init__(self, frame: bytes, message: Any, since: float) -> None:
        self.frame = frame
        self.message = message
        self.since = since

    @property
    def method(self) -> str:
        """What it tells."""
        return str(self.message["method"])


class Answer:
    """An answer of the server to a request of the client. That of a list may wait for the rest of the list."""

    __slots__ = ("asked", "frame", "message", "since", "tries")

    def __init__(self, frame: bytes, message: Any, asked: Asked, since: float) -> None:
        self.frame = frame
        self.message = message
        """None if it cannot be read strictly as a whole."""
        self.asked = asked
        self.since = since
        self.tries = 0

    @property
    def number(self) -> Any:
        """The id of the request."""
        return self.asked.number

    @property
    def method(self) -> str:
        """What was asked for."""
        return self.asked.method
