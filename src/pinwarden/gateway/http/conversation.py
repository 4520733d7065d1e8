"""One conversation of a client with a server: failed and cancelled requests, timers, and the end of the conversation.

In the handshake era, a conversation belongs to one client session. In the stateless era, one conversation serves all
requests of one client to one server. Two programs of that client may use the same id at the same time; the second
request then gets another id upstream.

`message_relay` relays the messages. This module handles cancelled requests, requests without a response, timers, and
the loss of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.message_relay import DecidedMessage, MessageRelay
from pinwarden.gateway.http.notifications import EventSink, ListChangedThrottle
from pinwarden.gateway.http.open_requests import PendingRequest
from pinwarden.gateway.http.upstream_transport import PostedRequest
from pinwarden.gateway.http.watchdog import Watchdog
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.messages import ParsedMessage, RequestId, build_error_response, parse_server_value
from pinwarden.gateway.session.session import Session
from pinwarden.surface.protocol import SERVER_UNAVAILABLE
from pinwarden.system.fair_executor import FairExecutor

if TYPE_CHECKING:
    from pinwarden.gateway.http.tracing import Tracing


class Conversation(MessageRelay):
    """The messages of one client with one server, over one transport.

    `MessageRelay` has the way of a message: ``request``, ``notify`` and ``send_call`` from the client,
    ``on_server_message`` from the server.
    """

    def __init__(  # noqa: PLR0913, PLR0917  all dependencies of a conversation
        self,
        session: Session,
        recorder: LoopRecorder,
        limits: HttpLimits,
        clock: Callable[[], float],
        on_closed: Callable[[str], None],
        executor: FairExecutor | None = None,
        budget: MemoryBudget | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        budget = budget or MemoryBudget(limits.max_queued_bytes)
        super().__init__(session, recorder, limits, clock, executor or FairExecutor(), budget, tracing)
        self.forget_era: Callable[[], None] = lambda: None
        self.person = ("", "")
        """Whose grants of remote servers the client may use: issuer and subject."""
        self.server_lost = False
        """Whether the conversation ended because the server is gone."""
        self.stream_keeps_session_open = True
        """Whether an open notification stream counts as use of the conversation."""
        self._on_closed = on_closed
        self._throttle = ListChangedThrottle(session.guard.limits.list_changed_seconds, self._relay_deferred)
        self._outdated: set[str] = set()
        """Methods of deferred ``list_changed`` notifications that the session has not processed yet."""
        self._watchdog = Watchdog(self, self._open_requests, limits.response_seconds)

    # Requests that end without a response

    def cancel(self, request_id: RequestId | None) -> None:
        """Cancel a request whose client disconnected."""
        pending = None if request_id is None else self._open_requests.forget(request_id)
        if pending is None or request_id is None:
            return
        if type(pending) is PendingRequest and pending.on_cancelled is not None:
            pending.on_cancelled()
        if self.closed:
            return
        self._open_requests.abandon(request_id)
        self._queue.run(partial(self._cancel_upstream, request_id))

    def _cancel_upstream(self, request_id: RequestId) -> None:
        if self.closed:
            return
        # The session stops waiting for the response, which may come late or never.
        if not self.session.abandon_request(request_id[1]):
            # The server will not respond. The id stays in use until a refusal of the request is sent.
            free_id = partial(self._open_requests.abandoned.pop, request_id, None)
            self._refusals.run_when_sent(partial(self._queue.run, free_id))
        elif self.transport is not None:
            self.transport.cancel(request_id)

    def fail_overdue(self, request_id: RequestId) -> None:
        """Fail a request whose deadline passed, count the failure, and cancel the request at the server."""
        pending = self._open_requests.by_id.get(request_id)
        if pending is not None:
            self._count_response(pending, self._clock(), failed=True)
            self.cancel(request_id)
            pending.sink.fail(SERVER_UNAVAILABLE, "the server did not respond in time")

    def on_response_ended(self, posted: PostedRequest, reason: str) -> None:
        """Fail a request if its HTTP response ended and contained no JSON-RPC response."""
        if not posted.has_response:
            self._queue.run(partial(self._fail_without_response, posted, reason))

    def _fail_without_response(self, posted: PostedRequest, reason: str) -> None:
        if not posted.has_response:
            posted.has_response = True
            self._fail_request(posted.request_id, reason)

    def on_request_failed(self, request_id: RequestId, reason: str) -> None:
        """Fail a request that the transport could not send."""
        self._queue.run(partial(self._fail_request, request_id, reason))

    def _fail_request(self, request_id: RequestId, reason: str) -> None:
        if not self.closed:
            data = build_error_response(request_id[1], SERVER_UNAVAILABLE, reason)
            message = ParsedMessage(data, parse_server_value(data, self._json))
            self._record_and_send(self._decide_server_message(message, None, self._clock()))

    def on_not_executed(self, request_id: RequestId, reason: str) -> None:
        """Fail a request that the server did not execute, because it does not know the session."""
        self._queue.run(partial(self._fail_not_executed, request_id, reason))

    def _fail_not_executed(self, request_id: RequestId, reason: str) -> None:
        pending = None if self.closed else self._open_requests.forget(request_id)
        if pending is None:
            return
        self.session.abandon_request(request_id[1])
        if self._open_requests.is_cancelled(pending):
            pending.sink.drop()
        else:
            pending.sink.fail_not_executed(reason)

    def on_session_ended(self, sent_ids: Set[RequestId], reason: str) -> None:
        """Fail the requests that were not sent before the server ended the session. Clients can retry them."""
        self.server_session_ended = True
        for request_id in [pending for pending in self._open_requests.by_id if pending not in sent_ids]:
            self.on_not_executed(request_id, reason)

    def on_unparsed_refusal(self) -> None:
        """Forget the server's era: the server refused a stateless request without parsing it."""
        self.forget_era()

    # Notifications

    def listen(self, reply: EventSink) -> None:
        """Attach the client's notification stream in place of an older one."""
        self.last_used = self._clock()
        self._notifications.listen(reply)

    def _defer_notification(self, data: bytes) -> bool:
        """Defer a notification if there were too many recently. Returns whether it was deferred.

        The session marks the list as outdated immediately.
        """
        method = self._throttle.defer(data)
        if not method:
            return False
        self.last_received = self._clock()
        if method not in self._outdated:
            self._outdated.add(method)
            self._queue.run(partial(self._expire_list, method))
        return True

    def _expire_list(self, method: str) -> None:
        self._outdated.discard(method)
        self.session.expire_list(method)

    def _relay_deferred(self, data: bytes) -> None:
        if not self.closed:
            self._queue.run(partial(self._relay_server_message, data, None), len(data))

    # The end of the conversation

    def tick(self) -> None:
        """Run the session's timers, check request deadlines, and detect a server that hangs."""
        if self.closed:
            return
        now = self._clock()
        if not self._queue.busy:
            if self.session.may_be_slow(now):
                self._queue.start(self._relay_on_thread(lambda: DecidedMessage(self.session.tick(now))))
            else:
                self._record_and_send(DecidedMessage(self.session.tick(now)))
        self._watchdog.check(now)

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request of the client or the gateway with this id may be open."""
        return request_id in self._open_requests.by_id or self.session.is_gateway_id(request_id[1])

    @property
    def is_idle(self) -> bool:
        """Whether the conversation has no open request, and no stream that counts as use."""
        return (
            not self._open_requests.by_id
            and not self._queue.busy
            and not (self.stream_keeps_session_open and self._notifications.is_open)
        )

    def on_server_lost(self, reason: str) -> None:
        """Fail all open requests and end the conversation, because the server is gone."""
        if not self.closed:
            self._queue.run(partial(self._end_after_loss, reason))

    def _end_after_loss(self, reason: str) -> None:
        if self.closed:
            return
        if self._refusals:  # they may contain the server's last messages
            if self.transport is not None:
                self.transport.close()
            self._refusals.run_when_sent(partial(self.on_server_lost, reason))
            return
        self.session.on_server_closed()
        self.server_lost = True
        self.close(reason)  # fails all open requests

    def close(self, reason: str) -> None:
        """End the conversation. Open requests fail with the reason."""
        if self.closed:
            return
        self.closed = True
        now, sinks = self._clock(), []
        for pending in self._open_requests.by_id.values():
            cancelled = self._open_requests.is_cancelled(pending)
            sinks.append((pending.sink, cancelled))
            if not cancelled:
                self._count_response(pending, now, failed=True)
        self._queue.drop()
        self._throttle.clear()
        self._release_slow_requests(self._slow_requests)
        self._open_requests.clear()
        for sink, cancelled in sinks:
            if cancelled:
                sink.drop()
            else:
                sink.fail(SERVER_UNAVAILABLE, reason)
        self.end_stream()
        if self.transport is not None:
            self.transport.close()
        self._on_closed(reason)

    def end_stream(self) -> None:
        """End all open event streams: notifications and subscriptions."""
        self._notifications.end()
        for request_id in [
            request_id for request_id, pending in self._open_requests.by_id.items() if pending.deadline == inf
        ]:
            sink = self._open_requests.by_id[request_id].sink
            self.cancel(request_id)
            sink.drop()

    def _on_overflow(self) -> None:
        self.close("the memory budget for queued messages is exceeded, and this session has the most bytes")

    def _on_error(self, error: BaseException) -> None:
        self.close("the gateway failed to check a message")
        if not isinstance(error, asyncio.CancelledError):  # the gateway is shutting down
            context = {"message": "the gateway failed to check a message", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
