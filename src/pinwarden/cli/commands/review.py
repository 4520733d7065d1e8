"""Go through the changes that the gateway holds back, one by one: see the difference, then approve, reject or skip.

Needs a terminal. Scripts use pinwarden review list, show, approve and reject.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.layout import told
from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import add_approval_arguments, approver_of, this_project
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project

_QUESTION = "reject (r), definition (d), skip (s), quit (q)? "
_ANSWERS = {"a": "approved", "r": "rejected", "s": "skipped"}
_WORDS = {"approve": "a", "reject": "r", "definition": "d", "skip": "s", "quit": "q"}
_ABOUT_ONE = ("REVIEW_STALE", "SURFACE_INVALID", "LOCK_MISSING", "LOCK_BUSY", "LOCK_TAMPERED", "SERVER_NOT_LOCKED")
"""Errors that concern one change: the others can still be decided about."""


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--server", metavar="NAME", help="only changes of this server")
    add_state_argument(parser)
    add_approval_arguments(parser)
    parser.set_defaults(why="")  # asked for each decision, unless it is given for all


def run(args: Namespace) -> int:
    """Show, ask, decide, for each change that waits."""
    project = this_project()
    with state_to_read_from(args, project) as state:
        return _go_through(args, state, project)


def _go_through(args: Namespace, state: GatewayState, project: Project) -> int:
    from pinwarden.core.report import counted
    from pinwarden.gateway.review import list_reviews

    listed = list_reviews(state, server=args.server)
    names = [each["name"] for each in listed.facts["reviews"]]
    if not names:
        return emit(listed, "text")
    if not sys.stdin.isatty():
        raise PinwardenError(
            "USAGE", "a review needs a terminal", hint="In scripts: pinwarden review list, show, approve, reject."
        )
    approver = approver_of(args)
    decided = dict.fromkeys(_ANSWERS.values(), 0)
    for place, name in enumerate(names, 1):
        answer = _decide(state, project, name, approver, heading=f"{place} of {len(names)}  ")
        if answer == "q":
            break
        decided[_ANSWERS[answer]] += 1
    waiting = counted(len(list_reviews(state, server=args.server).facts["reviews"]), "change")
    sys.stdout.write(f"\n{decided['approved']} approved, {decided['rejected']} rejected; {waiting} still to review\n")
    return 0


def _decide(state: GatewayState, project: Project, name: str, approver: Approver, heading: str) -> str:
    """One change; what was answered, and "s" if nothing came of it."""
    from pinwarden.cli.review_view import print_review
    from pinwarden.gateway.review import show_review

    try:
        _, report = show_review(state, project, name)
        sys.stdout.write("\n")
        print_review(report, heading=heading)
        answer = _asked(report)
        if answer in ("a", "r"):
            why = approver.why or _reason(needed=answer == "a" and report.facts["review"]["level"] == "critical")
            if not why:
                return "q"
            _write(state, project, name, answer, replace(approver, why=why))
    except PinwardenError as err:
        if err.code not in _ABOUT_ONE:
            raise
        sys.stderr.write(told(f"{name}: {err.message} [{err.code}]"))
        return "s"
    return answer


def _write(state: GatewayState, project: Project, name: str, answer: str, approver: Approver) -> None:
    """By the whole name, which is a digest of what was shown: what changed since is not approved."""
    from pinwarden.gateway.review import approve_reviews, reject_reviews
    from pinwarden.system.clock import now

    if answer == "a":
        # The warnings were shown with the definition.
        report = approve_reviews(state, project, [name], replace(approver, approves_warnings=True), now())
    else:
        report = reject_reviews(state, [name], approver, now())
    emit(replace(report, rows=()), "text")


def _asked(report: Report) -> str:
    from pinwarden.cli.review_view import print_definition

    can_be_approved = report.facts["approval_goes_to"] is not None
    while True:
        line = _typed(f"approve (a), {_QUESTION}" if can_be_approved else _QUESTION)
        typed = line.strip().lower()
        answer = _WORDS.get(typed, typed)  # only whole words: "abort" is no approval
        if answer == "d":
            print_definition(report)
        elif not line or answer == "q":
            return "q"
        elif answer in _ANSWERS and (can_be_approved or answer != "a"):
            return answer


def _reason(*, needed: bool) -> str:
    """Why; empty if the terminal ended, and then nothing is decided."""
    from pinwarden.gateway.review import UNSAID

    while line := _typed("why? " if needed else f"why ({UNSAID})? "):
        if line.strip() not in ("", UNSAID):
            return line.strip()
        if not needed:
            return UNSAID
    return ""


def _typed(question: str) -> str:
    """A line from the terminal; empty at its end."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()
