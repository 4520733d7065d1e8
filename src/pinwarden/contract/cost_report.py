"""What a server costs in every conversation, what it cost when it was locked, and what it may cost."""

from __future__ import annotations

from typing import Any

from pinwarden.contract.costs import Costs, costs_of
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Report, Row, kind_reasons, kind_table, plural, row_facts
from pinwarden.surface.surface import Surface

COST_KINDS: FindingKinds = kind_table(
    review=(("over_budget", "What the tools cost in every conversation is more than the budget allows."),)
)


class Budget(Record):
    """What the tools may cost in every conversation, in tokens. None is no limit."""

    total: int | None = None
    tool: int | None = None


class CostChange(Record):
    """The costs of a server now, and as it was locked if its texts are known."""

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
        """The totals, and what each tool costs."""
        return {
            "total": self.now.total,
            "before": None if self.before is None else self.before.total,
            "countedBy": self.counted_by,
            "instructions": self.now.instructions,
            "tools": {each.name: each.total for each in self.now.tools},
        }


def cost_change(before: Surface | None, now: Surface) -> CostChange:
    """Count both with the same tokenizer."""
    from pinwarden.contract.tokenizer import tokenizer

    counting = tokenizer()
    return CostChange(
        now=costs_of(now, counting.count),
        before=None if before is None else costs_of(before, counting.count),
        counted_by=counting.name,
    )


def over_budget(server: str, costs: CostChange, budget: Budget) -> tuple[Row, ...]:
    """What costs more than it may."""
    tools = [("tool", each.name, each.total, budget.tool) for each in costs.now.tools]
    return tuple(
        Row(
            code="over_budget",
            severity="review",
            entity=entity,
            name=name,
            path="",
            message=f"costs {cost} tokens in every conversation, {cost - most} more than allowed ({costs.counted_by})",
        )
        for entity, name, cost, most in (("server", server, costs.now.total, budget.total), *tools)
        if most is not None and cost > most
    )


def cost_report(server: str, surface: Surface, budget: Budget) -> Report:
    """What every tool costs, and what costs too much."""
    costs = cost_change(None, surface)
    rows = over_budget(server, costs, budget)
    return Report(
        command="contract tokens",
        subject=server,
        summary=f"{costs.now.total} tokens in every conversation for {plural(len(costs.now.tools), 'tool')}",
        exit_code=EXIT_REFUSED if rows else EXIT_CLEAN,
        rows=rows,
        notes=(f"counted by: {costs.counted_by}",),
        facts={**costs.to_json(), "findings": [row_facts(row) for row in rows]},
        rule_texts=kind_reasons(COST_KINDS),
    )
