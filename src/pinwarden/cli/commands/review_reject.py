"""Reject changes that the gateway holds back: they stay withheld, and nobody is asked again about the same content."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import approver_of
from pinwarden.cli.review_arguments import add_decision_arguments, names_from
from pinwarden.cli.state_arguments import state_to_read_from


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_decision_arguments(parser)


def run(args: Namespace) -> int:
    """Reject and report."""
    from pinwarden.gateway.review import reject_reviews
    from pinwarden.project.approvable import REVIEW_NAMED
    from pinwarden.system.clock import now

    with state_to_read_from(args) as state:
        report = reject_reviews(state, names_from(args), approver_of(args, REVIEW_NAMED), now())
    return emit(report, args.format)
