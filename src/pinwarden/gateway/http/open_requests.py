"""Open requests: what waits for the responses of a server, and where each response goes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.http1 import Reply
from pinwarden.gateway.http.upstream_connection import NULL_LISTENER, Abortable, ResponseListener
from pinwarden.gateway.session.messages import Frame, RequestId, encode, error_response, typed_id
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
    from pinwarden.gateway.http.conversation import Conversation
    from pinwarden.gateway.http.remote_transport import RemoteTransport

_NEW_IDS = count(1 << 40)  # unlikely to be a client's own, exact in every JSON reader, and
# unique among all conversations, because some of them share a process


class OpenRequests:
    """The open requests of one conversation, by their id towards the server."""

    def __init__(self, conversation: str, most: int) -> None:
        """``conversation`` is its unguessable name; at most ``most`` requests are open at a time."""
        self._conversation = conversation
        self._most = most
        self.by_id: dict[RequestId, PendingRequest | ToolCall] = {}
        self.abandoned: dict[RequestId, None] = {}
        """Requests of clients that left, which the server may still answer; oldest first."""
        self._tokens: dict[RequestId, RequestId] = {}
        self._cancelled: set[PendingRequest | ToolCall] = set()
        """Requests that the client cancelled. Most servers never answer these."""
        self._rewritten = 0

    @property
    def full(self) -> bool:
        """Whether the limit of open requests is reached."""
        return len(self.by_id) >= self._most

    def taken(self, request_id: RequestId) -> bool:
        """Whether another request uses this id."""
        return request_id in self.by_id or request_id in self.abandoned

    def add(
        self, frame: Frame, request_id: RequestId, pending: PendingRequest, *, shared: bool = False
    ) -> tuple[Frame, RequestId]:
        """Add a request. Returns the message and id for the server, rewritten if another request uses its id or token.

        In a process that others share, its own id and progress token may always be taken.
        """
        token = frame.progress_token
        if shared or self.taken(request_id) or (token is not None and token in self._tokens):
            self._rewritten += 1
            pending.rewritten = True
            request_id = (str, f"pinwarden-{self._conversation}-{self._rewritten}")
            frame = with_rewritten_id(frame, request_id[1])
            token = frame.progress_token
        pending.token = token
        self.by_id[request_id] = pending
        if token is not None:
            self._tokens[token] = request_id
        return frame, request_id

    def is_token(self, token: RequestId) -> bool:
        """Whether another request uses this progress token."""
        return token in self._tokens

    def add_call(self, request_id: RequestId, call: ToolCall, token: RequestId | None) -> None:
        """Add a call whose id and token are free."""
        self.by_id[request_id] = call
        if token is not None:
            call.token = token
            self._tokens[token] = request_id

    def new_id(self) -> RequestId | None:
        """A new integer id for a call whose own id is in use, if it is free."""
        request_id = (int, next(_NEW_IDS))
        return None if request_id in self.by_id else request_id

    def forget(self, request_id: RequestId) -> PendingRequest | ToolCall | None:
        """Remove a request that is answered, or will not be."""
        pending = self.by_id.pop(request_id, None)
        if pending is not None and pending.token is not None:
            self._tokens.pop(pending.token, None)
        return pending

    def abandon(self, request_id: RequestId) -> None:
        """Remember that a response which may still come has no receiver."""
        if len(self.abandoned) >= self._most:
            del self.abandoned[next(iter(self.abandoned))]  # most servers never answer these
        self.abandoned[request_id] = None

    def cancel(self, request_id: Any) -> None:
        """The client cancelled a request."""
        key = typed_id(request_id)
        pending = None if key is None else self.by_id.get(key)
        if pending is not None:
            self._cancelled.add(pending)

    def is_cancelled(self, pending: PendingRequest | ToolCall) -> bool:
        """Whether the client cancelled this request."""
        return pending in self._cancelled

    def is_over(self, request_id: RequestId) -> bool:
        """Whether a request was cancelled, or its client left."""
        pending = self.by_id.get(request_id)
        return request_id in self.abandoned or (pending is not None and pending in self._cancelled)

    def due(self, now: float) -> list[tuple[RequestId, PendingRequest | ToolCall]]:
        """Requests whose deadline has passed."""
        self._cancelled.intersection_update(self.by_id.values())
        return [(request_id, pending) for request_id, pending in self.by_id.items() if pending.deadline <= now]

    def of_message(self, frame: Frame, expected_id: RequestId | None) -> PendingRequest | ToolCall | None:
        """The request that a message of the server belongs to: by its token, its subscription, or its stream."""
        token = frame.progress_token if frame.method == PROGRESS else None
        request_id = self._tokens.get(token) if token is not None else None
        if request_id is None:
            request_id = typed_id(frame.meta.get(SUBSCRIPTION_META))
        if request_id is None or request_id not in self.by_id:
            request_id = expected_id
        return None if request_id is None else self.by_id.get(request_id)

    def longest_open(self) -> ResponseSink | ToolCall | None:
        """The oldest request with a connected client: the likeliest cause of a message that names no request."""
        for pending in self.by_id.values():
            if pending not in self._cancelled and pending.sink.open:
                return pending.sink
        return None

    def clear(self) -> None:
        """Forget all."""
        self.by_id.clear()
        self._tokens.clear()
        self._cancelled.clear()


class PendingRequest:
    """A request that is not on the fast path of tool calls."""

    __slots__ = (
        "client_id",
        "client_token",
        "deadline",
        "given_up",
        "parameters",
        "rewritten",
        "sent",
        "sink",
        "token",
    )

    def __init__(self, frame: Frame, sink: ResponseSink, parameters: bytes) -> None:
        self.sink = sink
        self.parameters = parameters
        self.sent = self.deadline = 0.0
        self.client_id = frame.members.get("id")
        self.client_token = frame.meta.get("progressToken")
        self.token: RequestId | None = None
        self.given_up: Callable[[], None] | None = None
        """Called if the client leaves."""
        self.rewritten = False


def with_rewritten_id(frame: Frame, request_id: str) -> Frame:
    """A request under another id, which is also its progress token."""
    text = b'"' + request_id.encode() + b'"'
    data = replace_value(frame.data, ("id",), text)
    if frame.progress_token is not None:
        data = replace_value(data, ("params", "_meta", "progressToken"), text)
    return Frame(data=data, message=_changed(frame, request_id))


def _changed(frame: Frame, request_id: str) -> dict[str, Any]:
    message = {**frame.members, "id": request_id}
    if frame.progress_token is not None:
        message["params"] = {**frame.params, "_meta": {**frame.meta, "progressToken": request_id}}
    return message


def with_client_id(frame: Frame, pending: PendingRequest | ToolCall) -> Frame:
    """A message of the server with the client's own id and progress token, in bytes and in members."""
    if not pending.rewritten:
        return frame
    data, message = frame.data, {**frame.members}
    if "id" in message and "method" not in message:
        data = replace_value(data, ("id",), encode(pending.client_id))
        message["id"] = pending.client_id
    if frame.method == PROGRESS and "progressToken" in frame.params:
        data = replace_value(data, ("params", "progressToken"), encode(pending.client_token))
        message["params"] = {**frame.params, "progressToken": pending.client_token}
    if SUBSCRIPTION_META in frame.meta:
        data = replace_value(data, ("params", "_meta", SUBSCRIPTION_META), encode(pending.client_id))
        meta = {**frame.meta, SUBSCRIPTION_META: pending.client_id}
        message["params"] = {**message["params"], "_meta": meta}
    return Frame(data, frame.message if frame.message is None else message)


