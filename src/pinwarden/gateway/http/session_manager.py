"""All servers behind the gateway, and all conversations with them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import STARTED, STOPPED, AuditEvent
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.frames import Frame, RequestId
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.notifications import EventSink
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.process_transport import ProcessTransport
from pinwarden.gateway.http.record_then_send import StepRecorder
from pinwarden.gateway.http.shared_process import SharedProcess, allows_sharing
from pinwarden.gateway.http.upstream_transport import TransportOwner, UpstreamTransport
from pinwarden.gateway.session import Session
from pinwarden.gateway.session_audit import Step
from pinwarden.system.fair_executor import FairExecutor

T = TypeVar("T")
Opener = Callable[[TransportOwner], UpstreamTransport]
HANDSHAKE = "handshake"
"""Revisions in which a client begins a session with initialize."""
STATELESS = "stateless"
"""Revisions in which every request stands for itself."""
_REVOKED = "the token is good no more"


class AnyConversation(Protocol):
    """What a client can do with a conversation, whether one server is behind it or several."""

    closed: bool
    ended: bool
    """Whether the server does not know the session any more, so that requests have to go into another one."""
    used: float
    stream_counts: bool
    """Whether an open stream for what belongs to no request counts as use."""

    def request(self, frame: Frame, sink: ResponseSink, parameters: bytes = b"") -> RequestId | None:
        """Ask something."""

    def tell(self, frame: Frame) -> None:
        """Tell or answer something."""

    def give_up(self, number: RequestId | None) -> None:
        """Do not wait any more."""

    def listen(self, reply: EventSink) -> None:
        """Hear what belongs to no request."""

    def tick(self) -> None:
        """Do what is due."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""

    def end_stream(self) -> None:
        """End what would stay open for ever."""

    def close(self, why: str) -> None:
        """End it."""


class Route(Protocol):
    """What an address of the gateway leads to."""

    name: str
    slug: str
    requests: int

    def converse(self, manager: SessionManager, client: Client, *, stateless: bool = False) -> AnyConversation:
        """A new conversation with it; ``stateless`` if each request in it stands for itself."""


class Upstream:
    """One server: who judges it, where that is recorded, and how it is reached."""

    def __init__(self, name: str, slug: str, guard: Guard, recording: StepRecorder, opener: Opener) -> None:
        self.name = name
        self.slug = slug
        """Its name in addresses and in the names of the merged endpoint."""
        self.guard = guard
        self.recording = recording
        self.open = opener
        self.requests = 0
        self.losses = 0
        self.era = ""
        """Which requests the server takes, as far as is known: `HANDSHAKE` or `STATELESS`."""
        self.failing = False
        """Whether the last conversation ended before the server said anything."""
        self._finding_era = asyncio.Lock()
        self._allows_sharing = False
        self._keeps_state = False
        """Whether the server ever had a capability that clients cannot share."""
        self._process: SharedProcess | None = None

    def converse(self, manager: SessionManager, client: Client, *, stateless: bool = False) -> Conversation:
        """A session with the server, over a new link or in the process that stateless conversations share."""
        session = Session(self.guard, name=secrets.token_hex(8), client=client.name)

        def closed(why: str) -> None:
            self.losses += 1
            self._record(STOPPED, session, why)
            self.failing = not made.answered_once and not (made.link is not None and made.link.evicted)

        made = Conversation(
            session, self.recording, manager.limits, manager.clock, closed, manager.executor, manager.budget
        )
        made.on_not_understood = partial(self._doubt_era, manager)
        self._record(STARTED, session, "")
        if stateless and self.era == STATELESS and self._process is not None and not self._process.closed:
            made.link = self._process.attach(made)
            return made
        made.link = self.open(made)
        if stateless and self.era == STATELESS:
            self._share(made)
        return made

    @asynccontextmanager
    async def finding_era(self, seconds: float) -> AsyncIterator[None]:
        """While the era of the server is not known, one client at a time finds it out, so that not every client starts
        a process for that. Another client may be slow for reasons of its own, so it is waited for only so long."""
        async with AsyncExitStack() as stack:
            if not self.era:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await stack.enter_async_context(self._finding_era)
            if self.era:
                await stack.aclose()
            yield

    def is_stateless(self, conversation: AnyConversation) -> None:
        """The server answered ``server/discover`` in a conversation: its process is shared, if that is safe."""
        self.era, self.failing = STATELESS, False
        if not isinstance(conversation, Conversation) or conversation.closed:
            return
        facts = conversation.session.server_facts
        if facts is None:
            return
        if not allows_sharing(facts):
            self._keeps_state = True
            if self._process is not None and not self._process.closed:
                self._process.lose("the server has capabilities now that clients cannot share")
        self._allows_sharing = not self._keeps_state
        self._share(conversation)

    def _share(self, conversation: Conversation) -> None:
        """Let other clients use the process of a conversation, unless there is one for them already."""
        link = conversation.link
        if (
            not self._allows_sharing
            or not conversation.limits.share_processes
            or not isinstance(link, ProcessTransport)
        ):
            return
        if link.closed or (self._process is not None and not self._process.closed):
            return
        self._process = SharedProcess(
            self.name, link, conversation, conversation.limits, self.guard.limits.notice_seconds
        )
        conversation.link = self._process.founder_link

    def _doubt_era(self, manager: SessionManager) -> None:
        """Find out again of which era the server is: another release of it may have been started."""
        if self.era == STATELESS:
            self.era = ""
            manager.generation += 1  # what leads straight to the server does not any more

    def _record(self, kind: str, session: Session, why: str) -> None:
        fact = AuditEvent(kind=kind, server=self.name, client=session.client, session=session.name, reason=why)
        with suppress(
            PinwardenError
        ):  # a log that takes nothing lets no message pass either, and who sends one is told
            self.recording.soon(Step(facts=(fact,)))


