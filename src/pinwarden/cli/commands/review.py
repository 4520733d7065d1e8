"""Go through the changes that the gateway holds back, one by one: see the difference, then approve, reject or skip.

Needs a terminal. Scripts use pinwarden review list, show, approve and reject.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import add_approval_arguments, approver_of, this_project
from pinwarden.cli.state_arguments import add_state_argument, state_from
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.flows.gateway.state import GatewayState
    from pinwarden.flows.lock.locking import Approver
    from pinwarden.flows.project import Project

_QUESTION = "approve (a), reject (r), skip (s), quit (q)? "


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--server", metavar="NAME", help="only changes of this server")
    add_state_argument(parser)
    add_approval_arguments(parser)


def run(args: Namespace) -> int:
    """Show, ask, decide, for each change that waits."""
    project = this_project()
    with state_from(args, project) as state:
        return _go_through(args, state, project)


def _go_through(args: Namespace, state: GatewayState, project: Project) -> int:
    from pinwarden.flows.gateway.reviewing import list_reviews

    listed = list_reviews(state, server=args.server)
    if not listed.facts["reviews"]:
        return emit(listed, "text")
    if not sys.stdin.isatty():
        raise PinwardenError(
            "USAGE", "a review needs a terminal", hint="In scripts: pinwarden review list, show, approve, reject."
        )
    approver = approver_of(args)
    for each in listed.facts["reviews"]:
        if not _decide(state, project, each["name"], approver):
            break
    return 0


def _decide(state: GatewayState, project: Project, name: str, approver: Approver) -> bool:
    """One change. Whether to go on."""
    from pinwarden.adapters.clock import now
    from pinwarden.flows.gateway.reviewing import approve_reviews, reject_reviews, show_review

    _, report = show_review(state, project, name)
    sys.stdout.write(f"\n{report.subject}\n")
    emit(report, "text")
    answer = _asked()
    if answer == "q":
        return False
    try:
        # By the whole name, which is a digest of what was shown: what changed since is not approved.
        if answer == "a":
            emit(replace(approve_reviews(state, project, [name], approver, now()), rows=()), "text")
        elif answer == "r":
            emit(replace(reject_reviews(state, [name], approver, now()), rows=()), "text")
    except PinwardenError as err:
        if err.code != "REVIEW_STALE":
            raise
        sys.stderr.write(f"{err.message}\n")
    return True


def _asked() -> str:
    while True:
        sys.stderr.write(_QUESTION)
        sys.stderr.flush()
        line = sys.stdin.readline()
        answer = line.strip().lower()[:1]
        if not line or answer in ("a", "r", "s", "q"):
            return answer or "q"
