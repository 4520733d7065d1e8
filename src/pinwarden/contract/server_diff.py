"""Differences between two lockfiles of one server, and how severe they are for its users.

If both files have the surface, the surfaces are compared (``surface/drift``), and the contracts add what clients do not
see. If a file has only digests, the visible parts are compared, and other changes are reported as hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from pinwarden.contract.contract import ToolContract, tool_contract_from_json
from pinwarden.contract.diff import BREAKING, COSMETIC, RISKY, SAFE, SEVERITIES, Delta, diff_contracts
from pinwarden.contract.extension import UNKNOWN, check_body, contracts_of, surface_of
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.normal_form import (
    framework_of,
    is_generated_root_title,
    is_generated_title,
    normalised_digest,
    normalised_surface,
)
from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, INFO, Change
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import Surface

_BREAKS_CALLS = frozenset(
    {
        "argument_removed",
        "argument_required",
        "constant_changed",
        "enum_shrunk",
        "item_removed",
        "more_demanded",
        "parameter_removed",
        "parameter_required",
        "promise_dropped",
        "required_changed",
        "result_removed",
        "schema_removed",
        "type_changed",
        "type_narrowed",
    }
)
"""Changes that can break calls or uses of results that were correct before."""
_MAY_BREAK_CALLS = frozenset(
    {
        "additional_properties_closed",
        "alternative_removed",
        "bound_added",
        "bound_tightened",
        "capability_removed",
        "negation_tightened",
        "result_narrowed",
        "schema_tightened",
        "size_limited",
    }
)
_WORDS_ONLY = frozenset(
    {"content_fact_changed", "dialect_changed", "notice_changed", "order_changed", "same_meaning", "version_changed"}
)
_LONGEST = 2000  # characters of a JSON value


_Sides = tuple[str | None, str | None]


class ServerChange(Record):
    """A difference, and the tool, prompt or resource that it belongs to."""

    entity: str
    name: str
    delta: Delta

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON."""
        return {"entity": self.entity, "name": self.name, **self.delta.to_json()}


class ServerDiff(Record):
    """All differences between two lockfiles, worst first."""

    findings: tuple[ServerChange, ...]
    framework_changed: bool = False
    """The frameworks differ; parts that they generate were not compared."""
    same_meaning: bool = False
    """The surfaces differ only in parts that frameworks generate."""
    digests_only: bool = False
    """At least one file has no surface, so not all changes can be described."""

    @property
    def max_severity(self) -> str:
        """The worst severity; ``COSMETIC`` if nothing differs."""
        return self.findings[0].delta.severity if self.findings else COSMETIC


def diff_lockfiles(before: Lockfile, after: Lockfile, *, compat: bool = False) -> ServerDiff:
    """Compare two lockfiles. ``compat`` compares only tools that are in both, with MCP Fusion's severities."""
    if not compat:
        check_body(before)
        check_body(after)
    old, new = _contracts(before), _contracts(after)
    if compat:
        return ServerDiff(findings=_in_order(_contract_findings(old, new, compat=True)))
    surfaces = surface_of(before), surface_of(after)
    if surfaces[0] is None or surfaces[1] is None:
        return ServerDiff(findings=_in_order(_without_texts(before, after, old, new)), digests_only=True)
    diff = _with_texts(surfaces[0], surfaces[1], old, new)
    return replace(diff, findings=_in_order([*diff.findings, *fact_findings(before, after, diff.findings)]))


def _contracts(lockfile: Lockfile) -> Mapping[str, ToolContract]:
    contracts = contracts_of(lockfile)
    return visible_contracts(lockfile) if contracts is None else contracts


def _with_texts(
    before: Surface, after: Surface, old: Mapping[str, ToolContract], new: Mapping[str, ToolContract]
) -> ServerDiff:
    moved = framework_of(before) != framework_of(after)
    sides = (normalised_surface(before), normalised_surface(after)) if moved else (before, after)
    findings = [_finding(change) for change in compare(*sides)]
    annotated = {line.name for line in findings if line.delta.field.startswith("/annotations")}
    contract_only = [
        finding
        for finding in _contract_findings(old, new, compat=False)
        if not _is_in_surface(finding.delta) and not (finding.name in annotated and _is_flag(finding.delta))
    ]
    return ServerDiff(
        findings=_in_order([*findings, *contract_only]),
        framework_changed=moved,
        same_meaning=before.digest != after.digest and normalised_digest(before) == normalised_digest(after),
    )


def _contract_findings(
    old: Mapping[str, ToolContract], new: Mapping[str, ToolContract], *, compat: bool
) -> Iterator[ServerChange]:
    for name, contract in old.items():
        if name in new:
            for delta in diff_contracts(contract, new[name], compat=compat).deltas:
                yield ServerChange(entity="tool", name=name, delta=delta)


