"""Compare two lockfiles of one server, and rate each difference for the server's users.

If both lockfiles have the surface, the surfaces are compared (``surface/drift``), and then the members of contracts
that clients do not see. If a lockfile has only digests, its readable members are compared, and other changes are
reported only as a changed digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from pinwarden.contract.contract import ToolContract, tool_contract_from_json
from pinwarden.contract.diff import BREAKING, COSMETIC, RISKY, SAFE, SEVERITIES, Delta, diff_contracts
from pinwarden.contract.extension import UNKNOWN, check_body, read_contracts, read_surface
from pinwarden.contract.lockfile import Lockfile
from pinwarden.contract.normal_form import (
    compute_normalised_digest,
    detect_framework,
    is_generated_root_title,
    is_generated_title,
    normalise_surface,
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
"""Changes after which a correct call, or code that uses a result, can fail."""
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
_MAX_VALUE_LENGTH = 2000  # longer JSON values are cut to this many characters


_BeforeAfter = tuple[str | None, str | None]


class ServerChange(Record):
    """A difference in one tool, prompt or resource, or in the server itself."""

    entity: str
    name: str
    delta: Delta

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a member of the JSON output."""
        return {"entity": self.entity, "name": self.name, **self.delta.to_json()}


class ServerDiff(Record):
    """All differences between two lockfiles, worst first."""

    findings: tuple[ServerChange, ...]
    framework_changed: bool = False
    """Whether the frameworks differ. If so, parts that frameworks generate were not compared."""
    same_meaning: bool = False
    """Whether the surfaces differ only in parts that frameworks generate."""
    digests_only: bool = False
    """Whether a lockfile has no surface, so that some changes cannot be described."""

    @property
    def max_severity(self) -> str:
        """The worst severity; ``COSMETIC`` if nothing differs."""
        return self.findings[0].delta.severity if self.findings else COSMETIC


def diff_lockfiles(before: Lockfile, after: Lockfile, *, compat: bool = False) -> ServerDiff:
    """Compare two lockfiles. ``compat`` compares only tools that both have, and uses MCP Fusion's severities."""
    if not compat:
        check_body(before)
        check_body(after)
    old, new = _read_or_derive_contracts(before), _read_or_derive_contracts(after)
    if compat:
        return ServerDiff(findings=_sort_changes(_diff_contracts(old, new, compat=True)))
    surfaces = read_surface(before), read_surface(after)
    if surfaces[0] is None or surfaces[1] is None:
        return ServerDiff(findings=_sort_changes(_diff_digests(before, after, old, new)), digests_only=True)
    diff = _diff_surfaces(surfaces[0], surfaces[1], old, new)
    return replace(diff, findings=_sort_changes([*diff.findings, *diff_code_facts(before, after, diff.findings)]))


def _read_or_derive_contracts(lockfile: Lockfile) -> Mapping[str, ToolContract]:
    contracts = read_contracts(lockfile)
    return read_visible_contracts(lockfile) if contracts is None else contracts


def _diff_surfaces(
    before: Surface, after: Surface, old: Mapping[str, ToolContract], new: Mapping[str, ToolContract]
) -> ServerDiff:
    framework_changed = detect_framework(before) != detect_framework(after)
    sides = (normalise_surface(before), normalise_surface(after)) if framework_changed else (before, after)
    findings = [_convert_surface_change(change) for change in compare(*sides)]
    annotated = {line.name for line in findings if line.delta.field.startswith("/annotations")}
    contract_only = [
        finding
        for finding in _diff_contracts(old, new, compat=False)
        if not _is_in_surface(finding.delta) and not (finding.name in annotated and _is_hint_flag(finding.delta))
    ]
    return ServerDiff(
        findings=_sort_changes([*findings, *contract_only]),
        framework_changed=framework_changed,
        same_meaning=before.digest != after.digest
        and compute_normalised_digest(before) == compute_normalised_digest(after),
    )


def _diff_contracts(
    old: Mapping[str, ToolContract], new: Mapping[str, ToolContract], *, compat: bool
) -> Iterator[ServerChange]:
    for name, contract in old.items():
        if name in new:
            for delta in diff_contracts(contract, new[name], compat=compat).deltas:
                yield ServerChange(entity="tool", name=name, delta=delta)


