"""A tool's error, told together with what changed in its contract: the original's "self-healing".

Which changes belong to an action is a prefix match in the original, so an error of "rem" is told the changes of
"remove"; and the names of tool and action are not escaped. Both are so with ``compat`` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinwarden.contract.deltas import BREAKING, RISKY, ContractDiff, Delta, escaped, xml_text
from pinwarden.core.record import Record

_CLOSING = "</validation_error>"
_GRAVE = (BREAKING, RISKY)


class EnrichedError(Record):
    """An error and what was added to it."""

    original: str
    enriched: str
    delta_count: int
    tool_name: str

    def to_json(self) -> dict[str, Any]:
        """The result under the original's names."""
        return {
            "originalError": self.original,
            "enrichedError": self.enriched,
            "injected": self.delta_count > 0,
            "deltaCount": self.delta_count,
            "toolName": self.tool_name,
        }


def enrich_error(  # noqa: PLR0913  the last three have a usual value
    error: str,
    tool_name: str,
    action: str,
    diff: ContractDiff | None,
    *,
    all_severities: bool = False,
    at_most: int = 5,
    compat: bool = False,
) -> EnrichedError:
    """The error with the changes that may explain it, before the end of the last validation error in it."""
    found = [
        delta
        for delta in (diff.deltas if diff else ())
        if (all_severities or delta.severity in _GRAVE) and _concerns(delta, action, compat=compat)
    ][:at_most]
    if not found:
        return EnrichedError(original=error, enriched=error, delta_count=0, tool_name=tool_name)
    told = _told(*((tool_name, action) if compat else (escaped(tool_name), escaped(action))), found)
    place = error.rfind(_CLOSING)
    enriched = f"{error}\n{told}" if place < 0 else f"{error[:place]}\n{told}\n{error[place:]}"
    return EnrichedError(original=error, enriched=enriched, delta_count=len(found), tool_name=tool_name)


def _concerns(delta: Delta, action: str, *, compat: bool) -> bool:
    if "actions." not in delta.field:
        return True
    mine = f"actions.{action}"
    return mine in delta.field if compat else delta.field == mine or delta.field.startswith(f"{mine}.")


def _told(tool_name: str, action: str, deltas: Sequence[Delta]) -> str:
    return "\n".join(
        (
            "",
            "<contract_awareness>",
            f'  <system_note>IMPORTANT: The behavioral contract for tool "{tool_name}" has changed since your last '
            "calibration.</system_note>",
            f"  <action>{action}</action>",
            f"  <change_count>{len(deltas)}</change_count>",
            f"  <max_severity>{deltas[0].severity}</max_severity>",
            "",
            "  <instructions>",
            "    Review the contract changes below and adjust your next invocation accordingly.",
            "    These changes may explain why your previous arguments were rejected.",
            "  </instructions>",
            "",
            "  " + xml_text(deltas).replace("\n", "\n  "),
            "</contract_awareness>",
        )
    )
