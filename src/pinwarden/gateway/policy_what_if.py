"""``pinwarden policy what-if``: what another policy would have done with the calls that gateways recorded.

1. Read the calls of the last days from the audit log: server, client, item and time.
2. For each server and client, check the definitions that the server served last, and the recorded calls, with a guard
   for each policy: the one that decides in the gateway.
3. Report the items whose verdict differs, with the number of their calls.

Nothing is stored, and no server is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, ReportTable
from pinwarden.core.text import plural
from pinwarden.gateway.approved_sources import FirstUseApprovals, LockApprovals
from pinwarden.gateway.audit.chain import read_newest_entries
from pinwarden.gateway.audit.event import ALLOWED, BLOCKED, CALLED, WARNED
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.lock import lock_store
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy
from pinwarden.lock.policy import parse_policy_file
from pinwarden.project.project import load_policies
from pinwarden.surface.surface import ITEM_KINDS, surface_from_listing

if TYPE_CHECKING:
    from pinwarden.gateway.gates.verdict import Verdict
    from pinwarden.gateway.guard import ApprovedSource
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

DEFAULT_DAYS = 7
MAX_DAYS = 90
MAX_POLICY_BYTES = 1 << 20
_MAX_EVENTS = 200_000
_MAX_DIFFERENCES = 500
_METHODS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
_USES = (CALLED, ALLOWED, WARNED, BLOCKED)
_USE_MEMBERS = [[("kind", kind) for kind in _USES]]
_KINDS = {kind.entity: kind for kind in ITEM_KINDS}


class Outcome(Record):
    """What one policy does with the calls of one item by one client."""

    action: str
    refused: int
    """How many of the recorded calls it refuses."""
    code: str
    reason: str


class Difference(Record):
    """An item that two policies treat differently, for one client."""

    server: str
    client: str
    entity: str
    item: str
    calls: int
    before: Outcome
    after: Outcome


_Calls = dict[tuple[str, str], dict[tuple[str, str], list[float]]]
"""The times of calls by server and client, then by entity and item."""


class _Traffic(Record):
    calls: _Calls
    events: int
    is_complete: bool
    """Whether all events of the period were read."""


def report_what_if(  # noqa: PLR0913
    project: Project,
    state: GatewayState,
    policy: bytes,
    days: int,
    now: float,
    *,
    check: Callable[[], None] = lambda: None,
) -> Report:
    """Report what a policy would have done with the recorded calls, compared with the policy of the project.

    ``check`` is called again and again, and may raise to stop: many rules and many calls together take minutes.
    """
    comparison = _Comparison(project, state, (load_policies(project).gateway, parse_proposed(policy)), check)
    traffic = _read_traffic(state, now - days * 86_400)
    differences = [
        difference
        for (server, client), calls in sorted(traffic.calls.items())
        for difference in comparison.compare(server, client, calls)
    ]
    differences.sort(key=lambda each: (-abs(each.after.refused - each.before.refused), each.server, each.item))
    calls = sum(len(times) for items in traffic.calls.values() for times in items.values())
    newly = sum(max(0, each.after.refused - each.before.refused) for each in differences)
    notes = ["the definitions that servers served last are compared with what is approved now"]
    if not traffic.is_complete:
        notes.append(f"only the newest {traffic.events} events were read")
    if len(differences) > _MAX_DIFFERENCES:
        notes.append(f"{len(differences) - _MAX_DIFFERENCES} more differences are not listed")
    listed = differences[:_MAX_DIFFERENCES]
    return Report(
        command="policy what-if",
        subject=plural(days, "day"),
        summary=f"{plural(len(differences), 'verdict')} would change; {newly} of {plural(calls, 'recorded call')}"
        " would be refused that are allowed now",
        exit_code=EXIT_CLEAN,
        facts={
            "days": days,
            "calls": calls,
            "complete": traffic.is_complete,
            "newly_refused": newly,
            "differences": [difference_to_json(difference) for difference in listed],
        },
        notes=tuple(notes),
        table=ReportTable(
            headings=("SERVER", "ITEM", "CLIENT", "CALLS", "NOW", "THEN", "WHY"), rows=tuple(map(_row, listed))
        ),
    )


def parse_proposed(data: bytes) -> GatewayPolicy:
    """Parse the policy to try. Raises ``POLICY_INVALID``."""
    if not data.strip():
        raise PinwardenError("POLICY_INVALID", "the policy is empty")
    policy = parse_policy_file(data)
    return (policy.gateway if policy is not None else None) or DEFAULT_GATEWAY_POLICY


def _read_traffic(state: GatewayState, since: float) -> _Traffic:
    """Read the calls since a time, in seconds since 1970."""
    calls: _Calls = {}
    events = 0
    for entry in read_newest_entries(state.audit_database, _USE_MEMBERS):
        events += 1
        at = _parse_time(entry.at)
        if at < since or events > _MAX_EVENTS:
            return _Traffic(calls=calls, events=events, is_complete=at < since)
        event = entry.event
        entity = _METHODS.get(event.method)
        if event.kind in _USES and entity is not None and event.item:
            calls.setdefault((event.server, event.client), {}).setdefault((entity, event.item), []).append(at)
    return _Traffic(calls=calls, events=events, is_complete=True)


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


class _Comparison:
    """Compares two policies, for one server and client after the other."""

    def __init__(
        self,
        project: Project,
        state: GatewayState,
        policies: tuple[GatewayPolicy, GatewayPolicy],
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._project = project
        self._state = state
        self._policies = policies
        self._tokens = state.tokens.list_all()
        lock = lock_store.read(project.lock)
        self._locked = frozenset(() if lock is None else (entry.name for entry in lock.entries))

    def compare(
        self, server: str, client_name: str, calls: Mapping[tuple[str, str], Sequence[float]]
    ) -> Iterator[Difference]:
        """Yield the items of a server that the policies treat differently for a client."""
        source, listing = self._open_source(server), _read_listing(self._state, server)
        teams = [token.teams for token in self._tokens if token.client == client_name]
        client = SessionClient(name=client_name, has_token=True, teams=teams[0] if teams else ())
        guards = (Guard(server, source, policy) for policy in self._policies)
        before, after = (_decide(guard, client, listing, calls, self._check) for guard in guards)
        for key in sorted(before):
            was, would = before[key], after[key]
            if (was.action, was.refused) != (would.action, would.refused):
                yield Difference(
                    server=server,
                    client=client_name,
                    entity=key[0],
                    item=key[1],
                    calls=len(calls.get(key, ())),
                    before=was,
                    after=would,
                )

    def _open_source(self, server: str) -> ApprovedSource:
        if server in self._locked:
            return LockApprovals(self._project.lock, server)
        return FirstUseApprovals(server, self._state.trusted_surfaces)


def _read_listing(state: GatewayState, server: str) -> dict[str, list[Any]]:
    """Return the definitions that a server served last, by the name of their list."""
    listing: dict[str, list[Any]] = {}
    for sighting in state.observed_definitions.select_current(server):
        kind = _KINDS.get(sighting.entity)
        if kind is not None:
            try:
                value = strict_json.parse_json(sighting.definition.encode("utf-8", "surrogatepass"))
            except PinwardenError:
                continue
            listing.setdefault(kind.member, []).append(value)
    return listing


def _decide(
    guard: Guard,
    client: SessionClient,
    listing: Mapping[str, list[Any]],
    calls: Mapping[tuple[str, str], Sequence[float]],
    check: Callable[[], None],
) -> dict[tuple[str, str], Outcome]:
    """Return what a guard decides about the definitions and the recorded calls."""
    guard.refresh(0.0)
    surface = surface_from_listing(dict(listing))
    outcomes: dict[tuple[str, str], Outcome] = {}
    for kind in ITEM_KINDS:
        check()
        for verdict in guard.check_list(kind, surface.items_of_kind(kind), client, None):
            key = verdict.entity, verdict.key
            outcomes[key] = _replay(guard, verdict, client, calls.get(key, ()))
    for (entity, item), times in calls.items():
        check()
        if (entity, item) not in outcomes and entity in _KINDS:
            unlisted = guard.check_unlisted_item(_KINDS[entity], item, client)
            outcomes[entity, item] = _replay(guard, unlisted, client, times)
    return outcomes


def _replay(guard: Guard, verdict: Verdict, client: SessionClient, times: Sequence[float]) -> Outcome:
    """Count how many recorded calls are refused, by the verdict or by a limit."""
    if not verdict.passes:
        return Outcome(action=verdict.action, refused=len(times), code=verdict.code, reason=verdict.reason)
    check = guard.find_call_check(verdict, client) if verdict.entity == "tool" else None
    refusals = [] if check is None else [refusal for at in sorted(times) if (refusal := check.find_refusal(at))]
    last = refusals[-1] if refusals else verdict
    reason = last.reason.partition(" Try again")[0]
    return Outcome(action=verdict.action, refused=len(refusals), code=last.code, reason=reason)


def difference_to_json(difference: Difference) -> dict[str, Any]:
    """Return a difference as JSON."""

    def outcome(value: Outcome) -> dict[str, Any]:
        named = {"action": value.action, "refused": value.refused}
        return {**named, "code": value.code or None, "reason": value.reason or None}

    return {
        "server": difference.server,
        "client": difference.client,
        "entity": difference.entity,
        "item": difference.item,
        "calls": difference.calls,
        "before": outcome(difference.before),
        "after": outcome(difference.after),
    }


def _row(difference: Difference) -> tuple[str, ...]:
    decisive = difference.after if difference.after.reason else difference.before
    return (
        difference.server,
        f"{difference.entity} {difference.item}",
        difference.client or "-",
        str(difference.calls),
        describe_outcome(difference.before.action, difference.before.refused, difference.calls),
        describe_outcome(difference.after.action, difference.after.refused, difference.calls),
        decisive.reason,
    )


def describe_outcome(action: str, refused: int, calls: int) -> str:
    """Return what happens, in one or two words."""
    if action == "block":
        return "blocked"
    return f"{refused} of {calls} refused" if refused else {"allow": "allowed"}.get(action, f"{action} only")
