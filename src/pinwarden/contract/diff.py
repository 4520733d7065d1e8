"""Compare two contracts of one tool, and rate each difference.

Each difference has two severities: MCP Fusion's and Pinwarden's. Pinwarden is stricter in some cases. A changed
description is never cosmetic, because a model follows descriptions. A new destructive action and a raised limit are not
safe. Differences that MCP Fusion does not compare have only Pinwarden's severity.
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
from pinwarden.surface.drift.approved_text import ApprovedText
from pinwarden.surface.drift.new_cues import find_new_alarms

BREAKING, RISKY, SAFE, COSMETIC = "BREAKING", "RISKY", "SAFE", "COSMETIC"
SEVERITIES = (BREAKING, RISKY, SAFE, COSMETIC)
"""The severities, worst first."""


class Delta(Record):
    """One difference between two contracts."""

    category: str
    field: str
    severity: str
    description: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the difference with the member names of MCP Fusion."""
        return {
            "category": self.category,
            "field": self.field,
            "severity": self.severity,
            "description": self.description,
            "before": self.before,
            "after": self.after,
        }


class ContractDiff(Record):
    """All differences between two contracts of one tool, worst first."""

    tool_name: str
    deltas: tuple[Delta, ...]
    digest_changed: bool

    @property
    def max_severity(self) -> str:
        """The worst severity; ``COSMETIC`` if nothing differs."""
        return self.deltas[0].severity if self.deltas else COSMETIC

    @property
    def is_backwards_compatible(self) -> bool:
        """Whether no difference is breaking."""
        return self.max_severity != BREAKING

    def to_json(self) -> dict[str, Any]:
        """Return the result with the member names of MCP Fusion."""
        return {
            "toolName": self.tool_name,
            "deltas": [delta.to_json() for delta in self.deltas],
            "maxSeverity": self.max_severity,
            "digestChanged": self.digest_changed,
            "isBackwardsCompatible": self.is_backwards_compatible,
        }


