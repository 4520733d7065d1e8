"""Show what newer releases, newer dependencies and moved tags would change; --yes writes them into the lock."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import add_approval_arguments, add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    parser.add_argument("--yes", action="store_true", help="write the lock")
    parser.add_argument("--offline", action="store_true", help="only local sources and caches")
    parser.add_argument("--live", action="store_true", help="ask the server, and approve what it tells the model")
    parser.add_argument("--plain-v2", action="store_true", help="write nothing but lockfileVersion 2")
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Compare, and write if that was agreed to."""
    from pinwarden.cli.lock_arguments import writing_of
    from pinwarden.flows.lock.updating import Wish, update
    from pinwarden.flows.project import load_policies

    project = project_of(args)
    writing = writing_of(args, approves=args.yes)
    with workshop(args, project, "resolving") as shop:
        wish = Wish(names=args.server, agreed=args.yes, shop=None if args.offline else shop)
        report = update(project, wish, load_policies(project), writing)
    return emit(report, args.format)
