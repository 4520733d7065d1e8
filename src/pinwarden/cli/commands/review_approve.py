"""Approve changes that the gateway holds back: exactly what pinwarden review show prints under these names.

The approval goes into the lock and the approved text beside it, or, for servers without a lock, into the store. Running
gateways with this lock take it over at once, and other gateways of the same database if they have the same server; the
command names them. Several names are approved together, or, if anything is wrong with one, none. Text that pinwarden
scan warns of is approved only with a reason for the names that were typed (--why), or with --approve-warnings.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import add_warnings_argument, approver_of, this_project
from pinwarden.cli.review_arguments import add_decision_arguments, names_from
from pinwarden.cli.state_arguments import state_to_read_from
from pinwarden.core.record import replace


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_decision_arguments(parser)
    add_warnings_argument(parser)


def run(args: Namespace) -> int:
    """Approve and report."""
    from pinwarden.gateway.review import approve_reviews, has_reason
    from pinwarden.project.approvable import REVIEW_NAMED
    from pinwarden.system.clock import now

    project, approver = this_project(), approver_of(args, REVIEW_NAMED)
    if has_reason(approver) and not args.names_from:
        # A name stands for one definition, so a reason for it is a decision about its warnings, too.
        approver = replace(approver, approves_warnings=True)
    with state_to_read_from(args, project) as state:
        report = approve_reviews(state, project, names_from(args), approver, now())
    return emit(report, args.format)
