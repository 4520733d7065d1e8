"""Which rules of the policies an entry breaks. A blocked verdict blocks without any policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinwarden.documents.policy import Waiver
    from pinwarden.flows.project import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One rule that an entry breaks, and whether something lifts it."""

    code: str
    message: str
    waiver: Waiver | None = None
    expired: Waiver | None = None

    @property
    def refuses(self) -> bool:
        """Whether it stands in the way."""
        return self.waiver is None


def broken_rules(policies: Policies, plan: Mapping[str, Any], now: str) -> tuple[Broken, ...]:
    """Every rule that a plan or lock entry breaks, waived ones included."""
    try:
        return tuple(dict.fromkeys(_judged(policies, plan, now)))
    except (KeyError, TypeError, AttributeError) as err:
        # Version 2 lets an entry leave out its manifest, its source or its tier; what is not said is not allowed.
        message = f"{plan.get('name')} does not say all that the policy asks about (missing or unusable: {err})"
        return (Broken(code="entry_incomplete", message=message),)


def _judged(policies: Policies, plan: Mapping[str, Any], now: str) -> list[Broken]:
    rules = []
    if plan["trust"]["tier"] == "blocked":
        reasons = ", ".join(gate["code"] for gate in plan["trust"].get("vetoes", ())) or "no reason recorded"
        rules.append(Broken(code="verdict_blocked", message=f"{plan['name']} is blocked: {reasons}"))
    if policies.toolpin is not None:
        from pinwarden.rules.policy import evaluate_toolpin

        issues = evaluate_toolpin(policies.toolpin, plan, now=now).issues
        rules += [Broken(code=issue.code, message=issue.message) for issue in issues]
    if policies.own is not None:
        from pinwarden.rules.policy import evaluate_policy

        answer = evaluate_policy(policies.own, plan, now=now, environment=policies.environment)
        rules += [
            Broken(code=row.code, message=row.message, waiver=row.waiver, expired=row.expired_waiver)
            for row in answer.findings
        ]
    return rules
