"""Every locked entry against the policies: what refuses it, and what only a waiver lets pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.report import Report, Row
from pinwarden.lock.verification import refuse_if_tampered
from pinwarden.project.lock_documents import entries_named, read_v2
from pinwarden.project.policy_rules import ONLY_RECORDED, broken_rules, counts_records

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.policy import Waiver
    from pinwarden.lock.policy_rules import PolicyFinding
    from pinwarden.project.project import Policies, Project


def check_policy(project: Project, policies: Policies, *, now: str, server: str | None = None) -> Report:
    """The report of ``pinwarden policy check``. A lock that is not whole is not judged."""
    lock, document = read_v2(project.lock)
    refuse_if_tampered(document.problems)
    entries = lock.entries if server is None else entries_named(lock, server)
    # Nothing is proved here, and no signature is looked at.
    found = [(entry, broken_rules(policies, entry.document, now, proved=frozenset())) for entry in entries]
    refused = sum(any(rule.refuses for rule in rules) for _, rules in found)
    counted = f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}"
    recorded = f"{ONLY_RECORDED.format(count=counted)} (both are options of pinwarden ci)"
    return Report(
        command="policy check",
        subject=server or project.lock.name,
        summary=f"{refused} of {counted} refused by the policy" if refused else f"{counted} allowed by the policy",
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=tuple(
            _row(entry, rule) for entry, rules in found for rule in sorted(rules, key=lambda rule: not rule.refuses)
        ),
        notes=(recorded,) if entries and counts_records(policies) else (),
        facts={
            "ok": not refused,
            "environment": policies.environment,
            "policies": _digests(policies),
            "entries": [_facts(entry, rules) for entry, rules in found],
        },
    )


def _row(entry: Entry, rule: PolicyFinding) -> Row:
    return Row(
        code=rule.code,
        level="critical" if rule.refuses else "info",
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
