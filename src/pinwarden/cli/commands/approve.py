"""Approve what a locked server tells the model now. Shows the difference first; --yes writes it into the lock."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_warnings_argument,
    approver_of,
    project_of,
)
from pinwarden.cli.targets import ask, options_of
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.core.report import Report


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", help="the server's name in the lock")
    parser.add_argument("--client", metavar="CLIENT", help="only for this client")
    parser.add_argument("--yes", action="store_true", help="approve without being asked")
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Show, ask, approve."""
    from pinwarden.project.approvable import ANSWERED, YES
    from pinwarden.project.approve import (
        approve,
        difference,
        nothing_to_approve,
        server_to_approve,
        with_warnings,
    )
    from pinwarden.project.server_start import prepare_locked_probe
    from pinwarden.system.clock import now

    project = project_of(args)
    server = server_to_approve(project, args.server, args.client)
    seen = ask(prepare_locked_probe(project, server.entry, project.configs(), options_of(args)))
    approver = approver_of(args, YES if args.yes else ANSWERED)
    if args.yes:
        return _show(approve(project, server, seen, approver, now()), args.format)
    _show(with_warnings(difference(project, server, seen), project, server, seen), args.format)
    if nothing_to_approve(project, server, seen):
        return 0
    if args.format != "text" or not sys.stdin.isatty() or not _agrees():
        sys.stderr.write("nothing was approved; add --yes to approve this\n")
        return 1
    report = approve(project, server, seen, replace(approver, approves_warnings=True), now())
    return emit(replace(report, rows=(), notes=()), args.format)  # they were shown before the question


def _show(report: Report, form: str) -> int:
    if form != "text":
        return emit(report, form)
    from pinwarden.cli.definitions import print_changes

    print_changes(report)
    return report.exit_code


def _agrees() -> bool:
    sys.stderr.write("approve this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
