"""Differences between two lockfiles of one server, and how severe they are for its users.

Where both hold the texts that a client saw, those are compared (``surface/drift``): a schema by what it accepts, a text
by what it says. What no client sees comes from the contracts. Where a file holds digests only, what can be said is
said of its visible part, and that something hidden moved is said as such.
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
"""Changes after which a call or a reader that was right before is wrong."""
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
_LONGEST = 2000  # characters of a value that is not text


_Sides = tuple[str | None, str | None]


class Finding(Record):
    """A difference, and whose it is."""

    entity: str
    name: str
    delta: Delta

    def to_json(self) -> dict[str, Any]:
        """The difference, ready for JSON."""
        return {"entity": self.entity, "name": self.name, **self.delta.to_json()}


class ServerDiff(Record):
    """All differences between two lockfiles, the worst first."""

    findings: tuple[Finding, ...]
    framework_changed: bool = False
    """The two were served by different frameworks; what those add by themselves was left out of the comparison."""
    same_meaning: bool = False
    """The texts differ, and mean the same: only what frameworks add by themselves is different."""
    digests_only: bool = False
    """At least one file holds no texts, so changes behind a digest cannot be named."""

    @property
    def max_severity(self) -> str:
        """The worst severity; ``COSMETIC`` if nothing differs."""
        return self.findings[0].delta.severity if self.findings else COSMETIC


def diff_lockfiles(before: Lockfile, after: Lockfile, *, compat: bool = False) -> ServerDiff:
    """Compare two lockfiles. ``compat`` gives the original's severities, for the tools that both have only."""
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
    kept = [
        finding
        for finding in _contract_findings(old, new, compat=False)
        if not _told_by_texts(finding.delta) and not (finding.name in annotated and _is_flag(finding.delta))
    ]
    return ServerDiff(
        findings=_in_order([*findings, *kept]),
        framework_changed=moved,
        same_meaning=before.digest != after.digest and normalised_digest(before) == normalised_digest(after),
    )


def _contract_findings(
    old: Mapping[str, ToolContract], new: Mapping[str, ToolContract], *, compat: bool
) -> Iterator[Finding]:
    for name, contract in old.items():
        if name in new:
            for delta in diff_contracts(contract, new[name], compat=compat).deltas:
                yield Finding(entity="tool", name=name, delta=delta)


def _told_by_texts(delta: Delta) -> bool:
    """Whether the comparison of texts says the same, and says more."""
    if delta.category == "surface.action":
        return delta.field.endswith((".requiredFields", ".inputSchemaDigest", ".description"))
    return delta.category == "surface" or delta.field in ("egressSchemaDigest", "schemaFieldCount")


def _is_flag(delta: Delta) -> bool:
    return delta.field.endswith((".destructive", ".readOnly", ".idempotent"))


# What only the source tells


def fact_findings(before: Lockfile, after: Lockfile, findings: Iterable[Finding]) -> Iterator[Finding]:
    """What a tool's source reaches now, and the code of its middleware, where both files know it."""
    flags = {(line.name, line.delta.field) for line in findings if line.delta.category == "entitlements"}
    old, new = _facts(before), _facts(after)
    for name in old.keys() & new.keys():
        sides = _known(old[name], "entitlements"), _known(new[name], "entitlements")
        if isinstance(sides[0], Mapping) and isinstance(sides[1], Mapping):
            yield from _kinds_moved(name, sides[0], sides[1], flags)
        chains = _known(old[name], "middleware", "middlewareChain"), _known(new[name], "middleware", "middlewareChain")
        if None not in chains and chains[0] != chains[1]:
            told_texts = (_text(chains[0]), _text(chains[1]))
            yield _whole(("tool", name), "middleware", RISKY, "A middleware or its source changed", told_texts)


def _kinds_moved(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], flags: set[tuple[str, str]]
) -> Iterator[Finding]:
    had, has = _kinds(before), _kinds(after)
    for kind in sorted(had ^ has):
        gained = kind in has
        flag = "codeEvaluation" if kind == "code_evaluation" else kind.partition(":")[0]
        if (name, flag) in flags:
            continue
        message = f"The code gained {kind}" if gained else f"The code lost {kind}"
        sides: _Sides = (None, kind) if gained else (kind, None)
        yield _whole(("tool", name), "entitlements", BREAKING if gained else SAFE, message, sides)


def _kinds(entitlements: Mapping[str, Any]) -> frozenset[str]:
    stated = entitlements.get("kinds")
    return frozenset(flag for flag in stated if isinstance(flag, str)) if isinstance(stated, list) else frozenset()


def _facts(lockfile: Lockfile) -> Mapping[str, Mapping[str, Any]]:
    tools = (lockfile.extension or {}).get("tools")
    facts = tools if isinstance(tools, Mapping) else {}
    return {name: entry for name, entry in facts.items() if isinstance(entry, Mapping)}


