"""Look for secrets that lie open in the configurations of all clients, and in the lock. Values are never shown.

Exit code 1 if a secret is in plain text, 3 if a file could not be looked at.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--scope", default="all", choices=["all", "project", "global"], help="whose configurations")
    add_project_arguments(parser)
    add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Audit and report."""
    from pinwarden.project.secrets_audit import audit_secrets

    return emit_report(audit_secrets(project_of(args), args.scope), args)
