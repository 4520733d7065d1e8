"""Translates between the protocol eras of a client and its servers.

For a stateless client, the bridge does the handshake with a server of the handshake era. For a client of the handshake
era, the bridge adds the metadata that a stateless server requires to each request. If a server does not execute a
request because it does not know the session (HTTP 400 or 404), the bridge sends the request once more in a new session.
Other requests are never sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from pinwarden.gateway.http.backend import (
    Backend,
    BackendError,
    NotExecutedError,
    ResponseFuture,
    ServerRequests,
    add_result_members,
    add_stateless_meta,
    refuse_server_request,
    remove_stateless_meta,
)
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.notifications import EventSink, NotificationStream
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import (
    SessionManager,
    Upstream,
)
from pinwarden.gateway.session.messages import LISTEN, ParsedMessage, RequestId, encode, to_request_id
from pinwarden.gateway.session.splice import replace_value
from pinwarden.surface.protocol import (
    CANCELLED,
    CAPABILITIES_META,
    CLIENT_META,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROGRESS,
    SERVER_META,
    SERVER_UNAVAILABLE,
    STATELESS_VERSIONS,
    VERSION_META,
)

SUBSCRIPTIONS = frozenset({"resources/subscribe", "resources/unsubscribe"})
OPENING_METHODS = frozenset({"initialize", "server/discover"})
_LISTS = ("tools", "prompts", "resources")


class Bridge:
    """A conversation of one client with servers of any era. Subclasses choose the server of a request."""

    def __init__(self, manager: SessionManager, client: GatewayClient) -> None:
        self._manager = manager
        self._limits = manager.limits
        self._client = client
        self.closed = False
        self.server_session_ended = False
        self.stream_keeps_session_open = True
        self.last_used = manager.clock()
        self._backends: dict[str, Backend] = {}
        self._openings: dict[str, _OpenAttempt] = {}
        self._attempted_at: dict[str, float] = {}
        """When a session with a server was last attempted, by slug."""
        self._failures: dict[str, str] = {}
        """Why the last attempt failed, by slug."""
        self._retry_seconds = manager.limits.merged_retry_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifications = NotificationStream(manager.limits)
        self._server_requests = ServerRequests(manager.limits.max_in_flight)
        self._relayed: dict[RequestId, RelayedRequest] = {}
        """Open requests by the gateway's own ids, because programs that share a token may use the same request ids."""
        self._last_key = 0
        self._info: Any = {"name": client.name, "version": "0"}
        self._capabilities: Any = {}
        self._stateless = False
        """Whether the client uses the stateless protocol (2026-07-28 or later)."""

    # From clients

    def request(self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes = b"") -> RequestId | None:
        """Respond to a request, or forward it to a server. Returns an id for `cancel`."""
        self.last_used = self._manager.clock()
        self._last_key += 1
        key: RequestId = (RelayedRequest, self._last_key)
        relayed = self._relayed[key] = RelayedRequest(message)
        relayed.task = self._run(self._handle_request(message, sink, param_headers, relayed))
        relayed.task.add_done_callback(lambda _: self._relayed.pop(key, None))
        return key

    def notify(self, message: ParsedMessage) -> None:
        """Send a notification to all servers, or a response to the server that sent the request."""
        self.last_used = self._manager.clock()
        if message.is_response:
            self._server_requests.forward_response(message)
        elif message.method == CANCELLED:
            self._on_cancelled(message)
        elif message.method != INITIALIZED:
            for backend in self._backends.values():
                backend.notify(message)

    def cancel(self, request_id: RequestId | None) -> None:
        """Cancel a request, because its client disconnected."""
        relayed = self._relayed.pop(request_id, None) if request_id is not None else None
        if relayed is not None:
            relayed.cancel()

    def listen(self, stream: EventSink) -> None:
        """Attach the notification stream."""
        self._notifications.listen(stream)

    def tick(self) -> None:
        """Do nothing, because the conversations with the servers handle their own deadlines."""

    @property
    def is_idle(self) -> bool:
        """Whether no request and no stream is open."""
        return not self._tasks and not self._notifications.is_open

    def end_stream(self) -> None:
        """End the notification stream."""
        self._notifications.end()

    def close(self, reason: str) -> None:
        """End the conversation and its sessions with servers."""
        del reason
        if not self.closed:
            self.closed = True
            self.end_stream()
            for backend in self._backends.values():
                backend.close()
            for task in (*self._tasks, *(opening.task for opening in self._openings.values())):
                task.cancel()

    # Requests

    async def _respond(
        self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes, relayed: RelayedRequest
    ) -> None:
        """Respond to a request, or forward it to a server."""
        raise NotImplementedError

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handle_request(
        self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes, relayed: RelayedRequest
    ) -> None:
        try:
            self._remember_client(message)
            if message.method == "ping":
                self._send_result(message, sink, {})
            else:
                await self._respond(message, sink, param_headers, relayed)
        except BackendError as err:
            if relayed.cancelled:
                sink.drop()  # a cancelled request gets no response
            else:
                sink.fail(err.code, err.reason)
        except asyncio.CancelledError:
            if relayed.cancelled:
                sink.drop()
            else:
                sink.fail(SERVER_UNAVAILABLE, "the session ended")
            raise
        except Exception as err:
            sink.fail(INTERNAL_ERROR, f"the gateway failed with an internal error ({type(err).__name__})")
            raise

    def _remember_client(self, message: ParsedMessage) -> None:
        """Remember the client's name, version and capabilities for the servers."""
        if message.method == "initialize":
            self._info = message.params.get("clientInfo", self._info)
            self._capabilities = message.params.get("capabilities", {})
        elif VERSION_META in message.meta:
            self._stateless = True
            self._info = message.meta.get(CLIENT_META, self._info)
            self._capabilities = message.meta.get(CAPABILITIES_META, {})

    def _send_result(self, message: ParsedMessage, sink: ResponseSink, result: dict[str, Any]) -> None:
        response = {"jsonrpc": "2.0", "id": message.members["id"], "result": result}
        sink.respond(ParsedMessage(data=encode(response), value=response), 0)

    # Sessions with servers

    def _open_if_due(self, upstream: Upstream) -> None:
        """Start to open a session with a server, unless one is open or the last attempt was a short time ago.

        Requests wait for the first attempt, and for the attempt after a lost session. If a server does not respond,
        lists omit it, and the bridge tries again later.
        """
        slug = upstream.slug
        backend = self._backends.get(slug)
        if slug in self._openings or (backend is not None and backend.is_open):
            return
        reopens = backend is not None
        if reopens:
            del self._backends[slug]
            self._attempted_at.pop(slug, None)
        now = self._manager.clock()
        if slug in self._attempted_at and now - self._attempted_at[slug] < self._retry_seconds:
            return
        awaited = slug not in self._attempted_at and not upstream.failing
        self._attempted_at[slug] = now
        backend = Backend(self._manager, upstream, self._client, self._on_server_message)
        task = asyncio.get_running_loop().create_task(self._open_backend(backend, reopens=reopens))
        self._openings[slug] = _OpenAttempt(task, awaited=awaited)
        task.add_done_callback(lambda _: self._openings.pop(slug, None))

    async def _open_backend(self, backend: Backend, *, reopens: bool) -> None:
        try:
            async with asyncio.timeout(self._limits.merged_opening_seconds):
                await backend.open(self._info, self._capabilities, for_stateless_client=self._stateless)
        except BackendError as err:
            self._failures[backend.slug] = err.reason
            return
        except TimeoutError:
            self._failures[backend.slug] = "the server did not respond in time"
            backend.mark_failing()
            return
        self._backends[backend.slug] = backend
        self._failures.pop(backend.slug, None)
        if reopens:
            self._send_list_changed(backend)

    def _send_list_changed(self, backend: Backend) -> None:
        """Send ``list_changed`` notifications, because another release of the server may have started."""
        for capability in _LISTS:
            if not self._stateless and backend.offers(capability):
                notification = {"jsonrpc": "2.0", "method": f"notifications/{capability}/list_changed"}
                self._notifications.send(encode(notification))

    async def _wait_for_first_attempts(self, *slugs: str) -> None:
        """Wait for the first attempts to open sessions with these servers."""
        openings = [self._openings[slug] for slug in slugs if slug in self._openings]
        tasks = [opening.task for opening in openings if opening.awaited]
        if tasks:
            await asyncio.wait(tasks)

    async def _get_backend(self, upstream: Upstream) -> Backend:
        """Open a session with a server if necessary. Raises `BackendError` if that fails."""
        self._open_if_due(upstream)
        opening = self._openings.get(upstream.slug)
        if opening is not None:
            await asyncio.wait([opening.task])
        backend = self._backends.get(upstream.slug)
        if backend is None or not backend.is_open:
            reason = self._failures.get(upstream.slug, "its session ended")
            raise BackendError(SERVER_UNAVAILABLE, f"the server {upstream.slug} is unavailable: {reason}")
        return backend

    # Forwarded requests

    async def _relay(
        self,
        upstream: Upstream,
        message: ParsedMessage,
        sink: ResponseSink,
        param_headers: bytes,
        relayed: RelayedRequest,
    ) -> None:
        """Forward a request in the server's era, and respond in the client's era."""
        try:
            response = await self._send(await self._get_backend(upstream), message, sink, param_headers, relayed)
        except NotExecutedError:
            response = await self._send(await self._get_backend(upstream), message, sink, param_headers, relayed)
        result = response.members.get("result")
        if not self._stateless and isinstance(result, dict) and result.get("resultType") == "input_required":
            raise BackendError(
                INVALID_PARAMS,
                "the server requests input in a form that the client's protocol revision does not support",
            )
        sink.respond(add_result_members(response, message.method) if self._stateless else response, 0)

    async def _send(
        self,
        backend: Backend,
        message: ParsedMessage,
        sink: ResponseSink,
        param_headers: bytes,
        relayed: RelayedRequest,
    ) -> ParsedMessage:
        if message.method in SUBSCRIPTIONS and (self._stateless or backend.stateless):
            # In the stateless era, the response to a subscription is an event stream.
            raise BackendError(METHOD_NOT_FOUND, self._explain_no_subscriptions(backend))
        if backend.stateless and not self._stateless:
            meta = {VERSION_META: backend.version, CLIENT_META: self._info, CAPABILITIES_META: {}}
            message = add_stateless_meta(message, meta)
        elif backend.stateless and message.meta.get(VERSION_META) != backend.version:
            message = add_stateless_meta(message, {VERSION_META: backend.version})
        elif self._stateless and not backend.stateless:
            message = remove_stateless_meta(message)
        future = ResponseFuture(partial(self._on_early_message, backend, sink))
        relayed.backend, relayed.server_id = backend, backend.relay(message, future, param_headers)
        response: ParsedMessage = await future
        return response

    def _explain_no_subscriptions(self, backend: Backend) -> str:
        return f"subscriptions to {backend.slug} are supported only at the server's own address"

    def _on_cancelled(self, message: ParsedMessage) -> None:
        """Cancel a request of a client of the handshake era."""
        client_id = to_request_id(message.params.get("requestId"))
        if client_id is None:
            return
        for relayed in [request for request in self._relayed.values() if request.client_id == client_id]:
            relayed.cancelled = True
            if relayed.backend is None or relayed.backend.stateless:
                relayed.cancel()
            elif relayed.server_id is not None:
                params = {**message.params, "requestId": relayed.server_id[1]}
                data = replace_value(message.data, ("params", "requestId"), encode(params["requestId"]))
                relayed.backend.notify(ParsedMessage(data, {**message.members, "params": params}))

    # From servers

    def _on_server_message(self, backend: Backend, message: ParsedMessage) -> None:
        """Forward a server message that belongs to no request."""
        if self._notifications.is_open:
            translated = self._translate_for_client(backend, message)
            if translated is not None:
                self._notifications.send(translated.data)
        elif message.is_request:
            refuse_server_request(backend, message, "the client has no stream open")

    def _on_early_message(self, backend: Backend, sink: ResponseSink, message: ParsedMessage) -> None:
        """Forward a server message that came before the response."""
        translated = self._translate_for_client(backend, message)
        if translated is not None:
            sink.send_message(translated)

    def _translate_for_client(self, backend: Backend, message: ParsedMessage) -> ParsedMessage | None:
        """Translate a server message for the client; None if it is dropped."""
        if message.is_request:
            if self._stateless or backend.stateless:
                refuse_server_request(
                    backend, message, "requests of servers are not supported in this protocol revision"
                )
                return None
            return self._server_requests.register(backend, message)
        if message.method == CANCELLED:
            return self._server_requests.cancel(backend, message)
        if message.method == PROGRESS:
            token = message.progress_token
            is_own = any(request.backend is backend and request.token == token for request in self._relayed.values())
            return message if is_own else None  # a server may report progress only for its own requests
        return message