def _known(facts: Mapping[str, Any], member: str, fact: str | None = None) -> Any:
    """A member of the extension if it is known how it was learnt; None where it was not."""
    evidence = facts.get("evidence")
    level = evidence.get(fact or member) if isinstance(evidence, Mapping) else None
    return None if level in (None, UNKNOWN) else facts.get(member)


# Without texts


def _without_texts(
    before: Lockfile, after: Lockfile, old: Mapping[str, ToolContract], new: Mapping[str, ToolContract]
) -> Iterator[Finding]:
    findings = list(_contract_findings(_visible(before, old), _visible(after, new), compat=False))
    reported = {finding.name for finding in findings}
    yield from findings
    yield from _lists("tool", before.tools, after.tools, reported, new)
    yield from _lists("prompt", before.prompts, after.prompts, set(), {})


def _visible(lockfile: Lockfile, contracts: Mapping[str, ToolContract]) -> Mapping[str, ToolContract]:
    """The part that both files hold and that can be compared."""
    return contracts if lockfile.extension is None else visible_contracts(lockfile)


def _lists(
    entity: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    reported: set[str],
    contracts: Mapping[str, ToolContract],
) -> Iterator[Finding]:
    for name in before:
        if name not in after:
            yield _whole((entity, name), "", BREAKING, f"The {entity} was removed", (name, None))
    for name, entry in after.items():
        if name not in before:
            severity = _severity_of_new(contracts.get(name))
            yield _whole((entity, name), "", severity, f"The {entity} was added", (None, name))
        elif name not in reported and entry["integrityDigest"] != before[name]["integrityDigest"]:
            yield from _moved(entity, name, before[name], entry)


def _severity_of_new(contract: ToolContract | None) -> str:
    destructive = contract is not None and any(action.destructive for action in contract.surface.actions.values())
    return BREAKING if destructive else RISKY


def _moved(entity: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Finding]:
    """A change of an entry that shows only in its digests, or (for a prompt) in its visible members."""
    seen = [
        member
        for member in sorted({*before, *after})
        if not member.endswith("Digest") and before.get(member) != after.get(member)
    ]
    for member in seen if entity == "prompt" else ():
        sides = (_text(before.get(member)), _text(after.get(member)))
        severity = _severity_of_arguments(before, after) if member == "arguments" else RISKY
        yield _whole((entity, name), member, severity, f"The prompt's {member} changed", sides)
    if entity != "prompt" or not seen:
        message = "Something changed that is hashed and not written; the files do not say what"
        digests = (before["integrityDigest"], after["integrityDigest"])
        yield _whole((entity, name), "hidden", RISKY, message, digests)


def _severity_of_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old = {argument["name"]: argument.get("required", False) for argument in before.get("arguments") or ()}
    new = {argument["name"]: argument.get("required", False) for argument in after.get("arguments") or ()}
    demanded = any(required and not old.get(name, False) for name, required in new.items())
    return BREAKING if demanded or old.keys() - new.keys() else RISKY


def _whole(whose: tuple[str, str], place: str, severity: str, message: str, sides: _Sides) -> Finding:
    entity, name = whose
    delta = Delta(category=entity, field=place, severity=severity, description=message, before=sides[0], after=sides[1])
    return Finding(entity=entity, name=name, delta=delta)


# Changes of texts as deltas


def _finding(change: Change) -> Finding:
    delta = Delta(
        category=change.kind,
        field=change.path or change.field,
        severity=_severity(change),
        description=change.reason,
        before=_text(change.before),
        after=_text(change.after),
    )
    return Finding(entity=change.entity, name=change.name, delta=delta)


def _severity(change: Change) -> str:
    if change.severity == CRITICAL or change.kind in _BREAKS_CALLS or _is_new_hazard(change):
        return BREAKING
    if change.kind in _WORDS_ONLY or _is_generated(change):
        return COSMETIC
    return SAFE if change.severity == INFO and change.kind not in _MAY_BREAK_CALLS else RISKY


def _is_generated(change: Change) -> bool:
    """A title within a schema that a framework made or left out."""
    steps = change.path.split("/")
    if steps[-1] != "title" or change.field not in ("inputSchema", "outputSchema"):
        return False
    sides = [side for side in (change.before, change.after) if side is not ABSENT]
    if change.path == f"/{change.field}/title":
        return all(is_generated_root_title(side, change.name) for side in sides)
    return all(is_generated_title(side, steps[-2]) for side in sides)


def _is_new_hazard(change: Change) -> bool:
    """A new tool that says of itself that it destroys."""
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


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(
        sorted(
            findings,
            key=lambda each: (SEVERITIES.index(each.delta.severity), each.entity, each.name, each.delta.field),
        )
    )


_HIDDEN = ""
"""Stands for a digest that the file does not hold: equal on both sides, so it is never reported as a change."""


def visible_contracts(lockfile: Lockfile) -> dict[str, ToolContract]:
    """The contracts as far as they are written. Raises ``CONTRACT_INVALID`` if an entry is malformed."""
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
