"""Token cost of a server's tools in every conversation: names, texts and schemas, before any call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons, plural, row_to_json
from pinwarden.surface.surface import TOOL, Surface

_SENT_MEMBERS = ("name", "title", "description", "inputSchema", "annotations")
"""The members that hosts send to the model before any call."""


class ToolCost(Record):
    """The cost of one tool, in tokens."""

    name: str
    description: int
    schema: int
    total: int


class Costs(Record):
    """The cost of a server, in tokens."""

    tools: tuple[ToolCost, ...]
    instructions: int

    @property
    def total(self) -> int:
        """All tools and the instructions."""
        return sum(tool.total for tool in self.tools) + self.instructions


def estimated_tokens(text: str) -> int:
    """MCP Fusion's formula: one token per 3.5 UTF-16 code units, rounded up."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return -(-units * 2 // 7)


def costs_of(surface: Surface, count: Callable[[str], int] = estimated_tokens) -> Costs:
    """The cost of every tool that has a digest, most expensive first."""
    tools = [_cost(item.value, count) for item in surface.items_of_kind(TOOL) if item.digest is not None]
    instructions = (surface.server or {}).get("instructions")
    return Costs(
        tools=tuple(sorted(tools, key=lambda tool: (-tool.total, tool.name))),
        instructions=count(instructions) if isinstance(instructions, str) else 0,
    )


def _cost(tool: dict[str, object], count: Callable[[str], int]) -> ToolCost:
    sent = {name: tool[name] for name in _SENT_MEMBERS if name in tool}
    description = tool.get("description")
    return ToolCost(
        name=str(tool["name"]),
        description=count(description) if isinstance(description, str) else 0,
        schema=count(canonicalize(tool["inputSchema"]).decode()) if "inputSchema" in tool else 0,
        total=count(canonicalize(sent).decode()),
    )


_ENCODING = "o200k_base"


class Tokenizer(Record):
    """A counting function, and its name for the report."""

    name: str
    count: Callable[[str], int]


def tokenizer() -> Tokenizer:
    """The best tokenizer available offline: tiktoken if its tables are on this machine, else the estimate."""
    try:
        import tiktoken
        import tiktoken.load

        original_reader, tiktoken.load.read_file = tiktoken.load.read_file, _refuse
        try:
            encoding = tiktoken.get_encoding(_ENCODING)
        finally:
            tiktoken.load.read_file = original_reader
    except Exception:  # noqa: BLE001 - tiktoken or its tables are not installed; use the formula
        return Tokenizer(name="formula (length / 3.5)", count=estimated_tokens)
    return Tokenizer(name=f"tiktoken {_ENCODING}", count=lambda text: len(encoding.encode_ordinary(text)))


def _refuse(*_: object) -> NoReturn:
    raise OSError("tokenizer tables are not downloaded")


COST_KINDS: FindingKinds = build_kind_table(
    review=(("over_budget", "The tools cost more tokens in every conversation than the budget allows."),)
)


class TokenBudget(Record):
    """How many tokens the tools may cost in every conversation. None means no limit."""

    total: int | None = None
    tool: int | None = None


class CostChange(Record):
    """A server's costs now and, if the lock has its texts, when it was locked."""

    now: Costs
    before: Costs | None
    counted_by: str

    def notes(self) -> tuple[str, ...]:
        """The change in a sentence."""
        if self.before is None or self.before.total == self.now.total:
            return ()
        change = self.now.total - self.before.total
        return (f"{self.now.total} tokens in every conversation, {change:+d} since the lock ({self.counted_by})",)

    def to_json(self) -> dict[str, Any]:
        """The totals, and the cost of each tool."""
        return {
            "total": self.now.total,
            "before": None if self.before is None else self.before.total,
            "countedBy": self.counted_by,
            "instructions": self.now.instructions,
            "tools": {tool.name: tool.total for tool in self.now.tools},
        }


def cost_change(before: Surface | None, now: Surface) -> CostChange:
    """Count both surfaces with the same tokenizer."""

    counting = tokenizer()
    return CostChange(
        now=costs_of(now, counting.count),
        before=None if before is None else costs_of(before, counting.count),
        counted_by=counting.name,
    )


def over_budget(server: str, costs: CostChange, budget: TokenBudget) -> tuple[Row, ...]:
    """The rows for a server and tools over budget."""
    tools = [("tool", tool.name, tool.total, budget.tool) for tool in costs.now.tools]
    return tuple(
        Row(
            code="over_budget",
            severity="review",
            entity=entity,
            name=name,
            path="",
            message=f"costs {cost} tokens in every conversation, {cost - limit} more than allowed ({costs.counted_by})",
        )
        for entity, name, cost, limit in (("server", server, costs.now.total, budget.total), *tools)
        if limit is not None and cost > limit
    )


def cost_report(server: str, surface: Surface, budget: TokenBudget) -> Report:
    """The report of ``contract tokens``."""
    costs = cost_change(None, surface)
    rows = over_budget(server, costs, budget)
    return Report(
        command="contract tokens",
        subject=server,
        summary=f"{costs.now.total} tokens in every conversation for {plural(len(costs.now.tools), 'tool')}",
        exit_code=EXIT_REFUSED if rows else EXIT_CLEAN,
        rows=rows,
        notes=(f"counted by: {costs.counted_by}",),
        facts={**costs.to_json(), "findings": [row_to_json(row) for row in rows]},
        rule_texts=collect_kind_reasons(COST_KINDS),
    )
