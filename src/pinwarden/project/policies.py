"""Which rules of the policies an entry breaks. A blocked verdict blocks without any policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.report import Report, Row
from pinwarden.lock.extension import policy_facts
from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY, Policies, load_policies, parse_file

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.policy import Policy, ToolPinPolicy, Waiver
    from pinwarden.lock.policy_rules import PolicyFinding
    from pinwarden.project.project import Project


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
        return tuple(dict.fromkeys(_broken_rules(policies, plan, now, published_at, proved)))
    except (KeyError, TypeError, AttributeError) as err:
        from pinwarden.lock.policy_rules import PolicyFinding

        # Version 2 lets an entry leave out its manifest, its source or its tier; what is not said is not allowed.
        message = f"{plan.get('name')} does not say all that the policy asks about (missing or unusable: {err})"
        return (PolicyFinding(code="entry_incomplete", message=message),)


def _with_recorded_evidence(plan: Mapping[str, Any], proved: Sequence[Any]) -> Mapping[str, Any]:
    """The entry with what was proved here after it was locked, which its trust report does not know."""
    if not proved:
        return plan
    trust = plan["trust"]
    return {**plan, "trust": {**trust, "evidence": [*trust["evidence"], *proved]}}


def requires_evidence(policies: Policies) -> bool:
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


def _broken_rules(
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
        evidence, recorded_at = policy_facts(plan)
        release = Release(published_at=published_at or recorded_at, proved=proved)
        answer = evaluate_policy(
            policies.own,
            _with_recorded_evidence(plan, evidence),
            now=now,
            environment=policies.environment,
            release=release,
            today=policies.today,
        )
        rules += answer.findings
    return rules


def read_policy(path: Path) -> Policy | ToolPinPolicy:
    """The policy in a file: ToolPin's if it is JSON, ours if it is TOML."""
    from pinwarden.lock.policy import parse_policy, parse_toolpin_policy

    if path.suffix == ".json":
        return parse_file(path, parse_toolpin_policy)
    return parse_file(path, parse_policy)


def policy_digest(path: Path | None) -> str | None:
    """The digest that a lock signature names; None where no policy is named. A missing file is an error."""
    return None if path is None else read_policy(path).digest.sri


def required_policies(project: Project, named: Path | None, environment: str = "default") -> Policies:
    """The policy that was named, or else all that the project has; none at all is an error, not consent."""
    from pinwarden.lock.policy import Policy, ToolPinPolicy

    if named is None:
        policies = load_policies(project, environment)
    else:
        policy = read_policy(named)
        own = policy if isinstance(policy, Policy) else None
        toolpin = policy if isinstance(policy, ToolPinPolicy) else None
        policies = Policies(own=own, toolpin=toolpin, environment=environment)
    if not policies.any:
        raise PinwardenError(
            "FILE_UNREADABLE",
            f"there is no policy here: neither {OWN_POLICY} with a table [policy] nor {TOOLPIN_POLICY}",
            hint="Write one with pinwarden policy init --recommended, or name one with --policy.",
        )
    return policies


def policy_digest_report(project: Project, named: Path | None = None) -> Report:
    """The report of ``pinwarden policy digest``."""
    if named is not None:
        shown, digest = str(named), read_policy(named).digest.sri
    else:
        policies = required_policies(project, None)
        stated = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
        if len(stated) > 1:
            raise PinwardenError(
                "USAGE",
                f"both {OWN_POLICY} and {TOOLPIN_POLICY} state a policy",
                hint="Name one of them with --policy.",
            )
        shown = str(TOOLPIN_POLICY if policies.own is None else OWN_POLICY)
        digest = stated[0].digest.sri
    return Report(
        command="policy digest",
        subject=shown,
        summary=digest,
        exit_code=EXIT_CLEAN,
        facts={"file": shown, "digest": digest},
    )


def check_policy(project: Project, policies: Policies, *, now: str, server: str | None = None) -> Report:
    """The report of ``pinwarden policy check``. A lock that is not whole is not judged."""
    from pinwarden.lock.lockfile import refuse_if_tampered
    from pinwarden.project.lock_documents import entries_named, read_lock

    document = read_lock(project.lock)
    lock = document.lock
    refuse_if_tampered(document.problems)
    entries = lock.entries if server is None else entries_named(lock, server)
    # Nothing is proved here, and no signature is looked at.
    judged = [(entry, broken_rules(policies, entry.document, now, proved=frozenset())) for entry in entries]
    refused = sum(any(rule.refuses for rule in rules) for _, rules in judged)
    counted = f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}"
    recorded = f"{ONLY_RECORDED.format(count=counted)} (both are options of pinwarden ci)"
    return Report(
        command="policy check",
        subject=server or project.lock.name,
        summary=f"{refused} of {counted} refused by the policy" if refused else f"{counted} allowed by the policy",
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=tuple(
            _row(entry, rule) for entry, rules in judged for rule in sorted(rules, key=lambda rule: not rule.refuses)
        ),
        notes=(recorded,) if entries and requires_evidence(policies) else (),
        facts={
            "ok": not refused,
            "environment": policies.environment,
            "policies": _digests(policies),
            "entries": [_facts(entry, rules) for entry, rules in judged],
        },
    )


def _row(entry: Entry, rule: PolicyFinding) -> Row:
    return Row(
        code=rule.code,
        severity="critical" if rule.refuses else "info",
        entity="server",
        name=entry.key,
        path="",
        message=rule.told,
    )


def _facts(entry: Entry, rules: tuple[PolicyFinding, ...]) -> dict[str, Any]:
    return {
        "key": entry.key,
        "server": entry.name,
        "client": entry.client,
        "ok": not any(rule.refuses for rule in rules),
        "findings": [
            {
                "code": rule.code,
                "message": rule.message,
                **({"waiver": _waiver(rule.waiver)} if rule.waiver else {}),
                **({"expired_waiver": _waiver(rule.expired_waiver)} if rule.expired_waiver else {}),
            }
            for rule in rules
        ],
    }


def _waiver(waiver: Waiver) -> dict[str, str]:
    return {"owner": waiver.owner, "reason": waiver.reason, "expires": waiver.expires.isoformat()}


def _digests(policies: Policies) -> dict[str, str]:
    named = {"pinwarden": policies.own, "toolpin": policies.toolpin}
    return {name: policy.digest.sri for name, policy in named.items() if policy is not None}
