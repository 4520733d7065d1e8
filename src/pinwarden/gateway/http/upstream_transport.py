"""What a conversation needs from the way to a server, whether that is a process or an address."""

from __future__ import annotations

from collections.abc import Callable, Container, Set
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.frames import Frame, RequestId
from pinwarden.gateway.http.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall

SERVER_ENDED = "the server ended"


class UpstreamTransport(Protocol):
    """Sends messages to a server."""

    shared: bool
    """Whether other clients may use the same process, so that ids have to be unique among all of them."""

    @property
    def private(self) -> bool:
        """Whether no other client ever used it: then a message that names no request is for this client."""

    @property
    def evicted(self) -> bool:
        """Whether it was ended, or not started, for want of a process: that says nothing about the server."""

    def send(self, frame: Frame, parameters: bytes) -> None:
        """Send a message; ``parameters`` are header lines of the client that belong to it, for HTTP only."""

    def call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Send a plain call of the tool of that name."""

    def cancel(self, request_id: RequestId) -> None:
        """Nobody waits for the answer to a request any more."""

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Give up what was sent before that time, but for the requests that somebody still waits for."""

    def hangs(self, since: float) -> bool:
        """The server sent nothing in this conversation since that time, although it should have.

        Returns whether the conversation goes on, because the link itself finds out if the server is alive.
        """

    def close(self) -> None:
        """Let go of the server."""


class ProcessOwner(Protocol):
    """Gets what comes from a process."""

    budget: MemoryBudget
    """Where what waits for the server counts."""

    @property
    def used(self) -> float:
        """When the client last wanted something."""

    @property
    def client(self) -> str:
        """For whom it talks with the server."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""

    def from_server(self, data: bytes, *, expected_id: RequestId | None = None) -> bool:
        """A message came. ``expected_id`` is the request that it is the whole answer to, as far as is known.

        Returns whether it may be that. If it takes longer to tell, the owner sees to it that the request is answered.
        """

    def server_lost(self, why: str) -> None:
        """Nothing more will come from this server."""


class TransportOwner(ProcessOwner, Protocol):
    """Gets what comes from a server."""

    def part_from_server(self, data: bytes, expected_id: RequestId, status: int, then: Callable[[bool], None]) -> None:
        """A message came on the stream of the answer to a request, or with a status. ``then`` is told whether it may be
        the answer."""

    def unanswered(self, request_id: RequestId, why: str) -> None:
        """The server ended its answer to a request without answering it."""

    def not_understood(self) -> None:
        """The server refused a request of the stateless era without having read it: it may be of another era."""

    def refused_unread(self, request_id: RequestId, why: str) -> None:
        """The server did not execute a request, because it does not know the session that it belongs to."""

    def session_ended(self, sent: Set[RequestId], why: str) -> None:
        """The server does not know the session any more. All requests but these were never sent to it."""
