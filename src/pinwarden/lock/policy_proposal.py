"""Propose a gateway policy from observations: definitions to allow, and definitions that a person must review.

Allowing everything that a gateway saw in a week would also allow an attack of that week. So the proposal leaves out
every definition that reads like an attack, changed in that time, is ambiguous, or was blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core.record import Record, replace
from pinwarden.surface.scan.scan import ScanFinding, scan
from pinwarden.surface.surface import ITEM_KINDS, Item, Surface

OMISSION_REASONS = {
    "suspicious": "its text reads like an attack",
    "undigestable": "its definition is ambiguous",
    "duplicate": "the server offered two items of this name",
    "changed": "it changed while it was observed",
    "unnamed": "it has no name that a rule could match",
    "unlisted": "it was called, but the server never listed it",
    "rejected": "it was rejected in review",
    "withheld": "it was blocked",
    "unused": "it was never called",
    "server": "a server's own information is approved with its lock, not by a policy",
}
"""The reasons for which a proposal leaves out an observation, by code."""


class Observation(Record):
    """One definition, when it was seen, and how often it was used."""

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
    is_blocked: bool = False
    """Whether the gateway blocked the definition."""
    is_duplicate: bool = False
    is_rejected: bool = False
    has_full_server_name: bool = True
    """Whether the full name of the server is known."""
    is_listed: bool = True
    """Whether the server listed it; clients may call tools that it never listed."""


class OmittedObservation(Record):
    """An observation that the proposal leaves out, with the reason."""

    observation: Observation
    code: str
    reason: str


class PolicyProposal(Record):
    """The observations to allow, and those left out."""

    allow: tuple[Observation, ...]
    omitted: tuple[OmittedObservation, ...]


def propose_policy(observations: Sequence[Observation], *, only_called: bool = False) -> PolicyProposal:
    """Split observations into those that can be allowed and those that a person must review.

    With ``only_called``, definitions that were never called are left out too.
    """
    digests: dict[tuple[str, str, str], set[str]] = {}
    for observation in observations:
        digests.setdefault((observation.server, observation.entity, observation.item), set()).add(observation.digest)
    findings = _scan_observations(observations)
    allow: list[Observation] = []
    omitted: list[OmittedObservation] = []
    for observation in observations:
        code, more = _find_objection(
            observation, len(digests[observation.server, observation.entity, observation.item]), findings
        )
        if not code and only_called and not observation.calls:
            code = "unused"
        if code:
            omitted.append(
                OmittedObservation(
                    observation=observation, code=code, reason=OMISSION_REASONS[code] + (f": {more}" if more else "")
                )
            )
        else:
            allow.append(observation)
    order = list(OMISSION_REASONS)
    return PolicyProposal(
        allow=tuple(allow), omitted=tuple(sorted(omitted, key=lambda omission: order.index(omission.code)))
    )


_Findings = Mapping[tuple[str, str, str, str], list[ScanFinding]]


def _find_objection(observation: Observation, digests: int, findings: _Findings) -> tuple[str, str]:
    """Return the first reason to leave an item out, as code and detail; empty if there is none."""
    if not observation.is_listed:
        return "unlisted", ""
    matching = findings.get(
        (observation.server, observation.entity, _find_item_name(observation), observation.digest), []
    )
    if matching:
        return "suspicious", "; ".join(dict.fromkeys(f"{finding.message} ({finding.code})" for finding in matching))
    if not observation.digest:
        return "undigestable", ""
    if observation.is_duplicate:
        return "duplicate", ""
    if observation.entity != "server" and not (
        observation.has_full_server_name and _find_item_key(observation).strip() and observation.server.strip()
    ):
        return "unnamed", ""
    if digests > 1:
        return "changed", f"{digests} definitions were seen"
    if observation.is_rejected:
        return "rejected", ""
    if observation.is_blocked:
        return "withheld", ""
    return ("server", "") if observation.entity == "server" else ("", "")


def _scan_observations(observations: Sequence[Observation]) -> _Findings:
    """Scan every definition for attack signs, in the context of the other servers."""
    listed = [observation for observation in observations if observation.is_listed]
    surfaces = {
        server: _build_surface([item for item in listed if item.server == server])
        for server in dict.fromkeys(item.server for item in listed)
    }
    findings: dict[tuple[str, str, str, str], list[ScanFinding]] = {}
    for layer in _group_by_definition(listed):
        digests = {(item.server, item.entity, _find_item_name(item)): item.digest for item in layer}
        for server in dict.fromkeys(item.server for item in layer):
            neighbours = [
                (other, surface)
                for other, surface in surfaces.items()
                if other != server and not _is_same_surface(surfaces[server], surface)
            ]
            for finding in scan(_build_surface([item for item in layer if item.server == server]), neighbours):
                name = finding.path.split("/")[1] if finding.entity == "server" and finding.path else finding.name
                # Duplicate names are reported by a rule of their own.
                if finding.severity == "warning" and finding.code != "duplicate_tool_name":
                    digest = digests.get((server, finding.entity, name), "")
                    findings.setdefault((server, finding.entity, name, digest), []).append(finding)
    return findings


def _is_same_surface(surface: Surface, other: Surface) -> bool:
    """Whether two surfaces, at least one of them without server information, have the same items.

    Then they are probably one server under two names: the gateway does not record server information that it trusts on
    first use. Returns False if both have server information, because the scan recognises equal surfaces itself.
    """
    if surface.server is not None and other.server is not None:
        return False  # the scan compares both completely
    return replace(surface, server=None).digest == replace(other, server=None).digest


def _group_by_definition(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Group observations: the first definition of every item, then the second definition of items that changed, etc.

    Groups are scanned separately, because an attack in one definition does not make the others suspicious.
    """
    versions: dict[tuple[str, str, str], list[Observation]] = {}
    for observation in observations:
        versions.setdefault((observation.server, observation.entity, _find_item_name(observation)), []).append(
            observation
        )
    for index in range(max(map(len, versions.values()), default=0)):
        yield [version[index] for version in versions.values() if index < len(version)]


def _build_surface(observations: Sequence[Observation]) -> Surface:
    items = {
        kind.member: tuple(
            Item.from_value(kind, observation.value)
            for observation in observations
            if observation.entity == kind.entity
        )
        for kind in ITEM_KINDS
    }
    information = {
        observation.item: observation.value for observation in observations if observation.entity == "server"
    }
    return Surface(server=information or None, items=items, observed={})


def _find_item_key(observation: Observation) -> str:
    return next(
        (Item.from_value(kind, observation.value).key for kind in ITEM_KINDS if kind.entity == observation.entity),
        observation.item,
    )


def _find_item_name(observation: Observation) -> str:
    kind = next((kind for kind in ITEM_KINDS if kind.entity == observation.entity), None)
    return observation.item if kind is None else Item.from_value(kind, observation.value).name
