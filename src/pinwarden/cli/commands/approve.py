"""``approve``: review and approve the current surface of a locked server."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_warnings_argument,
    approver_from,
    project_from,
)
from pinwarden.cli.server_arguments import add_probe_arguments, probe_options, run_probe
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.surface.surface import Surface


def _configure_approve(parser: ArgumentParser) -> None:
    parser.add_argument("server", help="the server's name in the lock")
    parser.add_argument("--client", metavar="CLIENT", help="only the entry for this client")
    parser.add_argument("--full", action="store_true", help="show complete definitions with their schemas")
    parser.add_argument("--yes", action="store_true", help="approve without asking")
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


@command(_configure_approve)
def approve(args: Namespace) -> int:
    """Connect to a locked server, show what changed since you approved it, and record your approval in the lock.

    On a terminal you are asked before anything is written; in scripts, add --yes. The exit code is 1 if there are
    changes and you did not approve them.

    Examples:
      pinwarden approve notes --allow-execute
      pinwarden approve notes --allow-execute --yes --why "reviewed in ticket 42"
    """
    from pinwarden.project.approval_candidate import CONFIRMED_ON_TERMINAL, CONFIRMED_WITH_YES
    from pinwarden.project.approve import (
        add_scan_warnings,
        approve,
        build_approval_report,
        find_server_to_approve,
        is_already_approved,
        is_first_approval,
    )
    from pinwarden.project.server_start import prepare_locked_probe
    from pinwarden.system.clock import now

    project = project_from(args)
    server = find_server_to_approve(project, args.server, args.client)
    surface = run_probe(prepare_locked_probe(project, server.entry, project.find_configs(), probe_options(args)))
    first = surface if is_first_approval(project, server) else None
    approver = approver_from(args, CONFIRMED_WITH_YES if args.yes else CONFIRMED_ON_TERMINAL)
    if args.yes:
        return _print(approve(project, server, surface, approver, now()), args, first)
    _print(add_scan_warnings(build_approval_report(project, server, surface), project, server, surface), args, first)
    if is_already_approved(project, server, surface):
        return 0
    if args.format != "text" or not sys.stdin.isatty() or not _confirm():
        sys.stderr.write("nothing was approved; add --yes to approve this\n")
        return 1
    report = approve(project, server, surface, replace(approver, approves_warnings=True), now())
    return emit(replace(report, rows=(), notes=()), args.format)  # rows and notes were shown before the question


def _print(report: Report, args: Namespace, first: Surface | None) -> int:
    """Print what would be approved, or was: the whole surface if nothing of it was approved, otherwise the changes."""
    if args.format != "text":
        return emit(report, args.format)
    from pinwarden.cli.render.surface_text import changes_of_report, render_changes, render_surface, render_warnings

    warnings = report.rows[len(report.facts["changes"]) :]
    if first is not None:
        sys.stdout.write(render_surface(first, name=report.subject, warnings=warnings, full=args.full))
    else:
        sys.stdout.write(render_changes(changes_of_report(report), full=args.full))
        sys.stdout.write(render_warnings(warnings) if warnings else "")
    return emit(replace(report, rows=()), "text")


def _confirm() -> bool:
    sys.stderr.write("approve this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