class BridgedConversation(Bridge):
    """Connects a client with one server of the other protocol era, at the server's own path (``/mcp/NAME``)."""

    def __init__(self, manager: SessionManager, client: GatewayClient, upstream: Upstream) -> None:
        super().__init__(manager, client)
        self._upstream = upstream
        self._retry_seconds = 0.0  # retry with each request

    async def _respond(
        self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes, relayed: RelayedRequest
    ) -> None:
        if message.method in OPENING_METHODS:
            self._send_result(message, sink, self._describe_server(message, await self._get_backend(self._upstream)))
        elif message.method == LISTEN and not (await self._get_backend(self._upstream)).stateless:
            raise BackendError(
                METHOD_NOT_FOUND, self._explain_no_subscriptions(await self._get_backend(self._upstream))
            )
        elif message.method == "logging/setLevel" and (await self._get_backend(self._upstream)).stateless:
            self._send_result(message, sink, {})  # in the stateless era, each request carries its log level
        else:
            await self._relay(self._upstream, message, sink, param_headers, relayed)

    def _describe_server(self, message: ParsedMessage, backend: Backend) -> dict[str, Any]:
        """Return the server's approved description of itself, in the client's era."""
        description = backend.description
        meta = description.get("_meta")
        info = description.get("serverInfo", meta.get(SERVER_META) if isinstance(meta, dict) else None)
        capabilities = description.get("capabilities")
        result: dict[str, Any] = {"capabilities": capabilities if isinstance(capabilities, dict) else {}}
        if message.method == "initialize" and backend.stateless:
            # Stateless servers send notifications on subscription streams only.
            result["capabilities"] = {
                name: {} if name in _LISTS else value for name, value in result["capabilities"].items()
            }
        if isinstance(description.get("instructions"), str):
            result["instructions"] = description["instructions"]
        if message.method == "initialize":
            return {"protocolVersion": choose_handshake_version(message), "serverInfo": info, **result}
        return {
            "supportedVersions": list(STATELESS_VERSIONS),
            **result,
            "_meta": {SERVER_META: info},
            **build_stateless_members(),
        }

    def _explain_no_subscriptions(self, backend: Backend) -> str:
        return f"{backend.slug} and the client use different protocol revisions, so subscriptions are not supported"


class RelayedRequest:
    """An open request of a client."""

    __slots__ = ("backend", "cancelled", "client_id", "server_id", "task", "token")

    def __init__(self, message: ParsedMessage) -> None:
        self.client_id = message.id
        """The id that the client chose."""
        self.token = message.progress_token
        """The client's progress token."""
        self.backend: Backend | None = None
        self.server_id: RequestId | None = None
        """The id that was sent to the server."""
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        """Whether the client cancelled the request or disconnected."""

    def cancel(self) -> None:
        """Cancel the request."""
        self.cancelled = True
        if self.backend is not None and self.backend.conversation is not None:
            self.backend.conversation.cancel(self.server_id)
        if self.task is not None:
            self.task.cancel()


class _OpenAttempt:
    """An attempt to open a session with a server."""

    def __init__(self, task: asyncio.Task[None], *, awaited: bool) -> None:
        self.task = task
        self.awaited = awaited


def build_stateless_members() -> dict[str, Any]:
    """Build the members that every result of the stateless era must have."""
    return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def choose_handshake_version(message: ParsedMessage) -> str:
    """Choose the protocol revision for the response to ``initialize``: the client's if supported, or the latest."""
    requested = message.params.get("protocolVersion")
    return requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
