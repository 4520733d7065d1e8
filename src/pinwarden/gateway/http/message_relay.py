"""Relays the messages of one conversation. Every message, in either direction, takes four steps:

1. Parse. `endpoint` parses the messages of the client, `_relay_server_message` those of the server.
2. Decide. The session returns a `SessionOutput`: the events to record and the messages to send.
3. Record. `_record_and_send` writes the audit events. A refusal is sent only after it is durable, so it continues in a
   task (`_refuse`) while other messages pass.
4. Send. `_send_to_server` hands a message to the transport. `_send_to_client` hands a message to the request that waits
   for it, or to the notification stream.

Three paths lead through these steps:

- The general path runs all steps at once, without waiting: `_relay_client_message`, `_relay_server_message`.
- A message that takes long to check goes through `_relay_on_thread`. The messages that arrive meanwhile are queued
  (`session_queue`), so that the order stays the same.
- `send_call` gives a tool call from a cached route an id and a `ToolCall`. If the call may take the fast path,
  `_admit_call` records it, and the transport sends it; otherwise the session decides on it. `_relay_server_message`
  passes the result to the `ToolCall`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.header_checks import HeaderMismatch, select_declared_headers
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.notifications import LIST_CHANGED_MARK, NotificationStream
from pinwarden.gateway.http.open_requests import OpenRequests, PendingRequest, ResponseSink, ToolCall, restore_client_id
from pinwarden.gateway.http.session_queue import PendingRefusals, SessionQueue
from pinwarden.gateway.http.upstream_transport import PostedRequest, UpstreamTransport
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.fast_path import LONGEST_TEXT_ID
from pinwarden.gateway.session.lists import DISCOVER
from pinwarden.gateway.session.messages import (
    CALL,
    LISTEN,
    ParsedMessage,
    RequestId,
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
    from pinwarden.gateway.http.tracing import Tracing


_CLASSES = {
    **dict.fromkeys(("initialize", DISCOVER), "open"),
    **dict.fromkeys(("tools/list", "prompts/list", "resources/list", "resources/templates/list"), "list"),
}
"""The classes of requests in the metrics, by method; those of calls depend on the tool."""


class DecidedMessage:
    """A message, and the session's decision about it."""

    __slots__ = ("error", "message", "output", "posted", "recorded", "to_client")

    def __init__(
        self,
        output: SessionOutput | None,
        message: ParsedMessage | None = None,
        posted: PostedRequest | None = None,
    ) -> None:
        self.output = output
        """The events to record and messages to send; None for a late response whose client has disconnected."""
        self.message = message
        """The message; None if a timer of the session led to the decision."""
        self.posted = posted
        """The request in whose HTTP response the server sent the message."""
        self.to_client: tuple[ParsedMessage, ...] = ()
        """The messages for the client, if a thread has parsed them already."""
        self.recorded = False
        """Whether a thread has recorded the output already."""
        self.error: PinwardenError | None = None
        """Why the thread could not record the output."""


