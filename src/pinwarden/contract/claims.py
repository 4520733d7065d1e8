"""Claims against detections: what a tool says of itself, and what its handlers reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.contract.contract import FLAGS, EntitlementContract
from pinwarden.contract.dialect import Dialect
from pinwarden.contract.js_evasion import EvasionSign, evasion_signs
from pinwarden.contract.js_scanner import Match, entitlements_of_matches, scan_source
from pinwarden.core.record import Record

_WRITES = re.compile(r"write|append|unlink|rmdir|mkdir|rename|copy", re.IGNORECASE)


class Claims(Record):
    """What a tool declares. ``allowed`` holds entitlements that are granted in so many words."""

    read_only: bool = False
    destructive: bool = False
    allowed: frozenset[str] = frozenset()


class Violation(Record):
    """A claim that the code contradicts."""

    category: str
    declared: str
    detected: str
    severity: str
    """``error`` or ``warning``."""
    description: str

    def to_json(self) -> dict[str, Any]:
        """The violation, ready for JSON."""
        return {
            "category": self.category,
            "declared": self.declared,
            "detected": self.detected,
            "severity": self.severity,
            "description": self.description,
        }


class HandlerReport(Record):
    """All that is known of a JavaScript handler."""

    entitlements: EntitlementContract
    matches: tuple[Match, ...]
    violations: tuple[Violation, ...]
    signs: tuple[EvasionSign, ...] | None
    """None where the dialect looks for none."""
    safe: bool
    summary: str

    def to_json(self, dialect: Dialect) -> dict[str, Any]:
        """The report under the original's names."""
        flags: dict[str, Any] = dict(self.entitlements.flags())
        if not dialect.code_evaluation:
            del flags["codeEvaluation"]
        return {
            "entitlements": {**flags, "raw": list(self.entitlements.raw)},
            "matches": [match.to_json() for match in self.matches],
            "violations": [violation.to_json() for violation in self.violations],
            **({} if self.signs is None else {"evasionIndicators": [sign.to_json() for sign in self.signs]}),
            "safe": self.safe,
            "summary": self.summary,
        }


def claims_from_json(value: Mapping[str, Any]) -> Claims:
    """Claims as the original spells them."""
    return Claims(
        read_only=bool(value.get("readOnly")),
        destructive=bool(value.get("destructive")),
        allowed=frozenset(value.get("allowed") or ()),
    )


def judge_handler(source: str, claims: Claims, dialect: Dialect) -> HandlerReport:
    """Scan a handler and hold it against its claims, as the original does."""
    matches = scan_source(source, dialect)
    violations = tuple(violations_of(matches, claims))
    signs = evasion_signs(source) if dialect.code_evaluation else None
    entitlements = entitlements_of_matches(matches)
    hides = any(sign.confidence == "high" for sign in signs or ())
    safe = not hides and all(violation.severity != "error" for violation in violations)
    return HandlerReport(
        entitlements=entitlements,
        matches=matches,
        violations=violations,
        signs=signs,
        safe=safe,
        summary=_summary(entitlements, violations, signs, safe=safe),
    )


def violations_of(matches: Sequence[Match], claims: Claims) -> Iterator[Violation]:
    """The claims that the matches contradict, in the original's order."""
    found = {match.category for match in matches}
    news = found - claims.allowed
    writes = [m.identifier for m in matches if m.category == "filesystem" and _WRITES.search(m.identifier)]
    evaluations = dict.fromkeys(m.identifier for m in matches if m.category == "codeEvaluation")
    if claims.read_only and "filesystem" in news and writes:
        names = ", ".join(writes)
        told = f"Tool declares readOnly but handler uses filesystem write APIs: {names}"
        yield _error("filesystem", f"Filesystem write operations: {names}", told)
    if claims.read_only and "subprocess" in news:
        told = "Tool declares readOnly but handler uses subprocess APIs"
        yield _error("subprocess", "Subprocess APIs detected", told)
    if not claims.destructive and "subprocess" in news:
        yield Violation(
            category="subprocess",
            declared="destructive: false",
            detected="Subprocess APIs detected",
            severity="warning",
            description="Tool is not marked destructive but handler uses subprocess APIs — consider marking as "
            "destructive",
        )
    if claims.read_only and "network" in news:
        yield Violation(
            category="network",
            declared="readOnly: true",
            detected="Network APIs detected",
            severity="warning",
            description="Tool declares readOnly but handler makes network calls — side effects possible",
        )
    if "codeEvaluation" in news:
        names = ", ".join(evaluations)
        yield Violation(
            category="codeEvaluation",
            declared="no code evaluation expected",
            detected=f"Code evaluation APIs: {names}",
            severity="error",
            description=f"Handler uses dynamic code evaluation ({names}) — blast radius is unbounded; eval'd code can "
            "perform any I/O",
        )
    if claims.read_only and "codeEvaluation" in found & claims.allowed:
        told = "Tool declares readOnly but uses code evaluation — eval can perform writes"
        yield _error("codeEvaluation", "Code evaluation APIs detected", told)


def _error(category: str, detected: str, told: str) -> Violation:
    return Violation(
        category=category, declared="readOnly: true", detected=detected, severity="error", description=told
    )


def _summary(
    entitlements: EntitlementContract,
    violations: Sequence[Violation],
    signs: Sequence[EvasionSign] | None,
    *,
    safe: bool,
) -> str:
    flags = entitlements.flags()
    active = [flag for flag in FLAGS if flags[flag]]
    if not active and not signs:
        return "No I/O entitlements detected — handler is sandboxed."
    parts = [f"Entitlements: [{', '.join(active)}]"] if active else []
    if violations:
        errors = sum(violation.severity == "error" for violation in violations)
        parts.append(f"{len(violations)} violation(s) ({errors} errors)")
    elif signs is None:
        parts.append("No violations")
    if signs:
        high = sum(sign.confidence == "high" for sign in signs)
        parts.append(f"{len(signs)} evasion indicator(s) ({high} high-confidence)")
    return " | ".join([*parts, "SAFE" if safe else "UNSAFE"])
