"""Where the code of a server denies what its tools or its lock say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.contract.check import reach
from pinwarden.contract.entitlements.analysis import Contradiction, contradictions, gained
from pinwarden.contract.entitlements.values import NATIVE, SUBPROCESS, Entitlements
from pinwarden.contract.extension import SOURCE, UNKNOWN
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.observation import Observed, located
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Row, kind_table
from pinwarden.surface.surface import TOOL

CONTRACT_KINDS: FindingKinds = kind_table(
    critical=(
        (
            "read_only_contradicted",
            "A tool declares readOnlyHint, and its code writes, starts programs or evaluates code.",
        ),
        ("entitlement_gained", "The code of a tool, prompt or resource can do more than the lock knows."),
    ),
    review=(
        (
            "entitlements_unchecked",
            "The lock knows what a tool's code can do, and this time its code was not analysed.",
        ),
        ("reach_unknown", "The code has a place, new since the lock, behind which nobody can see."),
        (
            "lock_unsealed",
            "The lockfile has no texts and no digest over its body, so most of it cannot be held to anything.",
        ),
        ("contract_changed", "The contract of a tool is not the one in the lock, in a part that no client sees."),
    ),
    info=(("entitlement_lost", "The code of a tool can do less than the lock knows."),),
)


def notices(observed: Observed, locked: Lockfile | None = None) -> tuple[Row, ...]:
    """Where the code denies what its definition says. What the lock has, its author has seen: it is only noted."""
    if observed.analysis is None:
        return ()
    wire = {item.key: item.value for item in observed.extension.surface.items_of_kind(TOOL)}
    return tuple(
        _row(each, "info" if locked is not None and _accepted(locked, each) else _LEVELS.get(each.kind, "critical"))
        for name, found in observed.analysis.handlers.items()
        for each in contradictions(name, wire.get(name, {}).get("annotations") or {}, found)
    )


def gained_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """What the code of each tool can do now and could not, and what it no longer can."""
    rows: list[Row] = []
    if observed.analysis is None:
        return rows
    for name, found in observed.analysis.handlers.items():
        known = _locked_kinds(locked, name)
        if known is None:
            continue
        rows += [_row(each, "critical") for each in gained(name, known, found)]
        rows += [
            Row(
                code="entitlement_lost",
                severity="info",
                entity="tool",
                name=name,
                path="entitlements",
                message=f"{name} no longer has {kind}",
            )
            for kind in known
            if kind not in found.kinds
        ]
        rows += _unseen_rows("tool", name, _locked_facts(locked, name), found)
    return rows


def prompt_and_resource_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """What the code of each prompt and resource can do now and could not. What the lock does not record is no row."""
    details = (locked.extension or {}).get("details")
    if observed.analysis is None or not isinstance(details, Mapping):
        return []
    rows: list[Row] = []
    for entity, now in (("prompt", observed.analysis.prompts), ("resource", observed.analysis.resources)):
        recorded = details.get(f"{entity}s")
        for name, before in (recorded if isinstance(recorded, Mapping) else {}).items():
            found = now.get(name)
            if found is None or not isinstance(before, Mapping):
                continue
            changes = gained(name, _texts(before.get("kinds")), found)
            rows += [replace(_row(each, "critical"), entity=entity) for each in changes]
            rows += _unseen_rows(entity, name, before, found)
    return rows


def unchecked_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """Tools whose entitlements are in the lock and are unknown now."""
    return [
        Row(
            code="entitlements_unchecked",
            severity="review",
            entity="tool",
            name=name,
            path="entitlements",
            message=f"the lock says what {name} can do; its code was not analysed now (use --server or --source)",
        )
        for name, facts in observed.extension.tools.items()
        if facts.evidence["entitlements"] == UNKNOWN and _locked_kinds(locked, name) is not None
    ]


def startup_rows(locked: Lockfile, observed: Observed, name: str) -> list[Row]:
    """What the code that runs at import can do now and could not."""
    extension = locked.extension or {}
    details = extension.get("details")
    if observed.analysis is None or extension.get("evidence") != SOURCE or not isinstance(details, Mapping):
        return []
    facts = details.get("startup")
    before = facts if isinstance(facts, Mapping) else {}
    kinds = _texts(before.get("kinds"))
    found = observed.analysis.startup
    rows = [replace(_row(each, "critical"), entity="server") for each in gained(name, kinds, found)]
    return [*rows, *_unseen_rows("server", name, before, found)]


def _unseen_rows(entity: str, name: str, before: Mapping[str, Any], found: Entitlements) -> list[Row]:
    """Places behind which nobody can see, and which the lock does not know: the next one to gain a reach goes there."""
    known = reach(before)["unknown"]
    new = {(each.reason, each.what): each for each in found.unknown if (each.reason, each.what) not in known}
    return [
        Row(
            code="reach_unknown",
            severity="review",
            entity=entity,
            name=name,
            path="entitlements",
            message=f"{name} reaches what cannot be followed ({each.reason}): {located(each)}",
            file=each.path,
            line=each.line,
        )
        for _, each in sorted(new.items())
    ]


_LEVELS = {SUBPROCESS: "review", NATIVE: "review"}
"""Another program may well only read; writing and evaluating code may not be called reading."""


def _accepted(locked: Lockfile, each: Contradiction) -> bool:
    """Whether the author locked the tool with this very claim and this very entitlement."""
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(each.tool) if isinstance(tools, Mapping) else None
    claims = entry.get("annotations") if isinstance(entry, Mapping) else None
    return (
        isinstance(claims, Mapping)
        and claims.get("readOnlyHint") is True
        and each.kind in (_locked_kinds(locked, each.tool) or ())
    )


def _locked_kinds(locked: Lockfile, name: str) -> tuple[str, ...] | None:
    """What the lock knows of a tool's entitlements; None where its source was not read."""
    kinds = _locked_facts(locked, name).get("kinds")
    return _texts(kinds) if isinstance(kinds, list) else None


def _locked_facts(locked: Lockfile, name: str) -> Mapping[str, Any]:
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(name) if isinstance(tools, Mapping) else None
    found = entry.get("entitlements") if isinstance(entry, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(each for each in values if isinstance(each, str)) if isinstance(values, list) else ()


def _row(each: Contradiction, level: str) -> Row:
    first = each.findings[0] if each.findings else None
    return Row(
        code=each.code,
        severity=level,
        entity="tool",
        name=each.tool,
        path="entitlements",
        message=each.message + (f": {located(first)}" if first else ""),
        file=first.path if first else None,
        line=first.line if first else None,
    )
