"""What a judging model answered about a tool's behaviour, read as the original reads it, or carefully.

The original takes an unreadable answer for "medium drift, not violated", and a tool whose contract a judge calls
violated for stable if only the numbers are high. By default neither passes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.numbers import ecmascript_fixed, is_number
from pinwarden.core.record import Record

NONE, LOW, MEDIUM, HIGH = "none", "low", "medium", "high"
_SAME = 0.95
THRESHOLDS = (0.75, 0.5)
"""From which similarity drift is low, and from which medium."""
_UNREADABLE = 0.5
_NO_REASON = "No reasoning provided"


class Judgement(Record):
    """One answer of a judge."""

    similarity: float
    drift: str
    violated: bool
    violations: tuple[Any, ...]
    reasoning: str

    def to_json(self) -> dict[str, Any]:
        """The judgement under the original's names."""
        return {
            "similarityScore": self.similarity,
            "driftLevel": self.drift,
            "contractViolated": self.violated,
            "violations": list(self.violations),
            "reasoning": self.reasoning,
        }


def drift_level(similarity: float, thresholds: Sequence[float] = THRESHOLDS) -> str:
    """The class of a similarity."""
    if similarity >= _SAME:
        return NONE
    return next((level for level, limit in zip((LOW, MEDIUM), thresholds, strict=True) if similarity >= limit), HIGH)


def read_judgement(answer: str, *, thresholds: Sequence[float] = THRESHOLDS, compat: bool = False) -> Judgement:
    """Read an answer. One that cannot be read, or states no similarity, is a violation unless ``compat``."""
    found = _object_in(answer)
    if found is None:
        return Judgement(
            similarity=_UNREADABLE,
            drift=MEDIUM if compat else HIGH,
            violated=not compat,
            violations=("Unable to parse LLM judge response",),
            reasoning="Fallback: LLM response could not be parsed as JSON",
        )
    score = found.get("similarityScore")
    similarity = float(max(0, min(1, score))) if isinstance(score, int | float) and is_number(score) else _UNREADABLE
    stated = found.get("contractViolated")
    violations, reasoning = found.get("violations"), found.get("reasoning")
    return Judgement(
        similarity=similarity,
        drift=drift_level(similarity, thresholds),
        violated=bool(stated) or (not compat and not is_number(score)),
        violations=tuple(violations) if isinstance(violations, list) else (),
        reasoning=reasoning if isinstance(reasoning, str) else _NO_REASON,
    )


def aggregate_judgements(tool_name: str, results: Sequence[Judgement], *, compat: bool = False) -> dict[str, Any]:
    """The sum of all answers about a tool, under the original's names."""
    if not results:
        summary = "No probes evaluated."
        return {"toolName": tool_name, "overallDrift": NONE, "violationCount": 0, "stable": True, "summary": summary}
    violations = sum(each.violated for each in results)
    average = sum(each.similarity for each in results) / len(results)
    drift = drift_level(average)
    stable = drift in (NONE, LOW) and (compat or not violations)
    return {
        "toolName": tool_name,
        "overallDrift": drift,
        "violationCount": violations,
        "stable": stable,
        "summary": f"{len(results)} probes evaluated. Avg similarity: {ecmascript_fixed(average * 100, 1)}%. Drift: "
        f"{drift}. Violations: {violations}. Status: {'STABLE' if stable else 'UNSTABLE'}",
    }


def _object_in(answer: str) -> dict[str, Any] | None:
    """The JSON object from the first brace to the last."""
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        found = strict_json.parse_last_wins(answer[start : end + 1].encode())
    except (PinwardenError, UnicodeEncodeError):
        return None
    return found if isinstance(found, dict) else None
