"""``status``, ``explain``, ``doctor`` and ``secrets audit``: the servers, and whether configurations match the lock."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.cli.blocked_items import find_blocked_items, find_missing_connections
from pinwarden.cli.commands import command
from pinwarden.cli.global_arguments import chosen_detail, colour_wanted
from pinwarden.cli.output import add_format_argument, add_report_arguments, emit, emit_report
from pinwarden.cli.project_arguments import add_project_arguments, names_by_scope, project_from, projects_in_scope
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.project.project import Project
    from pinwarden.project.status_report import StatusReport


def _configure_status(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a server, a file or a secret needs attention"
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_status)
def status(args: Namespace) -> int:
    """Show every MCP server of this project and of yours, and what to do next.

    A server is one package, image, command or address, in however many clients. It is pinned if the clients' files name
    an exact version, approved if a person looked at its tools, verified if its bytes were hashed here with all
    dependencies, and enforced if every client starts it through pinwarden run. It was last checked when Pinwarden read
    its tools or hashed its bytes. Skills and instruction files are compared with the lock. Uses no network and starts
    nothing.

    The exit code is 1 if a lock was changed outside Pinwarden, and with --check if anything needs attention.

    Examples:
      pinwarden status
      pinwarden status --scope user
      pinwarden status --check
      pinwarden status --json
    """
    from pinwarden.project.skill_reports import add_skills_to_status

    projects = projects_in_scope(args)
    result = report_board(projects, check=args.check)
    if args.format == "text":
        print_board(result)
    return emit(add_skills_to_status(result.report, projects, check=args.check), args.format)


def report_board(projects: Sequence[Project], *, check: bool = False) -> StatusReport:
    """Return the state of every server, with what the gateway blocked."""
    from pinwarden.project.status_report import report_status

    blocked, notes = find_blocked_items(projects)
    return report_status(projects, blocked=blocked, notes=(*notes, *find_missing_connections(projects)), check=check)


def print_board(result: StatusReport) -> None:
    """Print a row for each server, and what needs attention."""
    from pinwarden.cli.render.board import render_attention, render_board
    from pinwarden.system.clock import wall_clock

    servers = result.servers
    if chosen_detail() == "quiet":  # only what needs attention
        servers = tuple(server for server in servers if server.needs_attention)
    board = render_board(servers, wall_clock(), colour=colour_wanted())
    parts = (board, render_attention(servers, result.secrets))
    sys.stdout.write("".join(f"{part}\n" for part in parts if part))


_NOT_LOCKED = ("SERVER_NOT_LOCKED", "LOCK_MISSING")


def _configure_explain(parser: ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER[:client]", help="the server's name, optionally for one client only")
    parser.add_argument(
        "--registry",
        action="store_true",
        help="explain the server's entry in a local registry file or cache, even if it is not locked",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_explain)
def explain(args: Namespace) -> int:
    """Explain a locked server: what it is, what was approved by whom and why, and what would raise its trust tier.

    Of a configured server that is not locked, it says where it comes from and what is dangerous. Of a locked skill or
    instruction file, it says what was approved, and what it does without being asked. Uses no network.

    Examples:
      pinwarden explain notes
      pinwarden explain pdf-forms
    """
    from pinwarden.project.explain import explain_configured, explain_locked, explain_registry_entry
    from pinwarden.system.clock import now

    explain_entry = explain_registry_entry if args.registry else explain_locked
    try:
        report = explain_entry(project_from(args), args.server, now=now())
    except PinwardenError as err:
        if err.code not in _NOT_LOCKED or args.registry:
            raise
        from pinwarden.project.skill_reports import explain_skill

        projects = projects_in_scope(args)
        unlocked = explain_configured(projects, args.server) or explain_skill(projects, args.server)
        if unlocked is None:
            raise
        report = unlocked
    if args.format == "text":
        from pinwarden.cli.render.text import sections

        for entry in report.facts["entries"]:
            sys.stdout.write(sections(entry["sections"]) + "\n")
    return emit(report, args.format)


def _configure_doctor(parser: ArgumentParser) -> None:
    from pinwarden.clients.table import CLIENTS

    _configure_audit(parser)
    parser.epilog = f"Known clients: {', '.join(CLIENTS)}"


@command(_configure_doctor)
def doctor(args: Namespace) -> int:
    """Compare the configurations of all clients with the lock, and report everything that needs attention.

    Reports locked servers that are missing or configured differently, configured servers that were never approved,
    dangerous commands and settings, unreadable files, and programs that a server needs but this machine lacks. The exit
    code is 1 if there is a finding.

    Examples:
      pinwarden doctor
      pinwarden doctor --scope project
    """
    from pinwarden.project.doctor import check_installations

    report = check_installations(names_by_scope(args))
    missing = find_missing_connections(projects_in_scope(args))
    return emit_report(replace(report, notes=(*report.notes, *missing)), args)


def _configure_audit(parser: ArgumentParser) -> None:
    add_project_arguments(parser)
    add_report_arguments(parser)


@command(_configure_audit)
def secrets_audit(args: Namespace) -> int:
    """Find secrets stored as plain text in client configurations and in the lock. Their values are never printed.

    The exit code is 1 if a secret is stored as plain text, and 3 if a file could not be read.

    Examples:
      pinwarden secrets audit
    """
    from pinwarden.project.scopes import report_in_scopes
    from pinwarden.project.secrets_audit import audit_secrets

    return emit_report(report_in_scopes(names_by_scope(args), lambda project, _: audit_secrets(project)), args)
