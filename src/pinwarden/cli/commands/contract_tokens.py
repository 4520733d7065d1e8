"""Show what each tool of a server costs in every conversation, before any of them is called.

Counted by tiktoken where it is installed with its tables, else by a formula (length / 3.5). With a budget the exit
code is 1 when it is exceeded.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.contract_arguments import add_budget_arguments, add_server_arguments, observed_by
from pinwarden.cli.output import add_format_argument, emit

if TYPE_CHECKING:
    from pinwarden.core.report import Report

TAKES_COMMAND = True
_WIDEST_BAR = 40


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_budget_arguments(parser)
    add_server_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Count and report."""
    from pinwarden.contract.cost_report import Budget, cost_report

    observed = observed_by(args)
    report = cost_report(observed.name, observed.extension.surface, Budget(total=args.budget, tool=args.tool_budget))
    if args.format == "text":
        sys.stdout.write(_chart(report))
    return emit(report, args.format)


def _chart(report: Report) -> str:
    """A bar for each tool, the dearest first."""
    from pinwarden.cli.layout import table

    costs: dict[str, int] = dict(report.facts["tools"])
    if report.facts["instructions"]:
        costs["(instructions)"] = report.facts["instructions"]
    most = max(costs.values(), default=1) or 1
    total = sum(costs.values()) or 1
    return table(
        ("tool", "tokens", "share", ""),
        [
            (name, f"{cost:6}", f"{100 * cost / total:4.0f}%", "█" * max(1, round(_WIDEST_BAR * cost / most)))
            for name, cost in costs.items()
        ],
    )
