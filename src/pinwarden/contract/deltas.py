"""What a difference between two contracts is, and how one is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinwarden.core.record import Record

BREAKING, RISKY, SAFE, COSMETIC = "BREAKING", "RISKY", "SAFE", "COSMETIC"
SEVERITIES = (BREAKING, RISKY, SAFE, COSMETIC)
"""From worst to least."""


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