OK = 200


class ToolCall:
    """A tool call on the fast path.

    Nearly every request is one, so one object serves all sides: it is the open request of the conversation, the current
    request of the client's connection, and the request on the connection to the server. What is not plain about a call
    is delegated to `HttpResponseSink` and `Reply`, which are created when needed.
    """

    __slots__ = (
        *("_connection", "_conversation", "_exchange", "_modern", "data", "deadline", "given_up", "link", "listener"),
        *("request_id", "client_id", "parameters", "rewritten", "sent", "token", "upstream"),
    )
    client_token = None
    stream = False

    def __init__(  # noqa: PLR0913, PLR0917  a value of many parts
        self,
        conversation: Conversation,
        connection: ClientConnection,
        request_id: RequestId,
        client_id: int | str,
        parameters: bytes,
        sent: float,
        *,
        modern: bool,
    ) -> None:
        self._conversation = conversation
        self._connection: ClientConnection | None = connection
        self._exchange: HttpResponseSink | None = None
        self._modern = modern
        self.request_id = request_id
        """Its id towards the server."""
        self.client_id = client_id
        """The id that the client chose."""
        self.rewritten = request_id[1] is not client_id
        self.token: RequestId | None = None
        """Its progress token. The id of a call with a token is never rewritten."""
        self.parameters = parameters
        self.sent = self.deadline = sent
        self.data = b""
        self.given_up = False
        self.listener: ResponseListener = NULL_LISTENER
        self.link: RemoteTransport | None = None
        self.upstream: Abortable | None = None

    # For the conversation

    @property
    def sink(self) -> ToolCall:
        """The receiver of the response."""
        return self

    @property
    def open(self) -> bool:
        """Whether the client is still connected."""
        return self._connection is not None

    def result(self, data: bytes, message: Any) -> None:
        """The response is a result, and no other message came before it."""
        connection = self._connection
        if connection is None:
            return  # the client left
        if self.rewritten:
            client_id = self.client_id
            restored = replace_id(data, self.request_id[1], client_id) if type(client_id) is int else None
            data = replace_value(data, ("id",), encode(self.client_id)) if restored is None else restored
        if self._exchange is not None:
            self._exchange.answered(Frame(data, message), 0)
        else:
            connection.result(data)

    def message(self, frame: Frame) -> None:
        """A message that belongs to the call and is not its response."""
        self._general().message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The response."""
        self._general().answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        """There will be no response."""
        self._general().failed(code, why)

    def refused_unread(self, why: str) -> None:
        """There will be no response in this session."""
        self._general().refused_unread(why)

    def dropped(self) -> None:
        """There will be no response, and the client cancelled the call."""
        self._general().dropped()

    def _general(self) -> HttpResponseSink:
        if self._exchange is None:
            reply = Reply(self._connection, keep_alive=True)
            reply.on_gone = self.gone
            reply.client = self.client
            if self._connection is not None:
                self._connection.begin(reply)
            self._exchange = HttpResponseSink(reply, self.client_id, modern=self._modern)
        return self._exchange

    # For the client's connection

    def gone(self) -> None:
        """The client disconnected, which cancels a call of the stateless era."""
        self._connection = None
        if self._modern:
            self._conversation.give_up(self.request_id)

    # For the connection to the server

    @property
    def client(self) -> str:
        """The name of the client."""
        return self._conversation.session.client

    def give_up(self) -> None:
        """Cancel the call by closing its upstream connection."""
        self.given_up = True
        self.data = b""
        if self.upstream is not None:
            self.upstream.abort()

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """The response came in one piece."""
        if status != OK or body[:1] != b"{" or body[-1:] != b"}" or self.link is None:
            self._general_listener().on_whole(status, session, body)
            return
        conversation = self._conversation
        self.listener = NULL_LISTENER  # break the reference cycle
        self.link.answered(self.request_id)
        if not conversation.from_server(body, expected_id=self.request_id):
            conversation.unanswered(self.request_id, "the response was empty")

    def on_head(self, status: int, session: str) -> None:
        """The response comes in parts."""
        self._general_listener().on_head(status, session)

    def on_frame(self, frame: bytes) -> None:
        """Never called: `on_head` replaces the listener."""

    def on_end(self) -> None:
        """Never called: `on_head` replaces the listener."""

    def on_lost(self, why: str, *, sent: bool) -> None:
        """There is no complete response."""
        self._general_listener().on_lost(why, sent=sent)

    def _general_listener(self) -> ResponseListener:
        if self.link is not None:
            self.listener = self.link.listener(self.request_id)
        return self.listener


class ResponseSink(Protocol):
    """Receives the response to a request."""

    @property
    def open(self) -> bool:
        """Whether messages before the response can still be delivered."""

    def message(self, frame: Frame) -> None:
        """A message that belongs to the request and is not its response."""

    def answered(self, frame: Frame, status: int) -> None:
        """The response."""

    def failed(self, code: int, why: str) -> None:
        """There will be no response."""

    def refused_unread(self, why: str) -> None:
        """The server did not execute the request, because it does not know the session."""

    def dropped(self) -> None:
        """There will be no response, and the client cancelled the request."""


class HttpResponseSink:
    """Answers a POST: with one document if the response comes first, otherwise with an event stream."""

    __slots__ = ("_headers", "_id", "_modern", "_reply")

    def __init__(
        self, reply: Reply, request_id: Any, *, modern: bool = False, headers: dict[str, str] | None = None
    ) -> None:
        self._reply = reply
        self._id = request_id
        self._modern = modern
        self._headers = headers

    @property
    def open(self) -> bool:
        """Whether the client is still connected."""
        return self._reply.open

    def message(self, frame: Frame) -> None:
        """Send an event before the response."""
        self._reply.start_events(self._headers)
        self._reply.event(frame.data)

    def answered(self, frame: Frame, status: int) -> None:
        """Send the response."""
        reply = self._reply
        if reply.streaming:
            reply.event(frame.data)
            reply.end_events()
            return
        if not status:
            status = _status_of(frame.message) if self._modern else 200
        reply.send(status, frame.data, headers=self._headers)

    def failed(self, code: int, why: str) -> None:
        """Send an error as the response."""
        data = error_response(self._id, code, why)
        if self._reply.streaming:
            self._reply.event(data)
            self._reply.end_events()
        else:
            # Older clients show the reason only if the status is 200.
            self._reply.send(200, data, headers=self._headers)

    def refused_unread(self, why: str) -> None:
        """Send status 404, by which clients of the handshake era know that they need a new session."""
        if self._modern or self._reply.streaming:
            self.failed(SERVER_UNAVAILABLE, why)
        else:
            self._reply.send(404, error_response(self._id, SERVER_UNAVAILABLE, why), headers=self._headers)

    def dropped(self) -> None:
        """End the exchange without a response, as servers do after a cancellation."""
        self._reply.start_events(self._headers)
        self._reply.end_events()


_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, METHOD_NOT_FOUND: 404}
_STATUS |= {CAPABILITY_MISSING: 400, VERSION_UNSUPPORTED: 400}


def _status_of(message: Any) -> int:
    """The HTTP status for a response of the stateless era."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict):
        return 200
    code = error.get("code")
    return _STATUS.get(code, 200) if type(code) is int else 200
