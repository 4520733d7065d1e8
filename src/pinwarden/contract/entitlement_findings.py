"""Findings about code that contradicts a tool's annotations or the lock."""

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
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.surface.surface import TOOL

CONTRACT_KINDS: FindingKinds = build_kind_table(
    critical=(
        (
            "read_only_contradicted",
            "A tool declares readOnlyHint, but its code writes, starts programs or evaluates code.",
        ),
        ("entitlement_gained", "The code of a tool, prompt or resource can do more than the lock records."),
    ),
    review=(
        (
            "entitlements_unchecked",
            "The lock records what a tool's code can do, but the code was not analysed this time.",
        ),
        ("reach_unknown", "The code has a new call that the analysis cannot follow."),
        (
            "lock_unsealed",
            "The lockfile has no texts and no digest over its body, so most of it cannot be checked.",
        ),
        ("contract_changed", "A tool's contract changed in a part that clients do not see."),
    ),
    info=(("entitlement_lost", "The code of a tool can do less than the lock records."),),
)


def contradiction_rows(observed: Observed, locked: Lockfile | None = None) -> tuple[Row, ...]:
    """Code that contradicts its tool's annotations. Contradictions that are already locked are only ``info``."""
    if observed.analysis is None:
        return ()
    wire = {item.key: item.value for item in observed.extension.surface.items_of_kind(TOOL)}
    return tuple(
        _row(
            contradiction,
            "info"
            if locked is not None and _is_locked(locked, contradiction)
            else _LEVELS.get(contradiction.kind, "critical"),
        )
        for name, entitlements in observed.analysis.handlers.items()
        for contradiction in contradictions(name, wire.get(name, {}).get("annotations") or {}, entitlements)
    )


def gained_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """Entitlements that the code of each tool gained or lost."""
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
        rows += _unknown_reach_rows("tool", name, _locked_facts(locked, name), entitlements)
    return rows


def prompt_and_resource_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """Entitlements that the code of each prompt and resource gained, if the lock records them."""
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
            rows += _unknown_reach_rows(entity, name, before, entitlements)
    return rows


def unchecked_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    """Tools whose entitlements are locked but currently unknown."""
    return [
        Row(
            code="entitlements_unchecked",
            severity="review",
            entity="tool",
            name=name,
            path="entitlements",
            message=f"the lock records what {name} can do, but its code was not analysed (use --server or --source)",
        )
        for name, facts in observed.extension.tools.items()
        if facts.evidence["entitlements"] == UNKNOWN and _locked_kinds(locked, name) is not None
    ]


def startup_rows(locked: Lockfile, observed: Observed, name: str) -> list[Row]:
    """Entitlements that the code that runs on import gained."""
    extension = locked.extension or {}
    details = extension.get("details")
    if observed.analysis is None or extension.get("evidence") != SOURCE or not isinstance(details, Mapping):
        return []
    facts = details.get("startup")
    before = facts if isinstance(facts, Mapping) else {}
    kinds = _texts(before.get("kinds"))
    startup = observed.analysis.startup
    rows = [replace(_row(finding, "critical"), entity="server") for finding in gained(name, kinds, startup)]
    return [*rows, *_unknown_reach_rows("server", name, before, startup)]


def _unknown_reach_rows(entity: str, name: str, before: Mapping[str, Any], entitlements: Entitlements) -> list[Row]:
    """Calls that the analysis cannot follow and that are not in the lock."""
    known = reach(before)["unknown"]
    new = {
        (unknown.reason, unknown.what): unknown
        for unknown in entitlements.unknown
        if (unknown.reason, unknown.what) not in known
    }
    return [
        Row(
            code="reach_unknown",
            severity="review",
            entity=entity,
            name=name,
            path="entitlements",
            message=f"the analysis cannot follow a call of {name} ({unknown.reason}): {located(unknown)}",
            file=unknown.path,
            line=unknown.line,
        )
        for _, unknown in sorted(new.items())
    ]


_LEVELS = {SUBPROCESS: "review", NATIVE: "review"}
"""Lower severities: another program or native code may only read."""


def _is_locked(locked: Lockfile, contradiction: Contradiction) -> bool:
    """Whether the lock already has both the tool's claim and this entitlement."""
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(contradiction.tool) if isinstance(tools, Mapping) else None
    claims = entry.get("annotations") if isinstance(entry, Mapping) else None
    return (
        isinstance(claims, Mapping)
        and claims.get("readOnlyHint") is True
        and contradiction.kind in (_locked_kinds(locked, contradiction.tool) or ())
    )


def _locked_kinds(locked: Lockfile, name: str) -> tuple[str, ...] | None:
    """A tool's locked entitlements; None if its source was not analysed."""
    kinds = _locked_facts(locked, name).get("kinds")
    return _texts(kinds) if isinstance(kinds, list) else None


def _locked_facts(locked: Lockfile, name: str) -> Mapping[str, Any]:
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(name) if isinstance(tools, Mapping) else None
    recorded = entry.get("entitlements") if isinstance(entry, Mapping) else None
    return recorded if isinstance(recorded, Mapping) else {}


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _row(contradiction: Contradiction, level: str) -> Row:
    first = contradiction.findings[0] if contradiction.findings else None
    return Row(
        code=contradiction.code,
        severity=level,
        entity="tool",
        name=contradiction.tool,
        path="entitlements",
        message=contradiction.message + (f": {located(first)}" if first else ""),
        file=first.path if first else None,
        line=first.line if first else None,
    )
