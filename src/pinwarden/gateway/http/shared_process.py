"""One process of a stateless server for all clients.

In revision 2026-07-28 every request is self-contained, so requests of several clients can go to one process. Each
client has its own conversation, which decides on its messages. In the process, every request has a unique id, which
is also its progress token. A message of the server goes only to the conversation whose request it names. A
message that names no request reaches a client only while a single client has used the process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Container
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.core.strict_json import Limits
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.notifications import ListChangedThrottle
from pinwarden.gateway.http.process_transport import ProcessTransport
from pinwarden.gateway.http.upstream_transport import TransportOwner
from pinwarden.gateway.session.messages import (
    LISTEN,
    ParsedMessage,
    RequestId,
    encode,
    guess_response_id,
    parse_server_value,
    to_request_id,
)
from pinwarden.surface.protocol import CANCELLED, LIST_CHANGED, PROGRESS, SUBSCRIPTION_META, VERSION_META

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall

_CAPABILITIES = frozenset({"tools", "prompts", "resources", "completions"})
_METHODS = frozenset(
    {
        *("server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list"),
        *("resources/templates/list", "resources/read", "completion/complete", LISTEN, "ping"),
    }
)
_UNREAD = "the server does not read its input"
_HANGS = "the server does not respond"


class SharedTransportOwner(TransportOwner, Protocol):
    """A conversation that can use a shared process."""

    @property
    def last_received(self) -> float:
        """When the conversation last received a message."""

    def waits_for(self, request_id: RequestId) -> bool:
        """Whether a request with this id is open in the conversation."""


def allows_sharing(server: Any) -> bool:
    """Whether clients can share a process of a server with this response to ``server/discover``.

    A capability that is not in `_CAPABILITIES` prevents sharing: tasks and extensions may belong to a connection, and
    log messages on stdio name no request.
    """
    capabilities = server.get("capabilities") if isinstance(server, dict) else None
    return isinstance(capabilities, dict) and _CAPABILITIES.issuperset(capabilities)


class SharedProcess:
    """Owns one process, and routes its messages to the conversations that use it."""

    def __init__(
        self,
        name: str,
        child: ProcessTransport,
        first_owner: SharedTransportOwner,
        limits: HttpLimits,
        throttle_seconds: float,
    ) -> None:
        """``first_owner`` started the process and may have open requests in it, with its own ids.

        ``list_changed`` notifications are coalesced for ``throttle_seconds`` seconds.
        """
        self.name = name
        self.budget = first_owner.budget
        self.child = child
        self.limits = limits
        self.closed = False
        self.undelivered = 0
        """Messages of the server that belong to no open request."""
        self._json = Limits(max_bytes=limits.max_bytes_at_once)
        self._throttle = ListChangedThrottle(throttle_seconds, self._broadcast_list_changed)
        self._transports: set[SharedTransport] = set()
        self._attached = 0
        self._ping_id: RequestId = (str, f"pinwarden/{secrets.token_hex(8)}/ping")
        self._ping_timeout: asyncio.TimerHandle | None = None
        """The timer that ends the process unless it sends a message; None if no ping is open."""
        self._by_id: dict[RequestId, SharedTransport] = {}
        self._queue: deque[SharedTransport] = deque()
        """The transports that have a message to write, each once."""
        child.hand_over(self, self.write_queued)
        self._first_transport = self.attach(first_owner)
        self.first_transport = self._first_transport

    # For the process slots

    @property
    def client(self) -> str:
        """A name that no client has, so that the process counts against no client."""
        return f"\0{self.name}"

    @property
    def is_idle(self) -> bool:
        """Whether the process has no open request."""
        return all(transport.owner.is_idle for transport in self._transports)

    @property
    def last_used(self) -> float:
        """When a client last sent a message."""
        return max((transport.owner.last_used for transport in self._transports), default=0.0)

    # For conversations

    @property
    def has_single_client(self) -> bool:
        """Whether a single client has used the process so far."""
        return self._attached == 1

    def attach(self, owner: SharedTransportOwner) -> SharedTransport:
        """Create a transport for a conversation that will use the process."""
        transport = SharedTransport(self, owner)
        self._transports.add(transport)
        self._attached += 1
        return transport

    def detach(self, transport: SharedTransport) -> None:
        """Remove a conversation. The process ends with its last conversation."""
        self._transports.discard(transport)
        for request_id in transport.open_ids:
            self._by_id.pop(request_id, None)
        if not self._transports:
            self._end()
            self.child.close()

    def register(self, request_id: RequestId, transport: SharedTransport) -> bool:
        """Route the response to a request to this transport. Returns False if the id is in use."""
        if request_id in self._by_id or self._is_first_owner_request(request_id, transport):
            return False
        self._by_id[request_id] = transport
        return True

    def forget(self, request_id: RequestId) -> None:
        """Stop delivering messages that name this request."""
        self._by_id.pop(request_id, None)

    def fail(self, reason: str) -> None:
        """End the process for all conversations."""
        self.child.fail(reason)

    def check_hang(self, since: float) -> None:
        """Ping the process if no conversation has received a message since a time. Without a response, end the process.

        If a conversation has received a message since then, the process is alive and only one request is late.
        """
        if (
            self._ping_timeout is None
            and not self.closed
            and all(transport.owner.last_received < since for transport in self._transports)
        ):
            self.child.write(encode({"jsonrpc": "2.0", "id": self._ping_id[1], "method": "ping"}))
            loop = asyncio.get_running_loop()
            self._ping_timeout = loop.call_later(self.limits.shared_ping_seconds, self.fail, _HANGS)

    def enqueue(self, transport: SharedTransport) -> None:
        """Queue a transport that has a message to write."""
        self._queue.append(transport)
        self.write_queued()

    def write_queued(self) -> None:
        """Write messages round-robin, one per transport, while the server reads."""
        while self._queue and self.child.writable:
            transport = self._queue.popleft()
            transport.write_next(self.child)

    # From the process

    def on_server_message(self, data: bytes, posted: object = None) -> None:
        """Route a message to the conversation that it belongs to."""
        del posted
        if self._ping_timeout is not None:
            self._ping_timeout.cancel()  # any message shows that the process is alive
            self._ping_timeout = None
        request_id = to_request_id(guess_response_id(data))
        if request_id is not None:
            self._route_response(request_id, data)
            return
        message = parse_server_value(data, self._json) if len(data) <= self.limits.max_bytes_at_once else None
        if type(message) is not dict:
            self._count_undelivered()
        elif "method" in message:
            self._route_notification(ParsedMessage(data, message))
        else:
            request_id = to_request_id(message.get("id"))
            if request_id is None:
                self._count_undelivered()
            else:
                self._route_response(request_id, data)

    def on_server_lost(self, reason: str) -> None:
        """Fail every open request, because the process ended."""
        self._end()
        for transport in tuple(self._transports):
            transport.owner.on_server_lost(reason)

    def _route_response(self, request_id: RequestId, data: bytes) -> None:
        transport = self._by_id.pop(request_id, None)
        if transport is not None:
            transport.on_response(request_id)
            transport.owner.on_server_message(data)
        elif self._is_first_owner_request(request_id):
            self._first_transport.owner.on_server_message(data)
        elif request_id != self._ping_id:
            self._count_undelivered()

    def _route_notification(self, message: ParsedMessage) -> None:
        """Route a notification to the conversation whose request it names. Requests of the server are dropped."""
        if message.method == PROGRESS:
            request_id = message.progress_token
        elif message.method == CANCELLED:
            request_id = to_request_id(message.params.get("requestId"))
        else:
            request_id = to_request_id(message.meta.get(SUBSCRIPTION_META))
        transport = None if request_id is None else self._by_id.get(request_id)
        if transport is None and request_id is not None and self._is_first_owner_request(request_id):
            transport = self._first_transport
        if message.is_request:
            self._count_undelivered()
        elif transport is not None:
            transport.owner.on_server_message(message.data)
        elif message.method in LIST_CHANGED and request_id is None:
            if not self._throttle.defer(message.data):
                self._broadcast_list_changed(message.data)
        elif request_id is None and self.has_single_client:
            self._first_transport.owner.on_server_message(message.data)
        else:
            self._count_undelivered()

    def _broadcast_list_changed(self, data: bytes) -> None:
        """Pass the notification to all sessions, which request the list again.

        A client gets the notification only while it is the only client of the process.
        """
        for transport in tuple(self._transports):
            transport.owner.on_server_message(data)

    def _is_first_owner_request(self, request_id: RequestId, sender: SharedTransport | None = None) -> bool:
        """Whether the first conversation sent a request under this id before the process was shared."""
        first_owner = self._first_transport
        return first_owner in self._transports and first_owner is not sender and first_owner.owner.waits_for(request_id)

    def _count_undelivered(self) -> None:
        self.undelivered += 1
        if str(self.undelivered).rstrip("0") == "1":  # at 1, 10, 100 ..., so that a server cannot flood the log
            self.child.write_log(
                f"the server sent {self.undelivered} messages that belong to no open request; they were dropped"
            )

    def _end(self) -> None:
        self.closed = True
        self._queue.clear()
        self._throttle.clear()
        if self._ping_timeout is not None:
            self._ping_timeout.cancel()


class SharedTransport:
    """The transport of one conversation to a process that other conversations may use too."""

    shared = True

    def __init__(self, process: SharedProcess, owner: SharedTransportOwner) -> None:
        self.process = process
        self.owner = owner
        self.open_ids: set[RequestId] = set()
        """The ids of this conversation's open requests, queued or written."""
        self._streams: set[RequestId] = set()
        self._written = 0
        """The number of open requests that were written to the process, without streams."""
        self._queue: deque[tuple[RequestId | None, bytes]] = deque()
        self._queued_bytes = 0
        self._is_queued = False
        self._closed = False

    @property
    def has_single_client(self) -> bool:
        """Whether a single client has used the process so far."""
        return self.process.has_single_client

    @property
    def evicted(self) -> bool:
        """Whether the process was ended, or not started, because too many run."""
        return self.process.child.evicted

    def send(self, message: ParsedMessage, param_headers: bytes) -> None:
        """Send a request or a cancellation. Other messages do not exist in the stateless era."""
        del param_headers
        if message.is_request:
            if message.id is not None:
                self._send_request(message.id, message.method, message.meta, message.data)
        elif message.method == CANCELLED:
            request_id = to_request_id(message.params.get("requestId"))
            if request_id in self.open_ids:
                self._enqueue(None, message.data)

    def send_call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Send a tool call."""
        del name
        self._send_request(call.request_id, "tools/call", ParsedMessage(body, message).meta, body)

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request of this conversation."""
        if request_id not in self.open_ids:
            return
        queued = [item for item in self._queue if item[0] == request_id]
        self._end_request(request_id, written=not queued)
        if queued:
            self._queue.remove(queued[0])
            self._queued_bytes -= len(queued[0][1])
            if not self._queue:
                self.process.budget.remove(self)
            self._queue_if_ready()
        else:
            self._enqueue(None, _build_cancellation(request_id))

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Do nothing, because the conversation enforces the deadlines of its requests."""

    def check_hang(self, since: float) -> bool:
        """Ping the process unless it is known to be alive. Returns True, so that the conversation continues."""
        self.process.check_hang(since)
        return True

    def close(self) -> None:
        """Cancel this conversation's open requests. The process continues for other conversations."""
        if self._closed:
            return
        self._closed = True
        queued = {request_id for request_id, _ in self._queue}
        self._drop_queue()
        child, process = self.process.child, self.process
        for request_id in self.open_ids:
            if request_id not in queued and not process.closed:
                child.write(_build_cancellation(request_id))
        process.detach(self)
        self.open_ids.clear()

    def on_response(self, request_id: RequestId) -> None:
        """Forget a request after its response, so that the next queued request can be written."""
        self._end_request(request_id, written=True)

    def write_next(self, child: ProcessTransport) -> None:
        """Write the next message, when it is this transport's turn."""
        self._is_queued = False
        if not self._queue or not self._may_write():
            return
        request_id, data = self._queue.popleft()
        self._queued_bytes -= len(data)
        if request_id is not None and request_id not in self._streams:
            self._written += 1
        child.write(data)
        if not self._queue:
            self.process.budget.remove(self)
        self._queue_if_ready()

    # For the memory budget

    @property
    def pending_bytes(self) -> int:
        """Bytes in the queue."""
        return self._queued_bytes

    def on_overflow(self) -> None:
        """End only this conversation, because the shared budget is exceeded and its queue is the largest."""
        self._drop_queue()
        self.owner.on_server_lost(_UNREAD)

    def _send_request(self, request_id: RequestId, method: str, meta: dict[str, Any], data: bytes) -> None:
        token = to_request_id(meta.get("progressToken"))
        if self._closed:
            return
        if method not in _METHODS or (VERSION_META not in meta and method != "ping"):
            self._refuse(
                request_id, f"{method[:100]} is not supported, because several clients share the server's process"
            )
        elif "progressToken" in meta and token != request_id:
            self._refuse(request_id, "the progress token must equal the id of the request")
        elif not self.process.register(request_id, self):
            self._refuse(request_id, "the id of the request is in use")
        else:
            self.open_ids.add(request_id)
            if method == LISTEN:
                self._streams.add(request_id)
            self._enqueue(request_id, data)

    def _refuse(self, request_id: RequestId, reason: str) -> None:
        asyncio.get_running_loop().call_soon(self.owner.on_request_failed, request_id, reason)

    def _enqueue(self, request_id: RequestId | None, data: bytes) -> None:
        if self._closed:
            return
        self._queue.append((request_id, data))
        self._queued_bytes += len(data)
        self._queue_if_ready()
        if not self._queue:
            return
        if self._queued_bytes > self.process.limits.max_unsent_bytes:
            self._drop_queue()
            asyncio.get_running_loop().call_soon(self.owner.on_server_lost, _UNREAD)
        else:
            self.process.budget.add(self)
            self.process.budget.enforce()

    def _queue_if_ready(self) -> None:
        if self._queue and not self._is_queued and not self._closed and self._may_write():
            self._is_queued = True
            self.process.enqueue(self)

    def _may_write(self) -> bool:
        """Whether the next message may be written. Each client may have a limited number of requests in the process."""
        request_id = self._queue[0][0]
        is_call = request_id is not None and request_id not in self._streams
        return not is_call or self._written < self.process.limits.max_shared_in_flight

    def _end_request(self, request_id: RequestId, *, written: bool) -> None:
        self.open_ids.discard(request_id)
        self.process.forget(request_id)
        if request_id in self._streams:
            self._streams.discard(request_id)
        elif written:
            self._written -= 1
            self._queue_if_ready()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.process.budget.remove(self)


def _build_cancellation(request_id: RequestId) -> bytes:
    return encode({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request_id[1]}})
