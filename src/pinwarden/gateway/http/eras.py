"""The two protocol eras: how a client's request reaches a server whose era may not be known yet.

In the handshake era a client opens a session with ``initialize``. In the stateless era (2026-07-28) every request
stands alone, and ``server/discover`` describes the server. `bridge` connects clients and servers of different eras.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.bridge import BridgedConversation
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import (
    STATELESS,
    AnyConversation,
    ClientSession,
    Route,
    SessionManager,
    Upstream,
)
from pinwarden.gateway.session.messages import LISTEN, Frame
from pinwarden.surface.protocol import SERVER_UNAVAILABLE


class BridgedRoute:
    """A server's own path, for clients of the other era."""

    requests = 0

    def __init__(self, upstream: Upstream) -> None:
        self.name = upstream.name
        self.slug = f"{upstream.slug}/bridged"
        self._upstream = upstream

    def converse(self, manager: SessionManager, client: Client, *, stateless: bool = False) -> BridgedConversation:
        """Open a conversation that translates between the eras."""
        del stateless
        return BridgedConversation(manager, client, self._upstream)


def stateless_route(route: Route, frame: Frame) -> Route:
    """The route of a stateless request: straight to a stateless server, or over a bridge."""
    if not isinstance(route, Upstream) or route.era == STATELESS or frame.method == "server/discover":
        return route
    return route if frame.method == LISTEN and not route.era else BridgedRoute(route)


def request_stateless(  # noqa: PLR0913, PLR0917  what is known about a request
    manager: SessionManager, route: Route, client: Client, frame: Frame, sink: ResponseSink, parameters: bytes
) -> tuple[AnyConversation | None, Callable[[], object]]:
    """Send a request of the stateless era.

    Returns the conversation, if it is known yet, and a function that cancels the request.
    """
    discovers = isinstance(route, Upstream) and frame.method == "server/discover"
    if discovers and isinstance(route, Upstream) and not route.era:
        task = manager.run(_discover_first(manager, route, client, frame, sink, parameters))
        return None, task.cancel
    conversation = manager.stateless_conversation(stateless_route(route, frame), client)
    if discovers and isinstance(route, Upstream):
        sink = _Discovery(sink, route, conversation)
    request_id = conversation.request(frame, sink, parameters)
    return conversation, partial(conversation.give_up, request_id)


async def _discover_first(  # noqa: PLR0913, PLR0917  what is known about a request
    manager: SessionManager, upstream: Upstream, client: Client, frame: Frame, sink: ResponseSink, parameters: bytes
) -> None:
    """Relay ``server/discover`` to a server of unknown era. Simultaneous clients share one process."""
    conversation, request_id = None, None
    try:
        async with upstream.detecting_era(manager.limits.merged_opening_seconds / 2):
            conversation = manager.stateless_conversation(upstream, client)
            discovery = _Discovery(sink, upstream, conversation)
            request_id = conversation.request(frame, discovery, parameters)
            await discovery.over.wait()
    except asyncio.CancelledError:
        if conversation is not None:
            conversation.give_up(request_id)
        if sink.open:
            sink.failed(SERVER_UNAVAILABLE, "the gateway is shutting down")
        raise
    except PinwardenError as err:
        sink.failed(SERVER_UNAVAILABLE, err.message)


def initialize(
    manager: SessionManager, session: ClientSession, frame: Frame, sink: ResponseSink, parameters: bytes
) -> None:
    """Relay ``initialize``. If the server rejects it, the session continues over a bridge to the stateless era."""
    if isinstance(session.route, Upstream):
        sink = _Handshake(sink, manager, session, frame)
    session.conversation.request(frame, sink, parameters)


class _ForwardingSink:
    """Passes everything to another sink."""

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink

    @property
    def open(self) -> bool:
        return self._sink.open

    def message(self, frame: Frame) -> None:
        self._sink.message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        self._sink.answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        self._sink.failed(code, why)

    def refused_unread(self, why: str) -> None:
        self._sink.refused_unread(why)

    def dropped(self) -> None:
        self._sink.dropped()


class _Discovery(_ForwardingSink):
    """Learns from the response to ``server/discover`` that the server is stateless."""

    def __init__(self, sink: ResponseSink, upstream: Upstream, conversation: AnyConversation) -> None:
        super().__init__(sink)
        self._upstream = upstream
        self._conversation = conversation
        self.over = asyncio.Event()

    def answered(self, frame: Frame, status: int) -> None:
        if isinstance(frame.members.get("result"), dict):
            self._upstream.set_stateless(self._conversation)
        super().answered(frame, status)
        self.over.set()

    def failed(self, code: int, why: str) -> None:
        super().failed(code, why)
        self.over.set()

    def refused_unread(self, why: str) -> None:
        super().refused_unread(why)
        self.over.set()

    def dropped(self) -> None:
        super().dropped()
        self.over.set()


class _Handshake(_ForwardingSink):
    """Bridges the session if the server rejects ``initialize``."""

    def __init__(self, sink: ResponseSink, manager: SessionManager, session: ClientSession, frame: Frame) -> None:
        super().__init__(sink)
        self._manager = manager
        self._session = session
        self._frame = frame

    def answered(self, frame: Frame, status: int) -> None:
        if "error" in frame.members and isinstance(self._session.route, Upstream):
            asyncio.get_running_loop().call_soon(self._bridge, self._session.route, frame, status)
        else:
            super().answered(frame, status)

    def _bridge(self, upstream: Upstream, rejection: Frame, status: int) -> None:
        rejected, session = self._session.conversation, self._session
        session.conversation = self._manager.conversation(BridgedRoute(upstream), session.client)
        rejected.close("the handshake failed")
        session.conversation.request(self._frame, _BridgedHandshake(self._sink, rejection, status))


class _BridgedHandshake(_ForwardingSink):
    """Waits for the bridged ``initialize``. If that fails too, the client gets the server's own error."""

    def __init__(self, sink: ResponseSink, rejection: Frame, status: int) -> None:
        super().__init__(sink)
        self._rejection = rejection
        self._status = status

    def failed(self, code: int, why: str) -> None:
        del code, why
        self._sink.answered(self._rejection, self._status)
