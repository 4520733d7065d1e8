"""Count the tokens that a server's tools cost in every conversation: names, descriptions and schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons, row_to_json
from pinwarden.core.text import plural
from pinwarden.surface.surface import TOOL, Surface

_SENT_MEMBERS = ("name", "title", "description", "inputSchema", "annotations")
"""The members of a tool that clients send to the model before any call."""


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
        """The tokens of all tools and of the instructions."""
        return sum(tool.total for tool in self.tools) + self.instructions


def estimate_tokens(text: str) -> int:
    """Estimate tokens by MCP Fusion's formula: one token per 3.5 UTF-16 code units, rounded up."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return -(-units * 2 // 7)


def compute_costs(surface: Surface, count: Callable[[str], int] = estimate_tokens) -> Costs:
    """Count the tokens of the instructions, and of every tool that has a digest, most expensive tool first."""
    tools = [_compute_tool_cost(item.value, count) for item in surface.items_of_kind(TOOL) if item.digest is not None]
    instructions = (surface.server or {}).get("instructions")
    return Costs(
        tools=tuple(sorted(tools, key=lambda tool: (-tool.total, tool.name))),
        instructions=count(instructions) if isinstance(instructions, str) else 0,
    )


def _compute_tool_cost(tool: dict[str, object], count: Callable[[str], int]) -> ToolCost:
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
    """A function that counts tokens, and its name for the report."""

    name: str
    count: Callable[[str], int]


def load_tokenizer() -> Tokenizer:
    """Load the best tokenizer that works offline: tiktoken if its tables are on this machine, otherwise a formula."""
    try:
        import tiktoken
        import tiktoken.load

        original_reader, tiktoken.load.read_file = tiktoken.load.read_file, _refuse_download
        try:
            encoding = tiktoken.get_encoding(_ENCODING)
        finally:
            tiktoken.load.read_file = original_reader
    except Exception:  # noqa: BLE001 - without tiktoken or its tables, use the formula
        return Tokenizer(name="formula (length / 3.5)", count=estimate_tokens)
    return Tokenizer(name=f"tiktoken {_ENCODING}", count=lambda text: len(encoding.encode_ordinary(text)))


def _refuse_download(*_: object) -> NoReturn:
    raise OSError("Pinwarden does not download tokenizer tables")


COST_KINDS: FindingKinds = build_kind_table(
    review=(("over_budget", "The tools cost more tokens in every conversation than the budget allows."),)
)


class TokenBudget(Record):
    """The tokens that all tools together, and each tool, may cost in every conversation. None means no limit."""

    total: int | None = None
    tool: int | None = None


class CostChange(Record):
    """The costs of a server now, and at the time of the lock (None if the lock has no surface)."""

    now: Costs
    before: Costs | None
    counted_by: str

    def build_notes(self) -> tuple[str, ...]:
        """Return a note about the change of the total, for the report; none if the total is the same."""
        if self.before is None or self.before.total == self.now.total:
            return ()
        change = self.now.total - self.before.total
        return (f"{self.now.total} tokens in every conversation, {change:+d} since the lock ({self.counted_by})",)

    def to_json(self) -> dict[str, Any]:
        """Convert the totals and the cost of each tool to JSON."""
        return {
            "total": self.now.total,
            "before": None if self.before is None else self.before.total,
            "countedBy": self.counted_by,
            "instructions": self.now.instructions,
            "tools": {tool.name: tool.total for tool in self.now.tools},
        }


def compare_costs(before: Surface | None, now: Surface) -> CostChange:
    """Count the tokens of both surfaces with the same tokenizer."""
    tokenizer = load_tokenizer()
    return CostChange(
        now=compute_costs(now, tokenizer.count),
        before=None if before is None else compute_costs(before, tokenizer.count),
        counted_by=tokenizer.name,
    )


def check_budget(server: str, costs: CostChange, budget: TokenBudget) -> tuple[Row, ...]:
    """Report the server and every tool that cost more tokens than the budget allows."""
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


def build_cost_report(server: str, surface: Surface, budget: TokenBudget) -> Report:
    """Count the tokens of a server, and build the report of ``pinwarden contract tokens``."""
    costs = compare_costs(None, surface)
    rows = check_budget(server, costs, budget)
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
