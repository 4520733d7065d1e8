"""One conversation of a client with a server. Each message, in either direction, is parsed, decided, recorded and sent.

In the handshake era, a conversation belongs to one client session. In the stateless era, one conversation serves all
requests of one client to one server. Two programs of that client may use the same id at the same time; the second
request then gets another id upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.header_checks import HeaderMismatch, declared_parameters
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.notifications import (
    LIST_CHANGED_MARK,
    EventSink,
    ListChangedThrottle,
    NotificationStream,
)
from pinwarden.gateway.http.open_requests import OpenRequests, PendingRequest, ResponseSink, ToolCall, with_client_id
from pinwarden.gateway.http.session_queue import (
    DurableRefusals,
    Judgement,
    OffloadResult,
    SessionQueue,
    judge_on_thread,
)
from pinwarden.gateway.http.upstream_transport import UpstreamTransport
from pinwarden.gateway.http.watchdog import Watchdog
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.fast_path import LONGEST_TEXT_ID
from pinwarden.gateway.session.messages import (
    CALL,
    LISTEN,
    ParsedMessage,
    RequestId,
    build_error_response,
    encode,
    is_id,
    is_slow_client_message,
    is_slow_server_message,
    parse_server_message,
    parse_server_value,
    recover_id,
    to_request_id,
)
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.session.session import Session
from pinwarden.gateway.session.splice import replace_id
from pinwarden.surface.protocol import CANCELLED, HEADER_MISMATCH, INVALID_REQUEST, SERVER_UNAVAILABLE
from pinwarden.system.fair_executor import FairExecutor, OverloadedError

if TYPE_CHECKING:
    from pinwarden.gateway.http.telemetry import Tracing

Then = Callable[[bool], None]
"""Called with True if a message may be the expected response."""


class Conversation:
    """Lets the session decide about each message of the client and the server, and delivers what it allows."""

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
        self.session = session
        self._fast_path = session.fast_path
        self._takes_notes = recorder.takes_notes
        self.transport: UpstreamTransport | None = None
        self.forget_era: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._tracing = tracing
        self.limits = self._limits = limits
        self._json = Limits(max_bytes=limits.max_answer_bytes)
        self._clock = clock
        self._on_closed = on_closed
        self._open = OpenRequests(session.name, limits.max_in_flight)
        self._pending = self._open.by_id
        self._abandoned = self._open.abandoned
        self._notifications = NotificationStream(limits)
        self.budget = budget or MemoryBudget(limits.max_all_waiting_bytes)
        self._executor = executor or FairExecutor()
        self._queue = SessionQueue(self._executor, session.client, limits.max_unsent_bytes, self.budget, self._overflow)
        self._refusals = DurableRefusals(recorder, self._queue, limits.max_in_flight)
        self._large = limits.max_bytes_at_once
        self._throttle = ListChangedThrottle(session.guard.limits.list_changed_seconds, self._deferred_notification)
        self._outdated: set[str] = set()
        """Methods of deferred notifications whose lists the session has not marked as outdated yet."""
        self._slow_requests = 0
        """Queued requests of the client that take long to evaluate."""
        self.closed = False
        self.ended = False
        """Whether the server ended the session and accepts no further requests."""
        self.answered_once = False
        """Whether the server ever sent a message."""
        self.last_used = clock()
        self.stream_counts = True
        self.last_received = clock()
        self._watchdog = Watchdog(self, self._open, limits.answer_seconds)

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.session.client

    @property
    def traced(self) -> bool:
        """Whether requests get spans."""
        return self._tracing is not None

    # Messages of clients: parse (in `endpoint`), decide, record, forward

    def request(self, frame: ParsedMessage, sink: ResponseSink, parameters: bytes = b"") -> RequestId | None:
        """Send a request; ``sink`` gets the response. Returns the upstream id, or None if the request was not sent."""
        now = self.last_used = self._clock()
        if self.closed or self._open.full:
            sink.fail(SERVER_UNAVAILABLE, "too many requests are open at this server" if not self.closed else "closed")
            return None
        if self.ended:
            sink.fail_not_executed("the server ended the session")
            return None
        request_id = frame.id
        if request_id is None or not is_id(request_id[1]):
            sink.fail(INVALID_REQUEST, "the id of a request must be a number, or a string of at most 1024 characters")
            return None
        if parameters and frame.method == CALL and self._mismatch(frame, parameters, sink):
            return None
        if is_slow_client_message(frame.message, len(frame.data)) and not self._reserve_slow(sink):
            return None
        pending = PendingRequest(frame, sink, parameters)
        # A subscription is answered when it ends.
        pending.sent, pending.deadline = now, inf if frame.method == LISTEN else now + self._limits.answer_seconds
        frame, request_id = self._open.add(
            frame, request_id, pending, shared=self.transport is not None and self.transport.shared
        )
        if self._tracing is not None:
            call = f"{self.session.name}/{request_id[1]}"
            traced = self._tracing.trace(sink, frame, self.session.guard.server, self.session.client, call)
            pending.sink, pending.on_cancelled = traced, traced.on_cancelled
        self._handle_client_message(frame)
        return request_id

    def notify(self, frame: ParsedMessage) -> None:
        """Forward a notification of the client, or its response to a request of the server."""
        self.last_used = self._clock()
        if not self.closed:
            if frame.method == CANCELLED:
                self._open.cancel(frame.params.get("requestId"))
            self._handle_client_message(frame)

    def _handle_client_message(self, frame: ParsedMessage) -> None:
        """Let the session decide about a client message, now or after the queued messages."""
        if not self._queue.busy:
            self._decide_client_message(frame)
        elif not self._queue.run(partial(self._decide_client_message, frame), len(frame.data)):
            self.close("too many bytes are queued until this server's list is evaluated")

    def _decide_client_message(self, frame: ParsedMessage) -> None:
        if self.closed:
            return
        now = self._clock()
        slow = is_slow_client_message(frame.message, len(frame.data))
        if slow and frame.is_request:
            self._release_slow(1)
        if slow or self.session.may_be_slow(now):
            self._offload(lambda: (frame, self.session.on_client_message(frame.data, now, frame.message)))
        else:
            self._record_and_send(self.session.on_client_message(frame.data, now, frame.message), frame)

    def _reserve_slow(self, sink: ResponseSink) -> bool:
        """Reserve capacity on the executor for a slow request. If there is none, fail the request and return False."""
        try:
            self._executor.reserve(self.client)
        except OverloadedError as err:
            sink.fail(SERVER_UNAVAILABLE, f"{err.message}; try again in {err.retry_after} s")
            return False
        self._slow_requests += 1
        return True

    def _release_slow(self, count: int) -> None:
        self._slow_requests -= count
        self._executor.release(self.client, count)

    def call(  # noqa: PLR0913  parsed already by the caller
        self, body: bytes, message: Any, name: str, connection: ClientConnection, parameters: bytes, *, stateless: bool
    ) -> bool:
        """Send a tool call on the fast path. Returns False, without side effects, if `request` has to send it."""
        transport, own = self.transport, message.get("id")
        request_id = to_request_id(own)
        if self.closed or self.ended or transport is None or self._open.full or request_id is None:
            return False
        if type(own) is str and len(own) > LONGEST_TEXT_ID:
            return False
        meta = message["params"].get("_meta")
        token = None if meta is None else to_request_id(meta.get("progressToken"))
        if token is not None and (self._open.is_taken(request_id) or self._open.is_token(token)):
            return False
        if transport.shared and token is not None:
            return False
        if transport.shared or self._open.is_taken(request_id):
            other = self._open.new_id() if type(own) is int else None
            changed = None if other is None else replace_id(body, own, other[1])
            if other is None or changed is None:
                return False
            request_id, body, message["id"] = other, changed, other[1]
        now = self.last_used = self._clock()
        call = ToolCall(self, connection, request_id, own, parameters, now, stateless=stateless)
        call.deadline = now + self._limits.answer_seconds
        connection.begin(call)
        self._open.add_call(request_id, call, token)
        # A queued server message may announce that the tool changed.
        if self._takes_notes and not self._queue.busy:
            event = self._fast_path.admit(message, now)
            if event is not None:
                try:
                    self._recorder.note(event, request_id[1])
                except PinwardenError:
                    # The session will fail to record it too, and will refuse it with the reason.
                    self._fast_path.withdraw(request_id[1])
                else:
                    transport.call(call, body, message, name)
                    return True
        self._handle_client_message(ParsedMessage(body, message))
        return True

    def cancel(self, request_id: RequestId | None) -> None:
        """Cancel a request whose client disconnected."""
        pending = None if request_id is None else self._open.forget(request_id)
        if pending is None or request_id is None:
            return
        if type(pending) is PendingRequest and pending.on_cancelled is not None:
            pending.on_cancelled()
        if self.closed:
            return
        self._open.abandon(request_id)
        self._queue.run(partial(self._cancel_upstream, request_id))

    def _cancel_upstream(self, request_id: RequestId) -> None:
        if self.closed:
            return
        # The server may respond late or never; the session stops waiting for it.
        if not self.session.abandon_request(request_id[1]):
            # The request was not sent, or is answered. Its id stays in use until its refusal is durable.
            if not self._refusals.after(partial(self._free_id, request_id)):
                self._free_id(request_id)
        elif self.transport is not None:
            self.transport.cancel(request_id)

    def _free_id(self, request_id: RequestId) -> None:
        self._abandoned.pop(request_id, None)

    def listen(self, reply: EventSink) -> None:
        """Attach the notification stream. It replaces an older one."""
        self.last_used = self._clock()
        self._notifications.listen(reply)

    # Messages of the server: parse, decide, record, deliver

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request with this id is open, including the session's own."""
        return request_id in self._pending or self.session.is_gateway_id(request_id[1])

    def on_server_message(self, data: bytes, *, expected_id: RequestId | None = None) -> bool:
        """Handle a server message: a line of a process, or a complete HTTP response to ``expected_id``.

        Returns whether it may be the response to ``expected_id``. True is also returned if evaluating the message
        takes longer; if it turns out not to be the response, the conversation fails the request itself.
        """
        if self.closed:
            return True
        if LIST_CHANGED_MARK in data and self._defer_notification(data):
            return False
        if len(data) > self._large or self._queue.busy:
            self._queue_server_message(data, expected_id, 0, partial(self._answer_if_unanswered, expected_id))
            return True
        now = self.last_received = self._clock()
        self.answered_once = True
        try:
            message = parse_json(data, self._json)
        except PinwardenError:
            message = None  # the session refuses it
        if type(message) is dict and "method" not in message:
            request_id = to_request_id(message.get("id"))
            call = None if request_id is None else self._pending.get(request_id)
            if (
                type(call) is ToolCall
                and (expected_id is None or expected_id == call.request_id)
                and self._fast_path.may_relay(data, message)
            ):
                self._open.forget(call.request_id)
                call.result(data, message)
                return True
        if is_slow_server_message(message, len(data)) or self.session.may_be_slow(now):
            self._judge_offloaded(data, now, expected_id, 0, partial(self._answer_if_unanswered, expected_id))
            return True
        return self._decide_server_message(recover_id(ParsedMessage(data, message), self._json), now, expected_id, 0)

    def on_stream_message(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        """Handle a message on a response stream. ``then`` is called with True if it may be the response."""
        if LIST_CHANGED_MARK in data and self._defer_notification(data):
            then(False)
            return
        self._queue_server_message(data, expected_id, status, then)

    def _queue_server_message(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        self.last_received = self._clock()
        self.answered_once = True
        if not self._queue.run(partial(self._take_queued, data, expected_id, status, then), len(data)):
            self.close("the server sends messages faster than they can be evaluated")

    def _take_queued(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        if self.closed:
            then(True)
            return
        now = self._clock()
        slow = len(data) > self._large or self.session.may_be_slow(now)
        frame = None if slow else parse_server_message(data, self._json)
        if frame is None or is_slow_server_message(frame.message, len(data)):
            self._judge_offloaded(data, now, expected_id, status, then)
        else:
            then(self._decide_server_message(frame, now, expected_id, status))

    def _decide_server_message(
        self, frame: ParsedMessage, now: float, expected_id: RequestId | None, status: int
    ) -> bool:
        """Let the session decide about a server message. Returns whether it may be the expected response."""
        if self._abandoned and frame.is_response and frame.id in self._abandoned:
            self._abandoned.pop(frame.id, None)
            return True
        output = self.session.on_server_message(frame.data, now, frame.message)
        self._record_and_send(output, frame, expected_id, status)
        return frame.is_response_to(expected_id)

    # Coalesced list_changed notifications

    def _defer_notification(self, data: bytes) -> bool:
        """Defer a notification if too many came before. Returns whether it was deferred.

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

    def _deferred_notification(self, data: bytes) -> None:
        if not self.closed:
            self._queue_server_message(data, None, 0, lambda _: None)

    # Requests without a response

    def on_unanswered(self, request_id: RequestId, reason: str) -> None:
        """Fail a request: the server's HTTP response ended without a response message."""
        self._queue.run(partial(self._fail_unanswered, request_id, reason))

    def _fail_unanswered(self, request_id: RequestId, reason: str) -> None:
        if not self.closed:
            data = build_error_response(request_id[1], SERVER_UNAVAILABLE, reason)
            self._decide_server_message(
                ParsedMessage(data, parse_server_value(data, self._json)), self._clock(), request_id, 0
            )

    def _answer_if_unanswered(self, expected_id: RequestId | None, answers: bool) -> None:
        if expected_id is not None and not answers:
            self.on_unanswered(expected_id, "the response was empty")

    def on_not_understood(self) -> None:
        """Forget the server's era, which may have changed."""
        self.forget_era()

    def on_not_executed(self, request_id: RequestId, reason: str) -> None:
        """Fail a request that the server did not execute, because it does not know the session."""
        self._queue.run(partial(self._fail_not_executed, request_id, reason))

    def _fail_not_executed(self, request_id: RequestId, reason: str) -> None:
        pending = None if self.closed else self._open.forget(request_id)
        if pending is None:
            return
        self.session.abandon_request(request_id[1])
        if self._open.is_cancelled(pending):
            pending.sink.drop()
        else:
            pending.sink.fail_not_executed(reason)

    def on_session_ended(self, sent: Set[RequestId], reason: str) -> None:
        """Handle that the server forgot the session. Requests that were not sent can be retried in another session."""
        self.ended = True
        for request_id in [pending for pending in self._pending if pending not in sent]:
            self.on_not_executed(request_id, reason)

    def on_server_lost(self, reason: str) -> None:
        """Fail all open requests and end the conversation, because the server is gone."""
        if not self.closed:
            self._queue.run(partial(self._end_after_loss, reason))

    def _end_after_loss(self, reason: str) -> None:
        if self.closed:
            return
        if self._refusals.after(partial(self._end_after_loss, reason)):  # first deliver the server's last messages
            if self.transport is not None:
                self.transport.close()
            return
        output = self.session.on_server_closed()
        self._record_and_send(
            SessionOutput(events=output.events, durable=output.durable, sightings=output.sightings), None
        )
        self.close(reason)  # fails all open requests

    # From the clock

    def tick(self) -> None:
        """Run the session's timers, check request deadlines, and detect a server that hangs."""
        if self.closed:
            return
        now = self._clock()
        if not self._queue.busy:
            if self.session.may_be_slow(now):
                self._offload(lambda: (None, self.session.tick(now)))
            else:
                self._record_and_send(self.session.tick(now), None)
        self._watchdog.check(now)

    @property
    def idle(self) -> bool:
        """Whether no request is open and no stream counts as use."""
        return not self._pending and not self._queue.busy and not (self.stream_counts and self._notifications.open)

    def close(self, reason: str) -> None:
        """End the conversation. Open requests fail with the reason."""
        if self.closed:
            return
        self.closed = True
        sinks = [(pending.sink, self._open.is_cancelled(pending)) for pending in self._pending.values()]
        self._queue.drop()
        self._throttle.clear()
        self._release_slow(self._slow_requests)
        self._open.clear()
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
        """End the endless streams: notifications and subscriptions."""
        self._notifications.end()
        for request_id in [request_id for request_id, pending in self._pending.items() if pending.deadline == inf]:
            sink = self._pending[request_id].sink
            self.cancel(request_id)
            sink.drop()

    def _overflow(self) -> None:
        self.close("too many bytes are queued until lists are evaluated, and this session has the most")

    # Recording and sending

    def _record_and_send(
        self,
        output: SessionOutput,
        frame: ParsedMessage | None,
        expected_id: RequestId | None = None,
        status: int = 0,
        to_client: tuple[ParsedMessage, ...] = (),
    ) -> None:
        """Record an output, then send its messages. A refusal is sent only after it is durable.

        ``frame`` is the message that led to the output. ``to_client`` has the messages for the client, if they are
        already parsed.
        """
        if output.events or output.sightings:
            try:
                if output.durable:
                    send = partial(self._send, output, frame, expected_id, status, to_client)
                    if self._refusals.full:
                        self.close("the server causes refusals faster than the gateway can record them")
                    else:
                        self._refusals.record(output, send, partial(self._undo, output))
                    return
                self._recorder.record(output)
            except PinwardenError as err:
                self._undo(output, err)
                return
        self._send(output, frame, expected_id, status, to_client)

    def _undo(self, output: SessionOutput, err: PinwardenError) -> None:
        """Undo an output that could not be recorded, and answer with the reason."""
        self._send(self.session.replace_unrecorded(output, err), None)

    def _send(
        self,
        output: SessionOutput,
        frame: ParsedMessage | None,
        expected_id: RequestId | None = None,
        status: int = 0,
        to_client: tuple[ParsedMessage, ...] = (),
    ) -> None:
        """Send the messages of a recorded output."""
        if output.to_server and self.transport is not None and not self.closed:
            for data in output.to_server:
                self._send_to_server(self._parsed(data, frame), self.transport)
        for message in to_client or [self._parsed(data, frame) for data in output.to_client]:
            self._deliver(message, expected_id, status if message is frame else 0)

    def _send_to_server(self, frame: ParsedMessage, transport: UpstreamTransport) -> None:
        request_id = frame.id if frame.is_request else None
        pending = None if request_id is None else self._pending.get(request_id)
        if request_id is not None and self._is_cancelled(request_id, pending):
            return
        if pending is None or not pending.parameters:
            transport.send(frame, b"")
        else:
            self._send_with(pending, frame, transport)

    # Evaluation on a thread

    def _judge_offloaded(self, data: bytes, now: float, expected_id: RequestId | None, status: int, then: Then) -> None:
        """Let the session decide about a server message on a thread."""

        def judge() -> tuple[ParsedMessage, SessionOutput | None]:
            frame = parse_server_message(data, self._json)
            if frame.is_response and frame.id in self._abandoned:
                return frame, None
            return frame, self.session.on_server_message(data, now, frame.message)

        self._offload(judge, expected_id, status, then)

    def _offload(
        self, judge: Judgement, expected_id: RequestId | None = None, status: int = 0, then: Then | None = None
    ) -> None:
        self._queue.offload(
            partial(judge_on_thread, judge, self._recorder, self._json),
            partial(self._on_judged, expected_id, status, then),
            partial(self.close, "a message could not be evaluated"),
        )

    def _on_judged(self, expected_id: RequestId | None, status: int, then: Then | None, result: OffloadResult) -> None:
        frame, output = result.frame, result.output
        if output is None:
            if frame is not None and frame.id is not None:
                self._abandoned.pop(frame.id, None)
        elif result.problem is not None:
            self._undo(output, result.problem)
        elif result.recorded:
            self._recorder.count(output)
            self._send(output, frame, expected_id, status, result.to_client)
        else:
            self._record_and_send(output, frame, expected_id, status, result.to_client)
        if then is not None and frame is not None:
            then(output is None or frame.is_response_to(expected_id))

    def _is_cancelled(self, request_id: RequestId, pending: PendingRequest | ToolCall | None) -> bool:
        """Whether a request was cancelled while it was being recorded. Then it is not sent, and its sink is dropped."""
        if not self._open.is_over(request_id):
            return False
        self._abandoned.pop(request_id, None)  # the server never gets it
        self._open.forget(request_id)
        self.session.abandon_request(request_id[1])
        if pending is not None:
            pending.sink.drop()
        return True

    def _send_with(self, pending: PendingRequest | ToolCall, sent: ParsedMessage, transport: UpstreamTransport) -> None:
        """Send a request with those header lines of the client that the tool declares."""
        try:
            lines = self._declared(sent, pending.parameters)
        except HeaderMismatch as err:
            if sent.id is not None:
                self._open.forget(sent.id)
                self.session.abandon_request(sent.id[1])
            _refuse(pending.sink, pending.client_id, err)
        else:
            transport.send(sent, lines)

    def _mismatch(self, frame: ParsedMessage, parameters: bytes, sink: ResponseSink) -> bool:
        """Fail a call if a header contradicts its arguments. Returns whether it failed."""
        try:
            self._declared(frame, parameters)
        except HeaderMismatch as err:
            _refuse(sink, frame.members.get("id"), err)
            return True
        return False

    def _declared(self, frame: ParsedMessage, parameters: bytes) -> bytes:
        name = frame.params.get("name") if frame.method == CALL else None
        definition = self.session.find_definition(name) if type(name) is str else None
        return declared_parameters(parameters, definition, frame.params.get("arguments"))

    def _parsed(self, data: bytes, known: ParsedMessage | None) -> ParsedMessage:
        return (
            known
            if known is not None and data is known.data
            else ParsedMessage(data, parse_server_value(data, self._json))
        )

    def _deliver(self, frame: ParsedMessage, expected_id: RequestId | None, status: int) -> None:
        members = frame.members
        if "method" not in members:
            request_id = frame.id
            pending = None if request_id is None else self._open.forget(request_id)
            if pending is not None:
                pending.sink.respond(with_client_id(frame, pending), status)
            return
        pending = self._open.find_by_message(frame, expected_id)
        transport = self.transport
        if (
            transport is not None
            and transport.shared
            and (frame.is_request or (pending is None and not transport.private))
        ):
            return  # the message may be for another client
        if pending is not None:
            pending.deadline = max(pending.deadline, self._clock() + self._limits.answer_seconds)
            frame = with_client_id(frame, pending)
        if pending is not None and pending.sink.open:
            pending.sink.send_message(frame)
        elif not self._notifications.send(frame.data):
            other = self._open.oldest_open_sink() if pending is None and expected_id is None else None
            if other is not None:
                other.send_message(frame)
            else:
                self._notifications.enqueue(frame.data)


def _refuse(sink: ResponseSink, request_id: Any, reason: HeaderMismatch) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "error": {"code": HEADER_MISMATCH, "message": str(reason)}}
    sink.respond(ParsedMessage(encode(message), message), 400)
