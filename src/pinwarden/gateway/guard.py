"""The approvals and the policy of one upstream server, and a cache of its parsed lists.

All sessions with that server share one `Guard`. An `ApprovedSource` (`approved_sources.py`) reads the approvals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import Limits
from pinwarden.gateway.call_budgets import CallBudget, CallBudgets
from pinwarden.gateway.gates.lists import check_list, check_unknown_method, check_unknown_task, check_unlisted_item
from pinwarden.gateway.gates.server import check_server
from pinwarden.gateway.gates.server_requests import Refusal
from pinwarden.gateway.gates.verdict import BLOCK, RATE_LIMITED, RULE_DENIED, Verdict
from pinwarden.gateway.session.tasks import TaskRegistry
from pinwarden.lock.call_rules import CallDecision, CallFacts, decide_call, has_call_rules, read_hints
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy, ServerRequestPolicy
from pinwarden.surface.surface import ITEM_KINDS, TOOL, Item, ItemKind, Surface

if TYPE_CHECKING:
    from pinwarden.gateway.gates.server_requests import CheckedRequest


class SessionLimits(Record):
    """Limits of one session."""

    max_message_bytes: int = 128 * 1024 * 1024
    """Maximum size of one message, which is kept in memory. Real results contain up to 50 MB of encoded images."""
    max_pages: int = 200
    """Maximum number of pages of one list. The largest real servers need fewer than ten."""
    max_items: int = 5_000
    """Maximum number of items of one list, far more than a model could read. Checking a new item takes up to 1 ms."""
    max_request_tools: int = 200
    """Maximum number of tool definitions in one server request. Models accept at most 128."""
    max_input_requests: int = 100
    """Maximum number of server requests in one result or task. Real results have one or two."""
    max_list_bytes: int = 32 * 1024 * 1024
    """Maximum size of all pages of one list together. The largest real lists are smaller than 1 MiB."""
    max_unparsable_bytes: int = 1024 * 1024
    """Maximum size of a list response that is not strict JSON, because parsing it item by item is slow."""
    max_open: int = 10_000
    """Maximum number of open requests, in each direction."""
    max_deferred: int = 1_000
    """Maximum number of messages that wait for a list."""
    max_deferred_bytes: int = 160 * 1024 * 1024
    """Maximum size of all messages that wait for a list: one message of the maximum size and some smaller ones."""
    max_unwritten_bytes: int = 192 * 1024 * 1024
    """Maximum size of the messages queued for a client or server that does not read. Beyond the limit, the gateway
    kills the server. The limit is above ``max_deferred_bytes``, so that all deferred messages fit."""
    list_seconds: float = 20.0
    """How long a server may take to send a list before calls are refused."""
    max_list_retries: int = 5
    """How often the gateway requests a list again because the list changed while the gateway read it."""
    list_changed_seconds: float = 0.25
    """Interval in which ``list_changed`` notifications are coalesced, so that frequent notifications do not make all
    sessions request lists in a loop."""
    refresh_seconds: float = 0.25
    """How often the guard reads the approvals again, and so the longest delay until an approval takes effect."""

    @property
    def json_limits(self) -> Limits:
        """The limits of the strict parser."""
        return Limits(max_bytes=self.max_message_bytes)


DEFAULT_SESSION_LIMITS = SessionLimits()
_MAX_NAME = 200  # characters of a name that the client chose


class SessionClient(Record):
    """The facts about the client of a session that decisions and the audit log use."""

    name: str = ""
    """The name of the client in rules and in the audit log: the one in its token, or else in its ``clientInfo``."""
    has_token: bool = False
    """Whether the name is from a token. Without a token, the client chose the name."""
    teams: tuple[str, ...] = ()
    """The teams of the client, which its token names."""

    @property
    def owner(self) -> str:
        """The name that identifies the client as the owner of tasks; empty without a token."""
        return self.name if self.has_token else ""

    def with_client_info(self, client_info: Any) -> SessionClient:
        """Return the client with the facts of its ``clientInfo``. A name in its token stays."""
        name = client_info.get("name") if isinstance(client_info, dict) else None
        if self.has_token or not isinstance(name, str) or name[:_MAX_NAME] == self.name:
            return self
        return replace(self, name=name[:_MAX_NAME])

    def audit_members(self) -> dict[str, Any]:
        """Return the members about the client that every audit event of its session has."""
        return {"client": self.name}


class ApprovedSource(Protocol):
    """Reads approvals: from the lock, or from the store of servers that were trusted on first use.

    Methods may be called from any thread. They raise ``PinwardenError`` if the approvals cannot be read; the gateway
    then blocks everything.
    """

    def get_current(self) -> ApprovedSurface | None:
        """Return the approved surface; None if nothing was ever approved and the first use may be trusted.

        Called several times a second, so it must be cheap while nothing changed.
        """

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Approve the first surface of a server, and return it.

        If another process approved a surface earlier, returns that surface. A lock never trusts on first use and raises
        ``SERVER_NOT_LOCKED``.
        """


