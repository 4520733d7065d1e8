"""All servers behind the gateway, and all conversations with them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping

from pinwarden.gateway.guard import Guard
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.limits import HttpLimits
from pinwarden.gateway.http.links import Link, LinkOwner
from pinwarden.gateway.http.recording import Recording
from pinwarden.gateway.session import Session

Opener = Callable[[LinkOwner], Link]


class Upstream:
    """One server: who judges it, and how it is reached."""

    def __init__(self, name: str, slug: str, guard: Guard, opener: Opener) -> None:
        self.name = name
        self.slug = slug
        """Its name in addresses and in the names of the merged endpoint."""
        self.guard = guard
        self.open = opener
        self.requests = 0
        self.losses = 0
        self.last_loss = ""


class ClientSession:
    """A session of the handshake era: it belongs to one client, and nobody else may use it."""

    def __init__(self, number: str, client: str, upstream: Upstream, conversation: Conversation) -> None:
        self.id = number
        self.client = client
        self.upstream = upstream
        self.conversation = conversation


class Hub:
    """Opens, finds and ends conversations."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], recording: Recording, limits: HttpLimits, clock: Callable[[], float]
    ) -> None:
        self.upstreams = dict(upstreams)
        self.recording = recording
        self.limits = limits
        self.clock = clock
        self._shared: dict[tuple[str, str], Conversation] = {}
        self._sessions: dict[str, ClientSession] = {}
        self._others: set[Conversation] = set()

    def shared(self, upstream: Upstream, client: str) -> Conversation:
        """The conversation for all requests of a client that stand for themselves."""
        key = upstream.slug, client
        found = self._shared.get(key)
        if found is None or found.closed:
            found = self._shared[key] = self.conversation(upstream, client)
        return found

    def open_session(self, upstream: Upstream, client: str) -> ClientSession | None:
        """A new session, or None if there are too many."""
        if len(self._sessions) >= self.limits.max_sessions and not self._make_room():
            return None
        number = secrets.token_urlsafe(24)
        made = ClientSession(number, client, upstream, self.conversation(upstream, client))
        self._sessions[number] = made
        return made

    def session(self, number: str, client: str, upstream: Upstream) -> ClientSession | None:
        """A session, if it is this client's."""
        found = self._sessions.get(number)
        if found is None or found.client != client or found.upstream is not upstream or found.conversation.closed:
            return None
        return found

    def end_session(self, session: ClientSession) -> None:
        """The client ends its session."""
        self._sessions.pop(session.id, None)
        session.conversation.close("the session was ended")

    def conversation(self, upstream: Upstream, client: str) -> Conversation:
        """A new conversation with a server."""
        session = Session(upstream.guard, name=secrets.token_hex(8), client=client)

        def closed(conversation: Conversation, why: str) -> None:
            self._others.discard(conversation)
            upstream.losses += 1
            upstream.last_loss = why

        made = Conversation(session, self.recording, self.limits, self.clock, closed)
        self._others.add(made)
        made.link = upstream.open(made)
        return made

    def conversations(self) -> Iterator[Conversation]:
        """Every conversation that is open."""
        yield from tuple(self._others)

    def tick(self) -> None:
        """Whatever is due in any conversation; those that nobody used for long are ended."""
        unused = self.clock() - self.limits.session_seconds
        for each in self.conversations():
            each.tick()
            if each.idle and each.used < unused:
                each.close("the session was not used")
        self._sessions = {key: each for key, each in self._sessions.items() if not each.conversation.closed}
        self._shared = {key: each for key, each in self._shared.items() if not each.closed}

    def replace(self, upstreams: Mapping[str, Upstream]) -> None:
        """Other servers from now on. Conversations with those that are gone or changed end."""
        gone = [each for slug, each in self.upstreams.items() if upstreams.get(slug) is not each]
        self.upstreams = dict(upstreams)
        for conversation in self.conversations():
            if any(conversation.session.guard is each.guard for each in gone):
                conversation.close("the server was changed in the lock")

    def end_streams(self) -> None:
        """End the streams that would stay open for ever."""
        for each in self.conversations():
            each.end_stream()

    def close(self) -> None:
        """End everything."""
        for each in self.conversations():
            each.close("the gateway ends")

    @property
    def counts(self) -> tuple[int, int]:
        """How many sessions and how many conversations are open."""
        return len(self._sessions), len(self._others)

    def _make_room(self) -> bool:
        """End the session that nobody has used for longest, if it is idle."""
        idle = [each for each in self._sessions.values() if each.conversation.idle]
        if not idle:
            return False
        self.end_session(min(idle, key=lambda each: each.conversation.used))
        return True
