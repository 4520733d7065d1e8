"""Which rules of the policies an entry breaks. A blocked verdict blocks without any policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.lock.entry import EXTENSION
from pinwarden.lock.extension import EVIDENCE, PUBLISHED

if TYPE_CHECKING:
    from pinwarden.lock.policy_rules import PolicyFinding
    from pinwarden.project.project import Policies


def broken_rules(
    policies: Policies,
    plan: Mapping[str, Any],
    now: str,
    *,
    published_at: str | None = None,
    proved: frozenset[str] | None = None,
) -> tuple[PolicyFinding, ...]:
    """Every rule that a plan or lock entry breaks, waived ones included.

    ``published_at`` is when its release came out, where that is not in our record of it yet; ``proved`` the evidence
    that was proved in this run, None where what is recorded may be believed.
    """
    try:
        return tuple(dict.fromkeys(_judged(policies, plan, now, published_at, proved)))
    except (KeyError, TypeError, AttributeError) as err:
        from pinwarden.lock.policy_rules import PolicyFinding

        # Version 2 lets an entry leave out its manifest, its source or its tier; what is not said is not allowed.
        message = f"{plan.get('name')} does not say all that the policy asks about (missing or unusable: {err})"
        return (PolicyFinding(code="entry_incomplete", message=message),)


def _with_own_evidence(plan: Mapping[str, Any], record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with what was proved here after it was locked, which its trust report does not know."""
    proved = record.get(EVIDENCE)
    if not isinstance(proved, list):
        return plan
    trust = plan["trust"]
    return {**plan, "trust": {**trust, "evidence": [*trust["evidence"], *proved]}}


def counts_records(policies: Policies) -> bool:
    """Whether a policy counts proofs that a lock records."""
    own, toolpin = policies.own, policies.toolpin
    required = own.required_evidence if own is not None else ()
    return any(code.endswith("_verified") for code in required) or (
        toolpin is not None and toolpin.flag("requireToolPinVerifiedEvidence")
    )


ONLY_RECORDED = (
    "evidence that the policy counts is only recorded in the lock for {count}: --bytes proves it anew, --public-key "
    "checks who signed for it"
)


def _judged(
    policies: Policies, plan: Mapping[str, Any], now: str, published_at: str | None, proved: frozenset[str] | None
) -> list[PolicyFinding]:
    rules: list[PolicyFinding] = []
    blocked = plan["trust"]["tier"] == "blocked"
    if not (blocked or policies.any):
        return rules
    from pinwarden.lock.policy_rules import PolicyFinding, Release, evaluate_policy, evaluate_toolpin

    if blocked:
        reasons = ", ".join(gate["code"] for gate in plan["trust"].get("vetoes", ())) or "no reason recorded"
        rules.append(PolicyFinding(code="verdict_blocked", message=f"{plan['name']} is blocked: {reasons}"))
    if policies.toolpin is not None:
        issues = evaluate_toolpin(policies.toolpin, plan, now=now).issues
        rules += [PolicyFinding(code=issue.code, message=issue.message) for issue in issues]
    if policies.own is not None:
        record = plan["capabilityManifest"].get(EXTENSION, {})
        release = Release(published_at=published_at or record.get(PUBLISHED), proved=proved)
        answer = evaluate_policy(
            policies.own,
            _with_own_evidence(plan, record),
            now=now,
            environment=policies.environment,
            release=release,
            today=policies.today,
        )
        rules += answer.findings
    return rules
