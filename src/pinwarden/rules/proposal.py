"""A policy out of what was observed: what may be allowed because nothing speaks against it, and why the rest is not.

Whoever watches a gateway for a week and then allows all that was seen allows an attack that happened in that week. So
everything that reads like one, changed while it was watched, cannot be told apart or was withheld is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.core.record import Record
from pinwarden.documents.surface import KINDS, Item, Surface
from pinwarden.rules.advisories.scan import Finding, scan

REASONS = {
    "changed": "it changed while it was observed",
    "undigestable": "it cannot be read in only one way",
    "duplicate": "the server offered two items of this name",
    "suspicious": "its text reads like an attack",
    "rejected": "somebody rejected it",
    "withheld": "it was withheld",
    "server": "what a server says of itself is approved with its lock, not by a policy",
}
"""Why something is left out, by code."""


class Observation(Record):
    """One definition, how long it was seen and how often it was used."""

    server: str
    entity: str
    item: str
    digest: str
    value: Any
    first_seen: str
    last_seen: str
    sessions: int
    calls: int = 0
    withheld: bool = False
    """It did not reach the client."""
    doubled: bool = False
    rejected: bool = False


class LeftOut(Record):
    """Something that was observed and is not proposed."""

    observation: Observation
    code: str
    reason: str


class Proposal(Record):
    """What is proposed, and what is not."""

    allow: tuple[Observation, ...]
    left_out: tuple[LeftOut, ...]


def propose(observations: Sequence[Observation]) -> Proposal:
    """Sort everything that was observed into what may be allowed and what a person has to look at."""
    digests: dict[tuple[str, str, str], set[str]] = {}
    for each in observations:
        digests.setdefault((each.server, each.entity, each.item), set()).add(each.digest)
    findings = _findings(observations)
    allow: list[Observation] = []
    left: list[LeftOut] = []
    for each in observations:
        code, more = _objection(each, len(digests[each.server, each.entity, each.item]), findings)
        if code:
            left.append(LeftOut(observation=each, code=code, reason=REASONS[code] + (f": {more}" if more else "")))
        else:
            allow.append(each)
    return Proposal(allow=tuple(allow), left_out=tuple(left))


_Findings = Mapping[tuple[str, str, str], list[Finding]]


def _objection(each: Observation, digests: int, findings: _Findings) -> tuple[str, str]:
    """What speaks against an item, the gravest first; empty if nothing does."""
    found = findings.get((each.server, each.entity, _name(each)), [])
    if found:
        return "suspicious", "; ".join(dict.fromkeys(f"{one.message} ({one.code})" for one in found))
    if not each.digest:
        return "undigestable", ""
    if each.doubled:
        return "duplicate", ""
    if digests > 1:
        return "changed", f"{digests} definitions were seen"
    if each.rejected:
        return "rejected", ""
    if each.withheld:
        return "withheld", ""
    return ("server", "") if each.entity == "server" else ("", "")


def _findings(observations: Sequence[Observation]) -> _Findings:
    """Warnings about every definition that was seen, each server beside the others."""
    surfaces = {
        server: _surface([each for each in observations if each.server == server])
        for server in dict.fromkeys(each.server for each in observations)
    }
    found: dict[tuple[str, str, str], list[Finding]] = {}
    for server, surface in surfaces.items():
        neighbours = [(other, beside) for other, beside in surfaces.items() if other != server]
        for finding in scan(surface, neighbours):
            # Several definitions of one name are told by the rule above, and better.
            if finding.severity == "warning" and finding.code != "duplicate_tool_name":
                where = finding.path.split("/")[1] if finding.entity == "server" and finding.path else finding.name
                found.setdefault((server, finding.entity, where), []).append(finding)
    return found


def _surface(observations: Sequence[Observation]) -> Surface:
    items = {
        kind.member: tuple(Item.of(kind, each.value) for each in observations if each.entity == kind.entity)
        for kind in KINDS
    }
    said = {each.item: each.value for each in observations if each.entity == "server"}
    return Surface(server=said or None, items=items, observed={})


def _name(each: Observation) -> str:
    kind = next((kind for kind in KINDS if kind.entity == each.entity), None)
    return each.item if kind is None else Item.of(kind, each.value).name
