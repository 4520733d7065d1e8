"""The transport to a remote server, which sends each message as a POST and receives JSON or event streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.http.header_checks import ROUTING_PARAMETERS, encode_header
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.upstream_connection import (
    NULL_LISTENER,
    GeneralRequest,
    NullListener,
    ResponseListener,
    UpstreamRequest,
)
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import PostedRequest, TransportOwner
from pinwarden.gateway.session.messages import LISTEN, ParsedMessage, RequestId, encode, parse_server_value
from pinwarden.surface.protocol import CANCELLED, INITIALIZED, STATELESS_VERSIONS, VERSION_META
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall

_MAX_SESSION_ID = 1024
_UNREAD = "the server does not read its input"
_TOO_MANY_STREAMS = "too many streams to this server are open; close one, or try again later"
_MAX_CACHED = 256  # maximum number of cached header blocks
_MAX_CACHED_BYTES = 2048  # maximum size of a cached header block
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SESSION_ENDED = "the server ended the session"
_PING = encode({"jsonrpc": "2.0", "id": "pinwarden/session", "method": "ping"})
_BAD_REQUEST, _NOT_FOUND = 400, 404
_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "accept", "accept-encoding", "connection"})


class RemoteServer(Record):
    """A remote server: its connection pool, path and fixed headers."""

    pool: UpstreamPool
    head: bytes = field(repr=False)
    """The headers of every request, including credentials."""
    path: bytes = field(repr=False)

    @classmethod
    def create(cls, pool: UpstreamPool, address: HttpAddress, headers: Mapping[str, str]) -> RemoteServer:
        """Return the server at an address. Raises if a header is not valid."""
        for name, value in headers.items():
            # A value may come from a variable. A line end in it would inject a header or a request.
            if not _HEADER_NAME.fullmatch(name):
                raise PinwardenError("TARGET_INVALID", f"{name[:80]!a} is not a valid header name")
            if not _HEADER_VALUE.fullmatch(value):
                raise PinwardenError(
                    "TARGET_INVALID",
                    f"the header {name[:80]} contains line ends, control characters or characters outside Latin-1",
                )
        lines = [f"host: {address.host_header}", "accept-encoding: identity", "user-agent: pinwarden"]
        lines += [f"{name.lower()}: {value}" for name, value in headers.items() if name.lower() not in _OWN_HEADERS]
        return cls(
            pool=pool, head="".join(f"{line}\r\n" for line in lines).encode("latin-1"), path=address.path.encode()
        )


class RemoteTransport:
    """The transport of one conversation with a remote server."""

    evicted = False
    shared = False
    has_single_client = True

    def __init__(self, server: RemoteServer, owner: TransportOwner, limits: HttpLimits) -> None:
        self._server = server
        server.pool.budget = owner.budget
        self._owner = owner
        self.json = Limits(max_bytes=limits.max_server_message_bytes)
        self._session = b""
        self._version = b""
        self._handshaken = False
        """Whether ``initialize`` succeeded, so that later messages belong to a session."""
        self._server_session_ended = False
        self._unknown_session_posts: list[PostListener] = []
        """Posts with a status that may mean that the server does not know the session."""
        self._heads: dict[tuple[str, str, str | None], bytes] = {}
        self._call_heads: dict[tuple[str, str], bytes] = {}
        self._posts: dict[RequestId, tuple[UpstreamRequest, float]] = {}
        self._notifications: dict[PostListener, tuple[UpstreamRequest, float]] = {}
        """Notifications and responses of the client that the server has not accepted yet."""
        self.pending_bytes = 0
        """Bytes of the notifications and responses that the server has not accepted yet."""
        self._budget = owner.budget
        self._max_notification_bytes = limits.max_unsent_bytes
        self._grace_seconds = limits.grace_seconds
        self._initialized_post: PostListener | None = None
        """The post of ``notifications/initialized``, until the server accepts it."""
        self._deferred: list[UpstreamRequest] = []
        """Requests that wait until the server accepts ``notifications/initialized``, which they must not overtake."""
        self._defer_seconds = limits.connect_seconds
        self._clock = asyncio.get_running_loop().time
        self._call_later = asyncio.get_running_loop().call_later
        self._call_soon = asyncio.get_running_loop().call_soon
        self._stream: UpstreamRequest | None = None
        self._closed = False
        self._set_fixed_headers()

    def _set_fixed_headers(self, authorization: bytes = b"") -> None:
        """Set the headers of every request: those of the server, and a line with a token of the user."""
        self._fixed_headers = b" HTTP/1.1\r\n" + authorization + self._server.head
        self._post_head = (
            b"POST "
            + self._server.path
            + self._fixed_headers
            + b"accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n"
        )
        self._call_heads.clear()

    def send(self, message: ParsedMessage, param_headers: bytes) -> None:
        """Post one message."""
        if self._closed:
            return
        request_id = message.id if message.is_request else None
        if self._server_session_ended:
            if request_id is not None:
                self._call_soon(self._owner.on_not_executed, request_id, _SESSION_ENDED)
            return
        post = self._make_listener(request_id, initialize=message.method == "initialize")
        head = self._post_head + self._build_headers(message) + param_headers
        data = head + b"content-length: %d\r\n\r\n" % len(message.data) + message.data
        if request_id is None and self.pending_bytes + len(data) > self._max_notification_bytes:
            self._owner.on_server_lost(_UNREAD)
            return
        # The response to a subscription is an endless stream.
        stream = message.method == LISTEN
        if stream and request_id is not None and not self._server.pool.allows_stream(self._owner.client):
            self._call_soon(self._owner.on_request_failed, request_id, _TOO_MANY_STREAMS)
            return
        outgoing = GeneralRequest(data, post, self._owner.client, stream=stream)
        if message.method and not stream:
            self._start(outgoing)
        else:
            self._server.pool.start(outgoing)  # not deferred: the server may wait for this response
        if request_id is None:
            self.pending_bytes += len(data)
            self._notifications[post] = outgoing, self._clock()
            self._budget.add(self)
            self._budget.enforce()
        else:
            self._posts[request_id] = outgoing, inf if stream else self._clock()
        is_initialized = message.method == INITIALIZED and self._initialized_post is None
        if is_initialized and not self._closed:  # enforcing the budget may have closed it
            self._initialized_post = post
            self._call_later(self._defer_seconds, self.release_deferred, post)

    def send_call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Post a tool call. The request headers are cached per tool."""
        if self._closed:
            return
        if self._server_session_ended:
            self._call_soon(self._owner.on_not_executed, call.request_id, _SESSION_ENDED)
            return
        meta = message["params"].get("_meta")
        key = name, "" if meta is None else meta.get(VERSION_META, "")
        head = self._call_heads.get(key)
        if head is None:
            if len(self._call_heads) >= _MAX_CACHED:
                self._call_heads.clear()
            head = self._post_head + self._build_headers(ParsedMessage(body, message)) + b"content-length: "
            self._call_heads[key] = head
        call.transport = self
        call.listener = call
        call.data = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        self._posts[call.request_id] = call, call.sent_at
        self._start(call)

    def _start(self, outgoing: UpstreamRequest) -> None:
        if self._initialized_post is not None:
            self._deferred.append(outgoing)
        else:
            self._server.pool.start(outgoing)

    def release_deferred(self, post: PostListener) -> None:
        """Send the deferred requests if this post is ``notifications/initialized``, which was accepted or timed out."""
        if post is not self._initialized_post:
            return
        self._initialized_post = None
        deferred, self._deferred = self._deferred, []
        if not self._closed:
            self._open_notification_stream()
        for outgoing in deferred:
            if not outgoing.cancelled:
                self._server.pool.start(outgoing)

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request by closing its connection. Servers with a session also get a notification."""
        post = self._posts.pop(request_id, None)
        if post is not None:
            post[0].cancel()
            if self._handshaken:
                notification = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request_id[1]}}
                self.send(ParsedMessage(encode(notification), notification), b"")

    def check_hang(self, since: float) -> bool:
        """Return False, so that the conversation ends. No other conversation uses this transport."""
        del since
        return False

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Cancel requests and notifications that were sent before a time, except the requests in ``keep``."""
        for request_id, (_, sent_at) in tuple(self._posts.items()):
            if sent_at < before and request_id not in keep:
                self.cancel(request_id)
        for post, (outgoing, sent_at) in tuple(self._notifications.items()):
            if sent_at < before:
                self.forget_notification(post)
                outgoing.cancel()

    def close(self) -> None:
        """Cancel open requests, and end the session with DELETE."""
        if self._closed:
            return
        self._closed = True
        for outgoing, _ in self._posts.values():
            outgoing.cancel()
        self._posts.clear()
        if self._notifications:
            # The last notifications may still be in transit.
            self._call_later(self._grace_seconds, self._drop_notifications)
        if self._stream is not None:
            self._stream.cancel()
        if self._session:
            head = b"DELETE " + self._server.path + self._fixed_headers + self._session + self._version
            self._server.pool.send(head + b"content-length: 0\r\n\r\n", NULL_LISTENER, self._owner.client)

    def forget_post(self, request_id: RequestId) -> None:
        """Forget a post whose response is complete."""
        self._posts.pop(request_id, None)
        if self._server_session_ended and not self._posts:
            self._end_conversation()

    def forget_notification(self, post: PostListener) -> None:
        """Forget a notification that was accepted or cancelled."""
        self.release_deferred(post)
        notification = self._notifications.pop(post, None)
        if notification is not None:
            self.pending_bytes -= len(notification[0].data)
            if not self._notifications:
                self._budget.remove(self)

    def on_overflow(self) -> None:
        """End the conversation, because the shared budget is exceeded and most queued bytes are for this server."""
        self._drop_notifications()
        self._owner.on_server_lost(f"{_UNREAD}, and the memory budget for queued messages is exceeded")

    def _drop_notifications(self) -> None:
        """Drop notifications that the server did not accept."""
        for outgoing, _ in self._notifications.values():
            outgoing.cancel()
        self._notifications.clear()
        self.pending_bytes = 0
        self._budget.remove(self)

    def create_listener(self, request_id: RequestId) -> ResponseListener:
        """Create a listener for a call whose response is not a single document."""
        return self._make_listener(request_id)

    def _make_listener(self, request_id: RequestId | None, *, initialize: bool = False) -> PostListener:
        return PostListener(self, self._owner, request_id, initialize=initialize)

    def set_session(self, session: str) -> None:
        """Use the session id in the response to ``initialize``."""
        if (
            session
            and not self._session
            and len(session) <= _MAX_SESSION_ID
            and session.isascii()
            and session.isprintable()
        ):
            self._session = f"mcp-session-id: {session}\r\n".encode("latin-1")
            self._call_heads.clear()

    def set_version(self, version: Any) -> None:
        """Use the protocol revision in the response to ``initialize``."""
        if isinstance(version, str) and version.isascii() and version.isprintable() and len(version) < 64:
            self._version = f"mcp-protocol-version: {version}\r\n".encode("latin-1")
            self._call_heads.clear()

    def on_unparsed_refusal(self) -> None:
        """Handle that the server refused a request without parsing it, as a server of the handshake era may do."""
        if not self._handshaken:
            self._owner.on_unparsed_refusal()

    def mark_initialized(self) -> None:
        """Record that ``initialize`` succeeded."""
        self._handshaken = True

    def start_session_check(self, post: PostListener, status: int) -> bool:
        """Handle a status that may mean that the server does not know the session. Returns False for any other status.

        In a session with an id, status 404 means that the session is unknown. Many servers send 400 instead, which can
        have other causes, so a ping checks the session. If this method returns True, the result is passed to
        `PostListener.on_session_checked`.
        """
        if not self._handshaken or status not in (_BAD_REQUEST, _NOT_FOUND):
            return False
        if self.has_session and status == _NOT_FOUND:
            post.on_session_checked(known=False)
            return True
        self._unknown_session_posts.append(post)
        if len(self._unknown_session_posts) == 1:
            head = self._post_head + self._session + self._version
            data = head + b"content-length: %d\r\n\r\n" % len(_PING) + _PING
            ping = self._server.pool.send(data, _PingListener(self), self._owner.client)
            self._call_later(self._defer_seconds, self._on_ping_timeout, ping)
        return True

    def _on_ping_timeout(self, ping: GeneralRequest) -> None:
        if not ping.cancelled and self._unknown_session_posts:
            ping.cancel()
            self.on_session_checked(known=True)

    def on_session_checked(self, *, known: bool) -> None:
        """Handle the result of a ping: whether the server knows the session."""
        posts, self._unknown_session_posts = self._unknown_session_posts, []
        for post in posts:
            post.on_session_checked(known=known)

    def on_session_ended(self, request_id: RequestId | None) -> None:
        """Fail a request that the server did not execute, because it no longer knows the session.

        The server will probably refuse the other open requests too, so the gateway waits for their responses for a
        moment. Requests that have not been sent yet fail immediately.
        """
        if self._closed:
            return
        if not self._server_session_ended:
            self._server_session_ended = True
            self._session = b""
            self._initialized_post = None
            deferred, self._deferred = self._deferred, []
            self._posts = {request_id: post for request_id, post in self._posts.items() if post[0] not in deferred}
            if self._stream is not None:
                self._stream.cancel()
            self._owner.on_session_ended(frozenset(self._posts), _SESSION_ENDED)
            self._call_later(self._grace_seconds, self._end_conversation)
        if request_id is not None:
            self._posts.pop(request_id, None)
            self._owner.on_not_executed(request_id, _SESSION_ENDED)
        if not self._posts:
            self._end_conversation()

    def _end_conversation(self) -> None:
        if not self._closed:
            self._owner.on_server_lost(_SESSION_ENDED)

    @property
    def has_session(self) -> bool:
        """Whether the server has sent a session id."""
        return bool(self._session) or self._server_session_ended

    def _build_headers(self, message: ParsedMessage) -> bytes:
        version = message.meta.get(VERSION_META)
        if version not in STATELESS_VERSIONS:
            return self._session + self._version
        method = message.method
        parameter = ROUTING_PARAMETERS.get(method)
        name = message.params.get(parameter) if parameter is not None else None
        if name is not None and type(name) is not str:
            name = None
        cached = self._heads.get((version, method, name))
        if cached is not None:
            return cached
        # Method and name come from the client. A line end in them would inject a header or a request.
        lines = f"mcp-protocol-version: {version}\r\nmcp-method: {encode_header(method)}\r\n"
        if name is not None:
            lines += f"mcp-name: {encode_header(name)}\r\n"
        encoded = lines.encode("ascii")
        # Task ids are not reused, and long headers would take too much memory.
        if len(self._heads) < _MAX_CACHED and len(encoded) <= _MAX_CACHED_BYTES and parameter != "taskId":
            self._heads[version, method, name] = encoded
        return encoded

    def _open_notification_stream(self) -> None:
        """Open the notification stream of a session, if the limit of streams allows it."""
        if not self._server.pool.allows_stream(self._owner.client):
            return
        head = b"GET " + self._server.path + self._fixed_headers + b"accept: text/event-stream\r\n"
        data = head + self._session + self._version + b"\r\n"
        self._stream = self._server.pool.send(data, _StreamListener(self._owner), self._owner.client, stream=True)


