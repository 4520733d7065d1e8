"""Make clients start locked servers through pinwarden run: rewrites their configuration, and the lock with it.

Only servers whose bytes are pinned (pinwarden prove) and whose configuration is as it was approved are touched.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Rewrite and report."""
    from pinwarden.adapters.clock import now
    from pinwarden.flows.artifacts.enforcing import enforce

    return emit(enforce(project_of(args), args.server, now()), args.format)
