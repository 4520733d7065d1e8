"""What one session knows of the server's lists: complete, judged, and no older than the policy allows.

A client may call without listing, list one page of many, or keep a list for a day. So the gateway asks for every list
itself, under ids of its own, whenever it needs one and has none that counts; the answers go to nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.gates.lists import strictest
from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.messages import notification, request
from pinwarden.gateway.pages import read_page
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.surface.protocol import CAPABILITY, LIST_CHANGED, METHOD_NOT_FOUND, SERVER_META
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, TOOL, Item, ItemKind, Surface

_RETRY_SECONDS = 2.0  # after a list that could not be read
_LONG = 30  # items; judging so many that changed takes some ten milliseconds
DISCOVER = "server/discover"


class JudgedList:
    """One complete list."""

    __slots__ = (
        *("at", "by_item", "by_key", "calls", "call_events", "epoch", "items", "kind", "notices", "order"),
        "problem",
    )

    def __init__(self, kind: ItemKind, items: tuple[Item, ...], at: float, notices: int, order: int) -> None:
        self.kind = kind
        self.items = items
        self.at = at
        self.notices = notices
        self.order = order
        """When it was asked for, among all lists that were."""
        self.epoch = -1
        self.calls = 0
        self.problem: str | None = None
        self.call_events: dict[str, AuditEvent] | None = None
        """For tools on the fast path: the audit event of a call without its request id."""
        self.by_key: dict[str, Verdict] = {}
        self.by_item: dict[tuple[str, bytes], Verdict] = {}

    def judge(self, guard: Guard, client: str, server: Mapping[str, Any] | None) -> tuple[Verdict, ...]:
        """Hold the list against the measure of now."""
        epoch = guard.epoch  # before the measure is read, which another thread may change meanwhile
        verdicts = guard.judge_list(self.kind, self.items, client, server)
        self.by_key, self.by_item, self.call_events = {}, {}, None
        for verdict in verdicts:
            known = self.by_key.get(verdict.key)
            if known is None or strictest(known.action, verdict.action) != known.action:
                self.by_key[verdict.key] = verdict
            if verdict.digest is not None:
                self.by_item[verdict.key, verdict.digest.raw] = verdict
        self.epoch = epoch
        return verdicts


class _ListRequest:
    """A list that is being asked for, page by page."""

    __slots__ = ("cursors", "items", "kind", "notices", "order", "pages", "rounds", "since", "size")

    def __init__(self, kind: ItemKind | None, since: float, notices: int, order: int, rounds: int = 0) -> None:
        self.kind = kind
        """None for the question who the server is."""
        self.since = since
        self.notices = notices
        self.order = order
        self.rounds = rounds
        self.pages = 0
        self.size = 0
        self.items: list[Item] = []
        self.cursors: set[str] = set()


class JudgedLists:
    """The lists of one session."""

    def __init__(self, guard: Guard, journal: SessionAudit, session: str) -> None:
        self.server: dict[str, Any] | None = None
        """What the server says of itself, once it was asked."""
        self.meta: dict[str, Any] | None = None
        """What requests of the stateless era carry; None in the others."""
        self._guard = guard
        self._journal = journal
        self.own_ids = f"pinwarden/{session}/"
        """What the ids of our own requests begin with."""
        self._last = 0
        self._order = 0
        self._opening = False
        self._views: dict[str, JudgedList] = {}
        self._open: dict[str, _ListRequest] = {}
        self._asking: dict[str, str] = {}
        self._own_notices = dict.fromkeys((kind.member for kind in ITEM_KINDS), 0)
        """How often the server told this session that a list changed."""

    # What the session tells

    def opening(self) -> None:
        """A handshake began: until it is answered the server is asked nothing else. Lists of before count no more."""
        self.meta = None
        self._opening = True
        for view in self._views.values():
            view.notices = -1

    def stateless(self, meta: dict[str, Any]) -> None:
        """A request came that stands for itself, and says this about its client; in a handshake that says nothing."""
        if not self._opening:
            self.meta = meta

    def opened(self, facts: dict[str, Any] | None) -> None:
        """The server said who it is, or that it does not say."""
        self._opening = False
        if facts is not None:
            self.server = facts

    def first_use(self, now: float, out: OutputBuilder) -> None:
        """See everything that a server shows, if its first use is what it will be held to: nobody may ever list it."""
        if self._guard.approved is None and self.knows_server(now, out):
            self._trusts(now, out)

    # What the session asks

    def is_own(self, number: Any) -> bool:
        """Whether an id belongs to a request of ours."""
        return type(number) is str and number.startswith(self.own_ids)

    def heavy(self, now: float) -> bool:
        """Whether a long list that counts is not judged yet."""
        epoch, oldest = self._guard.epoch, now - self._guard.policy.relist_seconds
        for view in self._views.values():
            if view.epoch != epoch and view.at >= oldest and len(view.items) > _LONG:
                return True
        return any(len(asked.items) > _LONG for asked in self._open.values())

    def need(self, kind: ItemKind, now: float, out: OutputBuilder) -> JudgedList | None:
        """The list, judged; None if it has to be waited for."""
        unseen = self._guard.approved is None
        if not self.knows_server(now, out) or (unseen and not self._trusts(now, out)):
            return None
        view = self._views.get(kind.member)
        policy = self._guard.policy
        if view is None or view.notices != self.notices(kind) or now - view.at > policy.relist_seconds:
            self._ask(kind, now, out)
            return None
        if view.epoch != self._guard.epoch:
            self._judge(view, out)
        view.calls += 1
        if policy.relist_calls and view.calls >= policy.relist_calls:
            view.calls = 0
            self._ask(kind, now, out)  # behind everybody's back: nobody waits
        return view

    def counting(self, kind: ItemKind, now: float) -> JudgedList | None:
        """The list, if it counts without anything to be done about it."""
        view = self._views.get(kind.member)
        guard = self._guard
        if view is None or view.epoch != guard.epoch or view.notices != self.notices(kind) or view.problem is not None:
            return None
        return view if now - view.at <= guard.policy.relist_seconds else None

    def definition(self, kind: ItemKind, key: str) -> Any:
        """What the server said of an item in the last list; None if it said nothing."""
        view = self._views.get(kind.member)
        verdict = None if view is None else view.by_key.get(key)
        return None if verdict is None else verdict.value

    def count(self, kind: ItemKind, calls: int) -> None:
        """So many uses were made of the list."""
        view = self._views.get(kind.member)
        if view is not None:
            view.calls += calls

    def judged(self, kind: ItemKind, out: OutputBuilder) -> JudgedList | None:
        """The list as it is known, judged; None if there is none or nothing to judge it by."""
        view = self._views.get(kind.member)
        if view is None or self._guard.approved is None:
            return None
        if view.epoch != self._guard.epoch:
            self._judge(view, out)
        return view

    def next_order(self) -> int:
        """Lists are asked for by several at once, and their answers may overtake each other; this is their order."""
        self._order += 1
        return self._order

    def take(  # noqa: PLR0913, PLR0917  what there is to say of a list
        self, kind: ItemKind, items: tuple[Item, ...], now: float, notices: int, order: int, out: OutputBuilder
    ) -> None:
        """A complete list was seen, by whoever asked for it after so many notices that it changed.

        One that was asked for before the list that is known tells of an earlier time. It does not count; but if the
        server answers out of order, that is reason enough to ask again.
        """
        known = self._views.get(kind.member)
        if known is not None and known.problem is None and order < known.order:
            if _contents(items) != _contents(known.items):
                self._ask(kind, now, out)
            return
        view = JudgedList(kind, items, now, notices, order)
        self._views[kind.member] = view
        if self._guard.approved is None:
            self._trust_if_complete(out)
        else:
            self._judge(view, out)

    def expire(self, kind: ItemKind) -> None:
        """The list is known to be old."""
        view = self._views.get(kind.member)
        if view is not None:
            view.notices = -1

    def notices(self, kind: ItemKind) -> int:
        """How often a list changed as far as this session was told, so that it knows whether its view is older."""
        return self._guard.notices(kind) + self._own_notices[kind.member]

    def count_notice(self, kind: ItemKind) -> None:
        """The server told this session that a list changed."""
        self._own_notices[kind.member] += 1

    def changed(self, kind: ItemKind, now: float, out: OutputBuilder) -> None:
        """The server says that a list changed: ask for it at once, if anybody ever cared for it."""
        self.count_notice(kind)
        self._guard.changed(kind, now)
        if kind.member in self._views:
            self._ask(kind, now, out)

    def due(self, now: float, out: OutputBuilder) -> None:
        """Ask again for what is nearly too old, so that no call has to wait for it."""
        soon = self._guard.policy.relist_seconds * 0.8
        for view in tuple(self._views.values()):
            if now - view.at > soon:
                self._ask(view.kind, now, out)

    def refresh(self, now: float, out: OutputBuilder) -> None:
        """Ask again, behind everybody's back, for what was seen before now."""
        for view in tuple(self._views.values()):
            if view.at < now:
                self._ask(view.kind, now, out)

    def judge_anew(self) -> None:
        """What was judged was not recorded: it is judged, and told, when it is next used."""
        for view in self._views.values():
            view.epoch = -1

    def unsent(self, number: str) -> None:
        """A request of ours did not go to the server: it is asked anew when it is next needed."""
        asked = self._open.pop(number, None)
        if asked is not None:
            self._asking.pop(DISCOVER if asked.kind is None else asked.kind.member, None)

    def overdue(self, now: float) -> bool:
        """Give up on lists that the server does not answer; whether there were any."""
        limit = self._guard.limits.list_seconds
        late = [number for number, asked in self._open.items() if now - asked.since > limit]
        for number in late:
            asked = self._open.pop(number)
            self._failed(asked, now, "The server did not answer a request for its list in time.")
        return bool(late)

    # What the server answers

    def answered(self, frame: bytes, message: Any, number: str, now: float, out: OutputBuilder) -> bool:
        """An answer to a request of ours. Whether something that was waited for is known now."""
        asked = self._open.pop(number, None)
        if asked is None:
            return False  # given up on, or made up
        failure = None if message is None else message.get("error")
        if asked.kind is None:
            self._asking.pop(DISCOVER, None)
            if self.meta is None:
                return True  # a handshake began meanwhile, and that is where the server says who it is
            result = None if message is None else message.get("result")
            self.server = server_facts(result) if isinstance(result, dict) else {}
            if isinstance(result, dict) and has_two_names(result):
                self.server["serverInfo"] = None  # which is no name that anything was approved under
            self._trust_if_complete(out)
            return True
        if failure is not None:
            code = failure.get("code") if isinstance(failure, dict) else None
            if code == METHOD_NOT_FOUND and not asked.pages:
                self._complete(asked, (), now, out)
            else:
                self._failed(asked, now, "The server answered a request for its list with an error.")
            return True
        asked.size += len(frame)
        if asked.size > self._guard.limits.max_list:
            self._failed(asked, now, "The server's list is too long to be judged.")
            return True
        try:
            page = read_page(frame, message, asked.kind, self._guard)
        except PinwardenError:
            self._failed(asked, now, "The server's list cannot be read.")
            return True
        return self._add(asked, page.items, page.cursor, now, out)

    def _add(
        self, asked: _ListRequest, items: tuple[Item, ...], cursor: str | None, now: float, out: OutputBuilder
    ) -> bool:
        limits = self._guard.limits
        asked.items.extend(items)
        asked.pages += 1
        endless = cursor in asked.cursors or asked.pages >= limits.max_pages
        if cursor is None and len(asked.items) <= limits.max_items:
            return self._complete(asked, tuple(asked.items), now, out)
        if cursor is None or endless or len(asked.items) > limits.max_items:
            self._failed(asked, now, "The server's list has no end.")
            return True
        asked.cursors.add(cursor)
        self._send(asked, {"cursor": cursor}, out)
        return False

    def _complete(self, asked: _ListRequest, items: tuple[Item, ...], now: float, out: OutputBuilder) -> bool:
        kind = asked.kind
        if kind is None:
            return True
        self._asking.pop(kind.member, None)
        if asked.notices != self.notices(kind) and asked.rounds < self._guard.limits.max_rounds:
            self._ask(kind, now, out, rounds=asked.rounds + 1)  # it changed while it was read
            return False
        before = self._withheld(kind)
        self.take(kind, items, now, self.notices(kind), asked.order, out)
        if before is not None and self._withheld(kind) != before:
            out.to_client.append(_list_changed(kind))
        return True

    # How it is done

    def _withheld(self, kind: ItemKind) -> frozenset[str] | None:
        view = self._views.get(kind.member)
        return None if view is None else frozenset(key for key, each in view.by_key.items() if not each.passes)

    def _ask(self, kind: ItemKind, now: float, out: OutputBuilder, rounds: int = 0) -> None:
        if kind.member not in self._asking:
            self._send(_ListRequest(kind, now, self.notices(kind), self.next_order(), rounds), {}, out)

    def new_id(self) -> str:
        """An id for a request of ours."""
        self._last += 1
        return f"{self.own_ids}{self._last}"

    def _send(self, asked: _ListRequest, params: dict[str, Any], out: OutputBuilder) -> None:
        number = self.new_id()
        self._open[number] = asked
        if self.meta is not None:
            params = {**params, "_meta": self.meta}
        self._asking[DISCOVER if asked.kind is None else asked.kind.member] = number
        out.to_server.append(request(number, DISCOVER if asked.kind is None else asked.kind.method, params))

    def knows_server(self, now: float, out: OutputBuilder) -> bool:
        """Without a handshake nobody has to ask who the server is; then we do."""
        if self._opening:
            return False
        if self.server is not None or self.meta is None:
            return True
        if DISCOVER not in self._asking:
            self._send(_ListRequest(None, now, 0, 0), {}, out)
        return False

    def _trusts(self, now: float, out: OutputBuilder) -> bool:
        """See that the first use shows everything; whether it has. If the last list failed, nothing else will come."""
        for kind in self._offered():
            if kind.member not in self._views:
                self._ask(kind, now, out)
        self._trust_if_complete(out)
        return self._guard.approved is not None

    def _offered(self) -> list[ItemKind]:
        capabilities = (self.server or {}).get("capabilities")
        if not isinstance(capabilities, dict):
            return list(ITEM_KINDS)
        offered = [kind for kind in ITEM_KINDS if capabilities.get(CAPABILITY[kind]) not in (None, False)]
        return offered or [TOOL]  # some servers have tools and do not say so

    def _trust_if_complete(self, out: OutputBuilder) -> None:
        if self._guard.approved is not None or (self.server is None and self.meta is not None):
            return
        offered = self._offered()
        if any(kind.member not in self._views for kind in offered):
            return
        known = {kind.member: self._views[kind.member] for kind in offered}
        lists = {member: _trustworthy(view.items) for member, view in known.items() if view.problem is None}
        from pinwarden.gateway.gates.lists import without_attacks

        surface = without_attacks(Surface(server=self.server, items=lists, observed={"how": "first use"}))
        self._guard.trust(surface)
        self._journal.trusted(surface, sum(len(view.items) for view in known.values()), out)

    def _judge(self, view: JudgedList, out: OutputBuilder) -> None:
        for verdict in view.judge(self._guard, self._journal.client, self.server):
            self._journal.served(verdict, view.kind.method, out)

    def _failed(self, asked: _ListRequest, now: float, why: str) -> None:
        if asked.kind is None:
            self._asking.pop(DISCOVER, None)
            self.server = {}
            return
        self._asking.pop(asked.kind.member, None)
        at = now - self._guard.policy.relist_seconds + _RETRY_SECONDS
        view = JudgedList(asked.kind, (), at, asked.notices, asked.order)
        view.notices = self.notices(asked.kind)
        view.problem = why
        self._views[asked.kind.member] = view


