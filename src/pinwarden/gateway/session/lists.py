"""The server's lists in one session, which the gateway requests, checks, and keeps up to date.

A client may call a tool without listing the tools, list one page of many, or keep a list for a day. So the gateway
requests a list itself, with its own request ids, whenever it needs a recent list to decide on a message. The client
never sees the responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.gates.lists import choose_strictest_action
from pinwarden.gateway.gates.verdict import ALLOW, Verdict
from pinwarden.gateway.guard import CallCheck, Guard
from pinwarden.gateway.session.messages import CALL, build_notification, build_request
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.gateway.session.pages import parse_list_response
from pinwarden.lock.call_rules import classify_tool
from pinwarden.surface.protocol import CAPABILITY, LIST_CHANGED, METHOD_NOT_FOUND, SERVER_META
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, TOOL, Item, ItemKind, Surface

DISCOVER = "server/discover"
BLOCKED_CALL = "blocked"
"""The class of calls of tools that the gateway blocks, or that the server does not list."""
_RETRY_SECONDS = 2.0  # pause before the gateway requests a list again that it could not read
_LONG = 30  # items of a long list; checking 30 changed items takes about ten milliseconds


class CheckedList:
    """One complete list, with a verdict for each item."""

    __slots__ = (
        *(
            "received_at",
            "by_item",
            "by_key",
            "call_classes",
            "call_events",
            "change_count",
            "epoch",
            "items",
            "kind",
            "order",
            "problem",
            "was_unanswered",
        ),
        "uses",
    )

    def __init__(
        self, kind: ItemKind, items: tuple[Item, ...], received_at: float, change_count: int, order: int
    ) -> None:
        self.kind = kind
        self.items = items
        self.received_at = received_at
        self.change_count = change_count
        """The result of `CheckedLists.get_change_count` for which the list is current; -1 if it is outdated."""
        self.order = order
        """The number of the request for this list. Later requests have higher numbers."""
        self.epoch = -1
        """The guard's epoch in which the list was checked; -1 if it has not been checked yet."""
        self.uses = 0
        self.problem: str | None = None
        """Why the list could not be read."""
        self.was_unanswered = False
        """Whether the server sent no list at all, but an error or nothing in time. It may send the list later."""
        self.call_events: dict[str, AuditEvent] | None = None
        self.by_key: dict[str, Verdict] = {}
        self.by_item: dict[tuple[str, bytes], Verdict] = {}
        """Verdicts by key and digest, because a list may contain the same name twice."""
        self.call_classes: dict[str, str] = {}
        """The classes of tools that were looked up, by tool name."""

    def check(self, guard: Guard, audit: SessionAudit, server: Mapping[str, Any] | None) -> tuple[Verdict, ...]:
        """Compare the list with the approved surface. Returns the verdict of each item."""
        epoch = guard.epoch  # read first: another thread may change the approved surface meanwhile
        verdicts = guard.check_list(self.kind, self.items, audit.client, server)
        self.by_key, self.by_item, self.call_events = {}, {}, None
        for verdict in verdicts:
            known = self.by_key.get(verdict.key)
            if known is None or choose_strictest_action(known.action, verdict.action) != known.action:
                self.by_key[verdict.key] = verdict
            if verdict.digest is not None:
                self.by_item[verdict.key, verdict.digest.raw] = verdict
        self.call_classes = {}
        self.epoch = epoch
        return verdicts


class _ListRequest:
    """A list that the gateway is requesting, page by page."""

    __slots__ = ("bytes", "change_count", "cursors", "items", "kind", "order", "pages", "rounds", "since")

    def __init__(self, kind: ItemKind | None, since: float, change_count: int, order: int, rounds: int = 0) -> None:
        self.kind = kind
        """The kind of list; None for a ``server/discover`` request."""
        self.since = since
        self.change_count = change_count
        self.order = order
        self.rounds = rounds
        """How often the list changed while the gateway read it."""
        self.pages = 0
        self.bytes = 0
        self.items: list[Item] = []
        self.cursors: set[str] = set()


