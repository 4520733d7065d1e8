"""Open requests of a conversation, and the sinks that receive the responses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.http1 import Reply
from pinwarden.gateway.http.upstream_connection import (
    NULL_LISTENER,
    Abortable,
    ResponseListener,
    UpstreamRequest,
)
from pinwarden.gateway.http.upstream_transport import PostedRequest
from pinwarden.gateway.session.messages import (
    CALL,
    ParsedMessage,
    RequestId,
    build_error_response,
    encode,
    to_request_id,
)
from pinwarden.gateway.session.splice import replace_id, replace_value
from pinwarden.surface.protocol import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROGRESS,
    SERVER_UNAVAILABLE,
    SUBSCRIPTION_META,
    VERSION_UNSUPPORTED,
)

if TYPE_CHECKING:
    from pinwarden.gateway.http.message_relay import MessageRelay
    from pinwarden.gateway.http.remote_transport import RemoteTransport

# All conversations use one counter, because some share a process. The ids are above the ids of most clients, and every
# JSON parser represents them exactly.
_NEW_IDS = count(1 << 40)


class OpenRequests:
    """The open requests of one conversation, by upstream id."""

    def __init__(self, conversation: str, max_open: int) -> None:
        """``conversation`` is the unguessable name of the conversation. ``max_open`` limits the open requests."""
        self._conversation = conversation
        self._max_open = max_open
        self.by_id: dict[RequestId, PendingRequest | ToolCall] = {}
        self.abandoned: dict[RequestId, None] = {}
        """Requests of disconnected clients whose responses may still arrive, oldest first."""
        self._tokens: dict[RequestId, RequestId] = {}
        self._cancelled: set[PendingRequest | ToolCall] = set()
        """Requests that the client cancelled. Most servers never respond to cancelled requests."""
        self._rewritten = 0

    @property
    def is_full(self) -> bool:
        """Whether the limit of open requests is reached."""
        return len(self.by_id) >= self._max_open

    def is_id_in_use(self, request_id: RequestId) -> bool:
        """Whether an open or abandoned request uses this id."""
        return request_id in self.by_id or request_id in self.abandoned

    def add(
        self, message: ParsedMessage, request_id: RequestId, pending: PendingRequest, *, shared: bool = False
    ) -> tuple[ParsedMessage, RequestId]:
        """Add a request. Returns the message to send to the server, and its id there.

        If an earlier request uses the same id or progress token, the new request gets an unused id, which also replaces
        its progress token. In a shared process, every request gets one, because other clients may use the same values.
        """
        token = message.progress_token
        if shared or self.is_id_in_use(request_id) or (token is not None and token in self._tokens):
            self._rewritten += 1
            pending.rewritten = True
            request_id = (str, f"pinwarden-{self._conversation}-{self._rewritten}")
            message = rewrite_id(message, request_id[1])
            token = message.progress_token
        pending.token = token
        self.by_id[request_id] = pending
        if token is not None:
            self._tokens[token] = request_id
        return message, request_id

    def is_token_in_use(self, token: RequestId) -> bool:
        """Whether an open request uses this progress token."""
        return token in self._tokens

    def add_call(self, request_id: RequestId, call: ToolCall, token: RequestId | None) -> None:
        """Add a tool call whose id and progress token no other request uses."""
        self.by_id[request_id] = call
        if token is not None:
            call.token = token
            self._tokens[token] = request_id

    def allocate_id(self) -> RequestId | None:
        """Return an integer to use instead of a call's own id; None if an open request happens to use that integer."""
        request_id = (int, next(_NEW_IDS))
        return None if request_id in self.by_id else request_id

    def forget(self, request_id: RequestId) -> PendingRequest | ToolCall | None:
        """Remove and return a request that got its response or will get none; None if no request has this id."""
        pending = self.by_id.pop(request_id, None)
        if pending is not None and pending.token is not None:
            self._tokens.pop(pending.token, None)
        return pending

    def abandon(self, request_id: RequestId) -> None:
        """Remember the id of a removed request, so that a late response is dropped."""
        if len(self.abandoned) >= self._max_open:
            del self.abandoned[next(iter(self.abandoned))]  # most servers never respond to cancelled requests
        self.abandoned[request_id] = None

    def cancel(self, request_id: Any) -> None:
        """Mark a request as cancelled by the client."""
        key = to_request_id(request_id)
        pending = None if key is None else self.by_id.get(key)
        if pending is not None:
            self._cancelled.add(pending)

    def is_cancelled(self, pending: PendingRequest | ToolCall) -> bool:
        """Whether the client cancelled this request."""
        return pending in self._cancelled

    def is_unwanted(self, request_id: RequestId) -> bool:
        """Whether a request was cancelled, or its client disconnected."""
        pending = self.by_id.get(request_id)
        return request_id in self.abandoned or (pending is not None and pending in self._cancelled)

    def find_overdue(self, now: float) -> list[tuple[RequestId, PendingRequest | ToolCall]]:
        """Find the requests whose deadline has passed."""
        self._cancelled.intersection_update(self.by_id.values())
        return [(request_id, pending) for request_id, pending in self.by_id.items() if pending.deadline <= now]

    def find_by_message(
        self, message: ParsedMessage, expected_id: RequestId | None
    ) -> PendingRequest | ToolCall | None:
        """Find the request that a server message belongs to, by progress token, subscription or response stream."""
        token = message.progress_token if message.method == PROGRESS else None
        request_id = self._tokens.get(token) if token is not None else None
        if request_id is None:
            request_id = to_request_id(message.meta.get(SUBSCRIPTION_META))
        if request_id is None or request_id not in self.by_id:
            request_id = expected_id
        return None if request_id is None else self.by_id.get(request_id)

    def find_oldest_open_sink(self) -> ResponseSink | ToolCall | None:
        """Find the sink of the oldest request with a connected client, for a server message that names no request."""
        for pending in self.by_id.values():
            if pending not in self._cancelled and pending.sink.is_open:
                return pending.sink
        return None

    def clear(self) -> None:
        """Remove all open requests."""
        self.by_id.clear()
        self._tokens.clear()
        self._cancelled.clear()


