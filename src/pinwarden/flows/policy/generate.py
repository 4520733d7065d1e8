"""A policy for the gateway out of what it observed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.record import Record
from pinwarden.core.visible import INVISIBLE, show_invisible
from pinwarden.documents.gateway_event import CALLED
from pinwarden.documents.policy import parse_policy
from pinwarden.documents.surface import KINDS
from pinwarden.flows.report import Report, Row, counted
from pinwarden.rules.gates.verdict import BLOCK
from pinwarden.rules.proposal import REASONS, Observation, Proposal, propose
from pinwarden.store.audit_chain import entries
from pinwarden.store.observed import Sighting, kept_name
from pinwarden.store.reviews import REJECTED, STATES, Review

if TYPE_CHECKING:
    from pinwarden.flows.gateway.state import GatewayState

_HEAD = """\
# A policy for the gateway, proposed from what it observed. Read it before you use it: it allows what is listed here
# beside what is approved in the lock, and nothing else.
[policy]
version = 1

[policy.gateway]
# audit records, warn also tells the client, block prevents.
enforcement = "block"
# The same for items of a name that nobody approved.
unknown = "block"
block-at = "review"
"""
_KEY_OF = {kind.entity: kind.key for kind in KINDS}


_NOTHING_OBSERVED = (
    "nothing of this was observed yet; use the servers through pinwarden run or pinwarden gateway for a while first"
)


class Generated(Record):
    """A proposed policy as text, and the report about it."""

    text: str
    report: Report


def generate_policy(state: GatewayState, servers: tuple[str, ...] = ()) -> Generated:
    """Propose a policy for these servers, or for all that were observed."""
    observed = _observations(state, servers)
    proposal = propose(observed)
    text = policy_text(proposal)
    policy = parse_policy(text.encode())  # what is proposed can be read back, whatever the servers call their tools
    rows = tuple(
        Row(
            code=each.code,
            level="review" if each.code != "server" else "info",
            entity=f"{each.observation.server}: {each.observation.entity}",
            name=each.observation.item,
            path="",
            message=f"Left out: {each.reason}.",
        )
        for each in proposal.left_out
    )
    told = f"{counted(len(proposal.allow), 'definition')} proposed, {len(proposal.left_out)} left out"
    report = Report(
        command="policy generate",
        subject=", ".join(servers) or "all servers",
        summary=told,
        exit_code=EXIT_CLEAN,
        rows=rows,
        notes=_notes(observed, servers),
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


def _notes(observed: Sequence[Observation], servers: tuple[str, ...]) -> tuple[str, ...]:
    seen = {each.server for each in observed}
    missing = [f"nothing of {name[:120]} was observed yet" for name in servers if name not in seen] if seen else []
    return (*missing, *(() if observed else (_NOTHING_OBSERVED,)))


def policy_text(proposal: Proposal) -> str:
    """The proposal as a file. What was left out is told in comments, with the reason."""
    lines = [_HEAD]
    for each in proposal.allow:
        lines += [
            f"# {_comment(each)}",
            "[[policy.gateway.allow]]",
            f"server = {_toml(_literal(each.server))}",
            f"tool = {_toml(_name(each))}",
            f"digest = {_toml(each.digest)}",
            "",
        ]
    if proposal.left_out:
        lines += ["# Left out:"]
    for left in proposal.left_out:
        seen = left.observation
        lines += [
            f"# - {show_invisible(f'{seen.server}: {seen.entity} {seen.item}')} {seen.digest}",
            f"#   {show_invisible(left.reason)}; {_comment(seen)}",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _observations(state: GatewayState, servers: tuple[str, ...]) -> list[Observation]:
    calls: Counter[tuple[str, str, str]] = Counter()
    for entry in entries(state.audit_database):
        fact = entry.fact
        if fact.kind == CALLED and fact.item:
            calls[kept_name(fact.server), fact.item_kind, kept_name(fact.item)] += 1
    reviews = {(each.server, each.entity, each.item, each.digest): each for each in state.reviews.listed(STATES)}
    return [
        _observation(each, calls[each.server, each.entity, each.item], reviews)
        for each in state.observed.all()
        if not servers or each.server in servers
    ]


def _observation(sighting: Sighting, calls: int, reviews: dict[tuple[str, str, str, str], Review]) -> Observation:
    review = reviews.get((sighting.server, sighting.entity, sighting.item, sighting.digest))
    return Observation(
        server=sighting.server,
        entity=sighting.entity,
        item=sighting.item,
        digest=sighting.digest,
        value=strict_json.parse(sighting.definition.encode()),
        first_seen=sighting.first_seen,
        last_seen=sighting.last_seen,
        sessions=sighting.sessions,
        calls=calls,
        withheld=sighting.action == BLOCK,
        doubled=review is not None and review.code == "duplicate_name",
        rejected=review is not None and review.state == REJECTED,
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
    }


def _comment(each: Observation) -> str:
    seen = f"{each.entity}, seen in {counted(each.sessions, 'session')} from {each.first_seen} to {each.last_seen}"
    return f"{seen}, {counted(each.calls, 'call')}"


def _name(each: Observation) -> str:
    """The name as the server sent it; the store may have cut it."""
    return str(each.value[_KEY_OF[each.entity]])


def _literal(server: str) -> str:
    """A server's name as a pattern that fits no other: what stands for other characters becomes one unknown one."""
    return "".join("?" if character in "*?" else character for character in server)


def _toml(text: str) -> str:
    """A TOML string on one line. What a reader of the file would not see is written as an escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    return INVISIBLE.sub(lambda found: f"\\U{ord(found[0]):08X}" if found[0] != " " else " ", quoted)