def _is_in_surface(delta: Delta) -> bool:
    """Whether comparing the surfaces reports this difference too, in more detail."""
    if delta.category == "surface.action":
        return delta.field.endswith((".requiredFields", ".inputSchemaDigest", ".description"))
    return delta.category == "surface" or delta.field in ("egressSchemaDigest", "schemaFieldCount")


def _is_hint_flag(delta: Delta) -> bool:
    return delta.field.endswith((".destructive", ".readOnly", ".idempotent"))


# Facts from source


def diff_code_facts(before: Lockfile, after: Lockfile, findings: Iterable[ServerChange]) -> Iterator[ServerChange]:
    """Compare the entitlements and the middleware of each tool, if both lockfiles record them."""
    flags = {(line.name, line.delta.field) for line in findings if line.delta.category == "entitlements"}
    old, new = _read_tool_entries(before), _read_tool_entries(after)
    for name in old.keys() & new.keys():
        sides = _get_if_known(old[name], "entitlements"), _get_if_known(new[name], "entitlements")
        if isinstance(sides[0], Mapping) and isinstance(sides[1], Mapping):
            yield from _diff_kinds(name, sides[0], sides[1], flags)
        chains = (
            _get_if_known(old[name], "middleware", "middlewareChain"),
            _get_if_known(new[name], "middleware", "middlewareChain"),
        )
        if None not in chains and chains[0] != chains[1]:
            texts = (_format_value(chains[0]), _format_value(chains[1]))
            yield _build_change(("tool", name), "middleware", RISKY, "A middleware or its source changed", texts)


def _diff_kinds(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], flags: set[tuple[str, str]]
) -> Iterator[ServerChange]:
    had, has = _read_kinds(before), _read_kinds(after)
    for kind in sorted(had ^ has):
        gained = kind in has
        flag = "codeEvaluation" if kind == "code_evaluation" else kind.partition(":")[0]
        if (name, flag) in flags:
            continue
        message = f"The code gained {kind}" if gained else f"The code lost {kind}"
        sides: _BeforeAfter = (None, kind) if gained else (kind, None)
        yield _build_change(("tool", name), "entitlements", BREAKING if gained else SAFE, message, sides)


def _read_kinds(entitlements: Mapping[str, Any]) -> frozenset[str]:
    stated = entitlements.get("kinds")
    return frozenset(flag for flag in stated if isinstance(flag, str)) if isinstance(stated, list) else frozenset()


def _read_tool_entries(lockfile: Lockfile) -> Mapping[str, Mapping[str, Any]]:
    tools = (lockfile.extension or {}).get("tools")
    facts = tools if isinstance(tools, Mapping) else {}
    return {name: entry for name, entry in facts.items() if isinstance(entry, Mapping)}


def _get_if_known(facts: Mapping[str, Any], member: str, fact: str | None = None) -> Any:
    """Return a member of a tool's entry in the extension; None if its evidence is unknown."""
    evidence = facts.get("evidence")
    level = evidence.get(fact or member) if isinstance(evidence, Mapping) else None
    return None if level in (None, UNKNOWN) else facts.get(member)


# Without surfaces


def _diff_digests(
    before: Lockfile, after: Lockfile, old: Mapping[str, ToolContract], new: Mapping[str, ToolContract]
) -> Iterator[ServerChange]:
    findings = list(
        _diff_contracts(_select_visible_contracts(before, old), _select_visible_contracts(after, new), compat=False)
    )
    reported = {finding.name for finding in findings}
    yield from findings
    yield from _diff_entries("tool", before.tools, after.tools, reported, new)
    yield from _diff_entries("prompt", before.prompts, after.prompts, set(), {})


def _select_visible_contracts(lockfile: Lockfile, contracts: Mapping[str, ToolContract]) -> Mapping[str, ToolContract]:
    """Return the contracts with only those members that every lockfile has."""
    return contracts if lockfile.extension is None else read_visible_contracts(lockfile)


def _diff_entries(
    entity: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    reported: set[str],
    contracts: Mapping[str, ToolContract],
) -> Iterator[ServerChange]:
    for name in before:
        if name not in after:
            yield _build_change((entity, name), "", BREAKING, f"The {entity} was removed", (name, None))
    for name, entry in after.items():
        if name not in before:
            severity = _rate_new_tool(contracts.get(name))
            yield _build_change((entity, name), "", severity, f"The {entity} was added", (None, name))
        elif name not in reported and entry["integrityDigest"] != before[name]["integrityDigest"]:
            yield from _diff_entry(entity, name, before[name], entry)