class CheckedLists:
    """The lists of one session."""

    def __init__(self, guard: Guard, audit: SessionAudit, session: str) -> None:
        self.server: dict[str, Any] | None = None
        """The server's description of itself; None until the server has sent it."""
        self.meta: dict[str, Any] | None = None
        """The ``_meta`` of the client's requests in the stateless era; None in the handshake era."""
        self.id_prefix = f"pinwarden/{session}/"
        """The start of the ids of the gateway's own requests."""
        self._guard = guard
        self._audit = audit
        self._in_handshake = False
        self._lists: dict[str, CheckedList] = {}
        self._requests: dict[str, _ListRequest] = {}
        """Open requests for lists, by request id."""
        self._requesting: dict[str, str] = {}
        """The ids of open requests, by the member name of the list."""
        self._last_id = 0
        self._last_order = 0
        self._changes = dict.fromkeys((kind.member for kind in ITEM_KINDS), 0)
        """The number of list-changed notifications in this session, by the member name of the list."""

    # The state of the session

    def begin_handshake(self) -> None:
        """Handle ``initialize``: mark all lists as outdated, and request none until the handshake ends."""
        self.meta = None
        self._in_handshake = True
        for checked_list in self._lists.values():
            checked_list.change_count = -1

    def end_handshake(self, server: dict[str, Any] | None) -> None:
        """End the handshake. ``server`` is the server's description of itself; None if the handshake failed."""
        self._in_handshake = False
        if server is not None:
            self.server = server

    def on_discovered(self, server: dict[str, Any] | None) -> None:
        """Set the server's description of itself from a response to ``server/discover``. Ignored during a handshake.

        A client that gets this response too late begins a handshake. The server refuses requests until that ends.
        """
        if server is not None and not self._in_handshake:
            self.server = server

    def set_client_meta(self, meta: dict[str, Any]) -> None:
        """Set the ``_meta`` of the client's requests in the stateless era. Ignored during a handshake."""
        if not self._in_handshake:
            self.meta = meta

    def request_lists_for_first_use(self, now: float, out: OutputBuilder) -> None:
        """Request all lists of a server without approvals, because trust on first use approves its whole surface."""
        if self._guard.approved is None and self.knows_server(now, out):
            self._approve_first_use(now, out)

    # Lists for decisions

    def require(self, kind: ItemKind, now: float, out: OutputBuilder) -> CheckedList | None:
        """Return the current list with its verdicts; None if the gateway has to request the list and wait for it."""
        if not self.knows_server(now, out):
            return None
        guard = self._guard
        checked_list = self._lists.get(kind.member)
        if checked_list is None or checked_list.epoch != guard.epoch:
            # A list that was checked in this epoch needs no first-use approval.
            if guard.approved is None and not self._approve_first_use(now, out):
                return None
            checked_list = self._lists.get(kind.member)
        policy = guard.policy
        if checked_list is None or self._is_outdated(checked_list, now):
            self._request_list(kind, now, out)
            return None
        if checked_list.epoch != guard.epoch:
            self._check(checked_list, out)
        checked_list.uses += 1
        if policy.relist_calls and checked_list.uses >= policy.relist_calls:
            checked_list.uses = 0
            self._request_list(kind, now, out)  # in the background
        return checked_list

    def find_current(self, kind: ItemKind, now: float) -> CheckedList | None:
        """Return the list if it is recent enough and was checked in the current epoch; otherwise None."""
        checked_list = self._lists.get(kind.member)
        if checked_list is None or checked_list.epoch != self._guard.epoch or checked_list.problem is not None:
            return None
        return None if self._is_outdated(checked_list, now) else checked_list

    def find_latest(self, kind: ItemKind, out: OutputBuilder) -> CheckedList | None:
        """Return the last list with its verdicts, even if it is outdated; None without a list or without approvals."""
        checked_list = self._lists.get(kind.member)
        if checked_list is None or self._guard.approved is None:
            return None
        if checked_list.epoch != self._guard.epoch:
            self._check(checked_list, out)
        return checked_list

    def find_allowed_call_events(self, tools: CheckedList) -> Mapping[str, AuditEvent]:
        """Return the audit events of calls that are allowed without a warning, by tool name.

        So a tool with an event may be called. Tools whose arguments are recorded have none, because these events are
        made once for all calls. ``call`` lacks the request id at its end.
        """
        if tools.call_events is None:
            guard, client = self._guard, self._audit.client.name
            passing = [
                verdict
                for verdict in tools.by_key.values()
                if verdict.action == ALLOW
                and verdict.entity == TOOL.entity
                and not guard.policy.records_arguments(guard.server, verdict.key, client)
            ]
            tools.call_events = self._audit.build_call_events(passing, CALL)
        return tools.call_events

    def find_call_checks(self, tools: CheckedList) -> Mapping[str, CallCheck]:
        """Return the checks of calls of the tools that need one, by tool name."""
        if not self._guard.has_call_rules:
            return {}  # called for every message, so the tools are not gone through
        checks = (
            (name, self._guard.find_call_check(verdict, self._audit.client)) for name, verdict in tools.by_key.items()
        )
        return {name: check for name, check in checks if check is not None}

    def find_definition(self, kind: ItemKind, key: str) -> Any:
        """Return the definition of an item in the last list; None if there is none."""
        checked_list = self._lists.get(kind.member)
        verdict = None if checked_list is None else checked_list.by_key.get(key)
        return None if verdict is None else verdict.value

    def find_call_class(self, tool: str) -> str:
        """Return the class of a tool for metrics: that of its hints, or `BLOCKED_CALL`."""
        tools = self._lists.get(TOOL.member)
        if tools is None:
            return BLOCKED_CALL
        found = tools.call_classes.get(tool)
        if found is None:
            verdict = tools.by_key.get(tool)
            if verdict is None or not verdict.passes:
                return BLOCKED_CALL  # not stored: clients may send any number of names
            found = tools.call_classes[tool] = classify_tool(None if verdict.code else verdict.value)
        return found

    def may_be_slow(self, now: float) -> bool:
        """Whether handling the next message may include checking a long list."""
        epoch, oldest = self._guard.epoch, now - self._guard.policy.relist_seconds
        for checked_list in self._lists.values():
            if checked_list.epoch != epoch and checked_list.received_at >= oldest and len(checked_list.items) > _LONG:
                return True
        return any(len(request.items) > _LONG for request in self._requests.values())

    def knows_server(self, now: float, out: OutputBuilder) -> bool:
        """Return False if the gateway has to wait until the server identifies itself.

        In the stateless era, also sends ``server/discover`` then, unless that request is open.
        """
        if self._in_handshake:
            return False
        if self.server is not None or self.meta is None:
            return True
        if DISCOVER not in self._requesting:
            self._send_request(_ListRequest(None, now, 0, 0), {}, out)
        return False

    def _is_outdated(self, checked_list: CheckedList, now: float) -> bool:
        member = checked_list.kind.member
        if checked_list.change_count != self._guard.list_changes[member] + self._changes[member]:
            return True
        return now - checked_list.received_at > self._guard.policy.relist_seconds

    # Lists from responses to the client

    def take_next_order(self) -> int:
        """Return the number of a new request for a list. The highest number marks the newest list."""
        self._last_order += 1
        return self._last_order

    def add_list(  # noqa: PLR0913, PLR0917
        self, kind: ItemKind, items: tuple[Item, ...], now: float, change_count: int, order: int, out: OutputBuilder
    ) -> None:
        """Add a complete list that the client or the gateway requested.

        A list that was requested earlier than the known list may be out of date, so it is not added. If the two lists
        have different items, the gateway requests the list again.
        """
        known = self._lists.get(kind.member)
        if known is not None and known.problem is None and order < known.order:
            if _collect_digests(items) != _collect_digests(known.items):
                self._request_list(kind, now, out)
            return
        checked_list = CheckedList(kind, items, now, change_count, order)
        self._lists[kind.member] = checked_list
        if self._guard.approved is None:
            self._approve_if_complete(out)
        else:
            self._check(checked_list, out)

    # Changes

    def get_change_count(self, kind: ItemKind) -> int:
        """Return how often the server announced a change of a list, to this session or to all sessions."""
        return self._guard.list_changes[kind.member] + self._changes[kind.member]

    def add_change(self, kind: ItemKind) -> None:
        """Count a list-changed notification of this session."""
        self._changes[kind.member] += 1

    def on_list_changed(self, kind: ItemKind, now: float, out: OutputBuilder) -> None:
        """Handle a list-changed notification. Requests the list again if the session uses it."""
        self.add_change(kind)
        self._guard.on_list_changed(kind, now)
        if kind.member in self._lists:
            self._request_list(kind, now, out)

    def mark_outdated(self, kind: ItemKind) -> None:
        """Mark a list as outdated."""
        checked_list = self._lists.get(kind.member)
        if checked_list is not None:
            checked_list.change_count = -1

    def count_uses(self, kind: ItemKind, uses: int) -> None:
        """Add calls that took the fast path to the use count of a list."""
        checked_list = self._lists.get(kind.member)
        if checked_list is not None:
            checked_list.uses += uses

    def request_due_lists(self, now: float, out: OutputBuilder) -> None:
        """Request lists that will soon be too old, so that no call has to wait for them."""
        soon = self._guard.policy.relist_seconds * 0.8
        for checked_list in tuple(self._lists.values()):
            if now - checked_list.received_at > soon:
                self._request_list(checked_list.kind, now, out)

    def request_known_lists(self, now: float, out: OutputBuilder) -> None:
        """Request all known lists again, in the background."""
        for checked_list in tuple(self._lists.values()):
            if checked_list.received_at < now:
                self._request_list(checked_list.kind, now, out)

    def invalidate(self) -> None:
        """Discard the verdicts. Each list is checked again when it is used next."""
        for checked_list in self._lists.values():
            checked_list.epoch = -1

    # The gateway's own requests

    def is_gateway_id(self, request_id: Any) -> bool:
        """Whether an id belongs to a request from the gateway."""
        return isinstance(request_id, str) and request_id.startswith(self.id_prefix)

    def create_request_id(self) -> str:
        """Return a new id for a request from the gateway."""
        self._last_id += 1
        return f"{self.id_prefix}{self._last_id}"

    def forget_request(self, request_id: str) -> None:
        """Forget a request that did not reach the server. The list is requested again when it is needed."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._requesting.pop(DISCOVER if request.kind is None else request.kind.member, None)

    def fail_overdue(self, now: float) -> bool:
        """Mark lists as failed if the server did not send them in time. Returns whether there were any."""
        limit = self._guard.limits.list_seconds
        overdue = [request_id for request_id, request in self._requests.items() if now - request.since > limit]
        for request_id in overdue:
            request = self._requests.pop(request_id)
            self._fail_list(request, now, "The server did not send its list in time.", was_unanswered=True)
        return bool(overdue)

    def on_response(self, data: bytes, message: Any, request_id: str, now: float, out: OutputBuilder) -> bool:
        """Handle a response to a request from the gateway. Returns whether to decide on deferred messages again."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False  # the request timed out, or the server made up the id
        if request.kind is None:
            return self._on_discover(message, out)
        error = None if message is None else message.get("error")
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            if code == METHOD_NOT_FOUND and not request.pages:
                self._complete_list(request, (), now, out)
            else:
                reason = "The server responded to the request for its list with an error."
                self._fail_list(request, now, reason, was_unanswered=True)
            return True
        request.bytes += len(data)
        if request.bytes > self._guard.limits.max_list_bytes:
            self._fail_list(request, now, "The server's list is too long to be checked.")
            return True
        try:
            page = parse_list_response(data, message, request.kind, self._guard)
        except PinwardenError:
            self._fail_list(request, now, "The server's list cannot be read.")
            return True
        return self._add_page(request, tuple(page.items), page.cursor, now, out)

    def _on_discover(self, message: Any, out: OutputBuilder) -> bool:
        self._requesting.pop(DISCOVER, None)
        if self.meta is None:
            return True  # a handshake began meanwhile, in which the server identifies itself
        result = None if message is None else message.get("result")
        self.server = read_server_info(result) if isinstance(result, dict) else {}
        if isinstance(result, dict) and has_two_names(result):
            self.server["serverInfo"] = None  # None differs from every approved name
        self._approve_if_complete(out)
        return True

    def _add_page(
        self, request: _ListRequest, items: tuple[Item, ...], cursor: str | None, now: float, out: OutputBuilder
    ) -> bool:
        limits = self._guard.limits
        request.items.extend(items)
        request.pages += 1
        has_no_end = cursor in request.cursors or request.pages >= limits.max_pages
        if cursor is None and len(request.items) <= limits.max_items:
            return self._complete_list(request, tuple(request.items), now, out)
        if cursor is None or has_no_end or len(request.items) > limits.max_items:
            self._fail_list(request, now, "The server's list has too many pages or items, or repeats a cursor.")
            return True
        request.cursors.add(cursor)
        self._send_request(request, {"cursor": cursor}, out)
        return False

    def _complete_list(self, request: _ListRequest, items: tuple[Item, ...], now: float, out: OutputBuilder) -> bool:
        kind = request.kind
        if kind is None:
            return True
        self._requesting.pop(kind.member, None)
        if request.change_count != self.get_change_count(kind) and request.rounds < self._guard.limits.max_list_retries:
            self._request_list(kind, now, out, rounds=request.rounds + 1)  # the list changed while it was read
            return False
        blocked_before = self._find_blocked_keys(kind)
        self.add_list(kind, items, now, self.get_change_count(kind), request.order, out)
        if blocked_before is not None and self._find_blocked_keys(kind) != blocked_before:
            out.to_client.append(_build_list_changed(kind))
        return True

    def _fail_list(self, request: _ListRequest, now: float, reason: str, *, was_unanswered: bool = False) -> None:
        if request.kind is None:
            self._requesting.pop(DISCOVER, None)
            self.server = {}
            return
        self._requesting.pop(request.kind.member, None)
        # This time makes the empty list outdated after _RETRY_SECONDS.
        received_at = now - self._guard.policy.relist_seconds + _RETRY_SECONDS
        checked_list = CheckedList(request.kind, (), received_at, self.get_change_count(request.kind), request.order)
        checked_list.problem, checked_list.was_unanswered = reason, was_unanswered
        self._lists[request.kind.member] = checked_list

    def _request_list(self, kind: ItemKind, now: float, out: OutputBuilder, rounds: int = 0) -> None:
        if kind.member not in self._requesting:
            self._send_request(
                _ListRequest(kind, now, self.get_change_count(kind), self.take_next_order(), rounds), {}, out
            )

    def _send_request(self, list_request: _ListRequest, params: dict[str, Any], out: OutputBuilder) -> None:
        request_id = self.create_request_id()
        self._requests[request_id] = list_request
        if self.meta is not None:
            params = {**params, "_meta": self.meta}
        kind = list_request.kind
        self._requesting[DISCOVER if kind is None else kind.member] = request_id
        out.to_server.append(build_request(request_id, DISCOVER if kind is None else kind.method, params))

    # First use

    def _approve_first_use(self, now: float, out: OutputBuilder) -> bool:
        """Request all lists, and approve them when they are complete. Returns whether approvals exist afterwards."""
        for kind in self._list_offered_kinds():
            known = self._lists.get(kind.member)
            if known is None or (known.was_unanswered and self._is_outdated(known, now)):
                self._request_list(kind, now, out)
        self._approve_if_complete(out)  # if the last list failed, no further response will come
        return self._guard.approved is not None

    def _approve_if_complete(self, out: OutputBuilder) -> None:
        if self._guard.approved is not None or (self.server is None and self.meta is not None):
            return
        offered = self._list_offered_kinds()
        if any(kind.member not in self._lists for kind in offered):
            return
        lists = {kind.member: self._lists[kind.member] for kind in offered}
        if all(checked_list.was_unanswered for checked_list in lists.values()):
            return  # nothing is known about the server yet, and approving nothing would block all of it
        items = {
            member: _select_unambiguous(checked_list.items)
            for member, checked_list in lists.items()
            if checked_list.problem is None
        }
        from pinwarden.gateway.gates.lists import remove_suspicious_items

        surface = remove_suspicious_items(Surface(server=self.server, items=items, observed={"how": "first use"}))
        self._guard.trust(surface)
        self._audit.record_first_use(surface, sum(len(checked_list.items) for checked_list in lists.values()), out)

    def _list_offered_kinds(self) -> list[ItemKind]:
        capabilities = (self.server or {}).get("capabilities")
        if not isinstance(capabilities, dict):
            return list(ITEM_KINDS)
        offered = [kind for kind in ITEM_KINDS if capabilities.get(CAPABILITY[kind]) not in (None, False)]
        return offered or [TOOL]  # some servers have tools without the capability

    # Verdicts

    def _check(self, checked_list: CheckedList, out: OutputBuilder) -> None:
        for verdict in checked_list.check(self._guard, self._audit, self.server):
            self._audit.record_definition(verdict, checked_list.kind.method, out)

    def _find_blocked_keys(self, kind: ItemKind) -> frozenset[str] | None:
        checked_list = self._lists.get(kind.member)
        return (
            None
            if checked_list is None
            else frozenset(key for key, verdict in checked_list.by_key.items() if not verdict.passes)
        )