def _is_in_surface(delta: Delta) -> bool:
    """Whether the comparison of surfaces reports this difference in more detail."""
    if delta.category == "surface.action":
        return delta.field.endswith((".requiredFields", ".inputSchemaDigest", ".description"))
    return delta.category == "surface" or delta.field in ("egressSchemaDigest", "schemaFieldCount")


def _is_flag(delta: Delta) -> bool:
    return delta.field.endswith((".destructive", ".readOnly", ".idempotent"))


# Facts from source


def fact_findings(before: Lockfile, after: Lockfile, findings: Iterable[ServerChange]) -> Iterator[ServerChange]:
    """Changes of what a tool's source reaches and of its middleware, if both files record them."""
    flags = {(line.name, line.delta.field) for line in findings if line.delta.category == "entitlements"}
    old, new = _facts(before), _facts(after)
    for name in old.keys() & new.keys():
        sides = _known(old[name], "entitlements"), _known(new[name], "entitlements")
        if isinstance(sides[0], Mapping) and isinstance(sides[1], Mapping):
            yield from _changed_kinds(name, sides[0], sides[1], flags)
        chains = _known(old[name], "middleware", "middlewareChain"), _known(new[name], "middleware", "middlewareChain")
        if None not in chains and chains[0] != chains[1]:
            texts = (_text(chains[0]), _text(chains[1]))
            yield _item_finding(("tool", name), "middleware", RISKY, "A middleware or its source changed", texts)


def _changed_kinds(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], flags: set[tuple[str, str]]
) -> Iterator[ServerChange]:
    had, has = _kinds(before), _kinds(after)
    for kind in sorted(had ^ has):
        gained = kind in has
        flag = "codeEvaluation" if kind == "code_evaluation" else kind.partition(":")[0]
        if (name, flag) in flags:
            continue
        message = f"The code gained {kind}" if gained else f"The code lost {kind}"
        sides: _Sides = (None, kind) if gained else (kind, None)
        yield _item_finding(("tool", name), "entitlements", BREAKING if gained else SAFE, message, sides)


def _kinds(entitlements: Mapping[str, Any]) -> frozenset[str]:
    stated = entitlements.get("kinds")
    return frozenset(flag for flag in stated if isinstance(flag, str)) if isinstance(stated, list) else frozenset()


def _facts(lockfile: Lockfile) -> Mapping[str, Mapping[str, Any]]:
    tools = (lockfile.extension or {}).get("tools")
    facts = tools if isinstance(tools, Mapping) else {}
    return {name: entry for name, entry in facts.items() if isinstance(entry, Mapping)}


def _known(facts: Mapping[str, Any], member: str, fact: str | None = None) -> Any:
    """A member of the extension if its evidence is known; otherwise None."""
    evidence = facts.get("evidence")
    level = evidence.get(fact or member) if isinstance(evidence, Mapping) else None
    return None if level in (None, UNKNOWN) else facts.get(member)


# Without surfaces


def _without_texts(
    before: Lockfile, after: Lockfile, old: Mapping[str, ToolContract], new: Mapping[str, ToolContract]
) -> Iterator[ServerChange]:
    findings = list(_contract_findings(_visible(before, old), _visible(after, new), compat=False))
    reported = {finding.name for finding in findings}
    yield from findings
    yield from _lists("tool", before.tools, after.tools, reported, new)
    yield from _lists("prompt", before.prompts, after.prompts, set(), {})


def _visible(lockfile: Lockfile, contracts: Mapping[str, ToolContract]) -> Mapping[str, ToolContract]:
    """The part of the contracts that is written in every lockfile."""
    return contracts if lockfile.extension is None else visible_contracts(lockfile)


def _lists(
    entity: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    reported: set[str],
    contracts: Mapping[str, ToolContract],
) -> Iterator[ServerChange]:
    for name in before:
        if name not in after:
            yield _item_finding((entity, name), "", BREAKING, f"The {entity} was removed", (name, None))
    for name, entry in after.items():
        if name not in before:
            severity = _severity_of_new(contracts.get(name))
            yield _item_finding((entity, name), "", severity, f"The {entity} was added", (None, name))
        elif name not in reported and entry["integrityDigest"] != before[name]["integrityDigest"]:
            yield from _changed_entry(entity, name, before[name], entry)


def _severity_of_new(contract: ToolContract | None) -> str:
    destructive = contract is not None and any(action.destructive for action in contract.surface.actions.values())
    return BREAKING if destructive else RISKY


