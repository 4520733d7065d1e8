"""The servers behind the gateway, and the conversations of clients with them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import STARTED, STOPPED
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.notifications import EventSink
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.process_transport import ProcessTransport
from pinwarden.gateway.http.shared_process import SharedProcess, allows_sharing
from pinwarden.gateway.http.upstream_transport import TransportOwner, UpstreamTransport
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.messages import ParsedMessage, RequestId
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.session.session import Session
from pinwarden.system.fair_executor import FairExecutor

if TYPE_CHECKING:
    from pinwarden.gateway.http.tracing import Tracing

T = TypeVar("T")
Opener = Callable[[TransportOwner], UpstreamTransport]
HANDSHAKE = "handshake"
"""The protocol era of revisions in which a client opens a session with ``initialize``."""
STATELESS = "stateless"
"""The protocol era of revisions in which every request is self-contained."""
_REVOKED = "the token was revoked"


class AnyConversation(Protocol):
    """A conversation with one server, or with several servers through a bridge."""

    closed: bool
    server_session_ended: bool
    """Whether the server ended the session, so that requests need a new one."""
    last_used: float
    stream_keeps_session_open: bool
    """Whether an open notification stream counts as use."""

    def request(self, message: ParsedMessage, sink: ResponseSink, param_headers: bytes = b"") -> RequestId | None:
        """Send a request; ``sink`` gets the response. Returns an id for `cancel`."""

    def notify(self, message: ParsedMessage) -> None:
        """Send a notification, or a response to a request of the server."""

    def cancel(self, request_id: RequestId | None) -> None:
        """Cancel a request, because its client disconnected."""

    def listen(self, stream: EventSink) -> None:
        """Attach the notification stream."""

    def tick(self) -> None:
        """Handle deadlines. Called about once a second."""

    @property
    def is_idle(self) -> bool:
        """Whether the conversation has no open request, and no stream that counts as use."""

    def end_stream(self) -> None:
        """End all open event streams: notifications and subscriptions."""

    def close(self, reason: str) -> None:
        """End the conversation. Open requests fail with the reason."""


class Route(Protocol):
    """The target of a path of the gateway: one server, or all servers."""

    name: str
    slug: str
    requests: int

    def open_conversation(
        self, manager: SessionManager, client: GatewayClient, *, stateless: bool = False
    ) -> AnyConversation:
        """Open a conversation; ``stateless`` for requests of the stateless era."""


class Upstream:
    """One server behind the gateway: its guard, its recorder, and how to connect to it."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        name: str,
        slug: str,
        guard: Guard,
        recorder: LoopRecorder,
        opener: Opener,
        tracing: Tracing | None = None,
    ) -> None:
        self.name = name
        self.slug = slug
        """The server's name in paths, and the prefix of its tools at `/mcp`."""
        self.guard = guard
        self.recorder = recorder
        self.open_transport = opener
        self.tracing = tracing
        self.requests = 0
        self.losses = 0
        """How many conversations ended because the server exited, closed the connection or hung."""
        self.era = ""
        """`HANDSHAKE` or `STATELESS`; empty while unknown."""
        self.failing = False
        """Whether the last conversation ended without a message from the server, or could not be opened in time."""
        self._era_lock = asyncio.Lock()
        self._allows_sharing = False
        self._keeps_state = False
        """Whether the server ever announced a capability that prevents sharing its process."""
        self._process: SharedProcess | None = None

    def open_conversation(
        self, manager: SessionManager, client: GatewayClient, *, stateless: bool = False
    ) -> Conversation:
        """Open a conversation, over a new transport or in the shared process."""
        known = SessionClient(name=client.name, has_token=bool(client.name), teams=client.teams)
        session = Session(self.guard, name=secrets.token_hex(8), client=known)

        def on_closed(reason: str) -> None:
            self._record(STOPPED, session, reason)
            evicted = conversation.transport is not None and conversation.transport.evicted
            self.losses += conversation.server_lost and not evicted
            self.failing = not conversation.has_received and not evicted

        conversation = Conversation(
            session,
            self.recorder,
            manager.limits,
            manager.clock,
            on_closed,
            manager.executor,
            manager.budget,
            self.tracing,
        )
        conversation.person = client.person
        conversation.forget_era = partial(self._forget_era, manager)
        self._record(STARTED, session, "")
        if stateless and self.era == STATELESS and self._process is not None and not self._process.closed:
            conversation.transport = self._process.attach(conversation)
            return conversation
        conversation.transport = self.open_transport(conversation)
        if stateless and self.era == STATELESS:
            self._share_process(conversation)
        return conversation

    @asynccontextmanager
    async def serialize_era_detection(self, seconds: float) -> AsyncIterator[None]:
        """Let one client at a time detect the server's era, so that not every client starts a process to detect it.

        Other clients wait at most ``seconds``. If the era is known, no client waits.
        """
        async with AsyncExitStack() as stack:
            if not self.era:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await stack.enter_async_context(self._era_lock)
            if self.era:
                await stack.aclose()
            yield

    def mark_stateless(self, conversation: AnyConversation) -> None:
        """Mark the server as stateless after ``server/discover`` succeeded. Share its process if that is safe."""
        self.era, self.failing = STATELESS, False
        if not isinstance(conversation, Conversation) or conversation.closed:
            return
        server_info = conversation.session.server_info
        if server_info is None:
            return
        if not allows_sharing(server_info):
            self._keeps_state = True
            if self._process is not None and not self._process.closed:
                self._process.fail("the server has capabilities now that clients cannot share")
        self._allows_sharing = not self._keeps_state
        self._share_process(conversation)

    def _share_process(self, conversation: Conversation) -> None:
        """Let other clients use the process of a conversation, unless another process is shared already."""
        transport = conversation.transport
        if (
            not self._allows_sharing
            or not conversation.limits.share_processes
            or not isinstance(transport, ProcessTransport)
        ):
            return
        if transport.closed or (self._process is not None and not self._process.closed):
            return
        self._process = SharedProcess(
            self.name, transport, conversation, conversation.limits, self.guard.limits.list_changed_seconds
        )
        conversation.transport = self._process.first_transport

    def _forget_era(self, manager: SessionManager) -> None:
        """Forget the server's era, because another release of the server may have started."""
        if self.era == STATELESS:
            self.era = ""
            manager.generation += 1  # invalidates cached routes

    def _record(self, kind: str, session: Session, reason: str) -> None:
        event = session.build_lifecycle_event(kind, reason)
        with suppress(PinwardenError):  # if the log fails, messages fail too, with the reason
            self.recorder.record(SessionOutput(events=(event,)))


