"""A policy for the gateway out of what it observed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row, plural
from pinwarden.core.text import INVISIBLE, neutralize_log_commands, show_invisible
from pinwarden.gateway.audit.chain import entries
from pinwarden.gateway.audit.event import ALLOWED, CALLED, WARNED
from pinwarden.gateway.gates.requests import SERVER_REQUESTS
from pinwarden.gateway.gates.verdict import BLOCK
from pinwarden.gateway.state import FIRST_USE, lock_baseline
from pinwarden.gateway.store.reviews import REJECTED, STATES, Review, Sighting, is_truncated, storable_name
from pinwarden.lock import lock_store
from pinwarden.lock.gateway_policy import DEFAULTS
from pinwarden.lock.policy import parse_policy
from pinwarden.lock.policy_proposal import REASONS, Observation, Proposal, propose
from pinwarden.surface.surface import ITEM_KINDS
from pinwarden.system.masking import mask_item_key

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_HEAD = f"""\
# A policy for the gateway, proposed from what it observed. Read it before you use it: it allows what is listed here
# beside what is approved in the lock, or was trusted on first use, and nothing else.
[policy]
version = 1

[policy.gateway]
# audit records, warn also tells the client, block prevents.
enforcement = "{DEFAULTS["enforcement"]}"
# The same for items of a name that nobody approved.
unknown = "{DEFAULTS["unknown"]}"
block-at = "{DEFAULTS["block-at"]}"
"""
_KEY_OF = {kind.entity: kind.key for kind in ITEM_KINDS}


_NOTHING_OBSERVED = (
    "nothing of this was observed yet; use the servers through pinwarden run or pinwarden gateway for a while first"
)


_ELSEWHERE = "of servers of the same name left out, which were held back in other projects only; --all covers them too"


class Generated(Record):
    """A proposed policy as text, and the report about it."""

    text: str
    report: Report


class Coverage(Record):
    """Which servers a policy is for."""

    servers: tuple[str, ...] = ()
    """By name; none means all."""
    lock: str | None = None
    """The lock that names them, where nobody else did."""
    place: str = ""
    """The same as the place of approvals: another project may have another server of the same name."""

    def covers(self, server: str) -> bool:
        """Whether a server is one of them."""
        return (not self.servers and self.lock is None) or server in map(storable_name, self.servers)


def locked_servers(project: Project) -> Coverage:
    """The servers of this project, as its lock names them; all that were observed, where there is no lock."""
    lock = lock_store.read(project.lock)
    if lock is None:
        return Coverage()
    return Coverage(
        servers=tuple(dict.fromkeys(entry.name for entry in lock.entries)),
        lock=project.lock.name,
        place=lock_baseline(project.lock),
    )


def generate_policy(
    state: GatewayState,
    covered: Coverage = Coverage(),  # noqa: B008  a frozen value
    *,
    only_called: bool = False,
) -> Generated:
    """Propose a policy for these servers, or for all that were observed."""
    every, elsewhere = _observations(state, covered)
    observed = [each for each in every if covered.covers(each.server)]
    proposal = propose(observed, only_called=only_called)
    text = policy_text(proposal)
    policy = parse_policy(text.encode())  # what is proposed can be read back, whatever the servers call their tools
    rows = tuple(
        Row(
            code=each.code,
            severity="info" if each.code in ("server", "unused") else "review",
            entity=f"{each.observation.server}: {each.observation.entity}",
            name=each.observation.item,
            path="",
            message=f"Left out: {each.reason}.",
        )
        for each in proposal.left_out
    )
    told = f"{plural(len(proposal.allow), 'definition')} proposed, {len(proposal.left_out)} left out"
    report = Report(
        command="policy generate",
        subject=covered.lock or ", ".join(covered.servers) or "all servers",
        summary=told,
        exit_code=EXIT_CLEAN,
        rows=rows,
        notes=(
            *_notes(observed, covered, {each.server for each in every}),
            *([f"{plural(elsewhere, 'definition')} {_ELSEWHERE}"] if elsewhere else []),
        ),
        facts={
            "policy": text,
            "digest": policy.digest.sri,
            "allow": [_facts(each) for each in proposal.allow],
            "left_out": [
                {**_facts(each.observation), "code": each.code, "reason": each.reason} for each in proposal.left_out
            ],
        },
        rule_texts=REASONS,
    )
    return Generated(text=text, report=report)


def _notes(observed: Sequence[Observation], covered: Coverage, every: Collection[str]) -> Iterator[str]:
    seen = {each.server for each in observed}
    if seen and covered.lock is None:
        yield from (f"nothing of {name[:120]} was observed yet" for name in covered.servers if name not in seen)
    if not observed:
        yield _NOTHING_OBSERVED
    others = len(set(every) - seen)
    if covered.lock is not None and others:
        yield (
            f"{plural(others, 'other server')} that {covered.lock} does not name left out; --server NAME covers one, "
            "--all covers everything that was observed"
        )


def policy_text(proposal: Proposal) -> str:
    """The proposal as a file. What was left out is told in comments, with the reason."""
    lines = [_HEAD, *_window(proposal)]
    server = None
    for each in proposal.allow:
        if each.server != server:
            server = each.server
            lines += [
                f"# {_inert(server)}: {_sum([one for one in proposal.allow if one.server == server])}",
                "",
            ]
        lines += [
            f"# {_comment(each)}",
            "[[policy.gateway.allow]]",
            f"server = {_toml(_literal(each.server))}",
            f"tool = {_toml(_name(each))}",
            f"digest = {_toml(each.digest)}",
            "",
        ]
    if proposal.left_out:
        lines += ["# Left out, the gravest first:"]
    for left in proposal.left_out:
        seen = left.observation
        if left.code != "server":
            lines += [
                f"# - {_inert(f'{seen.server}: {seen.entity} {seen.item}')} {seen.digest}".rstrip(),
                f"#   {_inert(left.reason)}; {_comment(seen)}",
            ]
    themselves = dict.fromkeys(left.observation.server for left in proposal.left_out if left.code == "server")
    if themselves:
        lines += [f"# - of {_inert(', '.join(themselves))}: {REASONS['server']}"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _window(proposal: Proposal) -> list[str]:
    """How long was watched: who allows what a morning showed should know that it was a morning."""
    every = [*proposal.allow, *(left.observation for left in proposal.left_out)]
    if not every:
        return []
    first, last = min(each.first_seen for each in every), max(each.last_seen for each in every)
    return [f"# Observed from {first} to {last}.", ""]


def _sum(allowed: Sequence[Observation]) -> str:
    calls = sum(each.calls for each in allowed)
    unused = sum(not each.calls for each in allowed)
    never = f"; {unused} never called" if unused else ""
    return f"{plural(len(allowed), 'definition')}, {plural(calls, 'call')}{never}"


def _observations(state: GatewayState, covered: Coverage) -> tuple[list[Observation], int]:
    """What was observed, and how many definitions of covered servers were not observed here."""
    uses = _Uses(state)
    reviews: _Reviews = {}
    for each in state.reviews.listed(STATES):  # of one content there may be several, each for a lock of its own
        reviews.setdefault((each.server, each.entity, each.item, each.digest), []).append(each)
    everywhere = state.observed.all()
    sightings = [each for each in everywhere if _is_here(reviews.get(_content(each), []), covered.place)]
    elsewhere = sum(map(covered.covers, (each.server for each in everywhere)))
    elsewhere -= sum(map(covered.covers, (each.server for each in sightings)))
    seen = [_observation(each, uses, reviews) for each in sightings]
    known = {(each.server, each.entity, each.item) for each in everywhere}
    return [*seen, *uses.unlisted(known)], elsewhere


def _content(sighting: Sighting) -> tuple[str, str, str, str]:
    return sighting.server, sighting.entity, sighting.item, sighting.digest


def _is_here(about: Sequence[Review], place: str) -> bool:
    """Whether a definition may be of a server of this project. Only what was held says where it was."""
    return not (place and about) or any(review.baseline in (place, FIRST_USE) for review in about)


_Reviews = dict[tuple[str, str, str, str], list[Review]]


class _Used(Record):
    """How often something was used, and when."""

    calls: int = 0
    first: str = ""
    last: str = ""

    def and_at(self, moment: str) -> _Used:
        """Once more."""
        return _Used(calls=self.calls + 1, first=self.first or moment, last=moment)

    def with_those(self, other: _Used) -> _Used:
        """Both together."""
        moments = sorted(each for each in (self.first, self.last, other.first, other.last) if each)
        return _Used(calls=self.calls + other.calls, first=moments[0], last=moments[-1]) if moments else self


class _Uses:
    """The uses of each item, by the digest that it had then, as the audit log has them."""

    def __init__(self, state: GatewayState) -> None:
        self._found: dict[tuple[str, str, str], dict[str, _Used]] = {}
        for entry in entries(state.audit_database):
            fact = entry.fact
            # What a policy only watches is told as allowed or warned, in lists as well; only a use has a call.
            # To fetch a result is no call, and neither is what a server sends to the client.
            if not fact.item or fact.method.startswith("tasks/") or fact.method in SERVER_REQUESTS:
                continue
            if fact.kind == CALLED or (fact.kind in (ALLOWED, WARNED) and fact.call):
                item = self._found.setdefault(
                    (storable_name(fact.server), fact.item_kind, storable_name(fact.item)), {}
                )
                item[fact.observed] = item.get(fact.observed, _Used()).and_at(entry.at)

    def of(self, sighting: Sighting) -> _Used:
        """Of one definition; a use that does not say of which is counted for all of them."""
        item = storable_name(mask_item_key(sighting.entity, sighting.item))
        found = self._found.get((sighting.server, sighting.entity, item), {})  # an event holds no secret of an address
        mine = found.get(sighting.digest, _Used())
        return mine.with_those(found.get("", _Used())) if sighting.digest else mine

    def unlisted(self, known: Collection[tuple[str, str, str]]) -> Iterator[Observation]:
        """Tools and prompts that were called and that no list ever named. A resource need not be in one."""
        for item, found in sorted(self._found.items()):
            server, entity, name = item
            if entity in ("tool", "prompt") and item not in known:
                used = reduce(_Used.with_those, found.values())
                yield Observation(
                    server=server,
                    entity=entity,
                    item=name,
                    digest="",
                    value=None,
                    first_seen=used.first,
                    last_seen=used.last,
                    sessions=0,
                    calls=used.calls,
                    last_called=used.last,
                    listed=False,
                )


def _observation(sighting: Sighting, uses: _Uses, reviews: _Reviews) -> Observation:
    about = reviews.get(_content(sighting), [])
    used = uses.of(sighting)
    return Observation(
        server=sighting.server,
        entity=sighting.entity,
        item=sighting.item,
        digest=sighting.digest,
        value=strict_json.parse_json(sighting.definition.encode()),
        first_seen=sighting.first_seen,
        last_seen=sighting.last_seen,
        sessions=sighting.sessions,
        calls=used.calls,
        last_called=used.last,
        blocked=sighting.action == BLOCK,
        doubled=any(review.code == "duplicate_name" for review in about),
        rejected=any(review.state == REJECTED for review in about),
        named=not is_truncated(sighting.server),
    )


def _facts(each: Observation) -> dict[str, Any]:
    return {
        "server": each.server,
        "entity": each.entity,
        "item": each.item,
        "digest": each.digest or None,
        "first_seen": each.first_seen,
        "last_seen": each.last_seen,
        "sessions": each.sessions,
        "calls": each.calls,
        "last_called": each.last_called or None,
    }


def _comment(each: Observation) -> str:
    said = [f"{each.entity}{_hints(each)}"]
    if each.listed:
        said += [f"seen in {plural(each.sessions, 'session')} from {each.first_seen} to {each.last_seen}"]
    said += [f"{plural(each.calls, 'call')}, the last {each.last_called}" if each.calls else "never called"]
    return ", ".join(said)


def _hints(each: Observation) -> str:
    """What a tool says of its own danger. It may lie, but one that owns up to it deserves a second look."""
    annotations = each.value.get("annotations") if isinstance(each.value, dict) else None
    if each.entity != "tool" or not isinstance(annotations, dict):
        return ""
    told = [word for name, word in _DANGERS.items() if annotations.get(name) is True]
    return f" ({', '.join(told)})" if told else ""


_DANGERS = {"destructiveHint": "says it destroys", "openWorldHint": "says it reaches outside"}


def _name(each: Observation) -> str:
    """The name as the server sent it; the store may have cut it."""
    return str(each.value[_KEY_OF[each.entity]])


def _literal(server: str) -> str:
    """A server's name as a pattern that fits no other: what stands for other characters becomes one unknown one."""
    return "".join("?" if character in "*?" else character for character in server)


def _inert(text: str) -> str:
    """For a comment: nothing invisible, and nothing that a build server takes for a command."""
    return neutralize_log_commands(show_invisible(text))


def _toml(text: str) -> str:
    """A TOML string on one line. What a reader of the file would not see is written as an escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    shown = INVISIBLE.sub(lambda found: f"\\U{ord(found[0]):08X}" if found[0] != " " else " ", quoted)
    return shown.replace("##", "#\\u0023")  # what begins so is a command to some build servers
