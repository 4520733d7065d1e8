"""List the locked servers that have a newer release. News, not drift: the exit code is 0."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_offline_argument, add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_offline_argument(parser)
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Look up and report."""
    from pinwarden.flows.lock.updating import outdated

    return emit(outdated(project_of(args), offline=args.offline), args.format)