class ApprovedSurface(Record):
    """The surface that a server is compared with. Only an approval changes it."""

    server: str
    """The server's name in the lock, or the name under which it was trusted on first use."""
    surface: Surface
    generation: str
    """Identifies the content: a digest or a counter, which differs after every change."""
    origin: str = "lock"
    """``lock`` or ``first-use``."""
    read_neighbours: Callable[[], Sequence[tuple[str, Surface]]] = field(default=tuple, repr=False, compare=False)
    """Reads the names and approved surfaces of the other servers in the lock. Called only if the server changed."""


class CallCheck:
    """Checks each call of one tool by one client, in addition to the verdict about the tool's definition.

    The session and the fast path both use it, so a new reason to refuse single calls belongs here.
    """

    __slots__ = ("_budget", "_verdict")

    def __init__(self, verdict: Verdict, budget: CallBudget) -> None:
        self._verdict = verdict
        self._budget = budget

    def find_refusal(self, now: float) -> Verdict | None:
        """Count a call; None if it may be forwarded. A refused call is not counted."""
        reason = self._budget.take(now)
        return replace(self._verdict, action=BLOCK, code=RATE_LIMITED, reason=reason) if reason else None


_MAX_CACHED = 64  # pages; a session has four lists of a few pages each
_MAX_CACHED_BYTES = 16 * 1024 * 1024  # size of all pages together; the parsed items take several times as much


