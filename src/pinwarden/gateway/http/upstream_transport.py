"""The interfaces between a conversation and its transport to a server: a process or a remote address."""

from __future__ import annotations

from collections.abc import Container, Set
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.session.messages import ParsedMessage, RequestId

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall

SERVER_ENDED = "the server ended"


class PostedRequest:
    """A request that was posted to a remote server, whose HTTP response should contain the JSON-RPC response."""

    __slots__ = ("has_response", "request_id", "status")

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        """The id that is sent to the server."""
        self.status = 0
        """The HTTP status, if it is an error; otherwise 0."""
        self.has_response = False
        """Whether the response has arrived."""


class UpstreamTransport(Protocol):
    """Sends messages to a server."""

    shared: bool
    """Whether other clients may use the same process, so that ids must be unique across clients."""

    @property
    def has_single_client(self) -> bool:
        """Whether only one client has used the server, so that a message that names no request is for this client."""

    @property
    def evicted(self) -> bool:
        """Whether the gateway ended the process, or did not start it, because of the limit of processes."""

    def send(self, message: ParsedMessage, param_headers: bytes) -> None:
        """Send a message. ``param_headers`` are the ``mcp-param-`` header lines to send with it over HTTP."""

    def send_call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Send a tool call that the fast path admitted."""

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request."""

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Cancel requests and notifications that were sent before a time, except the requests in ``keep``."""

    def check_hang(self, since: float) -> bool:
        """Handle that a request timed out and that the conversation has received nothing since a time.

        Returns whether the conversation continues, because the transport itself checks whether the server is alive.
        """

    def close(self) -> None:
        """Disconnect from the server."""


class ProcessOwner(Protocol):
    """Receives the messages of a process."""

    budget: MemoryBudget
    """The budget for messages that are queued for the server."""

    @property
    def last_used(self) -> float:
        """When the client last sent a message."""

    @property
    def client(self) -> str:
        """The name of the client."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""

    def on_server_message(self, data: bytes, posted: PostedRequest | None = None) -> None:
        """Handle a server message. ``posted`` is the request in whose HTTP response it came.

        If the message is the response to that request, `PostedRequest.has_response` is set.
        """

    def on_server_lost(self, reason: str) -> None:
        """Handle that the server is gone."""


class TransportOwner(ProcessOwner, Protocol):
    """Receives the messages of a server."""

    @property
    def person(self) -> tuple[str, str]:
        """Whose grants of remote servers the client may use: issuer and subject (`GatewayClient.person`)."""

    def on_response_ended(self, posted: PostedRequest, reason: str) -> None:
        """Fail a request if its HTTP response ended and contained no JSON-RPC response."""

    def on_request_failed(self, request_id: RequestId, reason: str) -> None:
        """Fail a request that the transport could not send."""

    def on_unparsed_refusal(self) -> None:
        """Handle that the server refused a stateless request without parsing it: it may be of the handshake era."""

    def on_not_executed(self, request_id: RequestId, reason: str) -> None:
        """Handle that the server did not execute a request, because it does not know the session."""

    def on_session_ended(self, sent_ids: Set[RequestId], reason: str) -> None:
        """Handle that the server no longer knows the session. Only requests in ``sent_ids`` were sent to the server."""
