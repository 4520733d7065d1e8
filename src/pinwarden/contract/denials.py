"""Rows for code that contradicts a tool's annotations or the lock."""

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
        ("reach_unknown", "The code has a new place that the analysis cannot follow."),
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
        _row(
            contradiction,
            "info"
            if locked is not None and _accepted(locked, contradiction)
            else _LEVELS.get(contradiction.kind, "critical"),
        )
        for name, entitlements in observed.analysis.handlers.items()
        for contradiction in contradictions(name, wire.get(name, {}).get("annotations") or {}, entitlements)
    )


def gained_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """What the code of each tool can do now and could not, and what it no longer can."""
    rows: list[Row] = []
    if observed.analysis is None:
        return rows
    for name, entitlements in observed.analysis.handlers.items():
        known = _locked_kinds(locked, name)
        if known is None:
            continue
        rows += [_row(finding, "critical") for finding in gained(name, known, entitlements)]
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
            if kind not in entitlements.kinds
        ]
        rows += _unseen_rows("tool", name, _locked_facts(locked, name), entitlements)
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
            entitlements = now.get(name)
            if entitlements is None or not isinstance(before, Mapping):
                continue
            changes = gained(name, _texts(before.get("kinds")), entitlements)
            rows += [replace(_row(change, "critical"), entity=entity) for change in changes]
            rows += _unseen_rows(entity, name, before, entitlements)
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
    startup = observed.analysis.startup
    rows = [replace(_row(finding, "critical"), entity="server") for finding in gained(name, kinds, startup)]
    return [*rows, *_unseen_rows("server", name, before, startup)]


def _unseen_rows(entity: str, name: str, before: Mapping[str, Any], entitlements: Entitlements) -> list[Row]:
    """Places that the analysis cannot follow and that are not in the lock."""
    known = reach(before)["unknown"]
    new = {
        (reason.reason, reason.what): reason
        for reason in entitlements.unknown
        if (reason.reason, reason.what) not in known
    }
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
    recorded = entry.get("entitlements") if isinstance(entry, Mapping) else None
    return recorded if isinstance(recorded, Mapping) else {}


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


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
