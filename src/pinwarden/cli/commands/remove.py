"""Take a server out of the lock and out of the clients' configurations."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", help="the server's name in the lock")
    parser.add_argument("--client", action="append", default=[], metavar="CLIENT", help="only for this client")
    parser.add_argument("--keep-config", action="store_true", help="leave the clients' configurations alone")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Remove and report."""
    from pinwarden.project.client_install import remove_server
    from pinwarden.system.clock import now

    report = remove_server(project_of(args), args.server, args.client, now(), keep_config=args.keep_config)
    return emit(report, args.format)
