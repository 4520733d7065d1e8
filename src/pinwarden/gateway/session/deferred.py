"""The queue of messages that wait for a list, and the timeouts of requests to the server."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.guard import SessionLimits
from pinwarden.gateway.session.messages import (
    CALL,
    LISTEN,
    ClientRequest,
    ForwardedRequest,
    OpenRequest,
    ServerResponse,
    TaskNotification,
    build_error_response,
)
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.surface.protocol import INVALID_PARAMS, SERVER_UNAVAILABLE

RESPONSE_SECONDS = 300.0
"""Default time for a server to respond to a request. Servers send progress notifications during longer calls."""

DeferredMessage = ClientRequest | ServerResponse | TaskNotification


class DeferredMessages:
    """The messages of one session that wait for a list, with limits on their number, size and waiting time."""

    def __init__(self, limits: SessionLimits, audit: SessionAudit) -> None:
        self._limits = limits
        self._audit = audit
        self.queue: list[DeferredMessage] = []
        self._bytes = 0

    def __contains__(self, request_id: Any) -> bool:
        """Whether a request with this id, or its response, is waiting."""
        return any(
            message.request_id == request_id for message in self.queue if not isinstance(message, TaskNotification)
        )

    def add(self, message: DeferredMessage, out: OutputBuilder) -> None:
        """Queue a message. If the queue is full, its request gets an error response."""
        size = len(message.data)
        if len(self.queue) < self._limits.max_deferred and self._bytes + size <= self._limits.max_deferred_bytes:
            self.queue.append(message)
            self._bytes += size
        elif not isinstance(message, TaskNotification):  # the client can still poll the task
            text = "pinwarden: too many requests wait for a list"
            out.to_client.append(build_error_response(message.request_id, SERVER_UNAVAILABLE, text))

    def cancel(self, request_id: Any) -> bool:
        """Drop a request that the client cancelled. Returns whether it was waiting."""
        before = len(self.queue)
        self._replace_queue(
            [
                message
                for message in self.queue
                if not isinstance(message, ClientRequest) or message.request_id != request_id
            ]
        )
        return len(self.queue) != before

    def forget(self, request_id: Any) -> None:
        """Drop a request and its response, so that another request can use the id."""
        self._replace_queue(
            [
                message
                for message in self.queue
                if isinstance(message, TaskNotification) or message.request_id != request_id
            ]
        )

    def take_all(self) -> list[DeferredMessage]:
        """Remove and return all messages."""
        messages = self.queue
        self._replace_queue([])
        return messages

    def take_request_ids(self) -> list[Any]:
        """Remove all messages, and return the ids of the requests that need a response."""
        return [message.request_id for message in self.take_all() if not isinstance(message, TaskNotification)]

    def refuse_overdue(self, now: float, out: OutputBuilder) -> None:
        """Refuse messages that have waited longer than twice the time that a server has for a list."""
        limit = self._limits.list_seconds * 2
        overdue = [message for message in self.queue if now - message.since > limit]
        self._replace_queue([message for message in self.queue if now - message.since <= limit])
        for message in overdue:
            call = self._audit.make_call_id(message.request_id)
            reason = "The server did not send its lists in time."
            self._audit.record_refused_message("list_failed", reason, message.method, call, out)
            if not isinstance(message, TaskNotification):
                text = "pinwarden: the server's lists could not be checked in time"
                details = {"pinwarden": {"code": "list_failed"}}
                out.to_client.append(build_error_response(message.request_id, INVALID_PARAMS, text, details))

    def _replace_queue(self, queue: list[DeferredMessage]) -> None:
        self.queue = queue
        self._bytes = sum(len(message.data) for message in queue)


def take_off_fast_path(open_requests: dict[Any, OpenRequest], request_id: Any) -> OpenRequest | None:
    """Let the session decide on the result of an open call. Returns the open request; None if its result has come.

    The fast path removes calls at any moment, without the session's lock. So the call is taken out in one step before
    it is put back: a result that comes in between is left to the session, which waits for the lock.
    """
    request = open_requests.pop(request_id, None)
    if request is None:
        return None
    if type(request) is str:
        request = ForwardedRequest(request_id, CALL, request)
    return open_requests.setdefault(request_id, request)


_MAX_TIMED_OUT = 1_000


class RequestTimeouts:
    """Finds requests to which the server does not respond in time. Call `find_overdue` about once a second."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.timed_out: dict[Any, None] = {}
        """Ids of requests that got a timeout error. The server may still respond to them."""
        self._since: dict[Any, tuple[object, float]] = {}
        self._restarted = 0.0

    def restart(self, now: float) -> None:
        """Restart the timeout of all open requests, because the server made progress or waits for the client."""
        self._restarted = now

    def find_overdue(self, open_requests: dict[Any, OpenRequest], now: float) -> list[ForwardedRequest]:
        """Return the requests that timed out. Subscriptions have no timeout: they get a response when they end."""
        since: dict[Any, tuple[object, float]] = {}
        overdue: list[ForwardedRequest] = []
        for request_id, request in tuple(open_requests.items()):
            if request_id in self.timed_out:
                continue
            known = self._since.get(request_id)
            if known is None or known[0] is not request:
                since[request_id] = request, now
            elif type(request) is str:
                # The fast path keeps only the tool's name, which a later call under the same id could share.
                forwarded = take_off_fast_path(open_requests, request_id)
                if forwarded is not None:
                    since[request_id] = forwarded, known[1]
            else:
                since[request_id] = known
                late = now - max(known[1], self._restarted) >= self.seconds
                if late and isinstance(request, ForwardedRequest) and request.method != LISTEN:
                    overdue.append(request)
        self._since = since
        return overdue

    def add_timed_out(self, request_id: Any) -> None:
        """Remember that a request got a timeout error."""
        if len(self.timed_out) >= _MAX_TIMED_OUT:
            del self.timed_out[next(iter(self.timed_out))]
        self.timed_out[request_id] = None

    def is_late_response(self, request_id: Any) -> bool:
        """Whether the request of a response that just arrived had timed out. If so, frees the id for a new request."""
        return request_id in self.timed_out and self.timed_out.pop(request_id) is None