def _rate_new_tool(contract: ToolContract | None) -> str:
    destructive = contract is not None and any(action.destructive for action in contract.surface.actions.values())
    return BREAKING if destructive else RISKY


def _diff_entry(entity: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ServerChange]:
    """Report a changed entry: the readable members of a prompt, or else only that its digest changed."""
    changed = [
        member
        for member in sorted({*before, *after})
        if not member.endswith("Digest") and before.get(member) != after.get(member)
    ]
    for member in changed if entity == "prompt" else ():
        sides = (_format_value(before.get(member)), _format_value(after.get(member)))
        severity = _rate_argument_change(before, after) if member == "arguments" else RISKY
        yield _build_change((entity, name), member, severity, f"The prompt's {member} changed", sides)
    if entity != "prompt" or not changed:
        message = "A member changed that the lockfiles contain only as a digest"
        digests = (before["integrityDigest"], after["integrityDigest"])
        yield _build_change((entity, name), "hidden", RISKY, message, digests)


def _rate_argument_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old = {argument["name"]: argument.get("required", False) for argument in before.get("arguments") or ()}
    new = {argument["name"]: argument.get("required", False) for argument in after.get("arguments") or ()}
    newly_required = any(required and not old.get(name, False) for name, required in new.items())
    return BREAKING if newly_required or old.keys() - new.keys() else RISKY


def _build_change(item: tuple[str, str], field: str, severity: str, message: str, sides: _BeforeAfter) -> ServerChange:
    entity, name = item
    delta = Delta(category=entity, field=field, severity=severity, description=message, before=sides[0], after=sides[1])
    return ServerChange(entity=entity, name=name, delta=delta)


# Changes of surfaces as deltas


def _convert_surface_change(change: Change) -> ServerChange:
    delta = Delta(
        category=change.kind,
        field=change.path or change.field,
        severity=_rate_surface_change(change),
        description=change.reason,
        before=_format_value(change.before),
        after=_format_value(change.after),
    )
    return ServerChange(entity=change.entity, name=change.name, delta=delta)


def _rate_surface_change(change: Change) -> str:
    if change.severity == CRITICAL or change.kind in _BREAKS_CALLS or _is_new_destructive_tool(change):
        return BREAKING
    if change.kind in _WORDS_ONLY or _is_generated(change):
        return COSMETIC
    return SAFE if change.severity == INFO and change.kind not in _MAY_BREAK_CALLS else RISKY


def _is_generated(change: Change) -> bool:
    """Whether the change is only about a schema title that a framework generated."""
    steps = change.path.split("/")
    if steps[-1] != "title" or change.field not in ("inputSchema", "outputSchema"):
        return False
    sides = [side for side in (change.before, change.after) if side is not ABSENT]
    if change.path == f"/{change.field}/title":
        return all(is_generated_root_title(side, change.name) for side in sides)
    return all(is_generated_title(side, steps[-2]) for side in sides)


def _is_new_destructive_tool(change: Change) -> bool:
    """Whether a new tool declares itself destructive."""
    if change.kind != "item_added" or not isinstance(change.after, dict):
        return False
    annotations = change.after.get("annotations")
    return isinstance(annotations, dict) and annotations.get("destructiveHint") is True


def _format_value(value: Any) -> str | None:
    if value is ABSENT or value is None:
        return None
    if isinstance(value, str):
        return value
    text = dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "…"


def _sort_changes(findings: Iterable[ServerChange]) -> tuple[ServerChange, ...]:
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
"""A placeholder for digests that a lockfile does not have. It is the same on both sides, so never a difference."""


def read_visible_contracts(lockfile: Lockfile) -> dict[str, ToolContract]:
    """Rebuild contracts from the members that every lockfile has, even without extension.

    Members that the lockfile lacks get placeholders. Raises ``CONTRACT_INVALID``.
    """
    return {name: _parse_visible_contract(name, entry) for name, entry in lockfile.tools.items()}


def _parse_visible_contract(name: str, entry: Mapping[str, Any]) -> ToolContract:
    surface, behavior, tokens = (_get_section(entry, part) for part in ("surface", "behavior", "tokenEconomics"))
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
            "entitlements": {**_get_section(entry, "entitlements"), "raw": []},
        },
        f"capabilities.tools.{name}",
    )


def _get_section(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}
