"""``approve``: review and approve what servers offer: new servers, changes, updates, and what the gateway blocked."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_database_argument,
    add_project_arguments,
    add_warnings_argument,
    approver_from,
    find_current_project,
    list_client_ids,
    projects_in_scope,
    read_database,
)
from pinwarden.cli.render.text import wrap
from pinwarden.cli.server_arguments import add_probe_arguments, probe_options
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.text import plural
from pinwarden.project.approve import build_failure_report, format_approve_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pinwarden.core.report import Report
    from pinwarden.gateway.state import GatewayState
    from pinwarden.gateway.store.reviews import Review
    from pinwarden.project.approve import Approval
    from pinwarden.project.lock import Approver
    from pinwarden.project.servers_to_approve import ServerToApprove
    from pinwarden.project.skills_approve import SkillsToApprove


def _configure_approve(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock or in a client's file, or of skills")
    parser.add_argument("--all", action="store_true", help="every server and skill that is not approved")
    parser.add_argument("--client", metavar="CLIENT", help=f"only the entries for this client: {list_client_ids()}")
    parser.add_argument("--full", action="store_true", help="show complete definitions with their schemas")
    parser.add_argument("--yes", action="store_true", help="approve without asking")
    add_project_arguments(parser)
    add_database_argument(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


@command(_configure_approve)
def approve(args: Namespace) -> int:
    """Review what servers offer, or what changed since you approved them, and record your approval in the lock.

    Servers that a client's file has but the lock does not are locked, and so are the skills in the clients' folders. A
    server that several clients have is approved once for all of them. On a terminal you are asked before a server is
    started and before anything is written. In scripts, add --allow-execute to start servers, and --yes to approve. The
    exit code is 1 if something stays unapproved.

    Examples:
      pinwarden approve notes
      pinwarden approve --all
      pinwarden approve notes --allow-execute --yes --why "reviewed in ticket 42"
    """
    from pinwarden.cli.questions import can_ask
    from pinwarden.project.approval_candidate import CONFIRMED_ON_TERMINAL, CONFIRMED_WITH_YES
    from pinwarden.project.servers_to_approve import find_servers_to_approve, refuse_unknown_names
    from pinwarden.project.skills_approve import find_skills_to_approve

    if bool(args.server) == args.all:
        problem = "name servers or give --all, not both" if args.all else "name the servers to approve"
        raise PinwardenError("USAGE", problem, hint="For every server that is not approved: pinwarden approve --all")
    projects = projects_in_scope(args)
    skills = find_skills_to_approve(projects, args.server)
    names = [name for name in args.server if name not in skills.names]
    servers = find_servers_to_approve(projects, names, args.client) if names or args.all else ()
    interactive = not args.yes and args.format == "text" and can_ask()
    known_elsewhere = _find_blocked_elsewhere(args, names, servers) if interactive else ()
    refuse_unknown_names(projects, names, (*servers, *known_elsewhere), args.client)
    approver = approver_from(args, CONFIRMED_WITH_YES if args.yes else CONFIRMED_ON_TERMINAL)
    if interactive:
        return _approve_with_questions(args, (*servers, *known_elsewhere), skills, approver)
    return _approve_without_questions(args, servers, skills, approver)


def _find_blocked_elsewhere(
    args: Namespace, names: Sequence[str], servers: Sequence[ServerToApprove]
) -> tuple[ServerToApprove, ...]:
    """Return the named servers that are neither locked nor configured here, but whose changes a gateway blocked."""
    from pinwarden.gateway.review import find_pending_reviews
    from pinwarden.project.servers_to_approve import ServerToApprove

    missing = [name for name in names if not any(name == server.name for server in servers)]
    if not missing:
        return ()
    with read_database(args) as state:
        return tuple(
            ServerToApprove(name=name, parts=()) for name in missing if find_pending_reviews(state, name, None)
        )


def _approve_with_questions(
    args: Namespace, servers: Sequence[ServerToApprove], skills: SkillsToApprove, approver: Approver
) -> int:
    from pinwarden.cli.approvals import APPROVED, approve_at_terminal
    from pinwarden.cli.questions import QUIT
    from pinwarden.cli.skill_approvals import approve_skill_at_terminal

    agreed = 0
    for index, review in enumerate(skills.reviews):
        sys.stdout.write("\n" if index else "")
        answer = approve_skill_at_terminal(review, approver)
        if answer == QUIT:
            return _print_totals(agreed, len(skills.reviews) + len(servers))
        agreed += answer == APPROVED
    for name in sorted(skills.names - {review.name for review in skills.reviews}):
        sys.stdout.write(f"{name}: nothing to approve, the skill is as approved\n")
    if skills.names and not servers:
        return EXIT_CLEAN if agreed == len(skills.reviews) else EXIT_REFUSED
    with read_database(args) as state:
        chosen = [(server, _find_blocked(state, server)) for server in servers]
        if args.all:
            chosen = [(server, blocked) for server, blocked in chosen if blocked or server.needs_approval]
        approved = 0
        for index, (server, blocked) in enumerate(chosen):
            sys.stdout.write("\n" if index else "")
            if blocked and not server.needs_approval:
                answer = _decide_blocked(state, server, blocked, approver)
            else:
                answer = approve_at_terminal(server, probe_options(args), approver, full=args.full)
                _settle_reviews(state, server, approver)
            if answer == QUIT:
                break
            approved += answer == APPROVED
    return _print_totals(agreed + approved, len(skills.reviews) + len(chosen))


def _print_totals(approved: int, asked: int) -> int:
    if asked == 0:
        sys.stdout.write("nothing to approve: everything is approved\n")
    elif asked > 1:
        left = f", {asked - approved} not approved" if approved < asked else ""
        sys.stdout.write(f"\n{plural(approved, 'server')} approved{left}\n")
    return EXIT_CLEAN if approved == asked else EXIT_REFUSED


def _find_blocked(state: GatewayState, server: ServerToApprove) -> tuple[tuple[Review, ...], ...]:
    """Return the changes of the server that gateways blocked, grouped by the lock or database with its approval."""
    from pinwarden.gateway.review import find_pending_reviews

    locks: list[Path | None] = [part.project.lock for part in server.parts]
    groups: dict[str, list[Review]] = {}
    for lock in locks or [None]:
        for review in find_pending_reviews(state, server.name, lock):
            groups.setdefault(review.baseline, []).append(review)
    return tuple(map(tuple, groups.values()))


def _decide_blocked(
    state: GatewayState,
    server: ServerToApprove,
    blocked: Sequence[tuple[Review, ...]],
    approver: Approver,
) -> str:
    """Ask about the changes that gateways blocked. The server is not started: the gateway recorded its definitions."""
    from pinwarden.cli.approvals import APPROVED, SKIPPED, ask_decision, render_changes_with_warnings
    from pinwarden.cli.commands.review import approve_all, decide_each
    from pinwarden.cli.questions import QUIT
    from pinwarden.gateway.review import compare_reviews

    outcome, project = APPROVED, find_current_project()
    for reviews in blocked:
        changes, warnings = compare_reviews(state, project, reviews)
        sys.stdout.write(wrap(f"{server.name}: the gateway blocked {plural(len(reviews), 'change')}"))
        answer = ask_decision(
            f"Approve {'this change' if len(reviews) == 1 else f'these {len(reviews)} changes'}?",
            partial(render_changes_with_warnings, changes, warnings),
            suspicious=bool(warnings) or any(change.severity == "critical" for change in changes),
            choices=("approve", "each") if len(reviews) > 1 else ("approve",),
        ).answer
        names = [review.name for review in reviews]
        if answer == "approve":
            answer = approve_all(state, project, names, approver)
        elif answer == "each":
            answer = decide_each(state, project, names, approver)
        if answer == QUIT:
            return QUIT
        outcome = outcome if answer == APPROVED else SKIPPED
    return outcome


def _settle_reviews(state: GatewayState, server: ServerToApprove, approver: Approver) -> None:
    """Close the reviews of blocked changes that are approved by now. The approval itself is in the lock already."""
    from pinwarden.gateway.review import settle_reviews
    from pinwarden.system.clock import now

    for part in server.parts:
        try:
            count = settle_reviews(state, part.project, server.name, approver, now())
        except PinwardenError as err:
            if err.code == "DATABASE_MISSING":
                continue  # no gateway was used yet, so nothing is blocked
            print_notice(
                f"{server.name}: the changes that the gateway blocked stay pending: {err.message} [{err.code}]"
            )
        else:
            if count:
                print_notice(f"{server.name}: {plural(count, 'blocked change')} approved with it")


def _approve_without_questions(
    args: Namespace, servers: Sequence[ServerToApprove], skills: SkillsToApprove, approver: Approver
) -> int:
    from pinwarden.project.approve import combine_approval_reports

    if args.all:
        servers = [server for server in servers if server.needs_approval]
    reports = _approve_skills(args, skills, approver)
    for server in servers:
        try:
            report = _approve_one(args, server, approver)
        except PinwardenError as err:
            if len(servers) == 1 and not reports:
                raise
            report = build_failure_report(server.name, err)
            sys.stdout.write(wrap(report.summary) if args.format == "text" else "")
        reports.append(report)
    combined = combine_approval_reports(reports)
    if args.format != "text":
        return emit(combined, args.format)
    if len(reports) != 1:
        emit(replace(combined, rows=()), "text")
    if not args.yes and combined.exit_code == EXIT_REFUSED:
        sys.stderr.write(f"nothing was approved; to approve it: {_build_yes_command(args)}\n")
    return combined.exit_code


def _approve_skills(args: Namespace, skills: SkillsToApprove, approver: Approver) -> list[Report]:
    from pinwarden.cli.skill_approvals import render_review
    from pinwarden.project.skills_approve import approve_skill, build_skill_report, build_unchanged_report
    from pinwarden.system.clock import now

    reports: list[Report] = []
    for review in skills.reviews:
        if args.yes and args.all and review.looks_like_attack:
            options = [option for option in _list_repeated_options(args) if option != "--all"]
            hint = format_approve_command([review.name], *options, "--yes", "--approve-warnings")
            report = build_skill_report(review, hint)
        else:
            report = approve_skill(review, approver, now()) if args.yes else build_skill_report(review)
        if args.format == "text":
            sys.stdout.write(render_review(review))
            emit(replace(report, rows=()), "text")
        reports.append(report)
    for name in sorted(skills.names - {review.name for review in skills.reviews}):
        reports.append(build_unchanged_report(name))
        sys.stdout.write(f"{reports[-1].summary}\n" if args.format == "text" else "")
    return reports


def _approve_one(args: Namespace, server: ServerToApprove, approver: Approver) -> Report:
    from pinwarden.cli.streams import Progress
    from pinwarden.project.approve import approve, build_approval_report, prepare_approval, prepare_server
    from pinwarden.project.server_start import probe_server
    from pinwarden.system.clock import now

    if server.problem is not None:
        raise PinwardenError(
            "POLICY_REFUSED", f"{server.name[:120]!a}: {server.problem}", hint=_describe_way_out(args, server)
        )
    prepared = prepare_server(server, probe_options(args))
    if prepared.is_started and not args.allow_execute:
        command = format_approve_command(args.server, *_list_repeated_options(args), "--allow-execute")
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"Pinwarden does not start {server.name[:120]!a} without your consent: {prepared.description}",
            hint=f"If you trust it: {command}",
        )
    _refuse_unapproved_command(args, server)
    with Progress(f"reading the tools of {server.name}"):
        surface = probe_server(prepared.probe)
    approval = prepare_approval(server, surface, warnings_approved=args.approve_warnings)
    if args.yes and args.all and approval.looks_like_attack and not approval.is_unchanged:
        options = [option for option in _list_repeated_options(args) if option != "--all"]
        command = format_approve_command([server.name], *options, "--yes", "--approve-warnings")
        hint = f"If you reviewed it and approve it: {command}"
        raise PinwardenError("WARNINGS_NOT_APPROVED", f"{server.name[:120]!a} looks like an attack", hint=hint)
    if args.yes and not approval.is_unchanged:
        report = approve(approval, approver, now())
        if report.exit_code == EXIT_CLEAN:
            with read_database(args) as state:
                _settle_reviews(state, server, approver)
    else:
        report = build_approval_report(approval)
    if args.format == "text":
        _print_approval(approval, report, full=args.full)
    return report


def _describe_way_out(args: Namespace, server: ServerToApprove) -> str:
    """Return what to do about a server that cannot be approved: name it, if that is enough, or else edit its entry."""
    from pinwarden.project.servers_to_approve import find_servers_to_approve

    options = [option for option in _list_repeated_options(args) if option != "--all"]
    command = format_approve_command([server.name], *options)
    if not any(named.problem for named in find_servers_to_approve(projects_in_scope(args), [server.name], args.client)):
        return f"To approve it anyway: {command}"
    files = ", ".join(
        dict.fromkeys(
            part.project.display_path(configured.configured.path)
            for part in server.parts
            for configured in part.configured
        )
    )
    return f"Edit {files} (pinwarden doctor says how), then run: {command}"


def _refuse_unapproved_command(args: Namespace, server: ServerToApprove) -> None:
    """Raise if the server would be started with a command that the lock does not have and that is not approved now.

    ``--yes`` approves the command. With ``--all``, which names no server, it does not if something looks like an
    attack.
    """
    from pinwarden.project.approve import list_config_changes
    from pinwarden.surface.drift.summary import summarize_changes

    suspicious = [change for change in list_config_changes(server) if change.severity == "critical"]
    if not server.config_changes or (args.yes and not (args.all and suspicious)):
        return
    options = [option for option in _list_repeated_options(args) if option != "--all"]
    command = format_approve_command([server.name], *options, "--yes")
    raise PinwardenError(
        "CONSENT_REQUIRED",
        f"{server.name[:120]!a} is not configured as locked, so it was not started. "
        f"{summarize_changes(list_config_changes(server) or server.config_changes)}",
        hint=f"Compare it with the lock: pinwarden ci. If you trust it: {command}",
    )


def _print_approval(approval: Approval, report: Report, *, full: bool) -> None:
    from pinwarden.cli.approvals import render_approval

    if approval.changes or approval.is_first:
        sys.stdout.write(render_approval(approval, "full" if full else "short"))
    emit(replace(report, rows=()), "text")


def _build_yes_command(args: Namespace) -> str:
    return format_approve_command(args.server, *_list_repeated_options(args), "--yes")


def _list_repeated_options(args: Namespace) -> list[str]:
    """Return the options of this call that a suggested command needs too."""
    options = ["--all"] if args.all else []
    for name in ("client", "project", "file", "scope"):
        if getattr(args, name) is not None:
            options += [f"--{name}", shlex.quote(str(getattr(args, name)))]
    return [*options, *(f"--{name.replace('_', '-')}" for name in _REPEATED_FLAGS if getattr(args, name))]


_REPEATED_FLAGS = ("allow_execute", "allow_private", "approve_warnings")
