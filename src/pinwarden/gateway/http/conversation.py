"""One conversation of a client with a server: parse, decide, record, forward; responses come back the same way.

A conversation of the handshake era belongs to one client session. In the stateless era one conversation serves all
requests of one client to one server. There two programs may use the same id at the same time; then the second one gets
another id towards the server.
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
    Frame,
    RequestId,
    encode,
    error_response,
    frame_from_server,
    is_id,
    is_slow_client_message,
    is_slow_server_message,
    parse_server,
    recover_id,
    typed_id,
)
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.session.session import Session
from pinwarden.gateway.session.splice import replace_id
from pinwarden.surface.protocol import CANCELLED, HEADER_MISMATCH, INVALID_REQUEST, SERVER_UNAVAILABLE
from pinwarden.system.fair_executor import FairExecutor, OverloadedError

if TYPE_CHECKING:
    from pinwarden.gateway.http.telemetry import Tracing

Then = Callable[[bool], None]
"""Called with whether a message may be the expected response."""


class Conversation:
    """Passes messages of clients and of the server through the session, and delivers them to where they belong."""

    def __init__(  # noqa: PLR0913, PLR0917  what a session needs from around it
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
        self.link: UpstreamTransport | None = None
        self.on_not_understood: Callable[[], None] = lambda: None
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
        """Methods of deferred notifications that the session does not know yet."""
        self._slow_requests = 0
        """Queued requests of the client that take long to judge."""
        self.closed = False
        self.ended = False
        """Whether the server forgot the session, so that it accepts no more requests."""
        self.answered_once = False
        """Whether the server ever sent a message."""
        self.used = clock()
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

    def request(self, frame: Frame, sink: ResponseSink, parameters: bytes = b"") -> RequestId | None:
        """Send a request; ``sink`` gets the response. Returns the id towards the server, or None if it was not sent."""
        now = self.used = self._clock()
        if self.closed or self._open.full:
            sink.failed(SERVER_UNAVAILABLE, "too many requests wait for this server" if not self.closed else "closed")
            return None
        if self.ended:
            sink.refused_unread("the server ended the session")
            return None
        request_id = frame.id
        if request_id is None or not is_id(request_id[1]):
            sink.failed(INVALID_REQUEST, "the id of a request must be a number, or a string of at most 1024 characters")
            return None
        if parameters and frame.method == CALL and self._mismatch(frame, parameters, sink):
            return None
        if is_slow_client_message(frame.message, len(frame.data)) and not self._reserve_slow(sink):
            return None
        pending = PendingRequest(frame, sink, parameters)
        # A subscription is answered when it ends.
        pending.sent, pending.deadline = now, inf if frame.method == LISTEN else now + self._limits.answer_seconds
        frame, request_id = self._open.add(
            frame, request_id, pending, shared=self.link is not None and self.link.shared
        )
        if self._tracing is not None:
            call = f"{self.session.name}/{request_id[1]}"
            traced = self._tracing.traced(sink, frame, self.session.guard.server, self.session.client, call)
            pending.sink, pending.given_up = traced, traced.given_up
        self._from_client(frame)
        return request_id

    def notify(self, frame: Frame) -> None:
        """A notification of the client, or its response to a request of the server."""
        self.used = self._clock()
        if not self.closed:
            if frame.method == CANCELLED:
                self._open.cancel(frame.params.get("requestId"))
            self._from_client(frame)

    def _from_client(self, frame: Frame) -> None:
        """Let the session decide about a message, now or when earlier messages are decided."""
        if not self._queue.busy:
            self._decide_client_message(frame)
        elif not self._queue.run(partial(self._decide_client_message, frame), len(frame.data)):
            self.close("too many bytes wait for this server's list to be judged")

    def _decide_client_message(self, frame: Frame) -> None:
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
        """Reserve a place on the executor for a request that takes long to judge; if there is none, fail it."""
        try:
            self._executor.reserve(self.client)
        except OverloadedError as err:
            sink.failed(SERVER_UNAVAILABLE, f"{err.message}; try again in {err.retry_after} s")
            return False
        self._slow_requests += 1
        return True

    def _release_slow(self, count: int) -> None:
        self._slow_requests -= count
        self._executor.release(self.client, count)

    def call(  # noqa: PLR0913  what is known about it already
        self, body: bytes, message: Any, name: str, connection: ClientConnection, parameters: bytes, *, modern: bool
    ) -> bool:
        """Send a tool call on the fast path. Returns False, without side effects, if `request` has to send it."""
        link, own = self.link, message.get("id")
        request_id = typed_id(own)
        if self.closed or self.ended or link is None or self._open.full or request_id is None:
            return False
        if type(own) is str and len(own) > LONGEST_TEXT_ID:
            return False
        meta = message["params"].get("_meta")
        token = None if meta is None else typed_id(meta.get("progressToken"))
        if token is not None and (self._open.taken(request_id) or self._open.is_token(token)):
            return False
        if link.shared and token is not None:
            return False
        if link.shared or self._open.taken(request_id):
            other = self._open.new_id() if type(own) is int else None
            changed = None if other is None else replace_id(body, own, other[1])
            if other is None or changed is None:
                return False
            request_id, body, message["id"] = other, changed, other[1]
        now = self.used = self._clock()
        call = ToolCall(self, connection, request_id, own, parameters, now, modern=modern)
        call.deadline = now + self._limits.answer_seconds
        connection.begin(call)
        self._open.add_call(request_id, call, token)
        # A message in the queue may say that the tool changed.
        if self._takes_notes and not self._queue.busy:
            event = self._fast_path.admit(message, now)
            if event is not None:
                try:
                    self._recorder.note(event, request_id[1])
                except PinwardenError:
                    # The session will fail to record it too, and answer with the reason.
                    self._fast_path.withdraw(request_id[1])
                else:
                    link.call(call, body, message, name)
                    return True
        self._from_client(Frame(body, message))
        return True

    def give_up(self, request_id: RequestId | None) -> None:
        """The client of a request left: cancel the request."""
        pending = None if request_id is None else self._open.forget(request_id)
        if pending is None or request_id is None:
            return
        if type(pending) is PendingRequest and pending.given_up is not None:
            pending.given_up()
        if self.closed:
            return
        self._open.abandon(request_id)
        self._queue.run(partial(self._cancel, request_id))

    def _cancel(self, request_id: RequestId) -> None:
        if self.closed:
            return
        # The server may respond late or never. For the session the request is over.
        if not self.session.abandon(request_id[1]):
            # It was deferred, or is answered. The id stays in use until a refusal is durable.
            if not self._refusals.after(partial(self._free_id, request_id)):
                self._free_id(request_id)
        elif self.link is not None:
            self.link.cancel(request_id)

    def _free_id(self, request_id: RequestId) -> None:
        self._abandoned.pop(request_id, None)

    def listen(self, reply: EventSink) -> None:
        """Attach the notification stream. It replaces an older one."""
        self.used = self._clock()
        self._notifications.listen(reply)

    # Messages of the server: parse, decide, record, deliver

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request with this id is open, including the session's own."""
        return request_id in self._pending or self.session.is_gateway_id(request_id[1])

    def from_server(self, data: bytes, *, expected_id: RequestId | None = None) -> bool:
        """A message of the server: a line of a process, or a complete HTTP response to ``expected_id``.

        Returns whether it may be the response. If that takes longer to find out, a request without one is answered.
        """
        if self.closed:
            return True
        if LIST_CHANGED_MARK in data and self._defers(data):
            return False
        if len(data) > self._large or self._queue.busy:
            self._queue_server_message(data, expected_id, 0, partial(self._answer_if_unanswered, expected_id))
            return True
        now = self.last_received = self._clock()
        self.answered_once = True
        try:
            message = parse_json(data, self._json)
        except PinwardenError:
            message = None  # the session judges it
        if type(message) is dict and "method" not in message:
            request_id = typed_id(message.get("id"))
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
        return self._decide_server_message(recover_id(Frame(data, message), self._json), now, expected_id, 0)

    def part_from_server(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        """A message on a response stream; ``then`` is called with whether it may be the response."""
        if LIST_CHANGED_MARK in data and self._defers(data):
            then(False)
            return
        self._queue_server_message(data, expected_id, status, then)

    def _queue_server_message(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        self.last_received = self._clock()
        self.answered_once = True
        if not self._queue.run(partial(self._take_queued, data, expected_id, status, then), len(data)):
            self.close("the server sends faster than can be judged")

    def _take_queued(self, data: bytes, expected_id: RequestId | None, status: int, then: Then) -> None:
        if self.closed:
            then(True)
            return
        now = self._clock()
        slow = len(data) > self._large or self.session.may_be_slow(now)
        frame = None if slow else frame_from_server(data, self._json)
        if frame is None or is_slow_server_message(frame.message, len(data)):
            self._judge_offloaded(data, now, expected_id, status, then)
        else:
            then(self._decide_server_message(frame, now, expected_id, status))

    def _decide_server_message(self, frame: Frame, now: float, expected_id: RequestId | None, status: int) -> bool:
        """Let the session decide about a message. Returns whether it may be the expected response."""
        if self._abandoned and frame.is_response and frame.id in self._abandoned:
            self._abandoned.pop(frame.id, None)
            return True
        output = self.session.on_server_message(frame.data, now, frame.message)
        self._record_and_send(output, frame, expected_id, status)
        return frame.may_answer(expected_id)

    # Coalesced list_changed notifications

    def _defers(self, data: bytes) -> bool:
        """Whether a notification is deferred. The session marks its list as outdated immediately."""
        method = self._throttle.deferred(data)
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

    def unanswered(self, request_id: RequestId, why: str) -> None:
        """The server's response ended without a message for the request."""
        self._queue.run(partial(self._unanswered, request_id, why))

    def _unanswered(self, request_id: RequestId, why: str) -> None:
        if not self.closed:
            data = error_response(request_id[1], SERVER_UNAVAILABLE, why)
            self._decide_server_message(Frame(data, parse_server(data, self._json)), self._clock(), request_id, 0)

    def _answer_if_unanswered(self, expected_id: RequestId | None, answers: bool) -> None:
        if expected_id is not None and not answers:
            self.unanswered(expected_id, "the response was empty")

    def not_understood(self) -> None:
        """The server may have changed its era."""
        self.on_not_understood()

    def refused_unread(self, request_id: RequestId, why: str) -> None:
        """The server did not execute a request, because it does not know the session."""
        self._queue.run(partial(self._refused_unread, request_id, why))

    def _refused_unread(self, request_id: RequestId, why: str) -> None:
        pending = None if self.closed else self._open.forget(request_id)
        if pending is None:
            return
        self.session.abandon(request_id[1])
        if self._open.is_cancelled(pending):
            pending.sink.dropped()
        else:
            pending.sink.refused_unread(why)

    def session_ended(self, sent: Set[RequestId], why: str) -> None:
        """The server forgot the session. Requests that were not sent can be sent in another session."""
        self.ended = True
        for request_id in [pending for pending in self._pending if pending not in sent]:
            self.refused_unread(request_id, why)

    def server_lost(self, why: str) -> None:
        """The server is gone: fail all open requests, and end the conversation."""
        if not self.closed:
            self._queue.run(partial(self._lost, why))

    def _lost(self, why: str) -> None:
        if self.closed:
            return
        if self._refusals.after(partial(self._lost, why)):  # deliver the server's last messages first
            if self.link is not None:
                self.link.close()
            return
        output = self.session.on_server_closed()
        self._record_and_send(
            SessionOutput(events=output.events, durable=output.durable, sightings=output.sightings), None
        )
        self.close(why)  # fails all open requests

    # From the clock

    def tick(self) -> None:
        """Run what is due: the session's timers, deadlines of requests, and the check for a server that hangs."""
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

    def close(self, why: str) -> None:
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
                sink.dropped()
            else:
                sink.failed(SERVER_UNAVAILABLE, why)
        self.end_stream()
        if self.link is not None:
            self.link.close()
        self._on_closed(why)

    def end_stream(self) -> None:
        """End streams without an end of their own: notifications and subscriptions."""
        self._notifications.end()
        for request_id in [request_id for request_id, pending in self._pending.items() if pending.deadline == inf]:
            sink = self._pending[request_id].sink
            self.give_up(request_id)
            sink.dropped()

    def _overflow(self) -> None:
        self.close("too many bytes wait for lists to be judged, and most of them are in this session")

    # Recording and sending

    def _record_and_send(
        self,
        output: SessionOutput,
        frame: Frame | None,
        expected_id: RequestId | None = None,
        status: int = 0,
        to_client: tuple[Frame, ...] = (),
    ) -> None:
        """Record an output, then send its messages. A refusal is sent when it is durable.

        ``frame`` is the message that the output is about. ``to_client`` are the messages for the client, if they are
        parsed already.
        """
        if output.events or output.sightings:
            try:
                if output.durable:
                    send = partial(self._send, output, frame, expected_id, status, to_client)
                    if self._refusals.full:
                        self.close("the server causes refusals faster than they can be recorded")
                    else:
                        self._refusals.record(output, send, partial(self._undo, output))
                    return
                self._recorder.record(output)
            except PinwardenError as err:
                self._undo(output, err)
                return
        self._send(output, frame, expected_id, status, to_client)

    def _undo(self, output: SessionOutput, err: PinwardenError) -> None:
        """An output could not be recorded: answer with the reason instead."""
        self._send(self.session.undo(output, err), None)

    def _send(
        self,
        output: SessionOutput,
        frame: Frame | None,
        expected_id: RequestId | None = None,
        status: int = 0,
        to_client: tuple[Frame, ...] = (),
    ) -> None:
        """Send the messages of a recorded output."""
        if output.to_server and self.link is not None and not self.closed:
            for data in output.to_server:
                self._send_to_server(self._parsed(data, frame), self.link)
        for message in to_client or [self._parsed(data, frame) for data in output.to_client]:
            self._deliver(message, expected_id, status if message is frame else 0)

    def _send_to_server(self, frame: Frame, link: UpstreamTransport) -> None:
        request_id = frame.id if frame.is_request else None
        pending = None if request_id is None else self._pending.get(request_id)
        if request_id is not None and self._is_cancelled(request_id, pending):
            return
        if pending is None or not pending.parameters:
            link.send(frame, b"")
        else:
            self._send_with(pending, frame, link)

    # Judging on a thread

    def _judge_offloaded(self, data: bytes, now: float, expected_id: RequestId | None, status: int, then: Then) -> None:
        """Let the session decide about a message of the server on a thread."""

        def judge() -> tuple[Frame, SessionOutput | None]:
            frame = frame_from_server(data, self._json)
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
            partial(self.close, "a message could not be judged"),
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
            then(output is None or frame.may_answer(expected_id))

    def _is_cancelled(self, request_id: RequestId, pending: PendingRequest | ToolCall | None) -> bool:
        """Whether a request was cancelled while it was recorded, so that the server must not get it."""
        if not self._open.is_over(request_id):
            return False
        self._abandoned.pop(request_id, None)  # no answer will come
        self._open.forget(request_id)
        self.session.abandon(request_id[1])
        if pending is not None:
            pending.sink.dropped()
        return True

    def _send_with(self, pending: PendingRequest | ToolCall, sent: Frame, link: UpstreamTransport) -> None:
        """Send a request with the client's header lines that the tool declares."""
        try:
            lines = self._declared(sent, pending.parameters)
        except HeaderMismatch as err:
            if sent.id is not None:
                self._open.forget(sent.id)
                self.session.abandon(sent.id[1])
            _refuse(pending.sink, pending.client_id, err)
        else:
            link.send(sent, lines)

    def _mismatch(self, frame: Frame, parameters: bytes, sink: ResponseSink) -> bool:
        """Whether a header contradicts the call; then the call fails."""
        try:
            self._declared(frame, parameters)
        except HeaderMismatch as err:
            _refuse(sink, frame.members.get("id"), err)
            return True
        return False

    def _declared(self, frame: Frame, parameters: bytes) -> bytes:
        name = frame.params.get("name") if frame.method == CALL else None
        definition = self.session.definition(name) if type(name) is str else None
        return declared_parameters(parameters, definition, frame.params.get("arguments"))

    def _parsed(self, data: bytes, known: Frame | None) -> Frame:
        return known if known is not None and data is known.data else Frame(data, parse_server(data, self._json))

    def _deliver(self, frame: Frame, expected_id: RequestId | None, status: int) -> None:
        members = frame.members
        if "method" not in members:
            request_id = frame.id
            pending = None if request_id is None else self._open.forget(request_id)
            if pending is not None:
                pending.sink.answered(with_client_id(frame, pending), status)
            return
        pending = self._open.of_message(frame, expected_id)
        link = self.link
        if link is not None and link.shared and (frame.is_request or (pending is None and not link.private)):
            return  # it may be for another client
        if pending is not None:
            pending.deadline = max(pending.deadline, self._clock() + self._limits.answer_seconds)
            frame = with_client_id(frame, pending)
        if pending is not None and pending.sink.open:
            pending.sink.message(frame)
        elif not self._notifications.send(frame.data):
            other = self._open.longest_open() if pending is None and expected_id is None else None
            if other is not None:
                other.message(frame)
            else:
                self._notifications.enqueue(frame.data)


def _refuse(sink: ResponseSink, request_id: Any, why: HeaderMismatch) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "error": {"code": HEADER_MISMATCH, "message": str(why)}}
    sink.answered(Frame(encode(message), message), 400)
