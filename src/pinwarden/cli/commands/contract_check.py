"""Check in CI that a server still keeps the contract in its lockfile. Exit 1 on any change, 3 if it cannot be checked.

pinwarden contract check --server src/server.py
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.contract_arguments import (
    add_budget_arguments,
    add_lockfile_argument,
    add_server_arguments,
    observed_by,
)
from pinwarden.cli.output import add_report_arguments, emit_report

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lockfile_argument(parser)
    parser.add_argument("--compat", action="store_true", help="answer as the original does, its blind spots included")
    add_budget_arguments(parser)
    add_server_arguments(parser)
    add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Observe, compare and report."""
    from pinwarden.contract.check_report import check
    from pinwarden.contract.cost_report import Budget
    from pinwarden.contract.lock_command import locked_at, place_of

    place = place_of(args.lock)
    locked_at(place)
    observed = observed_by(args)
    budget = Budget(total=args.budget, tool=args.tool_budget)
    return emit_report(check(observed, place, compat=args.compat, budget=budget), args, about=[place.path])