class Guard:
    """Checks the messages of one upstream server, for any number of sessions and threads."""

    def __init__(
        self,
        server: str,
        source: ApprovedSource,
        policy: GatewayPolicy = DEFAULT_GATEWAY_POLICY,
        limits: SessionLimits = DEFAULT_SESSION_LIMITS,
    ) -> None:
        self.server = server
        self.policy = policy
        self.limits = limits
        self.epoch = 0
        """Increases when the approvals or the policy change. Verdicts from an earlier epoch are no longer valid."""
        self.generation = 0
        """Increases when the approvals, the policy or the server's lists change. The fast path compares only this."""
        self.next_refresh = 0.0
        """When the guard has to read the approvals again."""
        self.refuses_subscriptions = False
        """Whether the server responded that it does not support subscriptions to ``list_changed`` notifications."""
        self.list_changes = dict.fromkeys((kind.member for kind in ITEM_KINDS), 0)
        """How often the guard announced a change to all sessions, by list."""
        self.tasks = TaskRegistry()
        self.budgets = CallBudgets(server)
        self.has_call_rules = has_call_rules(policy)
        """Whether the policy decides on calls, by rules or limits."""
        self._source = source
        self._lock = Lock()
        self._approved: ApprovedSurface | None = None
        self._failure: PinwardenError | None = None
        self._unannounced: set[str] = set()
        """Changed lists that the guard has not announced to all sessions yet."""
        self._next_announcement = -inf
        self._cache: dict[bytes, tuple[tuple[Item, ...], str | None, int]] = {}
        self._cached_bytes = 0

    # Approvals and policy

    def refresh(self, now: float) -> None:
        """Read the approvals again, if `next_refresh` is reached."""
        with self._lock:
            if now < self.next_refresh:
                return
            self.next_refresh = now + self.limits.refresh_seconds
            self._announce_changes(now)
            try:
                approved = self._source.get_current()
            except PinwardenError as err:
                self._set_failure(err)
                return
            self._set_approved(approved)

    @property
    def approved(self) -> ApprovedSurface | None:
        """The approved surface; None if the first use may be trusted. Raises if the approvals cannot be read."""
        if self._failure is not None:
            raise self._failure
        return self._approved

    def set_policy(self, policy: GatewayPolicy) -> None:
        """Replace the policy. All verdicts become invalid."""
        with self._lock:
            self.policy = policy
            self.has_call_rules = has_call_rules(policy)
            self.budgets.clear()
            self._begin_epoch()

    def trust(self, surface: Surface) -> None:
        """Approve the surface of a server that is used for the first time."""
        with self._lock:
            try:
                self._set_approved(self._source.trust(surface))
            except PinwardenError as err:
                self._set_failure(err)

    def _set_approved(self, approved: ApprovedSurface | None) -> None:
        before, self._approved = self._approved, approved
        known = None if before is None else before.generation
        if self._failure is not None or known != (None if approved is None else approved.generation):
            self._begin_epoch()
        self._failure = None

    def _set_failure(self, err: PinwardenError) -> None:
        before, self._failure = self._failure, err
        if before is None:
            self._begin_epoch()  # last: a thread that sees the new epoch must see the failure too

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.generation += 1

    # Verdicts

    def check_list(
        self,
        kind: ItemKind,
        items: tuple[Item, ...],
        client: SessionClient,
        server: Mapping[str, Any] | None,
    ) -> tuple[Verdict, ...]:
        """Return a verdict for each item of a complete list."""
        verdicts = check_list(
            kind,
            items,
            self._get_approved_surface(),
            lambda key: self.policy.get_item_policy(self.server, key, client.name),
            server,
            read_neighbours=self._read_neighbours,
        )
        if kind is not TOOL or not self.has_call_rules:
            return verdicts
        return tuple(self._apply_call_rules(verdict, client) for verdict in verdicts)

    def check_unlisted_item(self, kind: ItemKind, key: str, client: SessionClient) -> Verdict:
        """Return the verdict about the use of an item that the server does not list."""
        verdict = check_unlisted_item(
            kind, key, self._get_approved_surface(), self.policy.get_item_policy(self.server, key, client.name)
        )
        return self._apply_call_rules(verdict, client) if kind is TOOL and self.has_call_rules else verdict

    def find_call_check(self, verdict: Verdict, client: SessionClient) -> CallCheck | None:
        """Return the check of each call of a tool by a client; None if its calls need none."""
        if not self.has_call_rules or not verdict.passes:
            return None
        limits = self._decide_call(verdict, client).limits
        return (
            CallCheck(verdict, self.budgets.get_or_create(client.name, client.teams, verdict.key, limits))
            if limits
            else None
        )

    def _apply_call_rules(self, verdict: Verdict, client: SessionClient) -> Verdict:
        """Deny a tool that would pass, if a rule of the policy denies it to this client."""
        if not verdict.passes:
            return verdict
        decision = self._decide_call(verdict, client)
        if decision.allowed:
            return verdict
        reason = f"The policy denies this tool to this client ({decision.rule})."
        return replace(verdict, action=BLOCK, code=RULE_DENIED, reason=reason)

    def _decide_call(self, verdict: Verdict, client: SessionClient) -> CallDecision:
        # A definition that differs from the approved one may have other hints, so they do not count.
        hints = read_hints(None if verdict.code else verdict.value)
        call = CallFacts(server=self.server, tool=verdict.key, client=client.name, teams=client.teams, hints=hints)
        return decide_call(self.policy, call)

    def check_unknown_task(self, task: str, client: SessionClient) -> Verdict:
        """Return the verdict about a task whose tool the gateway does not know."""
        policy = self.policy.get_item_policy(self.server, "", client.name)
        return check_unknown_task(policy, of_other_client=self.tasks.belongs_to_other_client(task, client.owner))

    def check_unknown_method(
        self, method: str, sender: str, client: SessionClient, *, block_reason: str = ""
    ) -> Verdict:
        """Return the verdict about a method that no revision of MCP defines."""
        policy = self.policy.get_item_policy(self.server, method, client.name)
        return check_unknown_method(method, sender, policy, block_reason=block_reason)

    def check_server(self, info: Mapping[str, Any], client: SessionClient) -> tuple[Verdict, ...]:
        """Return a verdict for each member of the server's description of itself."""
        policy = self.policy.get_item_policy(self.server, "", client.name)
        return check_server(info, self._get_approved_surface(), policy, read_neighbours=self._read_neighbours)

    def get_server_request_policy(self, client: SessionClient) -> ServerRequestPolicy:
        """Return the policy for requests from the server."""
        return self.policy.get_server_request_policy(self.server, client.name)

    def check_server_request(self, method: str, params: Any, client: SessionClient) -> CheckedRequest | Refusal:
        """Check the content of a server request whose method the policy allows."""
        from pinwarden.gateway.gates.server_requests import HIDDEN_CODES, check_request_content

        definitions = self._check_definitions(params, client)
        if isinstance(definitions, Refusal):
            return definitions
        ignored = frozenset[str]() if self.policy.hidden_characters == "relay" else HIDDEN_CODES
        return check_request_content(
            method, params, definitions, self.policy.get_item_policy(self.server, method, client.name), ignored
        )

    def check_tools_in_result(self, method: str, result: Any, client: SessionClient) -> CheckedRequest | Refusal | None:
        """Check the tool definitions in a result that is not a list. Returns None if all are approved."""
        from pinwarden.gateway.gates.server_requests import check_tools_of_result

        definitions = self._check_definitions(result, client)
        return definitions if isinstance(definitions, Refusal) else check_tools_of_result(method, definitions)

    def _check_definitions(self, value: Any, client: SessionClient) -> tuple[Verdict, ...] | Refusal:
        from pinwarden.gateway.gates.server_requests import find_definitions

        items = find_definitions(value, self.limits.max_request_tools)
        if isinstance(items, Refusal) or not items:
            return items if isinstance(items, Refusal) else ()
        return self.check_list(TOOL, items, client, None)

    def _get_approved_surface(self) -> Surface:
        approved = self.approved
        return _NO_SURFACE if approved is None else approved.surface

    def _read_neighbours(self) -> Sequence[tuple[str, Surface]]:
        return () if self.approved is None else self.approved.read_neighbours()

    # Changes of lists

    def on_list_changed(self, kind: ItemKind, now: float) -> None:
        """Mark a list as outdated for all sessions, because the server announced a change to one session.

        Takes effect immediately, or when `list_changed_seconds` have passed since the last announcement.
        """
        with self._lock:
            self._unannounced.add(kind.member)
            self._announce_changes(now)

    def _announce_changes(self, now: float) -> None:
        if self._unannounced and now >= self._next_announcement:
            self._next_announcement = now + self.limits.list_changed_seconds
            for member in self._unannounced:
                self.list_changes[member] += 1
            self._unannounced.clear()
            self.generation += 1

    # The cache of parsed lists

    def find_cached_page(self, kind: ItemKind, body: bytes) -> tuple[tuple[Item, ...], str | None] | None:
        """Return items and cursor of a list result with exactly these bytes; None if it is not in the cache."""
        cached = self._cache.get(_compute_cache_key(kind, body))
        return None if cached is None else cached[:2]

    def cache_page(self, kind: ItemKind, body: bytes, items: tuple[Item, ...], cursor: str | None) -> None:
        """Cache the parsed items of a list result. Verdicts are not cached."""
        size = len(body)
        if size > _MAX_CACHED_BYTES:
            return
        with self._lock:
            key = _compute_cache_key(kind, body)
            self._drop_cached(key)
            while len(self._cache) >= _MAX_CACHED or self._cached_bytes + size > _MAX_CACHED_BYTES:
                self._drop_cached(next(iter(self._cache)))
            self._cache[key] = items, cursor, size
            self._cached_bytes += size

    def _drop_cached(self, key: bytes) -> None:
        cached = self._cache.pop(key, None)
        if cached is not None:
            self._cached_bytes -= cached[2]


_NO_SURFACE = Surface(server=None, items={}, observed={})


def _compute_cache_key(kind: ItemKind, body: bytes) -> bytes:
    return kind.member.encode() + Digest.of_bytes(body).raw
