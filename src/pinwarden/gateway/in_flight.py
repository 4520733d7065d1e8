"""Messages in flight: requests that were forwarded, messages that wait for a list, and requests without an answer."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import SessionLimits
from pinwarden.gateway.messages import LISTEN, error_response
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.surface.protocol import INVALID_PARAMS, SERVER_AWAY
from pinwarden.surface.surface import ItemKind


class ForwardedRequest:
    """A request of the client that went to the server."""

    __slots__ = ("cursor", "kind", "method", "notices", "number", "order", "use", "warning")

    def __init__(self, number: Any, method: str, use: str = "", warning: Verdict | None = None) -> None:
        self.number = number
        self.method = method
        self.use = use
        """What it uses, to count how often in a row the server asks back."""
        self.warning = warning
        """What the client is to be told with the answer."""
        self.kind: ItemKind | None = None
        """Which list it asks for; None for anything else."""
        self.order = 0
        """When it was asked for, among all lists that were."""
        self.notices = 0
        """How often the server had told by then that this list changed: an answer knows of no later time."""
        self.cursor = False
        """Whether it asks for a further page."""


class ClientRequest:
    """A request of the client, from when it came until it is decided. It may wait for a list."""

    __slots__ = ("frame", "message", "since")

    def __init__(self, frame: bytes, message: Any, since: float) -> None:
        self.frame = frame
        self.message = message
        self.since = since

    @property
    def number(self) -> Any:
        """Its id."""
        return self.message["id"]

    @property
    def method(self) -> str:
        """What it asks for."""
        return str(self.message["method"])


class TaskNotification:
    """A notification of the server that holds the result of a task. It may wait for the list of tools."""

    __slots__ = ("frame", "message", "since")
    number = None

    def __init__(self, frame: bytes, message: Any, since: float) -> None:
        self.frame = frame
        self.message = message
        self.since = since

    @property
    def method(self) -> str:
        """What it tells."""
        return str(self.message["method"])


class ServerAnswer:
    """An answer of the server to a request of the client. That of a list may wait for the rest of the list."""

    __slots__ = ("asked", "frame", "message", "since", "tries")

    def __init__(self, frame: bytes, message: Any, asked: ForwardedRequest, since: float) -> None:
        self.frame = frame
        self.message = message
        """None if it cannot be read strictly as a whole."""
        self.asked = asked
        self.since = since
        self.tries = 0

    @property
    def number(self) -> Any:
        """The id of the request."""
        return self.asked.number

    @property
    def method(self) -> str:
        """What was asked for."""
        return self.asked.method


DeferredMessage = ClientRequest | ServerAnswer | TaskNotification


class DeferredMessages:
    """The messages of one session that wait. None waits for ever, and there is room for so many only."""

    def __init__(self, limits: SessionLimits, journal: SessionAudit) -> None:
        self._limits = limits
        self._journal = journal
        self._line: list[DeferredMessage] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._line)

    def __contains__(self, number: Any) -> bool:
        """Whether a message that is answered under this id waits."""
        return any(held.number == number for held in self._line if not isinstance(held, TaskNotification))

    def hold(self, held: DeferredMessage, out: OutputBuilder) -> None:
        """Let one more wait, or tell who waits for it that there is no room."""
        size = len(held.frame)
        if len(self._line) < self._limits.max_held and self._bytes + size <= self._limits.max_held_bytes:
            self._line.append(held)
            self._bytes += size
        elif not isinstance(held, TaskNotification):  # of a notice: who waits for the result can ask for it
            out.to_client.append(
                error_response(held.number, SERVER_AWAY, "pinwarden: too many requests wait for a list")
            )

    def drop(self, number: Any) -> bool:
        """Nobody waits for the answer to a request any more; whether it was held."""
        before = len(self._line)
        self._keep([held for held in self._line if not isinstance(held, ClientRequest) or held.number != number])
        return len(self._line) != before

    def forget(self, number: Any) -> None:
        """Nobody waits for anything under an id any more, and it may soon be that of another request."""
        self._keep([held for held in self._line if isinstance(held, TaskNotification) or held.number != number])

    def take(self) -> list[DeferredMessage]:
        """All of them; none is held then."""
        taken = self._line
        self._keep([])
        return taken

    def answered(self) -> list[Any]:
        """The ids under which somebody waits for an answer to one of them; none is held then."""
        return [held.number for held in self.take() if not isinstance(held, TaskNotification)]

    def refuse_late(self, now: float, out: OutputBuilder) -> None:
        """What waited longer than any list may take is refused, whatever it waits for."""
        limit = self._limits.list_seconds * 2
        late = [held for held in self._line if now - held.since > limit]
        self._keep([held for held in self._line if now - held.since <= limit])
        for held in late:
            call = self._journal.call_id(held.number)
            self._journal.refused("list_failed", "The server's lists could not be had.", held.method, call, out)
            if not isinstance(held, TaskNotification):
                text = "pinwarden: the server's lists could not be judged in time"
                out.to_client.append(
                    error_response(held.number, INVALID_PARAMS, text, {"pinwarden": {"code": "list_failed"}})
                )

    def _keep(self, line: list[DeferredMessage]) -> None:
        self._line = line
        self._bytes = sum(len(held.frame) for held in line)


_CALL = "tools/call"
_MAX_GIVEN_UP = 1_000


class OverdueRequests:
    """Finds them, by a look about once a second at those that are open."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._given_up: dict[Any, None] = {}
        """Ids of requests that were answered with an error, and that the server may still answer."""
        self._since: dict[Any, tuple[object, float]] = {}
        self._alive = 0.0

    def alive(self, now: float) -> None:
        """The server shows that it is at work, or waits for the client: all open requests have the whole time again."""
        self._alive = now

    def find(self, open_requests: dict[Any, ForwardedRequest | str], now: float) -> list[ForwardedRequest]:
        """Those whose time is over. A subscription is answered when it ends, so it has no such time."""
        since: dict[Any, tuple[object, float]] = {}
        due: list[ForwardedRequest] = []
        for number, asked in tuple(open_requests.items()):
            if number in self._given_up:
                continue
            known = self._since.get(number)
            if known is None or known[0] is not asked:
                since[number] = asked, now
            elif type(asked) is str:
                # A call on the fast path is only a name, and the next one under this id would be the same name.
                made = ForwardedRequest(number, _CALL, asked)
                if open_requests.get(number) is asked:
                    open_requests[number] = made
                since[number] = made, known[1]
            else:
                since[number] = known
                late = now - max(known[1], self._alive) >= self.seconds
                if late and isinstance(asked, ForwardedRequest) and asked.method != LISTEN:
                    due.append(asked)
        self._since = since
        return due

    def give_up(self, number: Any) -> None:
        """A request was answered with an error."""
        if len(self._given_up) >= _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[number] = None

    def dropped(self, number: Any) -> bool:
        """Whether the answer to a request comes after it was given up. It is forgotten with that."""
        return number in self._given_up and self._given_up.pop(number) is None
