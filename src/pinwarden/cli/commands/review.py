"""``review``: see the changes that the gateway blocked, and decide on them.

You cannot approve everything at once, or all changes of a server: a new change could arrive between reading and
deciding. A decision names its changes, and the name of a change is a digest of its content.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.cli.approvals import APPROVED, SKIPPED
from pinwarden.cli.commands import command
from pinwarden.cli.global_arguments import colour_wanted
from pinwarden.cli.output import add_format_argument, emit, format_definition
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_database_argument,
    add_warnings_argument,
    approver_from,
    find_current_project,
    read_database,
)
from pinwarden.cli.questions import QUIT, ask, read_line, show_in_pages
from pinwarden.cli.render.board import describe_age
from pinwarden.cli.render.surface_text import read_report_changes, render_changes
from pinwarden.cli.render.text import render_rows, wrap
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.text import plural
from pinwarden.system.clock import wall_clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.core.report import Report
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project

_OUTCOMES = {"approve": APPROVED, "reject": "rejected", "skip": SKIPPED}
"""What becomes of a change, by the answer."""
_ERRORS_OF_ONE_CHANGE = (
    "REVIEW_STALE",
    "SURFACE_INVALID",
    "LOCK_MISSING",
    "LOCK_BUSY",
    "LOCK_TAMPERED",
    "SERVER_NOT_LOCKED",
    "FOUR_EYES",
)
"""Errors about one change, after which a person can still decide on the other changes."""
_LEVELS = ("info", "review", "critical")
_MAX_PATH = 40  # longer paths in the list are cut to this many characters
_MAX_NAMES_BYTES = 1 << 20  # enough for thirty thousand names, more than can be pending
_LABEL_WIDTH = 9  # so that a digest next to its label fits into eighty columns


def _configure_review(parser: ArgumentParser) -> None:
    parser.add_argument("--server", metavar="NAME", help="only changes of this server")
    add_database_argument(parser)
    add_approval_arguments(parser)
    parser.set_defaults(why="")  # without --why, Pinwarden asks for a reason at each decision


@command(_configure_review, prints_report=False)
def review(args: Namespace) -> int:
    """Go through the changes that the gateway blocked, one by one: see the difference, then approve, reject or skip.

    Needs a terminal. In scripts, use pinwarden review list, show, approve and reject.

    Examples:
      pinwarden review
      pinwarden review --server notes
    """
    project = find_current_project()
    with read_database(args, project) as state:
        return _review_all(args, state, project)


def _configure_review_list(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also list decided changes, and changes that the server no longer serves"
    )
    parser.add_argument("--server", metavar="NAME", help="only changes of this server")
    parser.add_argument(
        "--level", action="append", default=[], choices=_LEVELS, help="only changes of this severity; repeatable"
    )
    parser.add_argument(
        "--names", action="store_true", help="print only the names, one per line, for review approve --names-from"
    )
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_review_list)
def review_list(args: Namespace) -> int:
    """List the changes that the gateway blocked and that are pending review.

    Examples:
      pinwarden review list
      pinwarden review list --server notes --level critical
      pinwarden review list --all --format json
    """
    from pinwarden.gateway.review import list_reviews

    with read_database(args) as state:
        report = list_reviews(state, include_decided=args.all, server=args.server, levels=args.level)
    if args.names:
        if args.format != "text":
            raise PinwardenError("USAGE", "--names prints text only", hint="Leave out --format.")
        sys.stdout.write("".join(f"{review['name']}\n" for review in report.facts["reviews"]))
        return report.exit_code
    if args.format == "text" and report.facts["reviews"]:
        sys.stdout.write("".join(map(_render_listed, report.facts["reviews"])))
    return emit(report, args.format)


def _configure_review_show(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the change, as pinwarden review list prints it")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_review_show)
def review_show(args: Namespace) -> int:
    """Show what approving a blocked change would change, and the full definition that would be approved.

    Examples:
      pinwarden review show NAME
    """
    from pinwarden.gateway.review import show_review

    project = find_current_project()
    with read_database(args, project) as state:
        report = show_review(state, project, args.name)
    if args.format != "text":
        return emit(report, args.format)
    sys.stdout.write(_render_review(report, definition=True))
    return report.exit_code


def _configure_review_approve(parser: ArgumentParser) -> None:
    _configure_decision(parser)
    add_warnings_argument(parser)


@command(_configure_review_approve)
def review_approve(args: Namespace) -> int:
    """Approve blocked changes: exactly what pinwarden review show prints under these names.

    The approval is written into the lock, or into the database for servers without a lock entry. Gateways that use this
    lock apply it at once, as do other gateways with the same server and database; the command lists them. If one of
    several names cannot be approved, none is. Text that pinwarden scan warns about needs --why for names on the command
    line, or --approve-warnings.

    Examples:
      pinwarden review approve NAME --why "reviewed the new wording"
    """
    from pinwarden.gateway.review import approve_reviews, has_reason
    from pinwarden.project.approval_candidate import NAMED_WITH_REVIEW
    from pinwarden.system.clock import now

    project, approver = find_current_project(), approver_from(args, NAMED_WITH_REVIEW)
    if has_reason(approver) and not args.names_from:
        # A name stands for one definition, so a reason given for it also covers its warnings.
        approver = replace(approver, approves_warnings=True)
    with read_database(args, project) as state:
        report = approve_reviews(state, project, _read_names(args), approver, now())
    return emit(report, args.format)


def _configure_decision(parser: ArgumentParser) -> None:
    """Add the options of every decision: names of changes, database, approver and reason."""
    parser.add_argument("name", nargs="*", help="names of changes, as pinwarden review list prints them")
    parser.add_argument(
        "--names-from",
        metavar="FILE",
        help="file with names, one per line, as pinwarden review list --names prints them; - for stdin",
    )
    add_database_argument(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)


@command(_configure_decision)
def review_reject(args: Namespace) -> int:
    """Reject blocked changes: they stay blocked, and the same content is not put up for review again.

    Examples:
      pinwarden review reject NAME --why "asks for private files"
    """
    from pinwarden.gateway.review import reject_reviews
    from pinwarden.project.approval_candidate import NAMED_WITH_REVIEW
    from pinwarden.system.clock import now

    with read_database(args) as state:
        report = reject_reviews(state, _read_names(args), approver_from(args, NAMED_WITH_REVIEW), now())
    return emit(report, args.format)


@command(_configure_decision)
def review_reopen(args: Namespace) -> int:
    """Undo decisions: a rejected change is pending review again, an approved one is blocked again.

    The previously approved definition is restored, in the lock or in the database. The audit log records who undid
    what, and why.

    Examples:
      pinwarden review reopen NAME
    """
    from pinwarden.gateway.review import reopen_reviews
    from pinwarden.project.approval_candidate import NAMED_WITH_REVIEW
    from pinwarden.system.clock import now

    project = find_current_project()
    with read_database(args, project) as state:
        report = reopen_reviews(state, project, _read_names(args), approver_from(args, NAMED_WITH_REVIEW), now())
    return emit(report, args.format)


def _review_all(args: Namespace, state: GatewayState, project: Project) -> int:
    from pinwarden.gateway.review import list_reviews

    listed = list_reviews(state, server=args.server)
    names = [review["name"] for review in listed.facts["reviews"]]
    if not names:
        return emit(listed, "text")
    if not sys.stdin.isatty():
        raise PinwardenError(
            "USAGE",
            "a review needs a terminal",
            hint="In scripts, use pinwarden review list, show, approve and reject.",
        )
    decided, _ = _decide_all(state, project, names, approver_from(args))
    pending = plural(len(list_reviews(state, server=args.server).facts["reviews"]), "change")
    sys.stdout.write(f"\n{decided['approved']} approved, {decided['rejected']} rejected; {pending} still to review\n")
    return 0


def decide_each(state: GatewayState, project: Project, names: Sequence[str], approver: Approver) -> str:
    """Decide on each of these changes. Returns ``approved`` if all are, ``skipped``, or ``QUIT``."""
    decided, finished = _decide_all(state, project, names, approver)
    if not finished:
        return QUIT
    return APPROVED if decided[APPROVED] == len(names) else SKIPPED


def approve_all(state: GatewayState, project: Project, names: Sequence[str], approver: Approver) -> str:
    """Approve these changes, which were shown with their warnings. A critical one needs a reason."""
    from pinwarden.gateway.review import approve_reviews, has_reason
    from pinwarden.system.clock import now

    if not has_reason(approver) and any(state.reviews.get(name).level == "critical" for name in names):
        reason = _ask_reason(needed=True)
        if not reason:
            return QUIT
        approver = replace(approver, why=reason)
    report = approve_reviews(state, project, names, replace(approver, approves_warnings=True), now())
    emit(replace(report, rows=()), "text")
    return APPROVED


def _decide_all(
    state: GatewayState, project: Project, names: Sequence[str], approver: Approver
) -> tuple[dict[str, int], bool]:
    """Ask about each change. Returns how many changes got each decision, and False if the person quit."""
    decided = dict.fromkeys(_OUTCOMES.values(), 0)
    for position, name in enumerate(names, 1):
        answer = _decide(state, project, name, approver, heading=f"{position} of {len(names)}  ")
        if answer == QUIT:
            return decided, False
        decided[_OUTCOMES[answer]] += 1
    return decided, True


def _decide(state: GatewayState, project: Project, name: str, approver: Approver, heading: str) -> str:
    """Show one change and ask about it. Returns the answer; ``skip`` if the decision failed."""
    from pinwarden.gateway.review import show_review

    try:
        report = show_review(state, project, name)
        sys.stdout.write("\n")
        if show_in_pages(_render_review(report, heading=heading)) == QUIT:
            return QUIT
        answer = _ask_decision(report)
        if answer in ("approve", "reject"):
            is_critical = report.facts["review"]["level"] == "critical"
            reason = approver.why or _ask_reason(needed=answer == "approve" and is_critical)
            if not reason:
                return QUIT
            _record_decision(state, project, name, answer, replace(approver, why=reason))
    except PinwardenError as err:
        if err.code not in _ERRORS_OF_ONE_CHANGE:
            raise
        sys.stderr.write(wrap(f"{name}: {err.message} [{err.code}]"))
        return "skip"
    return answer


def _record_decision(state: GatewayState, project: Project, name: str, answer: str, approver: Approver) -> None:
    """Decide by the full name, which is a digest of the displayed definition, so that no later change is approved."""
    from pinwarden.gateway.review import approve_reviews, reject_reviews
    from pinwarden.system.clock import now

    if answer == "approve":
        # The warnings were shown together with the definition.
        report = approve_reviews(state, project, [name], replace(approver, approves_warnings=True), now())
    else:
        report = reject_reviews(state, [name], approver, now())
    emit(replace(report, rows=()), "text")


def _ask_decision(report: Report) -> str:
    """Ask about one change. The answer ``show`` prints its complete definition, and then asks again."""
    can_be_approved = report.facts["approval_goes_to"] is not None
    question = "Approve this change?" if can_be_approved else "Reject this change?"
    choices = (*(("approve",) if can_be_approved else ()), "reject", "show", "skip", QUIT)
    while (answer := ask(question, choices, None)) == "show":
        if show_in_pages(_render_definition(report), can_go_back=True) == QUIT:
            return QUIT
    return answer


def _ask_reason(*, needed: bool) -> str:
    """Return the reason; empty if the terminal was closed, and then nothing is decided."""
    from pinwarden.gateway.review import DEFAULT_REASON

    while line := read_line("why? " if needed else f"why ({DEFAULT_REASON})? "):
        if line.strip() not in ("", DEFAULT_REASON):
            return line.strip()
        if not needed:
            return DEFAULT_REASON
    return ""


def _render_listed(review: dict[str, Any]) -> str:
    """Return a change of the list: its name, which approve and reject need in full, then what and where it is."""
    item = f"{review['server']}: {review['entity']} {review['item']}"
    seen = f"last seen {describe_age(review['last_seen'], wall_clock())}"
    details = f"{_format_state(review)}, {seen}, {_describe_baseline(review['baseline'])}: "
    details += review["reason"] or review["code"]
    return wrap(f"{review['name']}  {review['level'] or '-'}  {item}") + wrap(details, label="  ")


def _render_review(report: Report, *, heading: str = "", definition: bool = False) -> str:
    """Return one change. Includes the definition if ``definition`` is set or the change cannot be approved."""
    changes = read_report_changes(report)
    others = report.rows[len(changes) :]  # the warnings of the scan, or why it cannot be approved
    parts = (
        wrap(f"{heading}{report.subject}"),
        *(wrap(text, label=f"{name:{_LABEL_WIDTH}}") for name, text in _describe(report)),
        render_changes(changes) if changes else "",
        render_rows(others, colour=colour_wanted()),
        _render_definition(report) if definition or report.facts["approval_goes_to"] is None else "",
        wrap(report.summary),
    )
    return "".join(parts)


def _render_definition(report: Report) -> str:
    return f"  definition, as the server sent it:\n{format_definition(report.facts['definition'])}"


def _describe(report: Report) -> list[tuple[str, str]]:
    review = report.facts["review"]
    level = f"{review['level']}: " if review["level"] else ""
    first = review.get("first_approval")
    return [
        ("blocked", f"{level}{review['reason'] or 'it differs from what was approved'} ({review['code']})"),
        ("approved", ", ".join(review["expected"]) or "nothing with this name"),
        ("served", review["digest"] or "has no digest"),
        ("seen", f"first {review['opened']}, last {review['last_seen']}"),
        ("approval", report.facts["approval_goes_to"] or "not possible, because the item cannot be identified"),
        *([("1 of 2", f"approved by {first['by']}: {first['why']}")] if first else []),
    ]


def _format_state(review: dict[str, Any]) -> str:
    if first := review.get("first_approval"):
        return f"{review['state']}, 1 of 2 approvals (by {first['by']})"
    return f"{review['state']} by {review['decided_by']}" if review["decided_by"] else str(review["state"])


def _describe_baseline(text: str) -> str:
    from pinwarden.gateway.baselines import Baseline

    baseline = Baseline.parse(text)
    return (replace(baseline, name=_shorten_path(baseline.name)) if baseline.is_lock else baseline).describe()


def _shorten_path(text: str) -> str:
    path = Path(text)
    displayed = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else text
    # Projects differ at the end of the path.
    return displayed if len(displayed) <= _MAX_PATH else f"…{displayed[1 - _MAX_PATH :]}"


def _read_names(args: Namespace) -> list[str]:
    """Return the names on the command line and in the file."""
    names = [*args.name, *(_read_names_file(args.names_from) if args.names_from else ())]
    if not names:
        problem = f"{args.names_from} contains no names" if args.names_from else "give the names of changes"
        raise PinwardenError("USAGE", problem, hint="pinwarden review list prints the names.")
    return names


def _read_names_file(file: str) -> list[str]:
    if file == "-":
        data = sys.stdin.buffer.read(_MAX_NAMES_BYTES + 1)
    else:
        from pinwarden.system.files import read_file

        data = read_file(Path(file), _MAX_NAMES_BYTES)
    if len(data) > _MAX_NAMES_BYTES:
        raise PinwardenError("USAGE", f"--names-from: more than {_MAX_NAMES_BYTES} bytes")
    return [line.strip() for line in data.decode("utf-8", "backslashreplace").splitlines() if line.strip()]