def sort_deltas(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """Sort by severity, worst first. Differences of the same severity keep their order."""
    return tuple(sorted(deltas, key=lambda delta: SEVERITIES.index(delta.severity)))


_BeforeAfter = tuple[str | None, str | None]
"""The values before and after the change."""
_Severities = tuple[str | None, str]
"""MCP Fusion's severity (None if MCP Fusion does not compare the member) and Pinwarden's severity."""


class _Difference(Record):
    """One difference with both severities. ``fusion_severity`` is None if MCP Fusion does not compare the member."""

    category: str
    field: str
    description: str
    before: str | None
    after: str | None
    fusion_severity: str | None
    pinwarden_severity: str


def diff_contracts(before: ToolContract, after: ToolContract, *, compat: bool = False) -> ContractDiff:
    """Compare two contracts. ``compat`` returns only differences that MCP Fusion reports, with its severities."""
    deltas = sort_deltas(
        Delta(
            category=difference.category,
            field=difference.field,
            severity=(difference.fusion_severity or COSMETIC) if compat else difference.pinwarden_severity,
            description=difference.description,
            before=difference.before,
            after=difference.after,
        )
        for difference in _compare_contracts(before, after)
        if not compat or difference.fusion_severity is not None
    )
    old, new = before.behavior, after.behavior
    response_changed = (
        old.egress_schema_digest != new.egress_schema_digest
        or old.system_rules_fingerprint != new.system_rules_fingerprint
    )
    return ContractDiff(
        tool_name=after.surface.name, deltas=deltas, digest_changed=response_changed if compat else before != after
    )


def _compare_contracts(before: ToolContract, after: ToolContract) -> Iterator[_Difference]:
    yield from _compare_surfaces(before.surface, after.surface)
    yield from _compare_actions(before.surface, after.surface)
    yield from _compare_responses(before.behavior, after.behavior)
    yield from _compare_guardrails(before.behavior, after.behavior)
    yield from _compare_execution(before.behavior, after.behavior)
    yield from _compare_token_contracts(before.token_economics, after.token_economics)
    yield from _compare_entitlements(before, after)


# Surface


def _compare_surfaces(old: SurfaceContract, new: SurfaceContract) -> Iterator[_Difference]:
    if old.name != new.name:
        yield _build_difference("surface", "name", "Tool name changed", (old.name, new.name), (BREAKING, BREAKING))
    if old.description != new.description:
        yield _build_text_difference(
            "surface", "description", "Tool description changed", (old.description, new.description), COSMETIC
        )
    if old.input_schema_digest != new.input_schema_digest:
        message = "Input schema changed — previously calibrated LLM arguments may fail"
        sides = (old.input_schema_digest, new.input_schema_digest)
        yield _build_difference("surface", "inputSchemaDigest", message, sides, (BREAKING, BREAKING))
    removed = [tag for tag in old.tags if tag not in new.tags]
    added = [tag for tag in new.tags if tag not in old.tags]
    if removed or added:
        parts = (f"removed [{', '.join(removed)}]" if removed else "", f"added [{', '.join(added)}]" if added else "")
        message = f"Tags changed: {parts[0]} {parts[1]}".strip()
        sides = (_format_list(old.tags), _format_list(new.tags))
        yield _build_difference("surface", "tags", message, sides, (SAFE if removed else COSMETIC, COSMETIC))


def _build_text_difference(
    category: str, field: str, message: str, sides: _BeforeAfter, original: str | None
) -> _Difference:
    """Build the difference for a changed text that a model reads: risky, or breaking if it looks like an attack."""
    old, new = sides
    attacks = find_new_alarms([new], ApprovedText(old)) if new else ()
    return _build_difference(category, field, message, sides, (original, BREAKING if attacks else RISKY))


# Actions


def _compare_actions(old: SurfaceContract, new: SurfaceContract) -> Iterator[_Difference]:
    for key, _ in list_in_property_order(old.actions):
        if key not in new.actions:
            yield _build_action_difference(key, "", f'Action "{key}" was removed', (key, None), (BREAKING, BREAKING))
    for key, action in list_in_property_order(new.actions):
        if key not in old.actions:
            yield _build_action_difference(
                key, "", f'Action "{key}" was added', (None, key), (SAFE, _rate_new_action(action))
            )
    for key, action in list_in_property_order(old.actions):
        if key in new.actions:
            yield from _compare_action_flags(key, action, new.actions[key])
            yield from _compare_action_fields(key, action, new.actions[key])


def _rate_new_action(action: ActionContract) -> str:
    """Return the severity of a new action. It is safe only if it declares itself read-only."""
    if action.destructive:
        return BREAKING
    return SAFE if action.read_only else RISKY


def _compare_action_flags(key: str, old: ActionContract, new: ActionContract) -> Iterator[_Difference]:
    if old.destructive != new.destructive:
        sides = (_format_bool(old.destructive), _format_bool(new.destructive))
        message = f'Action "{key}" destructive flag changed: {sides[0]} → {sides[1]}'
        yield _build_action_difference(key, ".destructive", message, sides, (BREAKING, BREAKING))
    if old.idempotent != new.idempotent:
        sides = (_format_bool(old.idempotent), _format_bool(new.idempotent))
        yield _build_action_difference(
            key, ".idempotent", f'Action "{key}" idempotent flag changed', sides, (RISKY, RISKY)
        )
    if old.read_only != new.read_only:
        sides = (_format_bool(old.read_only), _format_bool(new.read_only))
        message = f'Action "{key}" readOnly flag changed: {sides[0]} → {sides[1]}'
        yield _build_action_difference(key, ".readOnly", message, sides, (BREAKING, BREAKING))


def _compare_action_fields(key: str, old: ActionContract, new: ActionContract) -> Iterator[_Difference]:
    sides: _BeforeAfter = (_format_list(old.required_fields), _format_list(new.required_fields))
    if removed := [name for name in old.required_fields if name not in new.required_fields]:
        message = f'Action "{key}" no longer requires: [{", ".join(removed)}]'
        yield _build_action_difference(key, ".requiredFields", message, sides, (SAFE, SAFE))
    if added := [name for name in new.required_fields if name not in old.required_fields]:
        message = f'Action "{key}" now requires new fields: [{", ".join(added)}]'
        yield _build_action_difference(key, ".requiredFields", message, sides, (BREAKING, BREAKING))
    if old.presenter_name != new.presenter_name:
        sides = (old.presenter_name, new.presenter_name)
        before, after = (_format_or_default(side, "none") for side in sides)
        message = f'Action "{key}" Presenter changed: {before} → {after}'
        severity = BREAKING if old.presenter_name and not new.presenter_name else RISKY
        yield _build_action_difference(key, ".presenterName", message, sides, (severity, severity))
    if old.input_schema_digest != new.input_schema_digest:
        sides = (old.input_schema_digest, new.input_schema_digest)
        yield _build_action_difference(
            key, ".inputSchemaDigest", f'Action "{key}" input schema changed', sides, (RISKY, RISKY)
        )
    if old.description != new.description:
        message = f'Action "{key}" description changed'
        yield _build_text_difference(
            "surface.action", f"actions.{key}.description", message, (old.description, new.description), None
        )
    if old.has_middleware != new.has_middleware:
        sides = (_format_bool(old.has_middleware), _format_bool(new.has_middleware))
        message = f'Action "{key}" middleware {"attached" if new.has_middleware else "removed"}'
        yield _build_action_difference(key, ".hasMiddleware", message, sides, (None, RISKY))


def _build_action_difference(
    key: str, member: str, message: str, sides: _BeforeAfter, severities: _Severities
) -> _Difference:
    return _build_difference("surface.action", f"actions.{key}{member}", message, sides, severities)


# Behavior


def _compare_responses(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    if old.egress_schema_digest != new.egress_schema_digest:
        message = "Presenter egress schema changed — LLM response parsing may break"
        sides = (old.egress_schema_digest, new.egress_schema_digest)
        yield _build_difference("behavior.egress", "egressSchemaDigest", message, sides, (BREAKING, BREAKING))
    if old.system_rules_fingerprint != new.system_rules_fingerprint:
        message = "System rules changed — LLM behavioral calibration invalidated"
        rules = (old.system_rules_fingerprint, new.system_rules_fingerprint)
        yield _build_difference("behavior.rules", "systemRulesFingerprint", message, rules, (BREAKING, BREAKING))


def _compare_guardrails(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    limits = (
        ("agentLimitMax", "Agent limit", old.agent_limit_max, new.agent_limit_max),
        ("egressMaxBytes", "Egress max bytes", old.egress_max_bytes, new.egress_max_bytes),
    )
    for field, name, before, after in limits:
        if before == after:
            continue
        message = (
            f"{name} changed: {_format_or_default(before, 'unlimited')} → {_format_or_default(after, 'unlimited')}"
        )
        loosened = after is None or (before is not None and after > before)
        sides = (_format_or_default(before, "null"), _format_or_default(after, "null"))
        original = RISKY if after is None else SAFE
        yield _build_difference("behavior.guardrails", field, message, sides, (original, RISKY if loosened else SAFE))


def _compare_execution(old: BehaviorContract, new: BehaviorContract) -> Iterator[_Difference]:
    yield from _compare_chains(
        "behavior.middleware",
        "middlewareChain",
        "Middleware chain changed — execution semantics may differ",
        old.middleware_chain,
        new.middleware_chain,
    )
    if old.state_sync_fingerprint != new.state_sync_fingerprint:
        sides = (old.state_sync_fingerprint, new.state_sync_fingerprint)
        message = "State sync policy changed"
        yield _build_difference("behavior.stateSync", "stateSyncFingerprint", message, sides, (RISKY, RISKY))
    yield from _compare_chains(
        "behavior.affordances",
        "affordanceTopology",
        "Affordance topology changed — suggested action navigation graph differs",
        old.affordance_topology,
        new.affordance_topology,
    )
    if old.concurrency_fingerprint != new.concurrency_fingerprint:
        sides = (old.concurrency_fingerprint, new.concurrency_fingerprint)
        message = "Concurrency configuration changed"
        yield _build_difference("behavior.stateSync", "concurrencyFingerprint", message, sides, (RISKY, RISKY))
    yield from _compare_chains(
        "behavior.egress",
        "embeddedPresenters",
        "Embedded Presenter set changed — response composition differs",
        old.embedded_presenters,
        new.embedded_presenters,
    )


def _compare_chains(
    category: str, field: str, message: str, old: Sequence[str], new: Sequence[str]
) -> Iterator[_Difference]:
    """Compare two lists. MCP Fusion joins lists with commas first, so that ["a,b"] and ["a", "b"] are equal for it."""
    if tuple(old) == tuple(new):
        return
    sides = (",".join(old) or None, ",".join(new) or None)
    yield _build_difference(
        category, field, message, sides, (RISKY if (sides[0] or "") != (sides[1] or "") else None, RISKY)
    )


# Token economics and entitlements


def _compare_token_contracts(old: TokenContract, new: TokenContract) -> Iterator[_Difference]:
    if old.inflation_risk != new.inflation_risk:
        message = f"Cognitive overload risk changed: {old.inflation_risk} → {new.inflation_risk}"
        severity = BREAKING if _rank_risk(new.inflation_risk) > _rank_risk(old.inflation_risk) else SAFE
        sides = (old.inflation_risk, new.inflation_risk)
        yield _build_difference("tokenEconomics", "inflationRisk", message, sides, (severity, severity))
    if old.unbounded_collection != new.unbounded_collection:
        sides = (_format_bool(old.unbounded_collection), _format_bool(new.unbounded_collection))
        severity = RISKY if new.unbounded_collection else SAFE
        message = f"Unbounded collection flag: {sides[0]} → {sides[1]}"
        yield _build_difference("tokenEconomics", "unboundedCollection", message, sides, (severity, severity))
    counts = (
        ("schemaFieldCount", "Number of output fields", old.schema_field_count, new.schema_field_count),
        ("baseOverheadTokens", "Tokens added to each response", old.base_overhead_tokens, new.base_overhead_tokens),
    )
    for field, name, before, after in counts:
        if before != after:
            message = f"{name} changed: {before} → {after}"
            yield _build_difference("tokenEconomics", field, message, (str(before), str(after)), (None, SAFE))


def _compare_entitlements(before: ToolContract, after: ToolContract) -> Iterator[_Difference]:
    old, new = before.entitlements.flags(), after.entitlements.flags()
    for flag in old:
        sides = (_format_flag(old[flag]), _format_flag(new[flag]))
        if new[flag] and not old[flag]:
            message = f'Handler gained "{flag}" entitlement — blast radius expanded'
            yield _build_difference("entitlements", flag, message, sides, (BREAKING, BREAKING))
        elif old[flag] and new[flag] is False:
            message = f'Handler lost "{flag}" entitlement — blast radius reduced'
            yield _build_difference("entitlements", flag, message, sides, (SAFE, SAFE))
    now_unknown = [flag for flag in old if old[flag] is not None and new[flag] is None]
    if now_unknown:
        message = f"The analysis can no longer tell whether the handler has: {', '.join(now_unknown)}"
        yield _build_difference(
            "entitlements", "unknown", message, (None, _format_list(tuple(now_unknown))), (None, RISKY)
        )
    had, has = before.entitlements.raw, after.entitlements.raw
    if sorted(had) != sorted(has):
        gained = [name for name in has if name not in had]
        message = f"Handler uses other APIs: gained [{', '.join(gained)}]" if gained else "Handler uses fewer APIs"
        yield _build_difference(
            "entitlements", "raw", message, (_format_list(had), _format_list(has)), (None, RISKY if gained else SAFE)
        )


def _format_flag(flag: bool | None) -> str:
    return "unknown" if flag is None else _format_bool(flag)


def _build_difference(
    category: str, field: str, message: str, sides: _BeforeAfter, severities: _Severities
) -> _Difference:
    return _Difference(
        category=category,
        field=field,
        description=message,
        before=sides[0],
        after=sides[1],
        fusion_severity=severities[0],
        pinwarden_severity=severities[1],
    )


def _rank_risk(risk: str) -> int:
    return RISKS.index(risk) if risk in RISKS else len(RISKS)


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _format_or_default(value: Any, otherwise: str) -> str:
    if value is None:
        return otherwise
    return value if isinstance(value, str) else format_ecmascript_number(float(value))


def _format_list(texts: Sequence[str]) -> str:
    return canonicalize(list(texts), "fusion").decode()
