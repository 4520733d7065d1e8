"""List the locked servers that have a newer release. News, not drift: the exit code is 0."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_offline_argument, add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_offline_argument(parser)
    parser.add_argument("--allow-private", action="store_true", help="allow any host in a private network")
    parser.add_argument("--allow-plain-http", action="store_true", help="allow addresses without encryption")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Look up and report."""
    from pinwarden.project.update import outdated

    project = project_of(args)
    with workshop(args, project, "looking up releases") as shop:
        report = outdated(project, shop, offline=args.offline)
    return emit(report, args.format)
