"""The requests of one conversation that the server has not answered, by the id that they have on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.frames import (
    Frame,
    RequestId,
    encode,
    error_frame,
    replace_id,
    replace_value,
    request_id_of,
    status_of,
)
from pinwarden.gateway.http.http1 import Reply
from pinwarden.gateway.http.upstream_connection import NULL_LISTENER, Abortable, ResponseListener
from pinwarden.surface.protocol import PROGRESS, SERVER_AWAY, SUBSCRIPTION_META

if TYPE_CHECKING:
    from pinwarden.gateway.http.conversation import Conversation
    from pinwarden.gateway.http.remote_transport import RemoteTransport

_NEW_IDS = count(1 << 40)  # ids that no client is likely to choose, that every reader takes for a whole number, and
# that are unique among all conversations: some of them share a process


class OpenRequests:
    """Who waits for which answer, and for which answers nobody waits any more."""

    def __init__(self, conversation: str, most: int) -> None:
        """``conversation`` is its name, which is hard to guess; ``most`` may be open at once."""
        self._conversation = conversation
        self._most = most
        self.by_id: dict[RequestId, PendingRequest | ToolCall] = {}
        self.abandoned: dict[RequestId, None] = {}
        """Requests that nobody waits for, and that the server may still answer; the oldest are first."""
        self._tokens: dict[RequestId, RequestId] = {}
        self._cancelled: set[PendingRequest | ToolCall] = set()
        """Requests of which the client said that it does not wait any more. Most servers never answer these."""
        self._rewritten = 0

    @property
    def full(self) -> bool:
        """Whether there is room for none."""
        return len(self.by_id) >= self._most

    def taken(self, request_id: RequestId) -> bool:
        """Whether an answer under this id would be taken for another one's."""
        return request_id in self.by_id or request_id in self.abandoned

    def add(
        self, frame: Frame, request_id: RequestId, pending: PendingRequest, *, shared: bool = False
    ) -> tuple[Frame, RequestId]:
        """One more, and the message and the id under which it goes to the server: another one, if its own is taken.

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
        """Whether progress under this token would be taken for another request's."""
        return token in self._tokens

    def add_call(self, request_id: RequestId, call: ToolCall, token: RequestId | None) -> None:
        """A call whose id and token are not taken."""
        self.by_id[request_id] = call
        if token is not None:
            call.token = token
            self._tokens[token] = request_id

    def new_id(self) -> RequestId | None:
        """A whole number for a call whose own is taken, if there is one."""
        request_id = (int, next(_NEW_IDS))
        return None if request_id in self.by_id else request_id

    def forget(self, request_id: RequestId) -> PendingRequest | ToolCall | None:
        """Whoever waits for an answer, which is here, or will not come."""
        pending = self.by_id.pop(request_id, None)
        if pending is not None and pending.token is not None:
            self._tokens.pop(pending.token, None)
        return pending

    def abandon(self, request_id: RequestId) -> None:
        """Nobody waits for an answer that may still come."""
        if len(self.abandoned) >= self._most:
            del self.abandoned[next(iter(self.abandoned))]  # most servers never answer these
        self.abandoned[request_id] = None

    def cancel(self, request_id: Any) -> None:
        """The client says that it does not wait for the answer to a request."""
        key = request_id_of(request_id)
        pending = None if key is None else self.by_id.get(key)
        if pending is not None:
            self._cancelled.add(pending)

    def is_cancelled(self, pending: PendingRequest | ToolCall) -> bool:
        """Whether the client said so of this one."""
        return pending in self._cancelled

    def is_over(self, request_id: RequestId) -> bool:
        """Whether nobody waits for the answer to a request, whatever was told about that."""
        pending = self.by_id.get(request_id)
        return request_id in self.abandoned or (pending is not None and pending in self._cancelled)

    def due(self, now: float) -> list[tuple[RequestId, PendingRequest | ToolCall]]:
        """Those whose answer should have come by now."""
        self._cancelled.intersection_update(self.by_id.values())
        return [(request_id, pending) for request_id, pending in self.by_id.items() if pending.deadline <= now]

    def of_message(self, frame: Frame, expected_id: RequestId | None) -> PendingRequest | ToolCall | None:
        """The request that a message of the server belongs to: by what it says itself, or by where it came."""
        token = frame.progress_token if frame.method == PROGRESS else None
        request_id = self._tokens.get(token) if token is not None else None
        if request_id is None:
            request_id = request_id_of(frame.meta.get(SUBSCRIPTION_META))
        if request_id is None or request_id not in self.by_id:
            request_id = expected_id
        return None if request_id is None else self.by_id.get(request_id)

    def longest_open(self) -> ResponseSink | ToolCall | None:
        """Who waits longest, of those who still hear: the likeliest reason for a message that names none."""
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
    """Any request but a plain call."""

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
        """Called if nobody waits any more."""
        self.rewritten = False