class PendingRequest:
    """An open request on the general path."""

    __slots__ = (
        "client_id",
        "client_token",
        "deadline",
        "method",
        "on_cancelled",
        "param_headers",
        "rewritten",
        "sent_at",
        "sink",
        "token",
        "tool",
    )

    def __init__(self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes) -> None:
        self.sink = sink
        self.param_headers = param_headers
        self.sent_at = self.deadline = 0.0
        self.method = message.method
        name = message.params.get("name") if message.method == CALL else None
        self.tool = name if type(name) is str else ""
        """The tool that the client calls; empty for other methods."""
        self.client_id = message.members.get("id")
        self.client_token = message.meta.get("progressToken")
        self.token: RequestId | None = None
        self.on_cancelled: Callable[[], None] | None = None
        """Called if the client disconnects."""
        self.rewritten = False


def rewrite_id(message: ParsedMessage, request_id: str) -> ParsedMessage:
    """Replace the id of a request. If the request has a progress token, the new id replaces that too."""
    text = b'"' + request_id.encode() + b'"'
    data = replace_value(message.data, ("id",), text)
    if message.progress_token is not None:
        data = replace_value(data, ("params", "_meta", "progressToken"), text)
    return ParsedMessage(data=data, value=_rewrite_members(message, request_id))


def _rewrite_members(message: ParsedMessage, request_id: str) -> dict[str, Any]:
    members = {**message.members, "id": request_id}
    if message.progress_token is not None:
        members["params"] = {**message.params, "_meta": {**message.meta, "progressToken": request_id}}
    return members


def restore_client_id(message: ParsedMessage, pending: PendingRequest | ToolCall) -> ParsedMessage:
    """Restore the client's id and progress token in a server message."""
    if not pending.rewritten:
        return message
    data, members = message.data, {**message.members}
    if "id" in members and "method" not in members:
        data = replace_value(data, ("id",), encode(pending.client_id))
        members["id"] = pending.client_id
    if message.method == PROGRESS and "progressToken" in message.params:
        data = replace_value(data, ("params", "progressToken"), encode(pending.client_token))
        members["params"] = {**message.params, "progressToken": pending.client_token}
    if SUBSCRIPTION_META in message.meta:
        data = replace_value(data, ("params", "_meta", SUBSCRIPTION_META), encode(pending.client_id))
        meta = {**message.meta, SUBSCRIPTION_META: pending.client_id}
        members["params"] = {**members["params"], "_meta": meta}
    return ParsedMessage(data, message.value if message.value is None else members)


