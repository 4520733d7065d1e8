"""Take back decisions about changes: what was rejected waits again, and what was approved is withheld again.

In the place of an approved definition comes the one that was approved before it, in the lock or in the store; one that
was new is approved no more. Who takes back what, and why, is in the audit log.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import approver_of, this_project
from pinwarden.cli.review_arguments import add_decision_arguments, names_from
from pinwarden.cli.state_arguments import state_to_read_from


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_decision_arguments(parser)


def run(args: Namespace) -> int:
    """Take back and report."""
    from pinwarden.gateway.review import reopen_reviews
    from pinwarden.project.approvable import REVIEW_NAMED
    from pinwarden.system.clock import now

    project = this_project()
    with state_to_read_from(args, project) as state:
        report = reopen_reviews(state, project, names_from(args), approver_of(args, REVIEW_NAMED), now())
    return emit(report, args.format)
