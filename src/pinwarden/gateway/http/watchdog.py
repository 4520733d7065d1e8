"""Deadlines of requests, and the check for a server that hangs."""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.http.open_requests import OpenRequests
from pinwarden.gateway.http.upstream_transport import UpstreamTransport
from pinwarden.gateway.session.messages import Frame, RequestId, encode
from pinwarden.gateway.session.session import Session
from pinwarden.surface.protocol import SERVER_UNAVAILABLE


class WatchedConversation(Protocol):
    """The conversation that a watchdog may end."""

    session: Session
    link: UpstreamTransport | None
    last_received: float
    """When the server last sent a message."""

    def give_up(self, request_id: RequestId | None) -> None:
        """Cancel a request."""

    def server_lost(self, why: str) -> None:
        """End the conversation."""


class Watchdog:
    """Fails requests whose deadline passed, and ends the conversation if the server hangs.

    A server hangs if it sent nothing since a request that it did not answer in time. A cancelled request gets no
    response, so its silence proves nothing: then the server is pinged.
    """

    def __init__(self, conversation: WatchedConversation, open_requests: OpenRequests, seconds: float) -> None:
        self._conversation = conversation
        self._open = open_requests
        self._seconds = seconds
        self._pinged: float | None = None
        """When a ping was sent that has no answer yet."""

    def check(self, now: float) -> None:
        """Look at all deadlines. Called about once a second."""
        conversation = self._conversation
        hangs = False
        for request_id, pending in self._open.due(now):
            silent = conversation.last_received < pending.sent
            if self._open.is_cancelled(pending):
                self._open.forget(request_id)
                pending.sink.dropped()
                if silent:
                    self._ping(now)
            else:
                conversation.give_up(request_id)
                hangs = hangs or silent
                pending.sink.failed(SERVER_UNAVAILABLE, "the server did not answer in time")
        if self._pinged is not None and conversation.last_received >= self._pinged:
            self._pinged = None
        link, oldest = conversation.link, now - self._seconds
        if hangs or (self._pinged is not None and self._pinged <= oldest):
            self._pinged = None
            if link is None or not link.hangs(oldest):
                conversation.server_lost("the server does not respond")
        elif link is not None:
            link.expire(oldest, self._open.by_id)

    def _ping(self, now: float) -> None:
        """Ping the server, unless a ping is open."""
        link = self._conversation.link
        if self._pinged is None and link is not None:
            self._pinged = now
            ping = {"jsonrpc": "2.0", "id": f"pinwarden/{self._conversation.session.name}/ping", "method": "ping"}
            link.send(Frame(encode(ping), ping), b"")
