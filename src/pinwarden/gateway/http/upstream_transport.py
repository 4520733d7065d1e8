"""The interfaces between a conversation and its transport to a server: a process or a remote address."""

from __future__ import annotations

from collections.abc import Callable, Container, Set
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.session.messages import Frame, RequestId

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
        """Whether it was ended, or not started, because too many processes run. The server is not at fault."""

    def send(self, frame: Frame, parameters: bytes) -> None:
        """Send a message; ``parameters`` are header lines to send with it over HTTP."""

    def call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Send a tool call on the fast path."""

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request."""

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Drop what was sent before that time, except for the requests in ``keep``."""

    def hangs(self, since: float) -> bool:
        """Handle that the server sent nothing in this conversation since that time, although it should have.

        Returns whether the conversation continues, because the transport itself checks whether the server is alive.
        """

    def close(self) -> None:
        """Disconnect from the server."""


class ProcessOwner(Protocol):
    """Receives what a process sends."""

    budget: MemoryBudget
    """The budget for messages that wait for the server."""

    @property
    def used(self) -> float:
        """When the client last sent something."""

    @property
    def client(self) -> str:
        """The name of the client."""

    @property
    def idle(self) -> bool:
        """Whether no request is open."""

    def from_server(self, data: bytes, *, expected_id: RequestId | None = None) -> bool:
        """Handle a message. ``expected_id`` is the request that it should answer, if that is known.

        Returns whether it may be that response. If that takes longer to find out, the owner answers the request.
        """

    def server_lost(self, why: str) -> None:
        """Handle the loss of the server, for this reason."""


class TransportOwner(ProcessOwner, Protocol):
    """Receives what a server sends."""

    def part_from_server(self, data: bytes, expected_id: RequestId, status: int, then: Callable[[bool], None]) -> None:
        """Handle a message on a response stream, or with an error status. ``then`` is called with whether it may be
        the response."""

    def unanswered(self, request_id: RequestId, why: str) -> None:
        """Fail a request: the server's HTTP response ended without a response message."""

    def not_understood(self) -> None:
        """Note that the server rejected a stateless request unread, so it may be of the handshake era."""

    def refused_unread(self, request_id: RequestId, why: str) -> None:
        """Handle that the server did not execute a request, because it does not know the session."""

    def session_ended(self, sent: Set[RequestId], why: str) -> None:
        """Handle that the server forgot the session. Only the requests in ``sent`` were sent to it."""
