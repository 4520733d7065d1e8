"""Compare the configurations of all clients with the lock, and say what stands out.

Told are: locked servers that are missing or configured otherwise, configured servers that nobody approved, dangerous
commands and settings, files that cannot be read, and programs that servers need and this machine does not have. Exit
code 1 if there is anything to look at.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    from pinwarden.clients.table import CLIENTS

    parser.add_argument("--scope", default="all", choices=["all", "project", "global"], help="whose configurations")
    add_project_arguments(parser)
    add_report_arguments(parser)
    parser.epilog = f"clients: {', '.join(CLIENTS)}"


def run(args: Namespace) -> int:
    """Examine and report."""
    from pinwarden.project.doctor import examine

    return emit_report(examine(project_of(args), args.scope), args)