class ClientSession:
    """A session of the handshake era: it belongs to one client, and nobody else may use it."""

    def __init__(self, number: str, client: Client, route: Route, conversation: AnyConversation) -> None:
        self.id = number
        self.client = client
        self.route = route
        self.conversation = conversation


class SessionManager:
    """Opens, finds and ends conversations."""

    def __init__(self, upstreams: Mapping[str, Upstream], limits: HttpLimits, clock: Callable[[], float]) -> None:
        self.upstreams = dict(upstreams)
        self.limits = limits
        self.clock = clock
        self.executor = FairExecutor(max_waiting=limits.max_client_judging, wait_seconds=limits.judging_wait_seconds)
        """For everything that judges or reads long input."""
        self.budget = MemoryBudget(limits.max_all_waiting_bytes)
        self._shared: dict[tuple[str, Client], AnyConversation] = {}
        self._sessions: dict[str, ClientSession] = {}
        self._all: set[AnyConversation] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.generation = 0
        """Counts the changes of what is served."""

    def stateless_conversation(self, route: Route, client: Client) -> AnyConversation:
        """The conversation for all requests with one token that stand for themselves."""
        key = route.slug, client
        found = self._shared.get(key)
        if found is None or found.closed:
            found = self._shared[key] = self.conversation(route, client, stateless=True)
        return found

    def open_stateless_conversation(self, route: Route, client: Client) -> AnyConversation | None:
        """That conversation, if there is one."""
        found = self._shared.get((route.slug, client))
        return None if found is None or found.closed else found

    def adopt_stateless(self, route: Route, client: Client, made: AnyConversation) -> AnyConversation:
        """Let all such requests use a conversation, unless there is one for them already."""
        found = self.open_stateless_conversation(route, client)
        if found is None:
            found = self._shared[route.slug, client] = made
        elif found is not made:
            made.close("another conversation is used instead")
        return found

    def open_session(self, route: Route, client: Client) -> ClientSession | None:
        """A new session, or None if there are too many."""
        own = [each for each in self._sessions.values() if each.client.name == client.name]
        if len(own) >= self.limits.max_client_sessions and not self._end_idle(own):
            return None
        if len(self._sessions) >= self.limits.max_sessions and not self._end_idle(self._of_busiest_client()):
            return None
        number = secrets.token_urlsafe(24)
        made = ClientSession(number, client, route, self.conversation(route, client))
        self._sessions[number] = made
        return made

    def session(self, number: str, client: Client, route: Route) -> ClientSession | None:
        """A session, if it is this client's."""
        found = self._sessions.get(number)
        if found is None or found.client != client or found.route.slug != route.slug:
            return None
        return None if found.conversation.closed or found.conversation.ended else found

    def end_session(self, session: ClientSession) -> None:
        """The client ends its session."""
        self._sessions.pop(session.id, None)
        session.conversation.close("the session was ended")

    def revoke(self, clients: Set[Client]) -> None:
        """End everything that was opened with the tokens of these clients, with every stream in it."""
        for session in [each for each in self._sessions.values() if each.client in clients]:
            del self._sessions[session.id]
            session.conversation.close(_REVOKED)
        for key in [each for each in self._shared if each[1] in clients]:
            self._shared.pop(key).close(_REVOKED)

    def conversation(self, route: Route, client: Client, *, stateless: bool = False) -> AnyConversation:
        """A new conversation, which ends with the gateway."""
        made = route.converse(self, client, stateless=stateless)
        self._all.add(made)
        return made

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that is cancelled when the gateway ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def conversations(self) -> Iterator[AnyConversation]:
        """Every conversation that is open."""
        yield from tuple(self._all)

    async def offload_if_large(self, client: str, size: int, work: Callable[[], T]) -> T:
        """Do something with so many bytes for a client: on the executor, if others would have to wait for it."""
        if size <= self.limits.max_bytes_at_once:
            return work()
        return await self.executor.submit(client, work, required=True)

    def tick(self) -> None:
        """Whatever is due in any conversation; those that nobody used for long are ended."""
        unused = self.clock() - self.limits.session_seconds
        for each in self.conversations():
            try:
                each.tick()
            except Exception as err:  # noqa: BLE001 - the clock is everybody's, and must not stop for one of them
                told = {"message": "a conversation could not be kept", "exception": err}
                asyncio.get_running_loop().call_exception_handler(told)
                each.close("the gateway failed")
            if each.idle and each.used < unused:
                each.close("the session was not used")
        self._all = {each for each in self._all if not each.closed}
        self._sessions = {key: each for key, each in self._sessions.items() if not each.conversation.closed}
        self._shared = {key: each for key, each in self._shared.items() if not each.closed}

    def replace(self, upstreams: Mapping[str, Upstream]) -> None:
        """Other servers from now on. Conversations with those that are gone or changed end."""
        gone = [each for slug, each in self.upstreams.items() if upstreams.get(slug) is not each]
        self.upstreams = dict(upstreams)
        self.generation += 1
        for conversation in self.conversations():
            if isinstance(conversation, Conversation):
                changed = any(conversation.session.guard is each.guard for each in gone)
            else:
                changed = bool(gone)
            if changed:
                conversation.close("the server was changed in the lock")

    def end_streams(self) -> None:
        """End the streams that would stay open for ever."""
        for each in self.conversations():
            each.end_stream()

    def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        for each in self.conversations():
            each.close("the gateway ends")
        self.executor.shutdown()

    @property
    def counts(self) -> tuple[int, int]:
        """How many sessions and how many conversations are open."""
        return len(self._sessions), len(self._all)

    def _of_busiest_client(self) -> list[ClientSession]:
        """The sessions of the client that has most of them."""
        by_client: dict[str, list[ClientSession]] = {}
        for each in self._sessions.values():
            by_client.setdefault(each.client.name, []).append(each)
        return max(by_client.values(), key=len)

    def _end_idle(self, sessions: list[ClientSession]) -> bool:
        """End the one of these that nobody has used for longest, if it is idle."""
        idle = [each for each in sessions if each.conversation.idle]
        if not idle:
            return False
        self.end_session(min(idle, key=lambda each: each.conversation.used))
        return True
