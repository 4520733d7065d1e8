"""The session between one client and one server: parses messages, decides on them, and returns events and messages.

A request from the client:

1. The session parses it strictly, and refuses a message that two parsers could read differently.
2. `requests.py` decides by the item that the request uses. If the server's list is missing or outdated, the gateway
   requests it, and the client's request is deferred until the list is checked.
3. The request is forwarded byte for byte, or the client gets a refusal.

A message from the server:

1. The session parses it strictly, and matches a response with its request.
2. `responses.py` and `server_requests.py` decide: unapproved items are removed from lists, server requests pass if the
   policy allows them, and results are checked as the policy says. A message that needs no change passes byte for byte.

The session does no I/O, except that its guard reads the approvals again from time to time. Its methods return a
`SessionOutput`: the transport records its events, then sends its messages. The transport also passes the time: ``now``
is any number of seconds that never decreases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import RLock
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_array
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.gateway.session.deferred import DeferredMessages, RequestTimeouts, take_off_fast_path
from pinwarden.gateway.session.fast_path import CallFastPath
from pinwarden.gateway.session.list_subscription import ListSubscription
from pinwarden.gateway.session.lists import CheckedLists
from pinwarden.gateway.session.messages import (
    CALL,
    LISTEN,
    ClientRequest,
    ForwardedRequest,
    OpenRequest,
    ServerResponse,
    TaskNotification,
    build_error_response,
    build_notification,
    build_unrecorded_response,
    coerce_id,
    find_response_id,
    is_ambiguous_request,
    is_ambiguous_response,
    is_ambiguous_server_request,
    is_id,
    is_stray_output,
)
from pinwarden.gateway.session.output import NO_OUTPUT, OutputBuilder, SessionAudit, SessionOutput, with_request_id
from pinwarden.gateway.session.requests import RequestDecider
from pinwarden.gateway.session.responses import ResourceLinks, ResponseDecider
from pinwarden.gateway.session.server import CheckedServer, read_stateless_meta
from pinwarden.gateway.session.tasks import LIST_TASKS
from pinwarden.surface.protocol import (
    BATCH_VERSION,
    CANCELLED,
    CLIENT_META,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LIST_CHANGED,
    PARSE_ERROR,
    PROGRESS,
    SERVER_UNAVAILABLE,
    TASK_NOTIFICATIONS,
)
from pinwarden.surface.surface import TOOL

_NOTIFICATION = "notifications/"
_MAX_METHOD = 100  # characters of a method in the audit log
_AMBIGUOUS = "Two JSON parsers could read this message differently."
_UNKNOWN_CLIENT = SessionClient()
_APPROVALS_UNREADABLE = "The approvals cannot be read, so everything is blocked."


class Session:
    """One session between a client and a server. Thread-safe."""

    def __init__(
        self,
        guard: Guard,
        *,
        name: str,
        client: SessionClient = _UNKNOWN_CLIENT,
        response_seconds: float = 0.0,
    ) -> None:
        """``name`` must be unique and hard to guess: it is part of request ids and correlation ids.

        ``client`` is what the token says about the client; without a token, the name in ``clientInfo`` is added.
        ``response_seconds`` is how long the server may take to respond; 0 if the transport handles timeouts.
        """
        self.guard = guard
        self.name = name
        self._limits = guard.limits
        self._json = guard.limits.json_limits
        self._lock = RLock()
        self._audit = SessionAudit(guard, name, client)
        self._lists = CheckedLists(guard, self._audit, name)
        self._server = CheckedServer(guard, self._audit)
        self._subscription = ListSubscription(guard, self._lists)
        links = ResourceLinks()
        self._requests = RequestDecider(guard, self._audit, self._lists, self._server, links)
        self._responses = ResponseDecider(guard, self._audit, self._lists, self._server, self._requests, links)
        self._server_requests = self._responses.server_requests
        self._open_requests: dict[Any, OpenRequest] = {}
        """Requests that wait for the server's response, by id. `CallFastPath` changes this table too, without lock."""
        self.fast_path = CallFastPath(
            guard, self._audit, self._lists, self._server, self._responses, self._open_requests
        )
        """Transports try the fast path before they pass a message to the session."""
        self._deferred = DeferredMessages(guard.limits, self._audit)
        self._cancelled: set[Any] = set()
        self._timeouts = RequestTimeouts(response_seconds)
        self._active = False

    # For transports

    @property
    def client(self) -> str:
        """The name of the client."""
        return self._audit.client.name

    def build_lifecycle_event(self, kind: str, reason: str) -> AuditEvent:
        """Return the audit event for the start or the end of the session."""
        return self._audit.build_lifecycle_event(kind, reason)

    @property
    def server_info(self) -> dict[str, Any] | None:
        """The server's description of itself, unfiltered."""
        return self._server.info

    @property
    def is_idle(self) -> bool:
        """Whether no request is open or deferred, in either direction."""
        return not (self._open_requests or self._deferred.queue or self._server_requests.open)

    @property
    def waits_for_list(self) -> bool:
        """Whether a message is deferred, or an open list request may cause one to be deferred."""
        if self._deferred.queue:
            return True
        # A copy, because the fast path adds and removes calls without the lock.
        open_requests = [
            request for request_id, request in tuple(self._open_requests.items()) if request_id not in self._cancelled
        ]
        return any(
            type(request) is ForwardedRequest and (request.list_kind is not None or request.method == LIST_TASKS)
            for request in open_requests
        )

    def may_be_slow(self, now: float) -> bool:
        """Whether handling the next message may include checking a long list."""
        if now >= self.guard.next_refresh:
            self.guard.refresh(now)
        return self._lists.may_be_slow(now)

    def is_gateway_id(self, request_id: Any) -> bool:
        """Whether an id belongs to a request from the gateway."""
        return self._lists.is_gateway_id(request_id)

    def find_definition(self, tool: str) -> Any:
        """Return the definition of a tool in the last list; None if the list does not have the tool."""
        return self._lists.find_definition(TOOL, tool)

    def find_call_class(self, tool: str) -> str:
        """Return the class of a tool for metrics: that of its hints, or ``blocked``."""
        return self._lists.find_call_class(tool)

    def expire_list(self, method: str) -> None:
        """Mark the list of a ``list_changed`` notification as outdated before the session handles the notification."""
        with self._lock:
            self.fast_path.invalidate()
            for kind in LIST_CHANGED.get(method, ()):
                self._lists.add_change(kind)

    def on_client_message(self, data: bytes, now: float, message: Any = None) -> SessionOutput:
        """Handle a message from the client. ``message`` is its strictly parsed value, if the caller has it."""
        if message is None:
            try:
                message = strict_json.parse_json(data, self._json)
            except PinwardenError as err:
                return self._refuse_unparsable_client_message(data, err)
        with self._lock:
            if now >= self.guard.next_refresh:
                self.guard.refresh(now)
            self._active = True
            event = self.fast_path.admit(message, now)
            if event is not None:
                return SessionOutput((), (data,), (with_request_id(event, message["id"]),))
            self.fast_path.invalidate()
            out = OutputBuilder()
            parts = self._split_batch(data.rstrip(), message)
            for part, value in parts:
                self._handle_client_message(part, value, now, out)
            if not parts:
                text = (
                    "pinwarden: this is not a JSON-RPC message, or a batch, which this revision of MCP does not allow"
                )
                out.to_client.append(build_error_response(None, INVALID_REQUEST, text))
            self._subscribe_if_due(now, out)
            self.fast_path.refresh(now)
        return out.build()

    def on_server_message(self, data: bytes, now: float, message: Any = None) -> SessionOutput:
        """Handle a message from the server. ``message`` is its strictly parsed value, if the caller has it."""
        if message is None:
            try:
                message = strict_json.parse_json(data, self._json)
            except PinwardenError as err:
                return self._handle_unparsable_server_message(data.rstrip(), err, now)
        with self._lock:
            if now >= self.guard.next_refresh:
                self.guard.refresh(now)
            if self.fast_path.take_relayable(data, message):
                return SessionOutput((data,))
            self.fast_path.invalidate()
            out = OutputBuilder()
            parts = self._split_batch(data.rstrip(), message)
            for part, value in parts:
                self._handle_server_message(part, value, now, out)
            if not parts and type(message) is list:
                self._refuse_batch(message, now, out)
            self._subscribe_if_due(now, out)
            self.fast_path.refresh(now)
        return out.build()

    def on_server_closed(self) -> SessionOutput:
        """Respond with an error to all open requests except cancelled ones, after the server closed the connection."""
        out = OutputBuilder()
        with self._lock:
            open_ids = [request_id for request_id in tuple(self._open_requests) if request_id not in self._cancelled]
            for request_id in (*open_ids, *self._deferred.take_request_ids()):
                text = "pinwarden: the server closed the connection before it sent a response"
                out.to_client.append(build_error_response(request_id, SERVER_UNAVAILABLE, text))
            self._open_requests.clear()
            self._cancelled.clear()
        return out.build()

    def on_not_delivered(self, messages: Iterable[bytes]) -> SessionOutput:
        """Respond with an error to the requests among ``messages``, which could not be sent to the server."""
        out = OutputBuilder()
        with self._lock:
            self.fast_path.invalidate()
            for data in messages:
                self._fail_undelivered(self._parse_outgoing(data), _build_undelivered_response, out)
        return out.build()

    def replace_unrecorded(self, output: SessionOutput, problem: PinwardenError) -> SessionOutput:
        """Return the messages to send instead of an output whose events could not be recorded."""
        out = OutputBuilder()
        with self._lock:
            self.fast_path.invalidate()
            self._lists.invalidate()
            self._server.invalidate()
            self._audit.forget_recorded()
            for data in output.to_server:
                self._fail_undelivered(
                    self._parse_outgoing(data), lambda request_id: build_unrecorded_response(request_id, problem), out
                )
            for data in output.to_client:
                message = self._parse_outgoing(data)
                request_id = message.get("id")
                if "method" not in message:
                    out.to_client.append(build_unrecorded_response(request_id, problem))
                elif self._server_requests.open.pop(request_id, None) is not None:
                    out.to_server.append(build_unrecorded_response(request_id, problem))
        return out.build()

    def abandon_request(self, request_id: Any) -> bool:
        """Forget a request whose client disconnected. Returns whether the server may still respond to it.

        The transport drops such a response.
        """
        with self._lock:
            self._deferred.forget(request_id)
            self._cancelled.discard(request_id)
            request = self._open_requests.pop(request_id, None)
            if type(request) is ForwardedRequest and request.method == "initialize":
                self._lists.end_handshake(None)
        return request is not None

    def tick(self, now: float) -> SessionOutput:
        """Request lists that are due, and send errors for requests that timed out. Call it about once a second."""
        out = OutputBuilder()
        with self._lock:
            self.guard.refresh(now)
            self.fast_path.invalidate()
            if self._active or self._deferred.queue:
                self._active = False
                self._lists.request_due_lists(now, out)
            if self._lists.fail_overdue(now):
                self._retry_deferred(now, out)
            self._subscribe_if_due(now, out)
            self._deferred.refuse_overdue(now, out)
            if self._timeouts.seconds:
                self._fail_timed_out_requests(now, out)
        return out.build()

    # Messages of the client

    def _refuse_unparsable_client_message(self, data: bytes, problem: PinwardenError) -> SessionOutput:
        if data.isspace():
            return NO_OUTPUT
        out = OutputBuilder()
        self._audit.record_refused_message(problem.code, "The client sent text that is not strict JSON.", "", "", out)
        out.to_client.append(build_error_response(None, PARSE_ERROR, f"pinwarden: {problem.message}"))
        return out.build()

    def _handle_client_message(self, data: bytes, message: Any, now: float, out: OutputBuilder) -> None:
        method = message.get("method")
        if type(method) is not str:
            if "method" not in message:
                self._server_requests.on_client_response(data, message, out)
            elif "id" in message:
                request_id = message["id"]
                usable = is_id(request_id) and not self._lists.is_gateway_id(request_id)
                text = "pinwarden: the method must be a string"
                out.to_client.append(build_error_response(request_id if usable else None, INVALID_REQUEST, text))
        elif "id" in message:
            self._handle_client_request(data, message, method, now, out)
        else:
            self._handle_client_notification(data, message, method, now, out)

    def _handle_client_notification(
        self, data: bytes, message: Any, method: str, now: float, out: OutputBuilder
    ) -> None:
        if not method.startswith(_NOTIFICATION):
            reason = "A request needs an id; some servers execute it without one."
            self._audit.record_refused_message("request_without_id", reason, method[:_MAX_METHOD], "", out)
        elif is_ambiguous_request(message):
            self._audit.record_refused_message("message_doubtful", _AMBIGUOUS, method[:_MAX_METHOD], "", out)
        elif method == CANCELLED and self._cancel_request(message.get("params")):
            return
        elif self._requests.allows_notification(method, out):
            out.to_server.append(data)
            if method == INITIALIZED:
                self._request_lists_for_first_use(now, out)

    def _handle_client_request(self, data: bytes, message: Any, method: str, now: float, out: OutputBuilder) -> None:
        request_id = message["id"]
        valid = is_id(request_id)
        if not valid or self._is_id_in_use(request_id):
            text = "pinwarden: the id of this request is invalid or in use"
            out.to_client.append(build_error_response(request_id if valid else None, INVALID_REQUEST, text))
            return
        if len(self._open_requests) >= self._limits.max_open:
            for cancelled in self._cancelled:  # most servers never respond to cancelled requests
                self._open_requests.pop(cancelled, None)
            self._cancelled.clear()
        if len(self._open_requests) >= self._limits.max_open:
            out.to_client.append(
                build_error_response(request_id, SERVER_UNAVAILABLE, "pinwarden: too many requests are open")
            )
            return
        self._learn_client(method, message)
        self._decide_request(ClientRequest(data, message, now), now, out)

    def _is_id_in_use(self, request_id: Any) -> bool:
        if request_id in self._open_requests or self._lists.is_gateway_id(request_id):
            return True
        return bool(self._deferred.queue) and request_id in self._deferred

    def _decide_request(self, request: ClientRequest, now: float, out: OutputBuilder) -> None:
        """Forward a request, respond to it, or defer it."""
        message = request.message
        try:
            decision = self._requests.decide(message, now, out)
        except PinwardenError as err:
            call = self._audit.make_call_id(message["id"])
            self._audit.record_refused_message(err.code, _APPROVALS_UNREADABLE, message["method"], call, out)
            text = f"pinwarden: the approvals cannot be read, so everything is blocked: {err.message}"
            out.to_client.append(
                build_error_response(message["id"], INVALID_PARAMS, text, {"pinwarden": {"code": err.code}})
            )
            return
        if decision is None:
            self._deferred.add(request, out)
        elif isinstance(decision, bytes):
            out.to_client.append(decision)
        else:
            self._open_requests[message["id"]] = decision
            out.to_server.append(request.data)

    def _learn_client(self, method: str, message: Any) -> None:
        """Learn the client's name and protocol era from a request."""
        params = message.get("params")
        client_info = None
        if method == "initialize":
            self._lists.begin_handshake()
            client_info = params.get("clientInfo") if isinstance(params, dict) else None
        elif not self._server.version and (meta := read_stateless_meta(params)) is not None:
            self._lists.set_client_meta(meta)
            client_info = meta.get(CLIENT_META)
        if client_info is None:
            return
        client = self._audit.client.with_client_info(client_info)
        if client is not self._audit.client:
            self._audit.client = client
            self._lists.invalidate()  # the policy may have rules for this client
            self._server.invalidate()

    def _request_lists_for_first_use(self, now: float, out: OutputBuilder) -> None:
        with suppress(PinwardenError):  # unreadable approvals are reported when the server is used
            self._lists.request_lists_for_first_use(now, out)

    def _cancel_request(self, params: Any) -> bool:
        """Handle ``notifications/cancelled`` from the client. Returns True if the server must not get the notification.

        The server does not get it for deferred requests, which the server never got, and for the gateway's own
        requests.
        """
        request_id = params.get("requestId") if isinstance(params, dict) else None
        if self._lists.is_gateway_id(request_id):
            return True
        if is_id(request_id) and take_off_fast_path(self._open_requests, request_id) is not None:
            self._cancelled.add(request_id)
        return self._deferred.cancel(request_id)

    # Messages of the server

    def _handle_unparsable_server_message(self, data: bytes, problem: PinwardenError, now: float) -> SessionOutput:
        """Handle a message that is not strict JSON, such as a list in which one item cannot be parsed."""
        if is_stray_output(data):
            return NO_OUTPUT
        out = OutputBuilder()
        with self._lock:
            self.guard.refresh(now)
            request_id = find_response_id(data, self._json)
            if self._lists.is_gateway_id(request_id):
                self._handle_gateway_response(data, None, str(request_id), now, out)
                return out.build()
            request = self._take_open_request(request_id)
            if request is None:
                self._audit.record_refused_message(
                    problem.code, "The server sent text that is not strict JSON.", "", "", out
                )
            else:
                self._decide_response(ServerResponse(data, None, request, now), now, out)
        return out.build()

    def _handle_server_message(self, data: bytes, message: Any, now: float, out: OutputBuilder) -> None:
        method = message.get("method")
        if type(method) is not str:
            self._handle_server_response(data, message, now, out)
        elif "id" in message:
            self._server_requests.on_request(data, message, method, out)
        elif not method.startswith(_NOTIFICATION):
            reason = "A request needs an id; some clients execute it without one."
            self._audit.record_refused_message("request_without_id", reason, method[:_MAX_METHOD], "", out)
        elif is_ambiguous_server_request(message):
            self._audit.record_refused_message("message_doubtful", _AMBIGUOUS, method[:_MAX_METHOD], "", out)
        else:
            self._handle_server_notification(data, message, method, now, out)

    def _handle_server_response(self, data: bytes, message: Any, now: float, out: OutputBuilder) -> None:
        request_id = message.get("id")
        if self._lists.is_gateway_id(request_id):
            self._handle_gateway_response(data, message, request_id, now, out)
            return
        request = self._take_open_request(request_id)
        if request is not None:
            self._decide_response(ServerResponse(data, message, request, now), now, out)
        elif request_id is None and "error" in message and not is_ambiguous_response(message):
            self._server_requests.on_error(data, message, out)  # the server could not parse a message
        elif (request := self._take_open_request(coerce_id(request_id))) is not None:
            self._decide_response(ServerResponse(b"", None, request, now), now, out)
        else:
            self._audit.record_refused_message(
                "answer_unasked", "The server sent a response without a request.", "", "", out
            )

    def _handle_gateway_response(
        self, data: bytes, message: Any, request_id: str, now: float, out: OutputBuilder
    ) -> None:
        """Handle a response to a request of the gateway. ``message`` is None if the response cannot be parsed."""
        if self._subscription.is_gateway_id(request_id):
            self._subscription.on_ended(message, now)
            return
        try:
            ready = self._lists.on_response(data, message, request_id, now, out)
        except PinwardenError:
            ready = True  # the approvals cannot be read: deferred requests are refused for that reason
        if ready:
            self._retry_deferred(now, out)

    def _handle_server_notification(
        self, data: bytes, message: Any, method: str, now: float, out: OutputBuilder
    ) -> None:
        params = message.get("params")
        if method == PROGRESS:
            self._timeouts.restart(now)
        for kind in LIST_CHANGED.get(method, ()):
            self._lists.on_list_changed(kind, now, out)
        if self._subscription.owns_notification(method, params):
            self._subscription.on_notification(method, params, now, out)
        elif method not in TASK_NOTIFICATIONS:
            self._server_requests.on_notification(data, message, method, out)
        else:
            self._decide_task_notification(TaskNotification(data, message, now), now, out)

    def _decide_task_notification(self, notification: TaskNotification, now: float, out: OutputBuilder) -> None:
        try:
            decided = self._responses.decide_task_notification(notification, now, out)
        except PinwardenError as err:
            reason = "The notification about a task is malformed or ambiguous."
            self._audit.record_refused_message(err.code, reason, notification.method, "", out)
            return
        if not decided:
            self._deferred.add(notification, out)

    def _decide_response(self, response: ServerResponse, now: float, out: OutputBuilder) -> None:
        """Send a response or a refusal to the client, or defer it."""
        request_id = response.request_id
        if self._timeouts.timed_out and self._timeouts.is_late_response(request_id):
            return  # the client got an error instead
        try:
            decided = self._responses.decide(response, now, out)
        except PinwardenError as err:
            call = self._audit.make_call_id(request_id)
            reason = f"The server's response is malformed or ambiguous: {err.message}"
            self._audit.record_refused_message(err.code, reason, response.method, call, out)
            # The message of the error may quote the server.
            text = "pinwarden: the server's response is refused, because it is malformed or ambiguous"
            details = {"pinwarden": {"code": err.code, "call": call}}
            out.to_client.append(build_error_response(request_id, INTERNAL_ERROR, text, details))
            return
        if not decided:
            response.attempts += 1
            self._deferred.add(response, out)
        elif response.method == "initialize":
            self._lists.end_handshake(self._server.info)
            self._retry_deferred(now, out)
        elif response.method == "server/discover":
            self._lists.on_discovered(self._server.info)
            self._retry_deferred(now, out)
            self._request_lists_for_first_use(now, out)

    def _take_open_request(self, request_id: Any) -> ForwardedRequest | None:
        """Remove and return the open request that a response belongs to."""
        request = self._open_requests.pop(request_id, None) if is_id(request_id) else None
        if self._cancelled and request is not None:
            self._cancelled.discard(request_id)
        return ForwardedRequest(request_id, CALL, request) if isinstance(request, str) else request

    def _refuse_batch(self, messages: list[Any], now: float, out: OutputBuilder) -> None:
        """Refuse each response in a batch, because the negotiated revision has no batches."""
        for message in messages:
            request_id = message.get("id") if type(message) is dict and "method" not in message else None
            if self._lists.is_gateway_id(request_id):
                self._handle_gateway_response(b"", None, str(request_id), now, out)
            elif (request := self._take_open_request(request_id)) is not None:
                self._decide_response(ServerResponse(b"", None, request, now), now, out)

    # Both directions

    def _split_batch(self, data: bytes, message: Any) -> list[tuple[bytes, Any]]:
        """Return the bytes and value of a message, or of each message in a batch. Empty if the value is neither."""
        if type(message) is dict:
            return [(data, message)]
        if type(message) is list and message and self._server.version == BATCH_VERSION:
            parts = list(zip(split_array(data), message, strict=True))
            if all(type(value) is dict for _, value in parts):
                return parts
        return []

    def _retry_deferred(self, now: float, out: OutputBuilder) -> None:
        """Decide on all deferred messages again, in order, because a list arrived or failed."""
        if self._lists.server is not None and self._server.info is None:
            with suppress(PinwardenError):  # unreadable approvals are reported when the server is used
                self._server.check(self._lists.server, out)
        for message in self._deferred.take_all():
            if isinstance(message, ClientRequest):
                self._decide_request(message, now, out)
            elif isinstance(message, ServerResponse):
                self._decide_response(message, now, out)
            else:
                self._decide_task_notification(message, now, out)

    def _subscribe_if_due(self, now: float, out: OutputBuilder) -> None:
        """Subscribe to ``list_changed`` notifications, which servers of the stateless era send only to subscribers."""
        if self._lists.meta is not None and not self._server.is_refused:
            self._subscription.open_if_due(now, self._is_client_subscribed, out)

    def _is_client_subscribed(self, methods: Iterable[str]) -> bool:
        """Whether the client has one subscription that covers all of these notifications."""
        # A copy, because the fast path adds and removes calls without the lock.
        subscriptions = [
            request.target.split()
            for request in tuple(self._open_requests.values())
            if type(request) is ForwardedRequest and request.method == LISTEN
        ]
        return any(set(methods) <= set(subscribed) for subscribed in subscriptions)

    # Requests that fail

    def _fail_timed_out_requests(self, now: float, out: OutputBuilder) -> None:
        """Respond with an error to requests that timed out, and tell the server that they are cancelled."""
        if self._server_requests.open or self.fast_path.progressed:
            self._timeouts.restart(now)  # the server is working, or waits for the user
            self.fast_path.progressed = False
        for request in self._timeouts.find_overdue(self._open_requests, now):
            request_id, was_cancelled = request.request_id, request.request_id in self._cancelled
            # The request stays open, so that its id stays in use and a late response is dropped.
            self._cancelled.add(request_id)
            self._timeouts.add_timed_out(request_id)
            if was_cancelled:
                continue
            reason = f"the server did not respond within {self._timeouts.seconds:g} seconds"
            out.to_client.append(build_error_response(request_id, SERVER_UNAVAILABLE, f"pinwarden: {reason}"))
            if request.method == "initialize":
                self._lists.end_handshake(None)
            else:  # initialize cannot be cancelled
                out.to_server.append(build_notification(CANCELLED, {"requestId": request_id, "reason": reason}))

    def _fail_undelivered(self, message: Any, build_error: Callable[[Any], bytes], out: OutputBuilder) -> None:
        """Respond with an error to a request that the server did not get.

        If it is the gateway's own request for a list, all deferred requests get the error instead.
        """
        request_id = message.get("id")
        if "method" not in message or request_id is None:
            return
        if not self._lists.is_gateway_id(request_id):
            self._cancelled.discard(request_id)
            # If the request is no longer open, another thread has already sent an error for it.
            if self._open_requests.pop(request_id, None) is not None:
                out.to_client.append(build_error(request_id))
            return
        if self._subscription.is_gateway_id(request_id):
            self._subscription.forget_request()
            return
        self._lists.forget_request(request_id)
        out.to_client += [build_error(deferred_id) for deferred_id in self._deferred.take_request_ids()]

    def _parse_outgoing(self, data: bytes) -> Any:
        """Parse a message that the gateway wanted to send, but could not."""
        try:
            return strict_json.parse_json(data, self._json)
        except PinwardenError:
            from pinwarden.surface.probe.message import parse_message

            return parse_message(data, self._json).members


def _build_undelivered_response(request_id: Any) -> bytes:
    return build_error_response(request_id, SERVER_UNAVAILABLE, "pinwarden: the server accepts no more messages")
