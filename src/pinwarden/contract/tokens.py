"""How the answers of tools may swell, by the original's rules. What tools cost by being there: ``costs.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil, floor, inf, isinf
from typing import Any

from pinwarden.contract.contract import RISKS
from pinwarden.contract.costs import estimated_tokens
from pinwarden.contract.dialect import Dialect
from pinwarden.core.record import Record

_UNITS_PER_TOKEN = 3.5
THRESHOLDS = (1000, 4000, 8000)
_MAX_OVERHEAD = 0.3
_OBJECT_TOKENS, _LIST_TOKENS, _WORST_ITEMS = 20, 50, 100
_MANY_FIELDS = 15
_COLLECTION = re.compile(
    "(?:ids|keys|values|records|results|rows|elements|entries|tags|items|users|events|files|nodes|edges|logs|names"
    r"|emails|roles)\Z",
    re.IGNORECASE,
)


class FieldEstimate(Record):
    """What one field of an answer costs."""

    name: str
    tokens: int
    is_collection: bool


class StaticProfile(Record):
    """How an answer may swell, from the names of its fields and its limits."""

    tool_name: str
    min_tokens: int
    max_tokens: int | float
    bounded: bool
    fields: tuple[FieldEstimate, ...]
    risk: str
    recommendations: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The profile under the original's names."""
        return {
            "toolName": self.tool_name,
            "minTokens": self.min_tokens,
            "maxTokens": self.max_tokens,
            "bounded": self.bounded,
            "fieldBreakdown": [
                {"name": each.name, "estimatedTokens": each.tokens, "isCollection": each.is_collection}
                for each in self.fields
            ],
            "risk": self.risk,
            "recommendations": list(self.recommendations),
        }


def risk_of(tokens: float, thresholds: Sequence[float] = THRESHOLDS) -> str:
    """The class of a number of tokens."""
    return RISKS[sum(tokens > limit for limit in thresholds)]


def static_profile(
    tool_name: str,
    names: Sequence[str],
    limit: int | float | None,
    max_bytes: int | float | None,
    dialect: Dialect,
) -> StaticProfile:
    """The profile of a tool whose answers have fields of these names."""
    fields = tuple(
        FieldEstimate(name=name, tokens=ceil(_units(name) / 4) + 6, is_collection=_is_collection(name, dialect))
        for name in names
    )
    base = sum(each.tokens for each in fields)
    most: int | float
    if max_bytes is not None:
        most = ceil(max_bytes / _UNITS_PER_TOKEN)
    elif limit is not None:
        most = base * limit + _LIST_TOKENS
    else:
        most = base * _WORST_ITEMS
    bounded = max_bytes is not None or limit is not None
    risk = risk_of(most)
    floods = limit is None and any(each.is_collection for each in fields)
    advice = (
        (not bounded, "Add .agentLimit() to bound collection size"),
        (risk in ("high", "critical"), "Add .egressMaxBytes() to cap payload size"),
        (floods, "Collection fields detected without agentLimit — risk of context flooding"),
        (len(names) > _MANY_FIELDS, "Consider reducing schema field count (>15 fields adds cognitive load)"),
    )
    return StaticProfile(
        tool_name=tool_name,
        min_tokens=base + _OBJECT_TOKENS,
        max_tokens=most,
        bounded=bounded,
        fields=fields,
        risk=risk,
        recommendations=tuple(text for applies, text in advice if applies),
    )


def _is_collection(name: str, dialect: Dialect) -> bool:
    if dialect.rules == "schema-keys":  # the first releases
        return name.endswith("s") or "list" in name or "items" in name
    lower = name.lower()
    return bool(_COLLECTION.search(name)) or "list" in lower or "items" in lower


def aggregate_profiles(profiles: Sequence[StaticProfile]) -> dict[str, Any]:
    """The sum over a server, under the original's names."""
    unbounded = [each for each in profiles if not each.bounded]
    grave = {risk: [each for each in profiles if each.risk == risk] for risk in ("critical", "high")}
    worst = next((risk for risk in ("critical", "high") if grave[risk]), "medium" if unbounded else "low")
    return {
        "toolCount": len(profiles),
        "totalMinTokens": sum(each.min_tokens for each in profiles),
        "totalMaxTokens": sum(each.max_tokens for each in profiles),
        "unboundedToolCount": len(unbounded),
        "unboundedToolNames": [each.tool_name for each in unbounded],
        "overallRisk": worst,
        "criticalToolNames": [each.tool_name for each in grave["critical"]],
        "recommendations": [
            f"[{each.tool_name}] {text}"
            for each in (*grave["critical"], *grave["high"])
            for text in each.recommendations
        ],
    }


def response_profile(  # noqa: PLR0913  the last two have a usual value
    tool_name: str,
    action: str | None,
    blocks: Sequence[Mapping[str, Any]],
    overhead_blocks: int,
    dialect: Dialect,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    max_overhead: float = _MAX_OVERHEAD,
) -> dict[str, Any]:
    """What one answer costs, under the original's names; an infinite ratio stays infinite here."""
    first_releases = dialect.rules == "schema-keys"
    texts = [str(each.get("text") or "") for each in blocks]
    costs = [estimated_tokens(text) for text in texts]
    total = sum(costs)
    ours = costs[:overhead_blocks] if first_releases else costs[len(costs) - min(overhead_blocks, len(costs)) :]
    overhead = sum(ours) if overhead_blocks > 0 else 0
    data = total - overhead
    ratio = overhead / data if data > 0 else inf if overhead > 0 and not first_releases else 0.0
    risk = risk_of(total, thresholds)
    return {
        "toolName": tool_name,
        "actionKey": action,
        "estimatedTokens": total,
        "blockCount": len(blocks),
        "blocks": [
            {"type": each["type"], "estimatedTokens": cost, "bytes": len(text.encode("utf-8", "replace"))}
            for each, cost, text in zip(blocks, costs, texts, strict=True)
        ],
        "overheadTokens": overhead,
        "dataTokens": data,
        "overheadRatio": ratio,
        "risk": risk,
        "advisory": _advisory(tool_name, total, risk, ratio, max_overhead),
    }


def _advisory(tool_name: str, tokens: int, risk: str, ratio: float, max_overhead: float) -> str | None:
    if risk == "critical":
        return (
            f'COGNITIVE OVERLOAD: Tool "{tool_name}" response estimated at {tokens} tokens. This will consume '
            "significant context window space. Consider adding agentLimit() or egressMaxBytes()."
        )
    if risk == "high":
        return (
            f'HIGH TOKEN DENSITY: Tool "{tool_name}" response estimated at {tokens} tokens. Consider reducing '
            "response verbosity or adding pagination."
        )
    if ratio > max_overhead:
        share = "Infinity" if isinf(ratio) else str(floor(ratio * 100 + 0.5))
        return (
            f'OVERHEAD WARNING: Tool "{tool_name}" has {share}% overhead ratio. System rules and UI decorators are '
            "consuming significant context."
        )
    return None


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
