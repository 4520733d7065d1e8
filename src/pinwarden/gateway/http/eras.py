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
from pinwarden.gateway.http.frames import Frame
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
from pinwarden.gateway.messages import LISTEN
from pinwarden.surface.protocol import SERVER_AWAY


class BridgedRoute:
    """A server's own address, for clients of the other era."""

    requests = 0

    def __init__(self, upstream: Upstream) -> None:
        self.name = upstream.name
        self.slug = f"{upstream.slug}/bridged"
        self._upstream = upstream

    def converse(self, hub: SessionManager, client: Client, *, stateless: bool = False) -> BridgedConversation:
        """A conversation with the server, in whichever era it speaks."""
        del stateless
        return BridgedConversation(hub, client, self._upstream)


def stateless_place(place: Route, frame: Frame) -> Route:
    """Where a request of the stateless era goes: to the server itself, if it is of that era or is asked for its era."""
    if not isinstance(place, Upstream) or place.era == STATELESS or frame.method == "server/discover":
        return place
    return place if frame.method == LISTEN and not place.era else BridgedRoute(place)


def request_stateless(  # noqa: PLR0913, PLR0917  what is known about a request
    hub: SessionManager, place: Route, client: Client, frame: Frame, waiting: ResponseSink, parameters: bytes
) -> tuple[AnyConversation | None, Callable[[], object]]:
    """Send a request of the stateless era on its way.

    Returns the conversation, if it is known yet, and what to call if the client does not wait any more.
    """
    discovers = isinstance(place, Upstream) and frame.method == "server/discover"
    if discovers and isinstance(place, Upstream) and not place.era:
        task = hub.run(_discover_first(hub, place, client, frame, waiting, parameters))
        return None, task.cancel
    conversation = hub.shared(stateless_place(place, frame), client)
    if discovers and isinstance(place, Upstream):
        waiting = _Discovery(waiting, place, conversation)
    number = conversation.request(frame, waiting, parameters)
    return conversation, partial(conversation.give_up, number)


async def _discover_first(  # noqa: PLR0913, PLR0917  what is known about a request
    hub: SessionManager, upstream: Upstream, client: Client, frame: Frame, waiting: ResponseSink, parameters: bytes
) -> None:
    """Relay ``server/discover`` to a server whose era is not known: clients that come at once share one process."""
    conversation, number = None, None
    try:
        async with upstream.finding_era(hub.limits.merged_opening_seconds / 2):
            conversation = hub.shared(upstream, client)
            discovery = _Discovery(waiting, upstream, conversation)
            number = conversation.request(frame, discovery, parameters)
            await discovery.over.wait()
    except asyncio.CancelledError:
        if conversation is not None:
            conversation.give_up(number)
        if waiting.open:
            waiting.failed(SERVER_AWAY, "the gateway ends")
        raise
    except PinwardenError as err:
        waiting.failed(SERVER_AWAY, err.message)


def initialize(
    hub: SessionManager, session: ClientSession, frame: Frame, waiting: ResponseSink, parameters: bytes
) -> None:
    """Begin a session of a client. A server that refuses the handshake may be one of the stateless era."""
    if isinstance(session.place, Upstream):
        waiting = _Handshake(waiting, hub, session, frame)
    session.conversation.request(frame, waiting, parameters)


class _Passing:
    """Hands everything on."""

    def __init__(self, waiting: ResponseSink) -> None:
        self._waiting = waiting

    @property
    def open(self) -> bool:
        return self._waiting.open

    def message(self, frame: Frame) -> None:
        self._waiting.message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        self._waiting.answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        self._waiting.failed(code, why)

    def refused_unread(self, why: str) -> None:
        self._waiting.refused_unread(why)

    def dropped(self) -> None:
        self._waiting.dropped()


class _Discovery(_Passing):
    """Waits for a server to say who it is."""

    def __init__(self, waiting: ResponseSink, upstream: Upstream, conversation: AnyConversation) -> None:
        super().__init__(waiting)
        self._upstream = upstream
        self._conversation = conversation
        self.over = asyncio.Event()

    def answered(self, frame: Frame, status: int) -> None:
        if isinstance(frame.members.get("result"), dict):
            self._upstream.is_stateless(self._conversation)
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


class _Handshake(_Passing):
    """Waits for the answer to the handshake of a client."""

    def __init__(self, waiting: ResponseSink, hub: SessionManager, session: ClientSession, frame: Frame) -> None:
        super().__init__(waiting)
        self._hub = hub
        self._session = session
        self._frame = frame

    def answered(self, frame: Frame, status: int) -> None:
        if "error" in frame.members and isinstance(self._session.place, Upstream):
            asyncio.get_running_loop().call_soon(self._bridge, self._session.place, frame, status)
        else:
            super().answered(frame, status)

    def _bridge(self, upstream: Upstream, refusal: Frame, status: int) -> None:
        refused, session = self._session.conversation, self._session
        session.conversation = self._hub.conversation(BridgedRoute(upstream), session.client)
        refused.close("the handshake failed")
        session.conversation.request(self._frame, _SecondTry(self._waiting, refusal, status))


class _SecondTry(_Passing):
    """Waits for the stateless era of a server that refused the handshake. What it refused it with counts otherwise."""

    def __init__(self, waiting: ResponseSink, refusal: Frame, status: int) -> None:
        super().__init__(waiting)
        self._refusal = refusal
        self._status = status

    def failed(self, code: int, why: str) -> None:
        del code, why
        self._waiting.answered(self._refusal, self._status)
