"""Verify a server of a registry before it is locked: what is proved, what is only claimed, what is missing.

The bytes of its package or image are fetched and hashed, unless --offline is given. Nothing is installed, and nothing
is started unless --live and --allow-execute are given.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", help="the server's registry name")
    parser.add_argument("--version", metavar="VERSION", help="another version than the latest")
    parser.add_argument("--source", metavar="ID", help="the registry to ask")
    parser.add_argument("--offline", action="store_true", help="only local sources and caches")
    parser.add_argument("--live", action="store_true", help="ask the live server as well")
    add_project_arguments(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    from pinwarden.adapters.clock import now
    from pinwarden.flows.lock.verifying import verify_server

    probe = None
    if args.live:
        from pinwarden.cli.targets import options_of

        probe = options_of(args)
    project = project_of(args)
    entry = project.registries(offline=args.offline).find(args.server, args.version, args.source)
    with workshop(args, project, "fetching") as shop:
        report = verify_server(entry, now=now(), probe=probe, shop=None if args.offline else shop)
    return emit(report, args.format)
