"""``list``, ``explain``, ``doctor`` and ``secrets audit``: the locked servers, and whether configurations match."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, add_report_arguments, emit, emit_report
from pinwarden.cli.project_arguments import add_project_arguments, names_by_scope, project_from

_HEADINGS = ("NAME", "VERSION", "CLIENT", "SCOPE", "TIER", "SURFACE", "APPROVED BY", "TARGET")


def _configure_list(parser: ArgumentParser) -> None:
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_list)
def list_servers(args: Namespace) -> int:
    """List the locked servers: version, client, trust tier, whether the surface is pinned, and who approved it.

    The exit code is 1 if the lock was changed outside Pinwarden; the list is still printed.

    Examples:
      pinwarden list
      pinwarden list --format json
    """
    from pinwarden.project.explain import list_locked
    from pinwarden.project.scopes import report_in_scopes

    report = report_in_scopes(names_by_scope(args), lambda project, _: list_locked(project))
    if args.format == "text":
        from pinwarden.cli.render.text import table

        rows = (
            (
                entry["name"],
                entry["version"] or "-",
                entry["client"],
                entry["scope"],
                entry["tier"] or "unknown",
                "pinned" if entry["surface_pinned"] else "not pinned",
                entry["approved_by"] or "not recorded",
                entry["target"],
            )
            for entry in report.facts["entries"]
        )
        sys.stdout.write(table(_HEADINGS, rows))
    return emit(report, args.format)


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

    Uses no network.

    Examples:
      pinwarden explain notes
    """
    from pinwarden.project.explain import explain_locked, explain_registry_entry
    from pinwarden.system.clock import now

    explain_entry = explain_registry_entry if args.registry else explain_locked
    report = explain_entry(project_from(args), args.server, now=now())
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
    from pinwarden.project.doctor import check_installation
    from pinwarden.project.scopes import report_in_scopes

    return emit_report(report_in_scopes(names_by_scope(args), lambda project, _: check_installation(project)), args)


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
