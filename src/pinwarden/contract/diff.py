"""Differences between two contracts of one tool, with severities.

Each difference has two severities: MCP Fusion's and Pinwarden's. Pinwarden is stricter in some cases: a model obeys
descriptions, so changing one is never cosmetic; a new destructive action and a raised limit are not safe. A difference
that MCP Fusion does not compare has only Pinwarden's severity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pinwarden.contract.contract import (
    RISKS,
    ActionContract,
    BehaviorContract,
    SurfaceContract,
    TokenContract,
    ToolContract,
)
from pinwarden.core.canonical import canonicalize, format_ecmascript_number
from pinwarden.core.javascript import list_in_property_order
from pinwarden.core.record import Record
from pinwarden.surface.drift.location import ApprovedText, find_new_cues

BREAKING, RISKY, SAFE, COSMETIC = "BREAKING", "RISKY", "SAFE", "COSMETIC"
SEVERITIES = (BREAKING, RISKY, SAFE, COSMETIC)
"""From worst to mildest."""


class Delta(Record):
    """One difference between two contracts."""

    category: str
    field: str
    severity: str
    description: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, Any]:
        """The delta under MCP Fusion's names."""
        return {
            "category": self.category,
            "field": self.field,
            "severity": self.severity,
            "description": self.description,
            "before": self.before,
            "after": self.after,
        }


class ContractDiff(Record):
    """All differences of one tool, worst first."""

    tool_name: str
    deltas: tuple[Delta, ...]
    digest_changed: bool

    @property
    def max_severity(self) -> str:
        """The worst severity; ``COSMETIC`` if nothing differs."""
        return self.deltas[0].severity if self.deltas else COSMETIC

    @property
    def is_backwards_compatible(self) -> bool:
        """Whether nothing is breaking."""
        return self.max_severity != BREAKING

    def to_json(self) -> dict[str, Any]:
        """The result under MCP Fusion's names."""
        return {
            "toolName": self.tool_name,
            "deltas": [delta.to_json() for delta in self.deltas],
            "maxSeverity": self.max_severity,
            "digestChanged": self.digest_changed,
            "isBackwardsCompatible": self.is_backwards_compatible,
        }


