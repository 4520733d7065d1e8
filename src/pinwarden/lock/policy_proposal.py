"""Propose a gateway policy from observations: what can be allowed, and why the rest cannot.

Whoever watches a gateway for a week and then allows all that was seen allows an attack that happened in that week. So
everything that reads like one, changed while it was watched, cannot be told apart or was withheld is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core.record import Record, replace
from pinwarden.surface.scan.scan import Finding, scan
from pinwarden.surface.surface import ITEM_KINDS, Item, Surface

REASONS = {
    "suspicious": "its text reads like an attack",
    "undigestable": "it cannot be read in only one way",
    "duplicate": "the server offered two items of this name",
    "changed": "it changed while it was observed",
    "unnamed": "it has no name that a rule could be written for",
    "unlisted": "it was called, but the server never listed it",
    "rejected": "it was rejected in review",
    "withheld": "it was withheld",
    "unused": "it was never called",
    "server": "what a server says of itself is approved with its lock, not by a policy",
}
"""Why something is left out, by code, the gravest first."""


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
    last_called: str = ""
    withheld: bool = False
    """It did not reach the client."""
    doubled: bool = False
    rejected: bool = False
    named: bool = True
    """The whole name of its server is known."""
    listed: bool = True
    """A server may be called for what it never offered."""


class LeftOut(Record):
    """Something that was observed and is not proposed."""

    observation: Observation
    code: str
    reason: str


class Proposal(Record):
    """What is proposed, and what is not."""

    allow: tuple[Observation, ...]
    left_out: tuple[LeftOut, ...]


def propose(observations: Sequence[Observation], *, only_called: bool = False) -> Proposal:
    """Sort everything that was observed into what may be allowed and what a person has to look at.

    With ``only_called`` what nobody needed while it was watched is not allowed either.
    """
    digests: dict[tuple[str, str, str], set[str]] = {}
    for observation in observations:
        digests.setdefault((observation.server, observation.entity, observation.item), set()).add(observation.digest)
    findings = _findings(observations)
    allow: list[Observation] = []
    left: list[LeftOut] = []
    for observation in observations:
        code, more = _objection(
            observation, len(digests[observation.server, observation.entity, observation.item]), findings
        )
        if not code and only_called and not observation.calls:
            code = "unused"
        if code:
            left.append(
                LeftOut(observation=observation, code=code, reason=REASONS[code] + (f": {more}" if more else ""))
            )
        else:
            allow.append(observation)
    gravity = list(REASONS)
    return Proposal(allow=tuple(allow), left_out=tuple(sorted(left, key=lambda omission: gravity.index(omission.code))))


_Findings = Mapping[tuple[str, str, str, str], list[Finding]]


def _objection(observation: Observation, digests: int, findings: _Findings) -> tuple[str, str]:
    """What speaks against an item, the gravest first; empty if nothing does."""
    if not observation.listed:
        return "unlisted", ""
    value = findings.get((observation.server, observation.entity, _name(observation), observation.digest), [])
    if value:
        return "suspicious", "; ".join(dict.fromkeys(f"{finding.message} ({finding.code})" for finding in value))
    if not observation.digest:
        return "undigestable", ""
    if observation.doubled:
        return "duplicate", ""
    if observation.entity != "server" and not (
        observation.named and _key(observation).strip() and observation.server.strip()
    ):
        return "unnamed", ""
    if digests > 1:
        return "changed", f"{digests} definitions were seen"
    if observation.rejected:
        return "rejected", ""
    if observation.withheld:
        return "withheld", ""
    return ("server", "") if observation.entity == "server" else ("", "")


def _findings(observations: Sequence[Observation]) -> _Findings:
    """Warnings about every definition that was seen, each server beside the others."""
    listed = [observation for observation in observations if observation.listed]
    surfaces = {
        server: _surface([item for item in listed if item.server == server])
        for server in dict.fromkeys(item.server for item in listed)
    }
    findings: dict[tuple[str, str, str, str], list[Finding]] = {}
    for layer in _layers(listed):
        digests = {(item.server, item.entity, _name(item)): item.digest for item in layer}
        for server in dict.fromkeys(item.server for item in layer):
            neighbours = [
                (other, beside)
                for other, beside in surfaces.items()
                if other != server and not _is_seen_twice(surfaces[server], beside)
            ]
            for finding in scan(_surface([item for item in layer if item.server == server]), neighbours):
                where = finding.path.split("/")[1] if finding.entity == "server" and finding.path else finding.name
                # Duplicate names are reported by a rule of their own.
                if finding.severity == "warning" and finding.code != "duplicate_tool_name":
                    digest = digests.get((server, finding.entity, where), "")
                    findings.setdefault((server, finding.entity, where, digest), []).append(finding)
    return findings


def _is_seen_twice(surface: Surface, other: Surface) -> bool:
    """Whether both offer the same, as one server under two names does, and do not say that they are two.

    What a server says of itself is not written down while it is trusted on first use.
    """
    if surface.server is not None and other.server is not None:
        return False  # the scan compares all of it
    return replace(surface, server=None).digest == replace(other, server=None).digest


def _layers(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """The first definition of every item, then the second of those that have one, and so on.

    Each is scanned for itself: an attack in the second definition says nothing about the first.
    """
    versions: dict[tuple[str, str, str], list[Observation]] = {}
    for observation in observations:
        versions.setdefault((observation.server, observation.entity, _name(observation)), []).append(observation)
    for index in range(max(map(len, versions.values()), default=0)):
        yield [version[index] for version in versions.values() if index < len(version)]


def _surface(observations: Sequence[Observation]) -> Surface:
    items = {
        kind.member: tuple(
            Item.from_value(kind, observation.value)
            for observation in observations
            if observation.entity == kind.entity
        )
        for kind in ITEM_KINDS
    }
    said = {observation.item: observation.value for observation in observations if observation.entity == "server"}
    return Surface(server=said or None, items=items, observed={})


def _key(observation: Observation) -> str:
    return next(
        (Item.from_value(kind, observation.value).key for kind in ITEM_KINDS if kind.entity == observation.entity),
        observation.item,
    )


def _name(observation: Observation) -> str:
    kind = next((kind for kind in ITEM_KINDS if kind.entity == observation.entity), None)
    return observation.item if kind is None else Item.from_value(kind, observation.value).name
