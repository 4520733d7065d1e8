"""Report code that contradicts the annotations of its tool, or that can do more than the lock records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.contract.check import summarize_reach
from pinwarden.contract.entitlements.analysis import Contradiction, find_contradictions, find_new_entitlements
from pinwarden.contract.entitlements.values import NATIVE, SUBPROCESS, Entitlements
from pinwarden.contract.extension import SOURCE, UNKNOWN
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.observation import ObservedServer, describe_location
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
            "The lockfile has no surface and no digest over its body, so Pinwarden cannot check most of it.",
        ),
        ("contract_changed", "A tool's contract changed in a part that clients do not see."),
    ),
    info=(("entitlement_lost", "The code of a tool can do less than the lock records."),),
)


def check_annotations(observed: ObservedServer, locked: Lockfile | None = None) -> tuple[Row, ...]:
    """Report code that contradicts its tool's annotations. A contradiction that is in the lock is only ``info``."""
    if observed.analysis is None:
        return ()
    wire = {item.key: item.value for item in observed.extension.surface.items_of_kind(TOOL)}
    return tuple(
        _build_row(
            contradiction,
            "info"
            if locked is not None and _is_locked(locked, contradiction)
            else _LOWER_SEVERITIES.get(contradiction.kind, "critical"),
        )
        for name, entitlements in observed.analysis.handlers.items()
        for contradiction in find_contradictions(name, wire.get(name, {}).get("annotations") or {}, entitlements)
    )


def check_tool_entitlements(locked: Lockfile, observed: ObservedServer) -> list[Row]:
    """Report the entitlements that the code of each tool gained or lost since the lock."""
    rows: list[Row] = []
    if observed.analysis is None:
        return rows
    for name, entitlements in observed.analysis.handlers.items():
        known = _read_locked_kinds(locked, name)
        if known is None:
            continue
        rows += [_build_row(finding, "critical") for finding in find_new_entitlements(name, known, entitlements)]
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
        rows += _report_unfollowed_code("tool", name, _read_locked_entitlements(locked, name), entitlements)
    return rows


def check_prompt_and_resource_entitlements(locked: Lockfile, observed: ObservedServer) -> list[Row]:
    """Report the entitlements that the code of each prompt and resource gained since the lock."""
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
            changes = find_new_entitlements(name, _read_strings(before.get("kinds")), entitlements)
            rows += [replace(_build_row(change, "critical"), entity=entity) for change in changes]
            rows += _report_unfollowed_code(entity, name, before, entitlements)
    return rows


def report_unchecked_tools(locked: Lockfile, observed: ObservedServer) -> list[Row]:
    """Report tools whose entitlements are in the lock, but whose code was not analysed this time."""
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
        if facts.evidence["entitlements"] == UNKNOWN and _read_locked_kinds(locked, name) is not None
    ]


def check_startup_entitlements(locked: Lockfile, observed: ObservedServer, name: str) -> list[Row]:
    """Report the entitlements gained by code that runs when the server is imported."""
    extension = locked.extension or {}
    details = extension.get("details")
    if observed.analysis is None or extension.get("evidence") != SOURCE or not isinstance(details, Mapping):
        return []
    facts = details.get("startup")
    before = facts if isinstance(facts, Mapping) else {}
    kinds = _read_strings(before.get("kinds"))
    startup = observed.analysis.startup
    rows = [
        replace(_build_row(finding, "critical"), entity="server")
        for finding in find_new_entitlements(name, kinds, startup)
    ]
    return [*rows, *_report_unfollowed_code("server", name, before, startup)]


def _report_unfollowed_code(entity: str, name: str, before: Mapping[str, Any], entitlements: Entitlements) -> list[Row]:
    """Report calls that the analysis cannot follow, unless they are in the lock."""
    known = summarize_reach(before)["unknown"]
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
            message=f"the analysis cannot follow a call of {name} ({unknown.reason}): {describe_location(unknown)}",
            file=unknown.path,
            line=unknown.line,
        )
        for _, unknown in sorted(new.items())
    ]


_LOWER_SEVERITIES = {SUBPROCESS: "review", NATIVE: "review"}
"""Severities of entitlements that can be compatible with ``readOnlyHint``, if the other program only reads."""


def _is_locked(locked: Lockfile, contradiction: Contradiction) -> bool:
    """Whether the lock has both the tool's ``readOnlyHint`` and the entitlement that contradicts it."""
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(contradiction.tool) if isinstance(tools, Mapping) else None
    claims = entry.get("annotations") if isinstance(entry, Mapping) else None
    return (
        isinstance(claims, Mapping)
        and claims.get("readOnlyHint") is True
        and contradiction.kind in (_read_locked_kinds(locked, contradiction.tool) or ())
    )


def _read_locked_kinds(locked: Lockfile, name: str) -> tuple[str, ...] | None:
    """Return a tool's entitlements in the lock; None if its source was not analysed for the lock."""
    kinds = _read_locked_entitlements(locked, name).get("kinds")
    return _read_strings(kinds) if isinstance(kinds, list) else None


def _read_locked_entitlements(locked: Lockfile, name: str) -> Mapping[str, Any]:
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(name) if isinstance(tools, Mapping) else None
    recorded = entry.get("entitlements") if isinstance(entry, Mapping) else None
    return recorded if isinstance(recorded, Mapping) else {}


def _read_strings(values: Any) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _build_row(contradiction: Contradiction, severity: str) -> Row:
    first = contradiction.findings[0] if contradiction.findings else None
    return Row(
        code=contradiction.code,
        severity=severity,
        entity="tool",
        name=contradiction.tool,
        path="entitlements",
        message=contradiction.message + (f": {describe_location(first)}" if first else ""),
        file=first.path if first else None,
        line=first.line if first else None,
    )