OK = 200


class ToolCall(PostedRequest, UpstreamRequest):
    """A tool call from a cached route, which the fast path admitted or on which the session decides.

    Nearly every request is a tool call, so one object serves all sides: it is the open request of the conversation, the
    current request of the client's connection, and the request on the connection to the server. If the response is not
    a single result, the call delegates to an `HttpResponseSink` and a `Reply`, which are created when needed.
    """

    __slots__ = (
        *(
            "_connection",
            "_conversation",
            "_fallback",
            "_stateless",
            "data",
            "deadline",
            "cancelled",
            "transport",
            "listener",
        ),
        *("client_id", "rewritten", "sent_at", "token", "tool", "upstream"),
    )
    client_token = None
    method = CALL
    param_headers = b""  # a call with ``mcp-param-`` headers takes no cached route
    stream = False

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        conversation: MessageRelay,
        connection: ClientConnection,
        request_id: RequestId,
        client_id: int | str,
        tool: str,
        sent_at: float,
        *,
        stateless: bool,
    ) -> None:
        self._conversation = conversation
        self._connection: ClientConnection | None = connection
        self._fallback: HttpResponseSink | None = None
        self._stateless = stateless
        super().__init__(request_id)
        self.client_id = client_id
        """The id that the client chose."""
        self.tool = tool
        self.rewritten = request_id[1] is not client_id
        self.token: RequestId | None = None
        """The progress token. The id of a call with a token is never rewritten."""
        self.sent_at = self.deadline = sent_at
        self.data = b""
        self.cancelled = False
        self.listener: ResponseListener = NULL_LISTENER
        self.transport: RemoteTransport | None = None
        self.upstream: Abortable | None = None

    # For the conversation

    @property
    def sink(self) -> ToolCall:
        """The sink for the response: the call itself."""
        return self

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return self._connection is not None

    def send_result(self, data: bytes, message: Any) -> None:
        """Send the result to the client. It is the whole response, unless another message was sent before."""
        self.has_response = True
        connection = self._connection
        if connection is None:
            return  # the client disconnected
        if self.rewritten:
            client_id = self.client_id
            restored = replace_id(data, self.request_id[1], client_id) if type(client_id) is int else None
            data = replace_value(data, ("id",), encode(self.client_id)) if restored is None else restored
        if self._fallback is not None:
            self._fallback.respond(ParsedMessage(data, message), 0)
        else:
            connection.send_result(data)

    def send_message(self, message: ParsedMessage) -> None:
        """Send a message that belongs to the call, before its response."""
        self._get_fallback_sink().send_message(message)

    def respond(self, message: ParsedMessage, status: int) -> None:
        """Send the response."""
        self._get_fallback_sink().respond(message, status)

    def fail(self, code: int, reason: str) -> None:
        """Send an error as the response."""
        self._get_fallback_sink().fail(code, reason)

    def fail_not_executed(self, reason: str) -> None:
        """Send an error which says that the server did not execute the call."""
        self._get_fallback_sink().fail_not_executed(reason)

    def drop(self) -> None:
        """End the call without a response, because the client cancelled it."""
        self._get_fallback_sink().drop()

    def _get_fallback_sink(self) -> HttpResponseSink:
        if self._fallback is None:
            reply = Reply(self._connection, keep_alive=True)
            reply.on_disconnect = self.handle_disconnect
            reply.client = self.client
            if self._connection is not None:
                self._connection.begin_response(reply)
            self._fallback = HttpResponseSink(reply, self.client_id, stateless=self._stateless)
        return self._fallback

    # For the client's connection

    def handle_disconnect(self) -> None:
        """Handle that the client disconnected: a stateless call is cancelled, a call in a session continues."""
        self._connection = None
        if self._stateless:
            self._conversation.cancel(self.request_id)

    # For the connection to the server

    @property
    def client(self) -> str:
        """The name of the client."""
        return self._conversation.session.client

    def on_response(self, status: int, session: str, body: bytes) -> None:
        """Handle a response that arrived in one piece."""
        if status != OK or body[:1] != b"{" or body[-1:] != b"}" or self.transport is None:
            self._create_fallback_listener().on_response(status, session, body)
            return
        conversation = self._conversation
        self.listener = NULL_LISTENER  # break the reference cycle
        self.transport.forget_post(self.request_id)
        conversation.on_server_message(body, self)
        if not self.has_response:
            conversation.on_response_ended(self, "the response was empty")

    def on_challenge(self, challenge: str) -> None:
        """Pass a refusal on to a general listener."""
        self._create_fallback_listener().on_challenge(challenge)

    def on_head(self, status: int, session: str) -> None:
        """Pass the response on to a general listener, because it arrives in parts."""
        self._create_fallback_listener().on_head(status, session)

    def on_message(self, message: bytes) -> None:
        """Never called, because `on_head` replaces the listener."""

    def on_end(self) -> None:
        """Never called, because `on_head` replaces the listener."""

    def on_lost(self, reason: str, *, was_sent: bool) -> None:
        """Handle that the connection ended before the response was complete."""
        self._create_fallback_listener().on_lost(reason, was_sent=was_sent)

    def _create_fallback_listener(self) -> ResponseListener:
        if self.transport is not None:
            self.listener = self.transport.create_listener(self.request_id)
        return self.listener


