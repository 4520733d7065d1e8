"""The rules for one upstream server: what is approved, the policy, and what was read before.

All sessions with that server share one `Guard`. Where approvals come from is an `ApprovedSource`
(`approved_sources.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.gates.lists import judge_list, judge_unknown_method, judge_unknown_task, judge_use
from pinwarden.gateway.gates.requests import Refusal
from pinwarden.gateway.gates.server import judge_server
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.tasks import Tasks
from pinwarden.lock.gateway_policy import DEFAULT_POLICY, GatewayPolicy, RequestPolicy
from pinwarden.surface.surface import ITEM_KINDS, TOOL, Item, ItemKind, Surface

if TYPE_CHECKING:
    from pinwarden.gateway.gates.requests import JudgedRequest


class SessionLimits(Record):
    """Bounds on one conversation."""

    max_frame: int = 128 * 1024 * 1024
    """Real results reach 50 MB of encoded pictures; a message is held in memory as a whole."""
    max_pages: int = 200
    """Of one list. The largest real servers need fewer than ten."""
    max_items: int = 5_000
    """Of one list; what a model could read ends far below. Comparing a new one takes up to a millisecond."""
    max_request_tools: int = 200
    """Tool definitions in one server request; models take at most 128."""
    max_input_requests: int = 100
    """Server requests in one result or task; real results have one or two."""
    max_list: int = 32 * 1024 * 1024
    """Bytes of all pages of one list together; the largest real ones stay below 1 MiB."""
    max_unread: int = 1024 * 1024
    """Bytes of a list answer that is taken apart because it cannot be read as a whole, which takes far longer."""
    max_open: int = 10_000
    """Requests without an answer, in each direction."""
    max_held: int = 1_000
    """Messages that wait for a list to be judged."""
    max_held_bytes: int = 160 * 1024 * 1024
    """Of all of them together: one largest message and some others. A server can send many while it is asked."""
    max_unwritten: int = 192 * 1024 * 1024
    """Bytes that wait for a side that does not read: all that was held at once, and some more. Then the server ends."""
    list_seconds: float = 20.0
    """How long a server may take for a list before its calls are refused."""
    max_rounds: int = 5
    """How often a list is asked for again because it changed while it was read."""
    notice_seconds: float = 0.25
    """For which further notices that a list changed are put together: one session cannot make all others of the same
    server list without end, nor a server its client."""
    source_seconds: float = 0.25
    """How long an answer of the lock or store counts before it is asked again: the delay of an approval."""

    @property
    def json(self) -> Limits:
        """What the strict reader takes."""
        return Limits(max_bytes=self.max_frame)


DEFAULT_SESSION_LIMITS = SessionLimits()


class ApprovedSource(Protocol):
    """The lock, or the store of what was trusted on first use.

    Both methods are called from any thread. What cannot be read raises ``PinwardenError``: the gateway then refuses
    everything, it never goes on with "nothing was approved".
    """

    def current(self) -> ApprovedSurface | None:
        """What is approved now; None if nothing ever was and the first use may be trusted.

        Called for every message that is judged, so it must be cheap while nothing changed: look at the file's time or
        a counter, at most so often.
        """

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Keep the first surface ever seen as the approved one, and return it.

        If another process was faster, the surface that it kept is returned instead. A source that trusts nothing (a
        lock) raises ``SERVER_NOT_LOCKED``.
        """


class ApprovedSurface(Record):
    """The measure that everything of one server is held against. It changes only by approval, never by being served."""

    server: str
    """The server's name in the lock, or the name under which it was trusted on first use."""
    surface: Surface
    generation: str
    """Changes whenever the content does: a digest, a counter, a time stamp. What was judged before is judged anew."""
    origin: str = "lock"
    """``lock`` or ``first-use``."""


_MAX_REMEMBERED = 64  # list bodies; a session has four lists of a few pages
_REMEMBERED_BYTES = 16 * 1024 * 1024  # of all of them; what they hold takes several times as much