def in_order(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """Sorted by severity, worst first; stable."""
    return tuple(sorted(deltas, key=lambda delta: SEVERITIES.index(delta.severity)))


_Sides = tuple[str | None, str | None]
"""The value before and after."""
_Weights = tuple[str | None, str]
"""MCP Fusion's severity (None if it does not compare this) and Pinwarden's."""


class _Difference(Record):
    """One difference with both severities; ``fusion_severity`` is None if MCP Fusion does not compare this."""

    category: str
    field: str
    description: str
    before: str | None
    after: str | None
    fusion_severity: str | None
    pinwarden_severity: str


def diff_contracts(before: ToolContract, after: ToolContract, *, compat: bool = False) -> ContractDiff:
    """Every difference between two contracts, worst first; with ``compat`` in MCP Fusion's severities."""
    deltas = in_order(
        Delta(
            category=difference.category,
            field=difference.field,
            severity=(difference.fusion_severity or COSMETIC) if compat else difference.pinwarden_severity,
            description=difference.description,
            before=difference.before,
            after=difference.after,
        )
        for difference in _differences(before, after)
        if not compat or difference.fusion_severity is not None
    )
    old, new = before.behavior, after.behavior
    answers = (
        old.egress_schema_digest != new.egress_schema_digest
        or old.system_rules_fingerprint != new.system_rules_fingerprint
    )
    return ContractDiff(
        tool_name=after.surface.name, deltas=deltas, digest_changed=answers if compat else before != after
    )


def _differences(before: ToolContract, after: ToolContract) -> Iterator[_Difference]:
    yield from _surface(before.surface, after.surface)
    yield from _actions(before.surface, after.surface)
    yield from _answers(before.behavior, after.behavior)
    yield from _guardrails(before.behavior, after.behavior)
    yield from _execution(before.behavior, after.behavior)
    yield from _tokens(before.token_economics, after.token_economics)
    yield from _entitlements(before, after)


# Surface


def _surface(old: SurfaceContract, new: SurfaceContract) -> Iterator[_Difference]:
    if old.name != new.name:
        yield _at("surface", "name", "Tool name changed", (old.name, new.name), (BREAKING, BREAKING))
    if old.description != new.description:
        yield _text("surface", "description", "Tool description changed", (old.description, new.description), COSMETIC)
    if old.input_schema_digest != new.input_schema_digest:
        message = "Input schema changed — previously calibrated LLM arguments may fail"
        sides = (old.input_schema_digest, new.input_schema_digest)
        yield _at("surface", "inputSchemaDigest", message, sides, (BREAKING, BREAKING))
    removed = [tag for tag in old.tags if tag not in new.tags]
    added = [tag for tag in new.tags if tag not in old.tags]
    if removed or added:
        parts = (f"removed [{', '.join(removed)}]" if removed else "", f"added [{', '.join(added)}]" if added else "")
        message = f"Tags changed: {parts[0]} {parts[1]}".strip()
        sides = (_list(old.tags), _list(new.tags))
        yield _at("surface", "tags", message, sides, (SAFE if removed else COSMETIC, COSMETIC))


def _text(category: str, field: str, message: str, sides: _Sides, original: str | None) -> _Difference:
    """A difference in text that a model reads: risky, and worse if the new text reads like an attack."""
    old, new = sides
    attacks = find_new_cues([new], ApprovedText(old)) if new else ()
    return _at(category, field, message, sides, (original, BREAKING if attacks else RISKY))


# Actions


def _actions(old: SurfaceContract, new: SurfaceContract) -> Iterator[_Difference]:
    for key, _ in list_in_property_order(old.actions):
        if key not in new.actions:
            yield _action(key, "", f'Action "{key}" was removed', (key, None), (BREAKING, BREAKING))
    for key, action in list_in_property_order(new.actions):
        if key not in old.actions:
            yield _action(key, "", f'Action "{key}" was added', (None, key), (SAFE, _severity_of_new(action)))
    for key, action in list_in_property_order(old.actions):
        if key in new.actions:
            yield from _action_flags(key, action, new.actions[key])
            yield from _action_fields(key, action, new.actions[key])


def _severity_of_new(action: ActionContract) -> str:
    """A new action is safe only if it declares itself read-only."""
    if action.destructive:
        return BREAKING
    return SAFE if action.read_only else RISKY


def _action_flags(key: str, old: ActionContract, new: ActionContract) -> Iterator[_Difference]:
    if old.destructive != new.destructive:
        message = f'Action "{key}" destructive flag changed: {_flag(old.destructive)} → {_flag(new.destructive)}'
        sides = (_flag(old.destructive), _flag(new.destructive))
        yield _action(key, ".destructive", message, sides, (BREAKING, BREAKING))
    if old.idempotent != new.idempotent:
        sides = (_flag(old.idempotent), _flag(new.idempotent))
        yield _action(key, ".idempotent", f'Action "{key}" idempotent flag changed', sides, (RISKY, RISKY))
    if old.read_only != new.read_only:
        message = f'Action "{key}" readOnly flag changed: {_flag(old.read_only)} → {_flag(new.read_only)}'
        sides = (_flag(old.read_only), _flag(new.read_only))
        yield _action(key, ".readOnly", message, sides, (BREAKING, BREAKING))


def _action_fields(key: str, old: ActionContract, new: ActionContract) -> Iterator[_Difference]:
    sides: _Sides = (_list(old.required_fields), _list(new.required_fields))
    if removed := [name for name in old.required_fields if name not in new.required_fields]:
        message = f'Action "{key}" no longer requires: [{", ".join(removed)}]'
        yield _action(key, ".requiredFields", message, sides, (SAFE, SAFE))
    if added := [name for name in new.required_fields if name not in old.required_fields]:
        message = f'Action "{key}" now requires new fields: [{", ".join(added)}]'
        yield _action(key, ".requiredFields", message, sides, (BREAKING, BREAKING))
    if old.presenter_name != new.presenter_name:
        sides = (old.presenter_name, new.presenter_name)
        message = f'Action "{key}" Presenter changed: {_or(sides[0], "none")} → {_or(sides[1], "none")}'
        severity = BREAKING if old.presenter_name and not new.presenter_name else RISKY
        yield _action(key, ".presenterName", message, sides, (severity, severity))
    if old.input_schema_digest != new.input_schema_digest:
        sides = (old.input_schema_digest, new.input_schema_digest)
        yield _action(key, ".inputSchemaDigest", f'Action "{key}" input schema changed', sides, (RISKY, RISKY))
    if old.description != new.description:
        message = f'Action "{key}" description changed'
        yield _text("surface.action", f"actions.{key}.description", message, (old.description, new.description), None)
    if old.has_middleware != new.has_middleware:
        sides = (_flag(old.has_middleware), _flag(new.has_middleware))
        message = f'Action "{key}" middleware {"attached" if new.has_middleware else "removed"}'
        yield _action(key, ".hasMiddleware", message, sides, (None, RISKY))


def _action(key: str, member: str, message: str, sides: _Sides, weights: _Weights) -> _Difference:
    return _at("surface.action", f"actions.{key}{member}", message, sides, weights)


# Behavior


def _answers(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    if old.egress_schema_digest != new.egress_schema_digest:
        message = "Presenter egress schema changed — LLM response parsing may break"
        sides = (old.egress_schema_digest, new.egress_schema_digest)
        yield _at("behavior.egress", "egressSchemaDigest", message, sides, (BREAKING, BREAKING))
    if old.system_rules_fingerprint != new.system_rules_fingerprint:
        message = "System rules changed — LLM behavioral calibration invalidated"
        rules = (old.system_rules_fingerprint, new.system_rules_fingerprint)
        yield _at("behavior.rules", "systemRulesFingerprint", message, rules, (BREAKING, BREAKING))


def _guardrails(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    limits = (
        ("agentLimitMax", "Agent limit", old.agent_limit_max, new.agent_limit_max),
        ("egressMaxBytes", "Egress max bytes", old.egress_max_bytes, new.egress_max_bytes),
    )
    for field, name, before, after in limits:
        if before == after:
            continue
        message = f"{name} changed: {_or(before, 'unlimited')} → {_or(after, 'unlimited')}"
        loosened = after is None or (before is not None and after > before)
        sides = (_or(before, "null"), _or(after, "null"))
        original = RISKY if after is None else SAFE
        yield _at("behavior.guardrails", field, message, sides, (original, RISKY if loosened else SAFE))


def _execution(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    yield from _chain(
        "behavior.middleware",
        "middlewareChain",
        "Middleware chain changed — execution semantics may differ",
        old.middleware_chain,
        new.middleware_chain,
    )
    if old.state_sync_fingerprint != new.state_sync_fingerprint:
        sides = (old.state_sync_fingerprint, new.state_sync_fingerprint)
        message = "State sync policy changed"
        yield _at("behavior.stateSync", "stateSyncFingerprint", message, sides, (RISKY, RISKY))
    yield from _chain(
        "behavior.affordances",
        "affordanceTopology",
        "Affordance topology changed — suggested action navigation graph differs",
        old.affordance_topology,
        new.affordance_topology,
    )
    if old.concurrency_fingerprint != new.concurrency_fingerprint:
        sides = (old.concurrency_fingerprint, new.concurrency_fingerprint)
        message = "Concurrency configuration changed"
        yield _at("behavior.stateSync", "concurrencyFingerprint", message, sides, (RISKY, RISKY))
    yield from _chain(
        "behavior.egress",
        "embeddedPresenters",
        "Embedded Presenter set changed — response composition differs",
        old.embedded_presenters,
        new.embedded_presenters,
    )


def _chain(category: str, field: str, message: str, old: Sequence[str], new: Sequence[str]) -> Iterator[_Difference]:
    """A list. MCP Fusion compares it joined by commas, so that ["a,b"] and ["a", "b"] are equal."""
    if tuple(old) == tuple(new):
        return
    sides = (",".join(old) or None, ",".join(new) or None)
    yield _at(category, field, message, sides, (RISKY if (sides[0] or "") != (sides[1] or "") else None, RISKY))


# Token economics and entitlements


def _tokens(old: TokenContract, new: TokenContract) -> Iterator[_Difference]:
    if old.inflation_risk != new.inflation_risk:
        message = f"Cognitive overload risk changed: {old.inflation_risk} → {new.inflation_risk}"
        severity = BREAKING if _rank(new.inflation_risk) > _rank(old.inflation_risk) else SAFE
        sides = (old.inflation_risk, new.inflation_risk)
        yield _at("tokenEconomics", "inflationRisk", message, sides, (severity, severity))
    if old.unbounded_collection != new.unbounded_collection:
        sides = (_flag(old.unbounded_collection), _flag(new.unbounded_collection))
        severity = RISKY if new.unbounded_collection else SAFE
        message = f"Unbounded collection flag: {sides[0]} → {sides[1]}"
        yield _at("tokenEconomics", "unboundedCollection", message, sides, (severity, severity))
    counts = (
        ("schemaFieldCount", "Number of output fields", old.schema_field_count, new.schema_field_count),
        ("baseOverheadTokens", "Tokens added to each answer", old.base_overhead_tokens, new.base_overhead_tokens),
    )
    for field, name, before, after in counts:
        if before != after:
            message = f"{name} changed: {before} → {after}"
            yield _at("tokenEconomics", field, message, (str(before), str(after)), (None, SAFE))


def _entitlements(before: ToolContract, after: ToolContract) -> Iterator[_Difference]:
    old, new = before.entitlements.flags(), after.entitlements.flags()
    for flag in old:
        sides = (_known(old[flag]), _known(new[flag]))
        if new[flag] and not old[flag]:
            message = f'Handler gained "{flag}" entitlement — blast radius expanded'
            yield _at("entitlements", flag, message, sides, (BREAKING, BREAKING))
        elif old[flag] and new[flag] is False:
            message = f'Handler lost "{flag}" entitlement — blast radius reduced'
            yield _at("entitlements", flag, message, sides, (SAFE, SAFE))
    unseen = [flag for flag in old if old[flag] is not None and new[flag] is None]
    if unseen:
        message = f"What the handler can do is no longer known: {', '.join(unseen)}"
        yield _at("entitlements", "unknown", message, (None, _list(tuple(unseen))), (None, RISKY))
    had, has = before.entitlements.raw, after.entitlements.raw
    if sorted(had) != sorted(has):
        gained = [name for name in has if name not in had]
        message = f"Handler uses other APIs: gained [{', '.join(gained)}]" if gained else "Handler uses fewer APIs"
        yield _at("entitlements", "raw", message, (_list(had), _list(has)), (None, RISKY if gained else SAFE))


def _known(flag: bool | None) -> str:
    return "unknown" if flag is None else _flag(flag)


def _at(category: str, field: str, message: str, sides: _Sides, weights: _Weights) -> _Difference:
    return _Difference(
        category=category,
        field=field,
        description=message,
        before=sides[0],
        after=sides[1],
        fusion_severity=weights[0],
        pinwarden_severity=weights[1],
    )


def _rank(risk: str) -> int:
    return RISKS.index(risk) if risk in RISKS else len(RISKS)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _or(value: Any, otherwise: str) -> str:
    if value is None:
        return otherwise
    return value if isinstance(value, str) else format_ecmascript_number(float(value))


def _list(texts: Sequence[str]) -> str:
    return canonicalize(list(texts), "fusion").decode()