def read_server_info(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's description of itself from a response to ``initialize`` or ``server/discover``."""
    info = {name: result[name] for name in SERVER_MEMBERS if name in result}
    meta = result.get("_meta")
    if "serverInfo" not in info and isinstance(meta, dict) and SERVER_META in meta:
        info["serverInfo"] = meta[SERVER_META]
    return info


def has_two_names(result: Mapping[str, Any]) -> bool:
    """Whether a response states two different names of the server, so that clients could read different names."""
    meta = result.get("_meta")
    if "serverInfo" not in result or not isinstance(meta, dict) or SERVER_META not in meta:
        return False
    from pinwarden.core.json_values import is_json_equal

    return not is_json_equal(result["serverInfo"], meta[SERVER_META])


def _select_unambiguous(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the items that have a digest and a unique name. Names that differ only in case are not unique."""
    counts: dict[str, int] = {}
    for item in items:
        counts[_fold_key(item)] = counts.get(_fold_key(item), 0) + 1
    return tuple(item for item in items if item.digest is not None and counts[_fold_key(item)] == 1)


def _collect_digests(items: tuple[Item, ...]) -> list[tuple[str, bytes]]:
    return sorted((item.key, b"" if item.digest is None else item.digest.raw) for item in items)


def _fold_key(item: Item) -> str:
    return item.key.casefold() if item.kind.key == "name" else item.key


def _build_list_changed(kind: ItemKind) -> bytes:
    return build_notification(next(method for method, kinds in LIST_CHANGED.items() if kind in kinds))