def with_rewritten_id(frame: Frame, request_id: str) -> Frame:
    """A request under another id; its progress is told by that id too."""
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
    """A message of the server under the id and the progress token that the client chose, in bytes and in members."""
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
    """One call."""

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
        """Its id on the way to the server."""
        self.client_id = client_id
        """The id that the client chose."""
        self.rewritten = request_id[1] is not client_id
        self.token: RequestId | None = None
        """By which the server reports progress. A call with a token is never renumbered."""
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
        """Who waits."""
        return self

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self._connection is not None

    def result(self, data: bytes, message: Any) -> None:
        """The answer is a result, and nothing else came before it."""
        connection = self._connection
        if connection is None:
            return  # nobody waits
        if self.rewritten:
            client_id = self.client_id
            restored = replace_id(data, self.request_id[1], client_id) if type(client_id) is int else None
            data = replace_value(data, ("id",), encode(self.client_id)) if restored is None else restored
        if self._exchange is not None:
            self._exchange.answered(Frame(data, message), 0)
        else:
            connection.result(data)

    def message(self, frame: Frame) -> None:
        """A message that belongs to the call and is not its answer."""
        self._general().message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""
        self._general().answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        """There will be no answer."""
        self._general().failed(code, why)

    def refused_unread(self, why: str) -> None:
        """There will be no answer in this session."""
        self._general().refused_unread(why)

    def dropped(self) -> None:
        """There will be no answer, and nobody waits for one."""
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

    # For the connection of the client

    def gone(self) -> None:
        """The client went away. In the newest revision that is how a call is cancelled."""
        self._connection = None
        if self._modern:
            self._conversation.give_up(self.request_id)

    # For the connection to the server

    @property
    def client(self) -> str:
        """Whose call it is."""
        return self._conversation.session.client

    def give_up(self) -> None:
        """Cut it off: the server sees that nobody waits for the answer."""
        self.given_up = True
        self.data = b""
        if self.upstream is not None:
            self.upstream.abort()

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """The answer came in one piece."""
        if status != OK or body[:1] != b"{" or body[-1:] != b"}" or self.link is None:
            self._general_listener().on_whole(status, session, body)
            return
        conversation = self._conversation
        self.listener = NULL_LISTENER  # and so it is gone with its answer, without a search for circles
        self.link.answered(self.request_id)
        if not conversation.from_server(body, expected_id=self.request_id):
            conversation.unanswered(self.request_id, "no answer came")

    def on_head(self, status: int, session: str) -> None:
        """The answer comes in parts."""
        self._general_listener().on_head(status, session)

    def on_frame(self, frame: bytes) -> None:
        """Not without a head."""

    def on_end(self) -> None:
        """Not without a head."""

    def on_lost(self, why: str, *, sent: bool) -> None:
        """There is no answer."""
        self._general_listener().on_lost(why, sent=sent)

    def _general_listener(self) -> ResponseListener:
        if self.link is not None:
            self.listener = self.link.listener(self.request_id)
        return self.listener


class ResponseSink(Protocol):
    """Who waits for the answer to a request."""

    @property
    def open(self) -> bool:
        """Whether anybody still hears what is told before the answer."""

    def message(self, frame: Frame) -> None:
        """A message that belongs to the request and is not its answer."""

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""

    def failed(self, code: int, why: str) -> None:
        """There will be no answer."""

    def refused_unread(self, why: str) -> None:
        """There will be no answer in this session, and the server did not execute the request."""

    def dropped(self) -> None:
        """There will be no answer, and the client said that it waits for none."""


class HttpResponseSink:
    """A POST. It is answered with one document if the answer is the first thing that comes, else with a stream."""

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
        """Whether the client still waits."""
        return self._reply.open

    def message(self, frame: Frame) -> None:
        """An event before the answer."""
        self._reply.start_events(self._headers)
        self._reply.event(frame.data)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer ends the exchange."""
        reply = self._reply
        if reply.streaming:
            reply.event(frame.data)
            reply.end_events()
            return
        if not status:
            status = status_of(frame.message) if self._modern else 200
        reply.send(status, frame.data, headers=self._headers)

    def failed(self, code: int, why: str) -> None:
        """Tell it as the answer to the request."""
        data = error_frame(self._id, code, why)
        if self._reply.streaming:
            self._reply.event(data)
            self._reply.end_events()
        else:
            # A status of its own would make older clients forget the reason.
            self._reply.send(200, data, headers=self._headers)

    def refused_unread(self, why: str) -> None:
        """Tell it with the status by which clients of a session know that they have to begin another one."""
        if self._modern or self._reply.streaming:
            self.failed(SERVER_AWAY, why)
        else:
            self._reply.send(404, error_frame(self._id, SERVER_AWAY, why), headers=self._headers)

    def dropped(self) -> None:
        """End it without a word, as servers do that were told to cancel."""
        self._reply.start_events(self._headers)
        self._reply.end_events()
