"""``setup``: from configured servers to pinned, verified, approved and enforced ones, one question per decision."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    approver_from,
    projects_in_scope,
)
from pinwarden.cli.questions import can_ask
from pinwarden.cli.render.text import wrap
from pinwarden.cli.server_arguments import probe_seconds
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.system.probe_budget import PROBE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.project.project import Project


def _configure_setup(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="ask nothing: pin and verify, and do what the next two options allow"
    )
    parser.add_argument(
        "--allow-execute",
        action="store_true",
        help="with --yes, start each server once, and approve its tools unless they look like an attack",
    )
    parser.add_argument(
        "--enforce",
        action="store_true",
        help="with --yes, let the clients start approved servers through pinwarden run",
    )
    parser.add_argument(
        "--allow-private",
        action="store_true",
        help="with --yes, allow servers and package registries at loopback and private addresses",
    )
    parser.add_argument(
        "--timeout",
        type=probe_seconds,
        default=PROBE_SECONDS,
        metavar="SECONDS",
        help=f"time limit for each start (default: {PROBE_SECONDS:g})",
    )
    add_project_arguments(parser)
    add_approval_arguments(parser)


@command(_configure_setup)
def setup(args: Namespace) -> int:
    """Find your MCP servers, then pin, verify, review and enforce them, with one question per decision.

    Each step does what the command of its name does: pin writes exact releases into the clients' files, verify (prove)
    downloads and hashes every package, review (approve) starts the servers and shows their tools, enforce lets the
    clients start them through pinwarden run. The answer show prints every edit first, and pinwarden enforce --undo
    returns every file to what it was before. Answers are kept if you stop; run the command again to continue.

    Without a terminal, --yes pins and verifies. Starting servers needs --allow-execute as well, and editing how clients
    start them needs --enforce. A server that is configured differently than locked is then neither started nor
    approved. The exit code is 1 if something is left to do, and 3 if a client's file cannot be read.

    Examples:
      pinwarden setup
      pinwarden setup --scope project
      pinwarden setup --yes --allow-execute --enforce
    """
    from pinwarden.cli.setup_plan import agree_to_plan
    from pinwarden.cli.setup_review import review_tools
    from pinwarden.cli.setup_steps import (
        QuitSetup,
        Setup,
        enforce_starts,
        find_servers,
        finish,
        lock_configured,
        look_up_releases,
        pin_releases,
        verify_bytes,
    )
    from pinwarden.project.approval_candidate import CONFIRMED_ON_TERMINAL, CONFIRMED_WITH_YES
    from pinwarden.project.missing_programs import find_missing_programs

    _refuse_questions_without_terminal(args)
    reason = CONFIRMED_WITH_YES if args.yes else CONFIRMED_ON_TERMINAL
    projects = projects_in_scope(args)
    run = Setup(
        args=args,
        projects=projects,
        approver=approver_from(args, reason),
        asks=not args.yes,
        missing_programs=find_missing_programs(projects),
    )
    unread = _report_unreadable_files(projects)
    if not find_servers(run):
        return EXIT_UNCHECKED if unread else EXIT_CLEAN
    try:
        run = agree_to_plan(look_up_releases(run))
    except (QuitSetup, KeyboardInterrupt) as stop:
        _say_how_to_continue("Nothing was changed.", stop)
        return EXIT_REFUSED
    try:
        pin_releases(run)
        lock_configured(run)
        run = verify_bytes(run)
        review_tools(run)
        enforce_starts(run)
    except (QuitSetup, KeyboardInterrupt) as stop:
        _say_how_to_continue("Your answers are kept.", stop)
    return finish(run) or (EXIT_UNCHECKED if unread else EXIT_CLEAN)


def _report_unreadable_files(projects: Sequence[Project]) -> bool:
    """Name the clients' files that cannot be read, whose servers setup does not see. Returns whether there are any."""
    files = [(project, file) for project in projects for file in project.find_configs() if file.fault]
    for project, file in files:
        name = project.display_path(file.path)
        sys.stderr.write(f"pinwarden: {name} could not be read, so its servers are unknown: {file.problem}\n")
    return bool(files)


def _say_how_to_continue(kept: str, stop: BaseException) -> None:
    """Say what was kept, on stdout after "quit"; after Ctrl-C on stderr, and raise it again."""
    if isinstance(stop, KeyboardInterrupt):
        sys.stderr.write(f"{kept} To continue: pinwarden setup\n")
        raise stop
    sys.stdout.write(wrap(f"{kept} To continue: pinwarden setup"))


def _refuse_questions_without_terminal(args: Namespace) -> None:
    if args.yes:
        return
    if args.allow_execute or args.enforce:
        raise PinwardenError("USAGE", "--allow-execute and --enforce need --yes", hint=_command_without_questions())
    if not can_ask():
        raise PinwardenError(
            "USAGE", "pinwarden setup asks questions and needs a terminal", hint=_command_without_questions()
        )


def _command_without_questions() -> str:
    return "To run it without questions: pinwarden setup --yes --allow-execute --enforce"
