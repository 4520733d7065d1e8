"""Translates between protocol eras: a conversation of a client of one era with servers of either.

For a stateless client, the gateway does the handshake with a server of the handshake era. For a client that did a
handshake, it adds the metadata that a stateless server needs to each request. A request that a server rejects unread,
because it does not know the session (HTTP 400 or 404), is sent once more in a new session. No other request is ever
sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from pinwarden.gateway.http.backend import (
    Backend,
    BackendError,
    RefusedUnreadError,
    ResponseFuture,
    ServerRequests,
    as_stateless,
    refuse,
    with_meta,
    without_meta,
)
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.notifications import EventSink, NotificationStream
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import (
    SessionManager,
    Upstream,
)
from pinwarden.gateway.session.messages import LISTEN, Frame, RequestId, encode, request_id_of
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
    SERVER_AWAY,
    SERVER_META,
    STATELESS_VERSIONS,
    VERSION_META,
)

SUBSCRIPTIONS = frozenset({"resources/subscribe", "resources/unsubscribe"})
OPENINGS = frozenset({"initialize", "server/discover"})
_LISTS = ("tools", "prompts", "resources")


class Bridge:
    """A conversation of one client with servers of either era. Subclasses choose the server of a request."""

    def __init__(self, manager: SessionManager, client: Client) -> None:
        self._manager = manager
        self._limits = manager.limits
        self._client = client
        self.closed = False
        self.ended = False
        self.stream_counts = True
        self.used = manager.clock()
        self._backends: dict[str, Backend] = {}
        self._openings: dict[str, _Opening] = {}
        self._tried: dict[str, float] = {}
        """When a session with a server was last attempted, by slug."""
        self._failures: dict[str, str] = {}
        """Why the last attempt failed, by slug."""
        self._again_seconds = manager.limits.merged_again_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifications = NotificationStream(manager.limits)
        self._questions = ServerRequests(manager.limits.max_in_flight)
        self._work: dict[RequestId, RelayedRequest] = {}
        """By an id of the gateway, because several programs of one client may use the same id."""
        self._numbers = 0
        self._info: Any = {"name": client.name, "version": "0"}
        self._capabilities: Any = {}
        self._modern = False
        """Whether the client is of the stateless era."""

    # From clients

    def request(self, frame: Frame, sink: ResponseSink, parameters: bytes = b"") -> RequestId | None:
        """Answer a request, or forward it to a server."""
        self.used = self._manager.clock()
        self._numbers += 1
        number: RequestId = (RelayedRequest, self._numbers)
        work = self._work[number] = RelayedRequest(frame)
        work.task = self._begin(self._answer(frame, sink, parameters, work))
        work.task.add_done_callback(lambda _: self._work.pop(number, None))
        return number

    def notify(self, frame: Frame) -> None:
        """Send a notification to all servers, or a response to the server that sent the request."""
        self.used = self._manager.clock()
        if frame.is_response:
            self._questions.answer(frame)
        elif frame.method == CANCELLED:
            self._cancelled(frame)
        elif frame.method != INITIALIZED:
            for backend in self._backends.values():
                backend.notify(frame)

    def give_up(self, number: RequestId | None) -> None:
        """The client of one request hung up."""
        work = self._work.pop(number, None) if number is not None else None
        if work is not None:
            work.give_up()

    def listen(self, reply: EventSink) -> None:
        """Attach the notification stream."""
        self._notifications.listen(reply)

    def tick(self) -> None:
        """Nothing: the conversations with the servers have their own deadlines."""

    @property
    def idle(self) -> bool:
        """Whether no request and no stream is open."""
        return not self._tasks and not self._notifications.open

    def end_stream(self) -> None:
        """End the notification stream."""
        self._notifications.end()

    def close(self, why: str) -> None:
        """End the conversation and its sessions with servers."""
        del why
        if not self.closed:
            self.closed = True
            self.end_stream()
            for backend in self._backends.values():
                backend.close()
            for task in (*self._tasks, *(each.task for each in self._openings.values())):
                task.cancel()

    # Requests

    async def _respond(self, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest) -> None:
        """Answer a request."""
        raise NotImplementedError

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest) -> None:
        try:
            self._introduce(frame)
            if frame.method == "ping":
                self._reply(frame, sink, {})
            else:
                await self._respond(frame, sink, parameters, work)
        except BackendError as err:
            if work.cancelled:
                sink.dropped()  # a cancelled request gets no response
            else:
                sink.failed(err.code, err.why)
        except asyncio.CancelledError:
            if work.cancelled:
                sink.dropped()
            else:
                sink.failed(SERVER_AWAY, "the session was ended")
            raise
        except Exception as err:
            sink.failed(INTERNAL_ERROR, f"the gateway failed ({type(err).__name__})")
            raise

    def _introduce(self, frame: Frame) -> None:
        """Remember what the client says about itself, for the servers."""
        if frame.method == "initialize":
            self._info = frame.params.get("clientInfo", self._info)
            self._capabilities = frame.params.get("capabilities", {})
        elif VERSION_META in frame.meta:
            self._modern = True
            self._info = frame.meta.get(CLIENT_META, self._info)
            self._capabilities = frame.meta.get(CAPABILITIES_META, {})

    def _reply(self, frame: Frame, sink: ResponseSink, result: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "id": frame.members["id"], "result": result}
        sink.answered(Frame(data=encode(message), message=message), 0)

    # Sessions with servers

    def _open(self, upstream: Upstream) -> None:
        """Open a session with a server, unless it is open or was just attempted.

        Requests wait for the first attempt, and for the one after a lost session. A server that does not respond is
        left out, and tried again later.
        """
        slug = upstream.slug
        backend = self._backends.get(slug)
        if slug in self._openings or (backend is not None and backend.open_now):
            return
        again = backend is not None
        if again:
            del self._backends[slug]
            self._tried.pop(slug, None)
        now = self._manager.clock()
        if slug in self._tried and now - self._tried[slug] < self._again_seconds:
            return
        waited_for = slug not in self._tried and not upstream.failing
        self._tried[slug] = now
        made = Backend(self._manager, upstream, self._client, self._on_server_message)
        task = asyncio.get_running_loop().create_task(self._opened(made, again=again))
        self._openings[slug] = _Opening(task, waited_for=waited_for)
        task.add_done_callback(lambda _: self._openings.pop(slug, None))

    async def _opened(self, backend: Backend, *, again: bool) -> None:
        try:
            async with asyncio.timeout(self._limits.merged_opening_seconds):
                await backend.open(self._info, self._capabilities, for_modern_client=self._modern)
        except BackendError as err:
            self._failures[backend.slug] = err.why
            return
        except TimeoutError:
            self._failures[backend.slug] = "the server did not respond in time"
            backend.did_not_begin()
            return
        self._backends[backend.slug] = backend
        self._failures.pop(backend.slug, None)
        if again:
            self._tell_of_new_session(backend)

    def _tell_of_new_session(self, backend: Backend) -> None:
        """Send ``list_changed``: another release of the server may have started."""
        for capability in _LISTS:
            if not self._modern and backend.offers(capability):
                note = {"jsonrpc": "2.0", "method": f"notifications/{capability}/list_changed"}
                self._notifications.hear(encode(note))

    async def _wait_for(self, *slugs: str) -> None:
        """Wait for the first attempts to open sessions with these servers."""
        waited_for = [each.task for slug in slugs if (each := self._openings.get(slug)) and each.waited_for]
        if waited_for:
            await asyncio.wait(waited_for)

    async def _backend(self, upstream: Upstream) -> Backend:
        """An open session with a server; raises `BackendError` if there is none."""
        self._open(upstream)
        opening = self._openings.get(upstream.slug)
        if opening is not None:
            await asyncio.wait([opening.task])
        backend = self._backends.get(upstream.slug)
        if backend is None or not backend.open_now:
            why = self._failures.get(upstream.slug, "its session ended")
            raise BackendError(SERVER_AWAY, f"the server {upstream.slug} is not available: {why}")
        return backend

    # Forwarded requests

    async def _relay(
        self, upstream: Upstream, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest
    ) -> None:
        """Forward a request in the server's era, and return the response in the client's era."""
        try:
            made = await self._send(await self._backend(upstream), frame, sink, parameters, work)
        except RefusedUnreadError:
            made = await self._send(await self._backend(upstream), frame, sink, parameters, work)
        result = made.members.get("result")
        if not self._modern and isinstance(result, dict) and result.get("resultType") == "input_required":
            raise BackendError(
                INVALID_PARAMS,
                "the server asks for input in a way that the client's protocol revision does not support",
            )
        sink.answered(as_stateless(made, frame.method) if self._modern else made, 0)

    async def _send(
        self, backend: Backend, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest
    ) -> Frame:
        if frame.method in SUBSCRIPTIONS and (self._modern or backend.modern):
            # In the stateless era a subscription is a request with a stream of its own.
            raise BackendError(METHOD_NOT_FOUND, self._no_subscriptions(backend))
        if backend.modern and not self._modern:
            meta = {VERSION_META: STATELESS_VERSIONS[0], CLIENT_META: self._info, CAPABILITIES_META: {}}
            frame = with_meta(frame, meta)
        elif self._modern and not backend.modern:
            frame = without_meta(frame)
        answer = ResponseFuture(partial(self._on_the_way, backend, sink))
        work.backend, work.inner = backend, backend.relay(frame, answer, parameters)
        made: Frame = await answer
        return made

    def _no_subscriptions(self, backend: Backend) -> str:
        return f"subscriptions to {backend.slug} are supported only at the server's own address"

    def _cancelled(self, frame: Frame) -> None:
        """Cancel a request of a client of the handshake era."""
        number = request_id_of(frame.params.get("requestId"))
        for work in [each for each in self._work.values() if number is not None and each.own == number]:
            work.cancelled = True
            if work.backend is None or work.backend.modern:
                work.give_up()
            elif work.inner is not None:
                own = work.inner[1]
                data = replace_value(frame.data, ("params", "requestId"), encode(own))
                work.backend.notify(Frame(data, {**frame.members, "params": {**frame.params, "requestId": own}}))

    # From servers

    def _on_server_message(self, backend: Backend, frame: Frame) -> None:
        """A message that belongs to no request."""
        if self._notifications.open:
            told = self._told(backend, frame)
            if told is not None:
                self._notifications.hear(told.data)
        elif frame.is_request:
            refuse(backend, frame, "the client has no stream open")

    def _on_the_way(self, backend: Backend, sink: ResponseSink, frame: Frame) -> None:
        """A message of a server before its response."""
        told = self._told(backend, frame)
        if told is not None:
            sink.message(told)

    def _told(self, backend: Backend, frame: Frame) -> Frame | None:
        """A message of a server as the client gets it; None if it is dropped."""
        if frame.is_request:
            if self._modern or backend.modern:
                refuse(backend, frame, "requests of servers are not supported in this protocol revision")
                return None
            return self._questions.asked(backend, frame)
        if frame.method == CANCELLED:
            return self._questions.withdrawn(backend, frame)
        if frame.method == PROGRESS:
            own = any(each.backend is backend and each.token == frame.progress_token for each in self._work.values())
            return frame if own else None  # a server may report progress only of its own calls
        return frame


class BridgedConversation(Bridge):
    """A conversation with one server of the other era, at the server's own path."""

    def __init__(self, manager: SessionManager, client: Client, upstream: Upstream) -> None:
        super().__init__(manager, client)
        self._upstream = upstream
        self._again_seconds = 0.0  # the server may be back at any time

    async def _respond(self, frame: Frame, sink: ResponseSink, parameters: bytes, work: RelayedRequest) -> None:
        if frame.method in OPENINGS:
            self._reply(frame, sink, self._about(frame, await self._backend(self._upstream)))
        elif frame.method == LISTEN and not (await self._backend(self._upstream)).modern:
            raise BackendError(METHOD_NOT_FOUND, self._no_subscriptions(await self._backend(self._upstream)))
        elif frame.method == "logging/setLevel" and (await self._backend(self._upstream)).modern:
            self._reply(frame, sink, {})  # in the stateless era each request sets its level
        else:
            await self._relay(self._upstream, frame, sink, parameters, work)

    def _about(self, frame: Frame, backend: Backend) -> dict[str, Any]:
        """The approved self-description of the server, in the client's era."""
        about = backend.about
        meta = about.get("_meta")
        info = about.get("serverInfo", meta.get(SERVER_META) if isinstance(meta, dict) else None)
        capabilities = about.get("capabilities")
        result: dict[str, Any] = {"capabilities": capabilities if isinstance(capabilities, dict) else {}}
        if frame.method == "initialize" and backend.modern:
            # Stateless servers send notifications on subscription streams only.
            result["capabilities"] = {
                name: {} if name in _LISTS else value for name, value in result["capabilities"].items()
            }
        if isinstance(about.get("instructions"), str):
            result["instructions"] = about["instructions"]
        if frame.method == "initialize":
            return {"protocolVersion": handshake_version(frame), "serverInfo": info, **result}
        return {"supportedVersions": list(STATELESS_VERSIONS), **result, "_meta": {SERVER_META: info}, **fresh()}

    def _no_subscriptions(self, backend: Backend) -> str:
        return (
            f"{backend.slug} speaks another revision of the protocol than the client, so it has no subscriptions here"
        )


class RelayedRequest:
    """A request of a client until its response."""

    __slots__ = ("backend", "cancelled", "inner", "own", "task", "token")

    def __init__(self, frame: Frame) -> None:
        self.own = frame.id
        """The client's id."""
        self.token = frame.progress_token
        """The client's progress token."""
        self.backend: Backend | None = None
        self.inner: RequestId | None = None
        """The id towards the server."""
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        """Whether the client cancelled it or left."""

    def give_up(self) -> None:
        """Cancel the request."""
        self.cancelled = True
        if self.backend is not None and self.backend.conversation is not None:
            self.backend.conversation.give_up(self.inner)
        if self.task is not None:
            self.task.cancel()


class _Opening:
    """An attempt to open a session with a server."""

    def __init__(self, task: asyncio.Task[None], *, waited_for: bool) -> None:
        self.task = task
        self.waited_for = waited_for


def fresh() -> dict[str, Any]:
    """The members about caching that every result of the stateless era has."""
    return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def handshake_version(frame: Frame) -> str:
    """The protocol revision to answer a client of the handshake era with."""
    asked = frame.params.get("protocolVersion")
    return asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
