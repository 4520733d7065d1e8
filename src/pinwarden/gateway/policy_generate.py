"""``pinwarden policy generate``: proposes a gateway policy from recorded observations."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.core.text import INVISIBLE, neutralize_log_commands, plural, show_invisible
from pinwarden.gateway.audit.chain import read_entries
from pinwarden.gateway.audit.event import ALLOWED, CALLED, WARNED
from pinwarden.gateway.baselines import FIRST_USE, Baseline
from pinwarden.gateway.gates.server_requests import SERVER_REQUESTS
from pinwarden.gateway.gates.verdict import BLOCK
from pinwarden.gateway.store.reviews import REJECTED, STATES, Review, Sighting, is_truncated, make_storable_name
from pinwarden.lock import lock_store
from pinwarden.lock.gateway_policy import DEFAULTS
from pinwarden.lock.policy import parse_policy
from pinwarden.lock.policy_proposal import OMISSION_REASONS, Observation, PolicyProposal, propose_policy
from pinwarden.surface.surface import ITEM_KINDS
from pinwarden.system.masking import mask_item_key

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_HEAD = f"""\
# A gateway policy, proposed from what the gateway observed. Review it before you use it. In addition to what is
# approved in the lock or trusted on first use, it allows exactly the definitions below.
[policy]
version = 1

[policy.gateway]
# audit: record only; warn: also warn the client; block: prevent.
enforcement = "{DEFAULTS["enforcement"]}"
# The same for items whose name is not approved.
unknown = "{DEFAULTS["unknown"]}"
block-at = "{DEFAULTS["block-at"]}"
"""
_KEY_OF = {kind.entity: kind.key for kind in ITEM_KINDS}


_NOTHING_OBSERVED = "no observations yet; use the servers through pinwarden run or pinwarden gateway for a while first"
_ELSEWHERE = "left out, because only other projects, with a server of the same name, blocked them; --all includes them"


class GeneratedPolicy(Record):
    """A proposed policy as text, and the report about it."""

    text: str
    report: Report


class PolicyScope(Record):
    """The servers that a generated policy covers."""

    servers: tuple[str, ...] = ()
    """The names of the servers; empty for all observed servers."""
    lock: str | None = None
    """The file name of the lock that contains the servers; None without a lock."""
    baseline: str = ""
    """The baseline of the lock, which excludes servers of the same name in other projects."""

    def covers(self, server: str) -> bool:
        """Whether the policy covers a server."""
        return (not self.servers and self.lock is None) or server in map(make_storable_name, self.servers)


def find_lock_scope(project: Project) -> PolicyScope:
    """Return the scope of the servers in the project's lock; of all observed servers if there is no lock."""
    lock = lock_store.read(project.lock)
    if lock is None:
        return PolicyScope()
    return PolicyScope(
        servers=tuple(dict.fromkeys(entry.name for entry in lock.entries)),
        lock=project.lock.name,
        baseline=str(Baseline.of_lock(project.lock)),
    )


def generate_policy(
    state: GatewayState,
    scope: PolicyScope = PolicyScope(),  # noqa: B008  a frozen value
    *,
    only_called: bool = False,
) -> GeneratedPolicy:
    """Propose a policy for the covered servers."""
    all_observed, elsewhere = _collect_observations(state, scope)
    observed = [observation for observation in all_observed if scope.covers(observation.server)]
    proposal = propose_policy(observed, only_called=only_called)
    text = render_policy(proposal)
    policy = parse_policy(text.encode())  # checks that the text is valid, whatever the names of tools
    rows = tuple(
        Row(
            code=omission.code,
            severity="info" if omission.code in ("server", "unused") else "review",
            entity=f"{omission.observation.server}: {omission.observation.entity}",
            name=omission.observation.item,
            path="",
            message=f"Left out: {omission.reason}.",
        )
        for omission in proposal.omitted
    )
    report = Report(
        command="policy generate",
        subject=scope.lock or ", ".join(scope.servers) or "all servers",
        summary=f"{plural(len(proposal.allow), 'definition')} proposed, {len(proposal.omitted)} left out",
        exit_code=EXIT_CLEAN,
        rows=rows,
        notes=(
            *_build_notes(observed, scope, {observation.server for observation in all_observed}),
            *([f"{plural(elsewhere, 'definition')} {_ELSEWHERE}"] if elsewhere else []),
        ),
        facts={
            "policy": text,
            "digest": policy.digest.sri,
            "allow": [_observation_to_json(observation) for observation in proposal.allow],
            "left_out": [
                {**_observation_to_json(omission.observation), "code": omission.code, "reason": omission.reason}
                for omission in proposal.omitted
            ],
        },
        rule_texts=OMISSION_REASONS,
    )
    return GeneratedPolicy(text=text, report=report)