class _PingListener(NullListener):
    """Finds out from the status of a ping whether the server knows the session."""

    __slots__ = ("_transport",)

    def __init__(self, transport: RemoteTransport) -> None:
        self._transport = transport

    def on_head(self, status: int, session: str) -> None:
        del session
        self._transport.on_session_checked(known=status not in (_BAD_REQUEST, _NOT_FOUND))

    def on_lost(self, reason: str, *, was_sent: bool) -> None:
        del reason, was_sent
        self._transport.on_session_checked(known=True)


class PostListener(NullListener):
    """Receives the response to one posted message."""

    __slots__ = ("_initialize", "_owner", "_posted", "_refusal", "_request_id", "_status", "_transport")

    def __init__(
        self, transport: RemoteTransport, owner: TransportOwner, request_id: RequestId | None, *, initialize: bool
    ) -> None:
        self._transport = transport
        self._owner = owner
        self._request_id = request_id
        self._posted = None if request_id is None else PostedRequest(request_id)
        """The request; None for a notification or a response of the client."""
        self._initialize = initialize
        self._status = 0
        self._refusal = b""
        """The body of a response whose status may mean that the session is unknown."""

    def on_head(self, status: int, session: str) -> None:
        """Handle the head of the response."""
        self._status = status
        if self._posted is not None and status >= 400:
            self._posted.status = status
        if self._request_id is None and status != _NOT_FOUND:  # 404 may mean that the session ended
            self._transport.release_deferred(self)
        elif self._initialize and status < 300:
            self._transport.set_session(session)

    def on_message(self, message: bytes) -> None:
        """Deliver a message, unless its status may mean that the session is unknown."""
        if self._status in (_BAD_REQUEST, _NOT_FOUND):
            self._refusal = self._refusal or message
        else:
            self._deliver(message)

    def _deliver(self, message: bytes) -> None:
        if self._posted is None:
            if self._status < 300:
                self._owner.on_server_message(message)
            return
        if self._status >= 400:
            message = self._set_response_id(message)
            if not message:
                return
        if self._initialize:
            self._remember_version(message)
        self._owner.on_server_message(message, self._posted)

    def on_end(self) -> None:
        """Complete the post, after a check of the session if necessary."""
        if self._request_id is None and self._status != _NOT_FOUND:
            self._transport.forget_notification(self)
        elif self._initialize or not self._transport.start_session_check(self, self._status):
            self._complete()

    def on_session_checked(self, *, known: bool) -> None:
        """Complete the post, or fail it if the server does not know the session."""
        if known:
            self._complete()
        else:
            self._transport.on_session_ended(self._request_id)

    def _complete(self) -> None:
        if self._refusal:
            self._deliver(self._refusal)
        status = self._status
        self._end(f"the server responded with HTTP status {status}" if status >= 300 else "the response was empty")

    def on_lost(self, reason: str, *, was_sent: bool) -> None:
        """Fail the request."""
        del was_sent
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._posted is None:
            self._transport.forget_notification(self)
        else:
            self._transport.forget_post(self._posted.request_id)
            self._owner.on_response_ended(self._posted, reason)

    def _remember_version(self, data: bytes) -> None:
        """Remember the protocol revision for the header of later requests."""
        result = ParsedMessage(data, parse_server_value(data, self._transport.json)).members.get("result")
        if isinstance(result, dict):
            self._transport.mark_initialized()
            self._transport.set_version(result.get("protocolVersion"))

    def _set_response_id(self, data: bytes) -> bytes:
        """Set the id of the request in an error response, which lacks it if the server did not parse the request.

        Returns empty bytes if the message is not an error response.
        """
        message = ParsedMessage(data, parse_server_value(data, self._transport.json))
        if "error" not in message.members:
            return b""
        if message.id == self._request_id:
            return data
        self._transport.on_unparsed_refusal()
        request_id = None if self._request_id is None else self._request_id[1]
        return encode({"jsonrpc": "2.0", "id": request_id, "error": message.members["error"]})


class _StreamListener(NullListener):
    """Receives messages on the notification stream."""

    __slots__ = ("_owner", "_status")

    def __init__(self, owner: TransportOwner) -> None:
        self._owner = owner
        self._status = 0

    def on_head(self, status: int, session: str) -> None:
        del session
        self._status = status

    def on_message(self, message: bytes) -> None:
        if self._status == 200:
            self._owner.on_server_message(message)