def server_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a server says of itself, in an answer of either era."""
    facts = {name: result[name] for name in SERVER_MEMBERS if name in result}
    meta = result.get("_meta")
    if "serverInfo" not in facts and isinstance(meta, dict) and SERVER_META in meta:
        facts["serverInfo"] = meta[SERVER_META]
    return facts


def has_two_names(result: Mapping[str, Any]) -> bool:
    """Whether an answer says twice who the server is, and not the same: readers differ on which one counts."""
    meta = result.get("_meta")
    if "serverInfo" not in result or not isinstance(meta, dict) or SERVER_META not in meta:
        return False
    from pinwarden.core.json_values import json_equal

    return not json_equal(result["serverInfo"], meta[SERVER_META])


def _trustworthy(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """What may be taken as approved at first use: nothing that cannot be read or told from another item."""
    times: dict[str, int] = {}
    for item in items:
        times[_folded_key(item)] = times.get(_folded_key(item), 0) + 1
    return tuple(item for item in items if item.digest is not None and times[_folded_key(item)] == 1)


def _contents(items: tuple[Item, ...]) -> list[tuple[str, bytes]]:
    return sorted((item.key, b"" if item.digest is None else item.digest.raw) for item in items)


def _folded_key(item: Item) -> str:
    return item.key.casefold() if item.kind.key == "name" else item.key


def _list_changed(kind: ItemKind) -> bytes:
    return notification(next(method for method, kinds in LIST_CHANGED.items() if kind in kinds))