class ResponseSink(Protocol):
    """Receives the response to a request, and messages that the server sends before it."""

    @property
    def is_open(self) -> bool:
        """Whether messages before the response can still be delivered."""

    def send_message(self, message: ParsedMessage) -> None:
        """Deliver a message that belongs to the request, before its response."""

    def respond(self, message: ParsedMessage, status: int) -> None:
        """Deliver the response."""

    def fail(self, code: int, reason: str) -> None:
        """Deliver an error instead of a response."""

    def fail_not_executed(self, reason: str) -> None:
        """Deliver an error: the server did not execute the request, because it does not know the session."""

    def drop(self) -> None:
        """End without a response, because the client cancelled the request."""


class HttpResponseSink:
    """Responds to a POST with one JSON document, or with an event stream if other messages come before the response."""

    __slots__ = ("_headers", "_id", "_reply", "_stateless")

    def __init__(
        self, reply: Reply, request_id: Any, *, stateless: bool = False, headers: dict[str, str] | None = None
    ) -> None:
        self._reply = reply
        self._id = request_id
        self._stateless = stateless
        self._headers = headers

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return self._reply.is_open

    def send_message(self, message: ParsedMessage) -> None:
        """Send an event before the response."""
        self._reply.start_events(self._headers)
        self._reply.send_event(message.data)

    def respond(self, message: ParsedMessage, status: int) -> None:
        """Send the response."""
        reply = self._reply
        if reply.streaming:
            reply.send_event(message.data)
            reply.end_events()
            return
        if not status:
            status = _choose_status(message.value) if self._stateless else 200
        reply.send(status, message.data, headers=self._headers)

    def fail(self, code: int, reason: str) -> None:
        """Send an error as the response."""
        data = build_error_response(self._id, code, reason)
        if self._reply.streaming:
            self._reply.send_event(data)
            self._reply.end_events()
        else:
            # Older clients show the reason only if the status is 200.
            self._reply.send(200, data, headers=self._headers)

    def fail_not_executed(self, reason: str) -> None:
        """Send status 404, so that the client opens a new session. Stateless requests and streams get an error."""
        if self._stateless or self._reply.streaming:
            self.fail(SERVER_UNAVAILABLE, reason)
        else:
            self._reply.send(404, build_error_response(self._id, SERVER_UNAVAILABLE, reason), headers=self._headers)

    def drop(self) -> None:
        """End the event stream without a response, as servers do after a cancellation."""
        self._reply.start_events(self._headers)
        self._reply.end_events()


_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, METHOD_NOT_FOUND: 404}
_STATUS |= {CAPABILITY_MISSING: 400, VERSION_UNSUPPORTED: 400}


def _choose_status(message: Any) -> int:
    """Choose the HTTP status for a response of the stateless era."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict):
        return 200
    code = error.get("code")
    return _STATUS.get(code, 200) if type(code) is int else 200
