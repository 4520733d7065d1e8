"""Fetch the bytes of locked servers and of all their dependencies, hash them here, and pin them in the lock.

Nothing of them is run. npm or uv works out what a package depends on.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import add_fetch_arguments, workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    add_project_arguments(parser)
    add_format_argument(parser)
    add_fetch_arguments(parser)


def run(args: Namespace) -> int:
    """Fetch, hash, pin."""
    from pinwarden.adapters.clock import now
    from pinwarden.flows.artifacts.proving import prove

    project = project_of(args)
    with workshop(args, project, "proving") as shop:
        report = prove(project, args.server, shop, now())
    return emit(report, args.format)
