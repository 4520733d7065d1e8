"""What a difference between two contracts is, and how one is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinwarden.core.record import Record

BREAKING, RISKY, SAFE, COSMETIC = "BREAKING", "RISKY", "SAFE", "COSMETIC"
SEVERITIES = (BREAKING, RISKY, SAFE, COSMETIC)
"""From worst to least."""
_SHOWN = 40  # UTF-16 units of a value in a report


class Delta(Record):
    """One difference between two contracts."""

    category: str
    field: str
    severity: str
    description: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, Any]:
        """The delta under the original's names."""
        return {
            "category": self.category,
            "field": self.field,
            "severity": self.severity,
            "description": self.description,
            "before": self.before,
            "after": self.after,
        }


class ContractDiff(Record):
    """All differences of one tool, the worst first."""

    tool_name: str
    deltas: tuple[Delta, ...]
    digest_changed: bool

    @property
    def max_severity(self) -> str:
        """The worst severity; the least one if nothing differs."""
        return self.deltas[0].severity if self.deltas else COSMETIC

    @property
    def is_backwards_compatible(self) -> bool:
        """Whether nothing breaks."""
        return self.max_severity != BREAKING

    def to_json(self) -> dict[str, Any]:
        """The result under the original's names."""
        return {
            "toolName": self.tool_name,
            "deltas": [delta.to_json() for delta in self.deltas],
            "maxSeverity": self.max_severity,
            "digestChanged": self.digest_changed,
            "isBackwardsCompatible": self.is_backwards_compatible,
        }


def in_order(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The worst first, otherwise as they came."""
    return tuple(sorted(deltas, key=lambda delta: SEVERITIES.index(delta.severity)))


def report_text(diff: ContractDiff) -> str:
    """The original's report for people."""
    if not diff.deltas:
        return f"[{diff.tool_name}] No contract changes detected."
    count, worst = len(diff.deltas), diff.max_severity
    lines = [f"[{diff.tool_name}] Contract diff: {count} change(s), max severity: {worst}", ""]
    for delta in diff.deltas:
        lines += [f"  [{delta.severity}] {delta.field}: {delta.description}", f"         {_arrow(delta)}"]
    return "\n".join(lines)


def xml_text(deltas: Sequence[Delta]) -> str:
    """The original's report for models."""
    if not deltas:
        return ""
    lines = ["<contract_changes>"]
    for delta in deltas:
        lines.append(f'  <change severity="{escaped(delta.severity)}" field="{escaped(delta.field)}">')
        lines.append(f"    <description>{escaped(delta.description)}</description>")
        if delta.before is not None:
            lines.append(f"    <before>{escaped(delta.before)}</before>")
        if delta.after is not None:
            lines.append(f"    <after>{escaped(delta.after)}</after>")
        lines.append("  </change>")
    return "\n".join([*lines, "</contract_changes>"])


def _arrow(delta: Delta) -> str:
    if delta.before is not None and delta.after is not None:
        return f"{_short(delta.before)} → {_short(delta.after)}"
    return f"(removed) {_short(delta.before or '')}" if delta.after is None else f"(added) {_short(delta.after)}"


def _short(text: str) -> str:
    units = text.encode("utf-16-le", "surrogatepass")
    if len(units) <= 2 * _SHOWN:
        return text
    return units[: 2 * (_SHOWN - 3)].decode("utf-16-le", "surrogatepass") + "..."


def escaped(text: str) -> str:
    """Text that is no markup in XML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
