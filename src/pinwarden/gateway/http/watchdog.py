"""Enforces deadlines of requests, and detects servers that hang."""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.http.open_requests import OpenRequests
from pinwarden.gateway.http.upstream_transport import UpstreamTransport
from pinwarden.gateway.session.messages import ParsedMessage, RequestId, encode
from pinwarden.gateway.session.session import Session


class WatchedConversation(Protocol):
    """The conversation that a watchdog may end."""

    session: Session
    transport: UpstreamTransport | None
    last_received: float
    """When the server last sent a message."""

    def fail_overdue(self, request_id: RequestId) -> None:
        """Fail a request whose deadline passed."""

    def on_server_lost(self, reason: str) -> None:
        """End the conversation."""


class Watchdog:
    """Fails requests whose deadline passed, and ends the conversation if the server hangs.

    A server hangs if a request timed out and the server has sent nothing since the request was sent. If the client had
    cancelled the request, the watchdog pings the server first, because most servers never respond to such requests.
    """

    def __init__(self, conversation: WatchedConversation, open_requests: OpenRequests, seconds: float) -> None:
        self._conversation = conversation
        self._open_requests = open_requests
        self._seconds = seconds
        self._pinged_at: float | None = None
        """When the open ping was sent; None if no ping is open."""

    def check(self, now: float) -> None:
        """Check all deadlines. Called about once a second."""
        conversation = self._conversation
        hangs = False
        for request_id, pending in self._open_requests.find_overdue(now):
            silent = conversation.last_received < pending.sent_at
            if self._open_requests.is_cancelled(pending):
                self._open_requests.forget(request_id)
                pending.sink.drop()
                if silent:
                    self._ping(now)
            else:
                conversation.fail_overdue(request_id)
                hangs = hangs or silent
        if self._pinged_at is not None and conversation.last_received >= self._pinged_at:
            self._pinged_at = None
        transport, oldest = conversation.transport, now - self._seconds
        if hangs or (self._pinged_at is not None and self._pinged_at <= oldest):
            self._pinged_at = None
            if transport is None or not transport.check_hang(oldest):
                conversation.on_server_lost("the server does not respond")
        elif transport is not None:
            transport.expire(oldest, self._open_requests.by_id)

    def _ping(self, now: float) -> None:
        """Ping the server, unless a ping is open."""
        transport = self._conversation.transport
        if self._pinged_at is None and transport is not None:
            self._pinged_at = now
            ping = {"jsonrpc": "2.0", "id": f"pinwarden/{self._conversation.session.name}/ping", "method": "ping"}
            transport.send(ParsedMessage(encode(ping), ping), b"")
