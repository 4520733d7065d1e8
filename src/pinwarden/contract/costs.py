"""What a server's tools cost in every conversation, before any of them is called: their names, texts and schemas."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.canonical import canonicalize
from pinwarden.core.record import Record
from pinwarden.surface.surface import TOOL, Surface

_SHOWN = ("name", "title", "description", "inputSchema", "annotations")
"""What hosts put before the model. What is returned, and what only a host reads, comes later or never."""


class ToolCost(Record):
    """What one tool costs, in tokens."""

    name: str
    description: int
    schema: int
    total: int


class Costs(Record):
    """What a server costs, in tokens."""

    tools: tuple[ToolCost, ...]
    instructions: int

    @property
    def total(self) -> int:
        """All tools and the instructions."""
        return sum(each.total for each in self.tools) + self.instructions


def estimated_tokens(text: str) -> int:
    """The reference's formula: a token for every 3.5 UTF-16 code units, rounded up."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return -(-units * 2 // 7)


def costs_of(surface: Surface, count: Callable[[str], int] = estimated_tokens) -> Costs:
    """The cost of every tool that can be digested, the dearest first."""
    tools = [_cost(item.value, count) for item in surface.items_of_kind(TOOL) if item.digest is not None]
    instructions = (surface.server or {}).get("instructions")
    return Costs(
        tools=tuple(sorted(tools, key=lambda each: (-each.total, each.name))),
        instructions=count(instructions) if isinstance(instructions, str) else 0,
    )


def _cost(tool: dict[str, object], count: Callable[[str], int]) -> ToolCost:
    shown = {name: tool[name] for name in _SHOWN if name in tool}
    description = tool.get("description")
    return ToolCost(
        name=str(tool["name"]),
        description=count(description) if isinstance(description, str) else 0,
        schema=count(canonicalize(tool["inputSchema"]).decode()) if "inputSchema" in tool else 0,
        total=count(canonicalize(shown).decode()),
    )