def _changed_entry(
    entity: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ServerChange]:
    """A change that shows only in an entry's digests or, for a prompt, in its visible members."""
    changed = [
        member
        for member in sorted({*before, *after})
        if not member.endswith("Digest") and before.get(member) != after.get(member)
    ]
    for member in changed if entity == "prompt" else ():
        sides = (_text(before.get(member)), _text(after.get(member)))
        severity = _severity_of_arguments(before, after) if member == "arguments" else RISKY
        yield _item_finding((entity, name), member, severity, f"The prompt's {member} changed", sides)
    if entity != "prompt" or not changed:
        message = "A part changed that is hashed but not written, so the files do not show what"
        digests = (before["integrityDigest"], after["integrityDigest"])
        yield _item_finding((entity, name), "hidden", RISKY, message, digests)


def _severity_of_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old = {argument["name"]: argument.get("required", False) for argument in before.get("arguments") or ()}
    new = {argument["name"]: argument.get("required", False) for argument in after.get("arguments") or ()}
    newly_required = any(required and not old.get(name, False) for name, required in new.items())
    return BREAKING if newly_required or old.keys() - new.keys() else RISKY


def _item_finding(item: tuple[str, str], field: str, severity: str, message: str, sides: _Sides) -> ServerChange:
    entity, name = item
    delta = Delta(category=entity, field=field, severity=severity, description=message, before=sides[0], after=sides[1])
    return ServerChange(entity=entity, name=name, delta=delta)


# Changes of surfaces as deltas


def _finding(change: Change) -> ServerChange:
    delta = Delta(
        category=change.kind,
        field=change.path or change.field,
        severity=_severity(change),
        description=change.reason,
        before=_text(change.before),
        after=_text(change.after),
    )
    return ServerChange(entity=change.entity, name=change.name, delta=delta)


def _severity(change: Change) -> str:
    if change.severity == CRITICAL or change.kind in _BREAKS_CALLS or _is_new_hazard(change):
        return BREAKING
    if change.kind in _WORDS_ONLY or _is_generated(change):
        return COSMETIC
    return SAFE if change.severity == INFO and change.kind not in _MAY_BREAK_CALLS else RISKY


def _is_generated(change: Change) -> bool:
    """Whether a schema title was generated or omitted by a framework."""
    steps = change.path.split("/")
    if steps[-1] != "title" or change.field not in ("inputSchema", "outputSchema"):
        return False
    sides = [side for side in (change.before, change.after) if side is not ABSENT]
    if change.path == f"/{change.field}/title":
        return all(is_generated_root_title(side, change.name) for side in sides)
    return all(is_generated_title(side, steps[-2]) for side in sides)


def _is_new_hazard(change: Change) -> bool:
    """Whether a new tool declares itself destructive."""
    if change.kind != "item_added" or not isinstance(change.after, dict):
        return False
    annotations = change.after.get("annotations")
    return isinstance(annotations, dict) and annotations.get("destructiveHint") is True


def _text(value: Any) -> str | None:
    if value is ABSENT or value is None:
        return None
    if isinstance(value, str):
        return value
    text = dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _in_order(findings: Iterable[ServerChange]) -> tuple[ServerChange, ...]:
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                SEVERITIES.index(finding.delta.severity),
                finding.entity,
                finding.name,
                finding.delta.field,
            ),
        )
    )


_HIDDEN = ""
"""Replaces digests that the file does not have; equal on both sides, so never reported."""


def visible_contracts(lockfile: Lockfile) -> dict[str, ToolContract]:
    """The part of the contracts that is written. Raises ``CONTRACT_INVALID`` if an entry is malformed."""
    return {name: _contract(name, entry) for name, entry in lockfile.tools.items()}


def _contract(name: str, entry: Mapping[str, Any]) -> ToolContract:
    surface, behavior, tokens = (_part(entry, part) for part in ("surface", "behavior", "tokenEconomics"))
    destructive, read_only = behavior.get("destructiveActions") or (), behavior.get("readOnlyActions") or ()
    return tool_contract_from_json(
        {
            "surface": {
                "name": name,
                "description": surface.get("description"),
                "tags": surface.get("tags"),
                "actions": {
                    key: {
                        "destructive": key in destructive,
                        "readOnly": key in read_only,
                        "requiredFields": [],
                        "inputSchemaDigest": _HIDDEN,
                    }
                    for key in surface.get("actions") or ()
                    if isinstance(key, str)
                },
                "inputSchemaDigest": surface.get("inputSchemaDigest"),
            },
            "behavior": {**behavior, "embeddedPresenters": []},
            "tokenEconomics": {**tokens, "baseOverheadTokens": 0},
            "entitlements": {**_part(entry, "entitlements"), "raw": []},
        },
        f"capabilities.tools.{name}",
    )


def _part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}
