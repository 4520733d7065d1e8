"""Routes requests by protocol era, and detects the era of a server.

In the handshake era, a client opens a session with ``initialize``. In the stateless era (2026-07-28), every request is
self-contained, and ``server/discover`` describes the server. `bridge` connects clients and servers of different eras.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.bridge import BridgedConversation
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import (
    STATELESS,
    AnyConversation,
    ClientSession,
    Route,
    SessionManager,
    Upstream,
)
from pinwarden.gateway.session.messages import LISTEN, ParsedMessage
from pinwarden.surface.protocol import SERVER_UNAVAILABLE


class BridgedRoute:
    """The path of one server, for clients of a different protocol era."""

    requests = 0

    def __init__(self, upstream: Upstream) -> None:
        self.name = upstream.name
        self.slug = f"{upstream.slug}/bridged"
        self._upstream = upstream

    def open_conversation(
        self, manager: SessionManager, client: GatewayClient, *, stateless: bool = False
    ) -> BridgedConversation:
        """Open a conversation that translates between the eras."""
        del stateless
        return BridgedConversation(manager, client, self._upstream)


def choose_stateless_route(route: Route, message: ParsedMessage) -> Route:
    """Return ``route``; for a server that is not known to be stateless, a route over a bridge.

    ``server/discover`` never takes the bridge, and neither does a subscription to a server of unknown era.
    """
    if not isinstance(route, Upstream) or route.era == STATELESS or message.method == "server/discover":
        return route
    return route if message.method == LISTEN and not route.era else BridgedRoute(route)


def send_stateless_request(  # noqa: PLR0913, PLR0917  the parts of a request
    manager: SessionManager,
    route: Route,
    client: GatewayClient,
    message: ParsedMessage,
    sink: ResponseSink,
    param_headers: bytes,
) -> tuple[AnyConversation | None, Callable[[], object]]:
    """Send a request of the stateless era.

    Returns the conversation (None while the server's era is being detected) and a function that cancels the request.
    """
    discovers = isinstance(route, Upstream) and message.method == "server/discover"
    if discovers and isinstance(route, Upstream) and not route.era:
        task = manager.run_task(_detect_era(manager, route, client, message, sink, param_headers))
        return None, task.cancel
    conversation = manager.get_stateless_conversation(choose_stateless_route(route, message), client)
    if discovers and isinstance(route, Upstream):
        sink = _DiscoverySink(sink, route, conversation)
    request_id = conversation.request(message, sink, param_headers)
    return conversation, partial(conversation.cancel, request_id)


async def _detect_era(  # noqa: PLR0913, PLR0917  the parts of a request
    manager: SessionManager,
    upstream: Upstream,
    client: GatewayClient,
    message: ParsedMessage,
    sink: ResponseSink,
    param_headers: bytes,
) -> None:
    """Relay ``server/discover`` to a server of unknown era, for one client at a time (`serialize_era_detection`)."""
    conversation, request_id = None, None
    try:
        async with upstream.serialize_era_detection(manager.limits.merged_opening_seconds / 2):
            conversation = manager.get_stateless_conversation(upstream, client)
            discovery = _DiscoverySink(sink, upstream, conversation)
            request_id = conversation.request(message, discovery, param_headers)
            await discovery.over.wait()
    except asyncio.CancelledError:
        if conversation is not None:
            conversation.cancel(request_id)
        if sink.is_open:
            sink.fail(SERVER_UNAVAILABLE, "the gateway is shutting down")
        raise
    except PinwardenError as err:
        sink.fail(SERVER_UNAVAILABLE, err.message)


def relay_initialize(
    manager: SessionManager,
    client_session: ClientSession,
    message: ParsedMessage,
    sink: ResponseSink,
    param_headers: bytes,
) -> None:
    """Relay ``initialize``. If the response is an error, continue the session over a bridge to the stateless era."""
    if isinstance(client_session.route, Upstream):
        sink = _HandshakeSink(sink, manager, client_session, message)
    client_session.conversation.request(message, sink, param_headers)


class _ForwardingSink:
    """Forwards all calls to another sink."""

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    def send_message(self, message: ParsedMessage) -> None:
        self._sink.send_message(message)

    def respond(self, message: ParsedMessage, status: int) -> None:
        self._sink.respond(message, status)

    def fail(self, code: int, reason: str) -> None:
        self._sink.fail(code, reason)

    def fail_not_executed(self, reason: str) -> None:
        self._sink.fail_not_executed(reason)

    def drop(self) -> None:
        self._sink.drop()


class _DiscoverySink(_ForwardingSink):
    """Marks the server as stateless if the response to ``server/discover`` is a result."""

    def __init__(self, sink: ResponseSink, upstream: Upstream, conversation: AnyConversation) -> None:
        super().__init__(sink)
        self._upstream = upstream
        self._conversation = conversation
        self.over = asyncio.Event()

    def respond(self, message: ParsedMessage, status: int) -> None:
        if isinstance(message.members.get("result"), dict):
            self._upstream.mark_stateless(self._conversation)
        super().respond(message, status)
        self.over.set()

    def fail(self, code: int, reason: str) -> None:
        super().fail(code, reason)
        self.over.set()

    def fail_not_executed(self, reason: str) -> None:
        super().fail_not_executed(reason)
        self.over.set()

    def drop(self) -> None:
        super().drop()
        self.over.set()


class _HandshakeSink(_ForwardingSink):
    """Continues the session over a bridge if the response to ``initialize`` is an error."""

    def __init__(
        self, sink: ResponseSink, manager: SessionManager, client_session: ClientSession, message: ParsedMessage
    ) -> None:
        super().__init__(sink)
        self._manager = manager
        self._client_session = client_session
        self._request = message

    def respond(self, message: ParsedMessage, status: int) -> None:
        if "error" in message.members and isinstance(self._client_session.route, Upstream):
            route = self._client_session.route
            asyncio.get_running_loop().call_soon(self._continue_over_bridge, route, message, status)
        else:
            super().respond(message, status)

    def _continue_over_bridge(self, upstream: Upstream, error_response: ParsedMessage, status: int) -> None:
        client_session = self._client_session
        failed = client_session.conversation
        client_session.conversation = self._manager.open_conversation(BridgedRoute(upstream), client_session.client)
        failed.close("the handshake failed")
        client_session.conversation.request(self._request, _BridgedHandshakeSink(self._sink, error_response, status))


class _BridgedHandshakeSink(_ForwardingSink):
    """Receives the response to a bridged ``initialize``. On failure, the client gets the server's first error."""

    def __init__(self, sink: ResponseSink, error_response: ParsedMessage, status: int) -> None:
        super().__init__(sink)
        self._error_response = error_response
        self._status = status

    def fail(self, code: int, reason: str) -> None:
        del code, reason
        self._sink.respond(self._error_response, self._status)