class Guard:
    """The judge of one upstream, for any number of sessions and threads."""

    def __init__(
        self,
        server: str,
        source: ApprovedSource,
        policy: GatewayPolicy = DEFAULT_POLICY,
        limits: SessionLimits = DEFAULT_SESSION_LIMITS,
    ) -> None:
        self.server = server
        self.policy = policy
        self.limits = limits
        self.epoch = 0
        """Counts every change of the measure or the policy; what was judged in an earlier one is judged anew."""
        self.stamp = 0
        """Counts everything that makes a session look again: changes of measure or policy, and notices."""
        self.look_at = 0.0
        """When the measure has to be looked at again."""
        self.refuses_to_tell = False
        """Whether the server has refused to tell when its lists change."""
        self.tasks = Tasks()
        self._source = source
        self._lock = Lock()
        self._approved: ApprovedSurface | None = None
        self._failure: PinwardenError | None = None
        self._notices = dict.fromkeys((kind.member for kind in ITEM_KINDS), 0)
        self._owed: set[str] = set()
        """Lists that changed, which other sessions have yet to learn."""
        self._tell_at = -inf
        self._bodies: dict[bytes, tuple[tuple[Item, ...], str | None, int]] = {}
        self._remembered = 0

    def look(self, now: float) -> None:
        """See whether the measure changed, at most every so often."""
        with self._lock:
            if now < self.look_at:
                return
            self.look_at = now + self.limits.source_seconds
            self._tell_notices(now)
            try:
                found = self._source.current()
            except PinwardenError as err:
                self._fail(err)
                return
            self._take(found)

    @property
    def approved(self) -> ApprovedSurface | None:
        """What is approved; None if the first use may be trusted. Raises if that cannot be told."""
        if self._failure is not None:
            raise self._failure
        return self._approved

    def set_policy(self, policy: GatewayPolicy) -> None:
        """Take another policy from now on; everything is judged anew under it."""
        with self._lock:
            self.policy = policy
            self._turn()

    def trust(self, surface: Surface) -> None:
        """Keep what is seen of a server that nobody has approved anything of."""
        with self._lock:
            try:
                self._take(self._source.trust(surface))
            except PinwardenError as err:
                self._fail(err)

    def judge_list(
        self, kind: ItemKind, items: tuple[Item, ...], client: str, server: Mapping[str, Any] | None
    ) -> tuple[Verdict, ...]:
        """A verdict for each item of a complete list."""
        return judge_list(
            kind, items, self._measure(), lambda key: self.policy.for_item(self.server, key, client), server
        )

    def judge_unlisted(self, kind: ItemKind, key: str, client: str) -> Verdict:
        """The verdict about using something that the server does not list."""
        return judge_use(kind, key, self._measure(), self.policy.for_item(self.server, key, client))

    def judge_unknown_task(self, task: str, client: str, owner: str) -> Verdict:
        """The verdict about a task of which nobody knows what tool it is a call of."""
        of_another = self.tasks.is_of_another(task, owner)
        return judge_unknown_task(self.policy.for_item(self.server, "", client), of_another=of_another)

    def judge_unknown_method(self, method: str, sender: str, client: str, *, why_not: str = "") -> Verdict:
        """The verdict about a message of a method that no revision of MCP knows."""
        policy = self.policy.for_item(self.server, method, client)
        return judge_unknown_method(method, sender, policy, why_not=why_not)

    def judge_server(self, facts: Mapping[str, Any], client: str) -> tuple[Verdict, ...]:
        """A verdict for each member of what the server says of itself."""
        return judge_server(facts, self._measure(), self.policy.for_item(self.server, "", client))

    def requests(self, client: str) -> RequestPolicy:
        """What the server may ask of the client."""
        return self.policy.for_requests(self.server, client)

    def judge_server_request(self, method: str, params: Any, client: str) -> JudgedRequest | Refusal:
        """What is decided about a request of the server that the policy permits as such."""
        from pinwarden.gateway.gates.requests import HIDDEN_CODES, judge_content

        definitions = self._definitions_in(params, client)
        if isinstance(definitions, Refusal):
            return definitions
        ignored = frozenset[str]() if self.policy.results.hidden_characters == "relay" else HIDDEN_CODES
        return judge_content(method, params, definitions, self.policy.for_item(self.server, method, client), ignored)

    def judge_tools_in_result(self, method: str, result: Any, client: str) -> JudgedRequest | Refusal | None:
        """What is decided about tool definitions in a result that is no list; None if nothing is to be said."""
        from pinwarden.gateway.gates.requests import judge_definitions_of_result

        definitions = self._definitions_in(result, client)
        return definitions if isinstance(definitions, Refusal) else judge_definitions_of_result(method, definitions)

    def _definitions_in(self, value: Any, client: str) -> tuple[Verdict, ...] | Refusal:
        from pinwarden.gateway.gates.requests import definitions_in

        items = definitions_in(value, self.limits.max_request_tools)
        if isinstance(items, Refusal) or not items:
            return items if isinstance(items, Refusal) else ()
        return self.judge_list(TOOL, items, client, None)

    def changed(self, kind: ItemKind, now: float) -> None:
        """The server told some session that a list changed: the views of all sessions are stale.

        The other sessions learn of it at once, or when `notice_seconds` have passed since they last did.
        """
        with self._lock:
            self._owed.add(kind.member)
            self._tell_notices(now)

    def _tell_notices(self, now: float) -> None:
        if self._owed and now >= self._tell_at:
            self._tell_at = now + self.limits.notice_seconds
            for member in self._owed:
                self._notices[member] += 1
            self._owed.clear()
            self.stamp += 1

    def notices(self, kind: ItemKind) -> int:
        """How often all sessions were told that a list changed."""
        return self._notices[kind.member]

    def recall(self, kind: ItemKind, body: bytes) -> tuple[tuple[Item, ...], str | None] | None:
        """The items and the cursor that a list result of exactly these bytes holds, if it was read before."""
        known = self._bodies.get(_body_key(kind, body))
        return None if known is None else known[:2]

    def remember(self, kind: ItemKind, body: bytes, items: tuple[Item, ...], cursor: str | None) -> None:
        """Keep what a list result holds. What it is worth is judged each time."""
        size = len(body)
        if size > _REMEMBERED_BYTES:
            return
        with self._lock:
            name = _body_key(kind, body)
            self._forget(name)
            while len(self._bodies) >= _MAX_REMEMBERED or self._remembered + size > _REMEMBERED_BYTES:
                self._forget(next(iter(self._bodies)))
            self._bodies[name] = items, cursor, size
            self._remembered += size

    def _forget(self, name: bytes) -> None:
        known = self._bodies.pop(name, None)
        if known is not None:
            self._remembered -= known[2]

    def _measure(self) -> Surface:
        approved = self.approved
        return _NO_SURFACE if approved is None else approved.surface

    def _take(self, found: ApprovedSurface | None) -> None:
        before, self._approved = self._approved, found
        known = None if before is None else before.generation
        if self._failure is not None or known != (None if found is None else found.generation):
            self._turn()
        self._failure = None

    def _fail(self, err: PinwardenError) -> None:
        before, self._failure = self._failure, err
        if before is None:
            self._turn()  # last: who sees the turn has to meet the failure, too

    def _turn(self) -> None:
        self.epoch += 1
        self.stamp += 1


_NO_SURFACE = Surface(server=None, items={}, observed={})


def _body_key(kind: ItemKind, body: bytes) -> bytes:
    return kind.member.encode() + Digest.of_bytes(body).raw
