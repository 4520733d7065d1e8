"""Find the MCP servers that are already configured here and lock them.

Reads the configurations of all known clients, of this project and of this user. With --allow-execute the servers are
also asked for their tools, so that what they tell the model is pinned as well.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import add_approval_arguments, add_project_arguments, approver_of, project_of
from pinwarden.cli.targets import options_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Discover, lock and report."""
    from pinwarden.adapters.lock_store import now
    from pinwarden.cli.progress import Progress
    from pinwarden.flows.config.discovery import lock_discovered

    asks = args.allow_execute or args.allow_private
    with Progress("asking the servers") as progress:
        report = lock_discovered(
            project_of(args),
            now=now(),
            approver=approver_of(args),
            probe=options_of(args) if asks else None,
            on_progress=progress.at,
        )
    return emit(report, args.format)