class ClientSession:
    """A session of the handshake era. Only the client that opened the session may use it."""

    def __init__(self, session_id: str, client: GatewayClient, route: Route, conversation: AnyConversation) -> None:
        self.id = session_id
        self.client = client
        self.route = route
        self.conversation = conversation


class SessionManager:
    """Opens, finds and ends conversations."""

    def __init__(self, upstreams: Mapping[str, Upstream], limits: HttpLimits, clock: Callable[[], float]) -> None:
        self.upstreams = dict(upstreams)
        self.limits = limits
        self.clock = clock
        self.executor = FairExecutor(
            max_queued=limits.max_client_slow_messages, max_queue_seconds=limits.slow_message_seconds
        )
        """The executor that parses and checks long messages."""
        self.budget = MemoryBudget(limits.max_queued_bytes)
        self._stateless: dict[tuple[str, GatewayClient], AnyConversation] = {}
        self._sessions: dict[str, ClientSession] = {}
        self._conversations: set[AnyConversation] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.generation = 0
        """Incremented when the set of servers changes or a server's era is forgotten. Invalidates cached routes."""

    def get_stateless_conversation(self, route: Route, client: GatewayClient) -> AnyConversation:
        """Return the conversation for all stateless requests with one token on a route. Opens it if necessary."""
        key = route.slug, client
        conversation = self._stateless.get(key)
        if conversation is None or conversation.closed:
            conversation = self._stateless[key] = self.open_conversation(route, client, stateless=True)
        return conversation

    def find_stateless_conversation(self, route: Route, client: GatewayClient) -> AnyConversation | None:
        """Return the conversation that `get_stateless_conversation` would return; None if it is not open."""
        conversation = self._stateless.get((route.slug, client))
        return None if conversation is None or conversation.closed else conversation

    def adopt_stateless_conversation(
        self, route: Route, client: GatewayClient, conversation: AnyConversation
    ) -> AnyConversation:
        """Use a conversation for stateless requests. If a different one is already in use, close this one.

        Returns the conversation that is in use.
        """
        current = self.find_stateless_conversation(route, client)
        if current is None:
            current = self._stateless[route.slug, client] = conversation
        elif current is not conversation:
            conversation.close("another conversation is used instead")
        return current

    def open_session(self, route: Route, client: GatewayClient) -> ClientSession | None:
        """Open a session. At a limit, ends an idle session first, or returns None if none is idle."""
        client_sessions = [one for one in self._sessions.values() if one.client.name == client.name]
        if len(client_sessions) >= self.limits.max_client_sessions and not self._end_idle_session(client_sessions):
            return None
        if len(self._sessions) >= self.limits.max_sessions and not self._end_idle_session(
            self._find_sessions_of_busiest_client()
        ):
            return None
        session_id = secrets.token_urlsafe(24)
        client_session = ClientSession(session_id, client, route, self.open_conversation(route, client))
        self._sessions[session_id] = client_session
        return client_session

    def find_session(self, session_id: str, client: GatewayClient, route: Route) -> ClientSession | None:
        """Return the open session with this id, if it belongs to this client and route; otherwise None."""
        client_session = self._sessions.get(session_id)
        if client_session is None or client_session.client != client or client_session.route.slug != route.slug:
            return None
        conversation = client_session.conversation
        return None if conversation.closed or conversation.server_session_ended else client_session

    def end_session(self, client_session: ClientSession) -> None:
        """End a session for its client."""
        self._sessions.pop(client_session.id, None)
        client_session.conversation.close("the session ended")

    def revoke(self, clients: Set[GatewayClient]) -> None:
        """End all sessions and streams that were opened with revoked tokens."""
        for client_session in [one for one in self._sessions.values() if one.client in clients]:
            del self._sessions[client_session.id]
            client_session.conversation.close(_REVOKED)
        for key in [key for key in self._stateless if key[1] in clients]:
            self._stateless.pop(key).close(_REVOKED)

    def end_streams_of(self, clients: Set[GatewayClient]) -> None:
        """End the event streams of clients whose token expired. Sessions continue with a renewed access token."""
        for client_session in self._sessions.values():
            if client_session.client in clients:
                client_session.conversation.end_stream()
        for (_, client), conversation in self._stateless.items():
            if client in clients:
                conversation.end_stream()

    def open_conversation(self, route: Route, client: GatewayClient, *, stateless: bool = False) -> AnyConversation:
        """Open a conversation, and keep track of it until it closes."""
        conversation = route.open_conversation(self, client, stateless=stateless)
        self._conversations.add(conversation)
        return conversation

    def run_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that is cancelled when the gateway ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def list_conversations(self) -> Iterator[AnyConversation]:
        """Yield all open conversations."""
        yield from tuple(self._conversations)

    async def offload_if_large(self, client: str, size: int, work: Callable[[], T]) -> T:
        """Run work that processes ``size`` bytes: directly if they are few, otherwise on the executor."""
        if size <= self.limits.max_bytes_at_once:
            return work()
        return await self.executor.submit(client, work, required=True)

    def tick(self) -> None:
        """Handle deadlines in all conversations, and end unused conversations."""
        unused_since = self.clock() - self.limits.idle_seconds
        for conversation in self.list_conversations():
            try:
                conversation.tick()
            except Exception as err:  # noqa: BLE001 - one conversation must not stop the clock of the others
                context = {"message": "a conversation failed", "exception": err}
                asyncio.get_running_loop().call_exception_handler(context)
                conversation.close("the gateway failed with an internal error")
            if conversation.is_idle and conversation.last_used < unused_since:
                conversation.close("the session was idle for too long")
        self._conversations = {conversation for conversation in self._conversations if not conversation.closed}
        self._sessions = {key: session for key, session in self._sessions.items() if not session.conversation.closed}
        self._stateless = {
            key: conversation for key, conversation in self._stateless.items() if not conversation.closed
        }

    def replace_upstreams(self, upstreams: Mapping[str, Upstream]) -> None:
        """Replace the set of servers. Conversations with removed or changed servers end."""
        outdated = [upstream for slug, upstream in self.upstreams.items() if upstreams.get(slug) is not upstream]
        self.upstreams = dict(upstreams)
        self.generation += 1
        for conversation in self.list_conversations():
            if isinstance(conversation, Conversation):
                changed = any(conversation.session.guard is upstream.guard for upstream in outdated)
            else:
                changed = bool(outdated)
            if changed:
                conversation.close("the server changed in the lock")

    def end_streams(self) -> None:
        """End all open event streams: notifications and subscriptions."""
        for conversation in self.list_conversations():
            conversation.end_stream()

    def close(self) -> None:
        """End all conversations."""
        for task in self._tasks:
            task.cancel()
        for conversation in self.list_conversations():
            conversation.close("the gateway is shutting down")
        self.executor.shutdown()

    @property
    def open_counts(self) -> tuple[int, int]:
        """The number of open sessions and of open conversations."""
        return len(self._sessions), len(self._conversations)

    def _find_sessions_of_busiest_client(self) -> list[ClientSession]:
        """Return the sessions of the client with the most sessions."""
        by_client: dict[str, list[ClientSession]] = {}
        for client_session in self._sessions.values():
            by_client.setdefault(client_session.client.name, []).append(client_session)
        return max(by_client.values(), key=len)

    def _end_idle_session(self, client_sessions: list[ClientSession]) -> bool:
        """End the least recently used idle session. Returns False if none is idle."""
        idle = [one for one in client_sessions if one.conversation.is_idle]
        if not idle:
            return False
        self.end_session(min(idle, key=lambda one: one.conversation.last_used))
        return True