class MessageRelay(ABC):
    """Lets the session decide on each message, records the decision, and sends the allowed messages.

    `Conversation` adds cancelled and failed requests, timers, and the end of the conversation.
    """

    def __init__(  # noqa: PLR0913, PLR0917  all dependencies of a conversation
        self,
        session: Session,
        recorder: LoopRecorder,
        limits: HttpLimits,
        clock: Callable[[], float],
        executor: FairExecutor,
        budget: MemoryBudget,
        tracing: Tracing | None,
    ) -> None:
        self.session = session
        self.limits = limits
        self.budget = budget
        self.transport: UpstreamTransport | None = None
        self.closed = False
        self.server_session_ended = False
        """Whether the server ended the session and accepts no further requests."""
        self.has_received = False
        """Whether the server has sent a message in this conversation."""
        self.last_used = self.last_received = clock()
        self._clock = clock
        self._recorder = recorder
        self._tracing = tracing
        self._executor = executor
        self._json = Limits(max_bytes=limits.max_server_message_bytes)
        self._fast_path = session.fast_path
        self._open_requests = OpenRequests(session.name, limits.max_in_flight)
        self._notifications = NotificationStream(limits)
        self._queue = SessionQueue(limits.max_unsent_bytes, budget, self._on_overflow, self._on_error)
        self._refusals = PendingRefusals(limits.max_in_flight)
        self._slow_requests = 0
        """The number of queued requests of the client that take long to check."""

    @property
    def client(self) -> str:
        """The name of the client."""
        return self.session.client

    @property
    def traced(self) -> bool:
        """Whether requests get spans."""
        return self._tracing is not None

    @abstractmethod
    def close(self, reason: str) -> None:
        """End the conversation. Open requests fail with the reason."""

    @abstractmethod
    def cancel(self, request_id: RequestId | None) -> None:
        """Cancel a request whose client disconnected."""

    @abstractmethod
    def on_response_ended(self, posted: PostedRequest, reason: str) -> None:
        """Fail a request if its HTTP response ended and contained no JSON-RPC response."""

    @abstractmethod
    def _defer_notification(self, data: bytes) -> bool:
        """Defer a ``list_changed`` notification if there were too many recently. Returns whether it was deferred."""

    @abstractmethod
    def _on_overflow(self) -> None:
        """Handle that the memory budget is exceeded and that this session has the largest queue."""

    @abstractmethod
    def _on_error(self, error: BaseException) -> None:
        """Handle an exception that slow or queued work raised."""

    # Messages of the client

    def request(self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes = b"") -> RequestId | None:
        """Send a request; ``sink`` gets the response. Returns the upstream id, or None if the request was not sent."""
        now = self.last_used = self._clock()
        if self.closed or self._open_requests.is_full:
            reason = "the session ended" if self.closed else "too many requests to this server are open"
            sink.fail(SERVER_UNAVAILABLE, reason)
            return None
        if self.server_session_ended:
            sink.fail_not_executed("the server ended the session")
            return None
        request_id = message.id
        if request_id is None or not is_id(request_id[1]):
            sink.fail(INVALID_REQUEST, "the id of a request must be a number, or a string of at most 1024 characters")
            return None
        if param_headers and message.method == CALL and self._select_headers(message, param_headers, sink) is None:
            return None
        if is_slow_client_message(message.value, len(message.data)) and not self._reserve_slow_request(sink):
            return None
        pending = PendingRequest(message, sink, param_headers)
        # A server responds to a subscription only when the subscription ends.
        pending.sent_at, pending.deadline = now, inf if message.method == LISTEN else now + self.limits.response_seconds
        message, request_id = self._open_requests.add(
            message, request_id, pending, shared=self.transport is not None and self.transport.shared
        )
        if self._tracing is not None:
            call = f"{self.session.name}/{request_id[1]}"
            traced = self._tracing.trace(sink, message, self.session.guard.server, self.session.client, call)
            pending.sink, pending.on_cancelled = traced, traced.on_cancelled
        self._relay_in_order(message)
        return request_id

    def notify(self, message: ParsedMessage) -> None:
        """Forward a notification of the client, or the client's response to a request of the server."""
        self.last_used = self._clock()
        if not self.closed:
            if message.method == CANCELLED:
                self._open_requests.cancel(message.params.get("requestId"))
            self._relay_in_order(message)

    def send_call(self, body: bytes, message: Any, name: str, connection: ClientConnection, *, stateless: bool) -> bool:
        """Send a tool call from a cached route as a `ToolCall`. Returns False, without side effects, if it cannot.

        The call is forwarded without the session if the fast path admits it. Otherwise the session decides on it, as
        on any message of the client.
        """
        transport, open_requests, client_id = self.transport, self._open_requests, message.get("id")
        request_id = to_request_id(client_id)
        if self.closed or self.server_session_ended or transport is None or open_requests.is_full or request_id is None:
            return False
        if type(client_id) is str and len(client_id) > LONGEST_TEXT_ID:
            return False
        meta = message["params"].get("_meta")
        token = None if meta is None else to_request_id(meta.get("progressToken"))
        if token is not None and (
            transport.shared or open_requests.is_id_in_use(request_id) or open_requests.is_token_in_use(token)
        ):
            return False
        if transport.shared or open_requests.is_id_in_use(request_id):
            new_id = open_requests.allocate_id() if type(client_id) is int else None
            changed = None if new_id is None else replace_id(body, client_id, new_id[1])
            if new_id is None or changed is None:
                return False
            request_id, body, message["id"] = new_id, changed, new_id[1]
        now = self.last_used = self._clock()
        call = ToolCall(self, connection, request_id, client_id, name, now, stateless=stateless)
        call.deadline = now + self.limits.response_seconds
        connection.begin_response(call)
        open_requests.add_call(request_id, call, token)
        if self._admit_call(message, request_id, now):
            transport.send_call(call, body, message, name)
        else:
            self._relay_in_order(ParsedMessage(body, message))
        return True

    def _admit_call(self, message: Any, request_id: RequestId, now: float) -> bool:
        """Decide on a call on the fast path, and record it. Returns False if the session has to decide."""
        # While server messages are queued, the session decides: one of them may say that the tool changed.
        if not self._recorder.can_record_calls or self._queue.busy:
            return False
        event = self._fast_path.admit(message, now)
        if event is None:
            return False
        try:
            self._recorder.record_call(event, request_id[1])
        except PinwardenError:
            # The session will refuse the call, with the reason why it cannot be recorded.
            self._fast_path.withdraw(request_id[1])
            return False
        return True

    def _count_response(self, pending: PendingRequest | ToolCall, now: float, *, failed: bool) -> None:
        """Count a request with its response for the metrics. Subscriptions have none."""
        method = pending.method
        if method != LISTEN:
            request_class = (
                self.session.find_call_class(pending.tool) if method == CALL else _CLASSES.get(method, "other")
            )
            self._recorder.add_duration(request_class, now - pending.sent_at, failed=failed)

    def _relay_in_order(self, message: ParsedMessage) -> None:
        """Relay a message of the client now, or queue it behind a message that takes long to check."""
        if not self._queue.busy:
            self._relay_client_message(message)
        elif not self._queue.run(partial(self._relay_client_message, message), len(message.data)):
            self.close("too many bytes are queued while the gateway checks this server's list")

    def _relay_client_message(self, message: ParsedMessage) -> None:
        """Decide on a message of the client, record the decision, and forward or refuse the message."""
        if self.closed:
            return
        now = self._clock()
        is_slow = is_slow_client_message(message.value, len(message.data))
        if is_slow and message.is_request:
            self._release_slow_requests(1)
        if is_slow or self.session.may_be_slow(now):
            self._queue.start(self._relay_on_thread(lambda: self._decide_client_message(message, now)))
        else:
            self._record_and_send(self._decide_client_message(message, now))

    def _decide_client_message(self, message: ParsedMessage, now: float) -> DecidedMessage:
        return DecidedMessage(self.session.on_client_message(message.data, now, message.value), message)

    def _reserve_slow_request(self, sink: ResponseSink) -> bool:
        """Reserve capacity on the executor for a slow request. If there is none, fail the request and return False."""
        try:
            self._executor.reserve(self.client)
        except OverloadedError as err:
            sink.fail(SERVER_UNAVAILABLE, f"{err.message}; try again in {err.retry_after} s")
            return False
        self._slow_requests += 1
        return True

    def _release_slow_requests(self, count: int) -> None:
        self._slow_requests -= count
        self._executor.release(self.client, count)

    # Messages of the server

    def on_server_message(self, data: bytes, posted: PostedRequest | None = None) -> None:
        """Relay a message of the server, after the queued messages.

        ``posted`` is the request in whose HTTP response the message came; None for a line of a process. If the message
        is the response to that request, `PostedRequest.has_response` is set.
        """
        if self.closed or (LIST_CHANGED_MARK in data and self._defer_notification(data)):
            return
        self.last_received = self._clock()
        self.has_received = True
        if not self._queue.busy:
            self._relay_server_message(data, posted)
        elif not self._queue.run(partial(self._relay_server_message, data, posted), len(data)):
            self.close("the server sends messages faster than the gateway can check them")

    def _relay_server_message(self, data: bytes, posted: PostedRequest | None) -> None:
        """Parse a message of the server, decide on it, record the decision, and send the message to the client."""
        if self.closed:
            return
        now = self._clock()
        if len(data) > self.limits.max_bytes_at_once:
            self._queue.start(self._relay_on_thread(lambda: self._parse_and_decide(data, posted, now)))
            return
        value = parse_server_value(data, self._json)
        if type(value) is dict and "method" not in value:
            request_id = to_request_id(value.get("id"))
            call = None if request_id is None else self._open_requests.by_id.get(request_id)
            if (
                type(call) is ToolCall
                and (posted is None or posted.request_id == request_id)
                and self._fast_path.take_relayable(data, value)
            ):
                self._open_requests.forget(call.request_id)
                self._count_response(call, now, failed=False)
                call.send_result(data, value)
                if posted is not None:
                    posted.has_response = True
                return
        if is_slow_server_message(value, len(data)) or self.session.may_be_slow(now):
            self._queue.start(self._relay_on_thread(lambda: self._parse_and_decide(data, posted, now)))
        else:
            message = recover_id(ParsedMessage(data, value), self._json)
            self._record_and_send(self._decide_server_message(message, posted, now))

    def _parse_and_decide(self, data: bytes, posted: PostedRequest | None, now: float) -> DecidedMessage:
        return self._decide_server_message(parse_server_message(data, self._json), posted, now)

    def _decide_server_message(
        self, message: ParsedMessage, posted: PostedRequest | None, now: float
    ) -> DecidedMessage:
        if self._open_requests.abandoned and message.is_response and message.id in self._open_requests.abandoned:
            return DecidedMessage(None, message, posted)
        return DecidedMessage(self.session.on_server_message(message.data, now, message.value), message, posted)

    # Messages that take long to check

    async def _relay_on_thread(self, decide: Callable[[], DecidedMessage]) -> None:
        """Decide and record on a thread, then send."""
        decision = await self._executor.submit(self.client, partial(self._decide_and_record, decide), required=True)
        if decision.recorded and decision.output is not None:
            self._recorder.count(decision.output)
        self._record_and_send(decision)

    def _decide_and_record(self, decide: Callable[[], DecidedMessage]) -> DecidedMessage:
        """Decide, parse the messages for the client, and record the decision unless it is a refusal."""
        decision = decide()
        output = decision.output
        if output is not None:
            decision.to_client = tuple(self._parse_outgoing(data, decision.message) for data in output.to_client)
            if (output.events or output.sightings) and not output.durable:
                try:
                    self._recorder.record_uncounted(output)
                    decision.recorded = True
                except PinwardenError as err:
                    decision.error = err
        return decision

    # Both directions: record, then send

    def _record_and_send(self, decision: DecidedMessage) -> None:
        """Record a decision, then send its messages. A refusal is sent only after it is durable."""
        output, message, posted = decision.output, decision.message, decision.posted
        if posted is not None and message is not None and (output is None or message.is_response_to(posted.request_id)):
            posted.has_response = True
        if output is None:
            if message is not None and message.id is not None:
                self._open_requests.abandoned.pop(message.id, None)
        elif decision.error is not None:
            self._fail_unrecorded(output, decision.error)
        elif decision.recorded or not (output.events or output.sightings):
            self._send(output, decision)
        elif not output.durable:
            try:
                self._recorder.record(output)
            except PinwardenError as err:
                self._fail_unrecorded(output, err)
            else:
                self._send(output, decision)
        elif self._refusals.is_full:
            self.close("the server causes refusals faster than the gateway can record them")
        else:
            self._refusals.start(self._refuse(output, decision))

    async def _refuse(self, output: SessionOutput, decision: DecidedMessage) -> None:
        """Record a refusal, and send it when it is durable."""
        try:
            await self._recorder.record_durably(output)
        except PinwardenError as err:
            self._queue.run(partial(self._fail_unrecorded, output, err))
        else:
            self._send(output, decision)

    def _fail_unrecorded(self, output: SessionOutput, error: PinwardenError) -> None:
        """Send errors instead of an output that could not be recorded."""
        undone = self.session.replace_unrecorded(output, error)
        self._send(undone, DecidedMessage(undone))

    def _send(self, output: SessionOutput, decision: DecidedMessage) -> None:
        """Send the messages of a recorded output."""
        message, posted = decision.message, decision.posted
        if output.to_server and self.transport is not None and not self.closed:
            for data in output.to_server:
                self._send_to_server(self._parse_outgoing(data, message), self.transport)
        for outgoing in decision.to_client or [self._parse_outgoing(data, message) for data in output.to_client]:
            self._send_to_client(outgoing, posted, posted.status if posted is not None and outgoing is message else 0)

    def _parse_outgoing(self, data: bytes, known: ParsedMessage | None) -> ParsedMessage:
        """Parse a message that the session returned. Returns ``known`` if the session forwards that message.

        A message that the session forwards unchanged is the same object. The identity proves that, which a flag of
        the session would only claim; an equal copy is parsed again.
        """
        return (
            known
            if known is not None and data is known.data
            else ParsedMessage(data, parse_server_value(data, self._json))
        )

    def _send_to_server(self, message: ParsedMessage, transport: UpstreamTransport) -> None:
        request_id = message.id if message.is_request else None
        pending = None if request_id is None else self._open_requests.by_id.get(request_id)
        if request_id is not None and self._open_requests.is_unwanted(request_id):
            # The request was cancelled while it was being recorded, so the server does not get it.
            self._open_requests.abandoned.pop(request_id, None)
            self._forget_request(request_id)
            if pending is not None:
                pending.sink.drop()
        elif request_id is None or pending is None or not pending.param_headers:
            transport.send(message, b"")
        else:
            headers = self._select_headers(message, pending.param_headers, pending.sink, pending.client_id)
            if headers is None:
                self._forget_request(request_id)
            else:
                transport.send(message, headers)

    def _forget_request(self, request_id: RequestId) -> None:
        """Forget a request that the server does not get."""
        self._open_requests.forget(request_id)
        self.session.abandon_request(request_id[1])

    def _select_headers(
        self, message: ParsedMessage, param_headers: bytes, sink: ResponseSink, client_id: Any = None
    ) -> bytes | None:
        """Return the ``mcp-param-`` header lines that the called tool declares.

        Called when the request arrives, so that no call that contradicts itself is decided on and recorded. Called
        again when the request is sent, because the tool may have another definition by then.

        If a header contradicts the arguments, fail the call and return None.
        """
        name = message.params.get("name") if message.method == CALL else None
        definition = self.session.find_definition(name) if type(name) is str else None
        try:
            return select_declared_headers(param_headers, definition, message.params.get("arguments"))
        except HeaderMismatch as err:
            request_id = message.members.get("id") if client_id is None else client_id
            error = {"code": HEADER_MISMATCH, "message": str(err)}
            response = {"jsonrpc": "2.0", "id": request_id, "error": error}
            sink.respond(ParsedMessage(encode(response), response), 400)
            return None

    def _send_to_client(self, message: ParsedMessage, posted: PostedRequest | None, status: int) -> None:
        if "method" not in message.members:
            request_id = message.id
            pending = None if request_id is None else self._open_requests.forget(request_id)
            if pending is not None:
                self._count_response(pending, self._clock(), failed="error" in message.members)
                pending.sink.respond(restore_client_id(message, pending), status)
            return
        pending = self._open_requests.find_by_message(message, None if posted is None else posted.request_id)
        transport = self.transport
        if (
            transport is not None
            and transport.shared
            and (message.is_request or (pending is None and not transport.has_single_client))
        ):
            return  # the message may be for another client
        if pending is not None:
            pending.deadline = max(pending.deadline, self._clock() + self.limits.response_seconds)
            message = restore_client_id(message, pending)
        if pending is not None and pending.sink.is_open:
            pending.sink.send_message(message)
        elif not self._notifications.send(message.data):
            other = self._open_requests.find_oldest_open_sink() if pending is None and posted is None else None
            if other is not None:
                other.send_message(message)
            else:
                self._notifications.enqueue(message.data)