def _build_notes(observed: Sequence[Observation], scope: PolicyScope, all_servers: Collection[str]) -> Iterator[str]:
    servers = {observation.server for observation in observed}
    if servers and scope.lock is None:
        yield from (f"no observations of {name[:120]} yet" for name in scope.servers if name not in servers)
    if not observed:
        yield _NOTHING_OBSERVED
    others = len(set(all_servers) - servers)
    if scope.lock is not None and others:
        yield (
            f"{plural(others, 'server')} not in {scope.lock} left out; --server NAME includes one, --all includes "
            "everything that was observed"
        )


def render_policy(proposal: PolicyProposal) -> str:
    """Return the proposal as TOML, with comments about omitted definitions."""
    lines = [_HEAD, *_render_period(proposal)]
    server = None
    for allowed in proposal.allow:
        if allowed.server != server:
            server = allowed.server
            of_server = [observation for observation in proposal.allow if observation.server == server]
            lines += [f"# {_escape_for_comment(server)}: {_render_totals(of_server)}", ""]
        lines += [
            f"# {_render_comment(allowed)}",
            "[[policy.gateway.allow]]",
            f"server = {_quote_toml(_replace_wildcards(allowed.server))}",
            f"tool = {_quote_toml(_find_full_name(allowed))}",
            f"digest = {_quote_toml(allowed.digest)}",
            "",
        ]
    if proposal.omitted:
        lines += ["# Left out, most severe first:"]
    for omission in proposal.omitted:
        omitted = omission.observation
        if omission.code != "server":
            item = _escape_for_comment(f"{omitted.server}: {omitted.entity} {omitted.item}")
            lines += [
                f"# - {item} {omitted.digest}".rstrip(),
                f"#   {_escape_for_comment(omission.reason)}; {_render_comment(omitted)}",
            ]
    servers = dict.fromkeys(entry.observation.server for entry in proposal.omitted if entry.code == "server")
    if servers:
        lines += [f"# - of {_escape_for_comment(', '.join(servers))}: {OMISSION_REASONS['server']}"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _render_period(proposal: PolicyProposal) -> list[str]:
    """Return a comment with the period of the observations, so that a reviewer sees whether it was long enough."""
    observed = [*proposal.allow, *(omission.observation for omission in proposal.omitted)]
    if not observed:
        return []
    first = min(observation.first_seen for observation in observed)
    last = max(observation.last_seen for observation in observed)
    return [f"# Observed from {first} to {last}.", ""]


def _render_totals(allowed: Sequence[Observation]) -> str:
    calls = sum(observation.calls for observation in allowed)
    unused = sum(not observation.calls for observation in allowed)
    never = f"; {unused} never called" if unused else ""
    return f"{plural(len(allowed), 'definition')}, {plural(calls, 'call')}{never}"


def _collect_observations(state: GatewayState, scope: PolicyScope) -> tuple[list[Observation], int]:
    """Return the observations, and the number of definitions of covered servers that only other projects observed."""
    uses = _UsageIndex(state)
    reviews: _Reviews = {}
    for review in state.reviews.select(STATES):  # several locks may have reviews of the same content
        reviews.setdefault(_get_content_key(review), []).append(review)
    everywhere = state.observed_definitions.list_all()
    sightings = [
        sighting
        for sighting in everywhere
        if _may_belong_to_project(reviews.get(_get_content_key(sighting), []), scope.baseline)
    ]
    elsewhere = sum(scope.covers(sighting.server) for sighting in everywhere)
    elsewhere -= sum(scope.covers(sighting.server) for sighting in sightings)
    listed = [_build_observation(sighting, uses, reviews) for sighting in sightings]
    known = {(sighting.server, sighting.entity, sighting.item) for sighting in everywhere}
    return [*listed, *uses.list_unlisted(known)], elsewhere


def _get_content_key(stored: Sighting | Review) -> tuple[str, str, str, str]:
    return stored.server, stored.entity, stored.item, stored.digest


def _may_belong_to_project(reviews: Sequence[Review], baseline: str) -> bool:
    """Whether a definition may come from this project. Without reviews, which name a project, it may come from any."""
    return not (baseline and reviews) or any(review.baseline in (baseline, str(FIRST_USE)) for review in reviews)


_Reviews = dict[tuple[str, str, str, str], list[Review]]


class _Usage(Record):
    """The number of calls, and the times of the first and last one."""

    calls: int = 0
    first: str = ""
    last: str = ""

    def with_call(self, at: str) -> _Usage:
        """Return the usage with one more call."""
        return _Usage(calls=self.calls + 1, first=self.first or at, last=at)

    def merge(self, other: _Usage) -> _Usage:
        """Return the sum of both usages."""
        times = sorted(time for time in (self.first, self.last, other.first, other.last) if time)
        return _Usage(calls=self.calls + other.calls, first=times[0], last=times[-1]) if times else self


class _UsageIndex:
    """The usage of items according to the audit log, by the digest of the definition that was used."""

    def __init__(self, state: GatewayState) -> None:
        self._usage: dict[tuple[str, str, str], dict[str, _Usage]] = {}
        for entry in read_entries(state.audit_database):
            event = entry.event
            # Listed items are recorded as allowed or warned too; only a use has a correlation id.
            # Requests about tasks, and requests of servers, do not count as calls.
            if not event.item or event.method.startswith("tasks/") or event.method in SERVER_REQUESTS:
                continue
            if event.kind == CALLED or (event.kind in (ALLOWED, WARNED) and event.call):
                key = (make_storable_name(event.server), event.item_kind, make_storable_name(event.item))
                by_digest = self._usage.setdefault(key, {})
                by_digest[event.observed] = by_digest.get(event.observed, _Usage()).with_call(entry.at)

    def find_usage(self, sighting: Sighting) -> _Usage:
        """Return the usage of one definition, including uses without a recorded digest."""
        item = make_storable_name(mask_item_key(sighting.entity, sighting.item))  # events have masked keys
        by_digest = self._usage.get((sighting.server, sighting.entity, item), {})
        usage = by_digest.get(sighting.digest, _Usage())
        return usage.merge(by_digest.get("", _Usage())) if sighting.digest else usage

    def list_unlisted(self, known: Collection[tuple[str, str, str]]) -> Iterator[Observation]:
        """Yield observations of tools and prompts that were called but never listed."""
        for item, by_digest in sorted(self._usage.items()):
            server, entity, name = item
            if entity in ("tool", "prompt") and item not in known:
                usage = reduce(_Usage.merge, by_digest.values())
                yield Observation(
                    server=server,
                    entity=entity,
                    item=name,
                    digest="",
                    value=None,
                    first_seen=usage.first,
                    last_seen=usage.last,
                    sessions=0,
                    calls=usage.calls,
                    last_called=usage.last,
                    is_listed=False,
                )


def _build_observation(sighting: Sighting, uses: _UsageIndex, reviews: _Reviews) -> Observation:
    own_reviews = reviews.get(_get_content_key(sighting), [])
    usage = uses.find_usage(sighting)
    return Observation(
        server=sighting.server,
        entity=sighting.entity,
        item=sighting.item,
        digest=sighting.digest,
        value=strict_json.parse_json(sighting.definition.encode()),
        first_seen=sighting.first_seen,
        last_seen=sighting.last_seen,
        sessions=sighting.sessions,
        calls=usage.calls,
        last_called=usage.last,
        is_blocked=sighting.action == BLOCK,
        is_duplicate=any(review.code == "duplicate_name" for review in own_reviews),
        is_rejected=any(review.state == REJECTED for review in own_reviews),
        has_full_server_name=not is_truncated(sighting.server),
    )


def _observation_to_json(observation: Observation) -> dict[str, Any]:
    return {
        "server": observation.server,
        "entity": observation.entity,
        "item": observation.item,
        "digest": observation.digest or None,
        "first_seen": observation.first_seen,
        "last_seen": observation.last_seen,
        "sessions": observation.sessions,
        "calls": observation.calls,
        "last_called": observation.last_called or None,
    }


def _render_comment(seen: Observation) -> str:
    parts = [f"{seen.entity}{_render_danger_hints(seen)}"]
    if seen.is_listed:
        parts += [f"seen in {plural(seen.sessions, 'session')} from {seen.first_seen} to {seen.last_seen}"]
    parts += [f"{plural(seen.calls, 'call')}, the last {seen.last_called}" if seen.calls else "never called"]
    return ", ".join(parts)


def _render_danger_hints(observation: Observation) -> str:
    """Return the annotations with which a tool declares itself dangerous, for a comment."""
    value = observation.value
    annotations = value.get("annotations") if isinstance(value, dict) else None
    if observation.entity != "tool" or not isinstance(annotations, dict):
        return ""
    hints = [name for name in _DANGER_HINTS if annotations.get(name) is True]
    return f" ({', '.join(hints)})" if hints else ""


_DANGER_HINTS = ("destructiveHint", "openWorldHint")


def _find_full_name(observation: Observation) -> str:
    """Return the item's name from its definition, because the name in the database may be truncated."""
    return str(observation.value[_KEY_OF[observation.entity]])


def _replace_wildcards(server: str) -> str:
    """Return a pattern for a server's name. Wildcards in the name become ``?``, which matches one character."""
    return "".join("?" if character in "*?" else character for character in server)


def _escape_for_comment(text: str) -> str:
    """Escape invisible characters and the log commands of build servers in a comment."""
    return neutralize_log_commands(show_invisible(text))


def _quote_toml(text: str) -> str:
    """Return a TOML string on one line, with invisible characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    escaped = INVISIBLE.sub(lambda match: f"\\U{ord(match[0]):08X}" if match[0] != " " else " ", quoted)
    return escaped.replace("##", "#\\u0023")  # some build servers execute text after ## as a command
