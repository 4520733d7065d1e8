"""Fetch the locked bytes, verify each, and build what the servers run in, so that they start without a network."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import add_fetch_arguments, workshop
from pinwarden.cli.install_arguments import add_permission_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    parser.add_argument("--frozen", action="store_true", help="fail if the bytes of a package or image are not locked")
    parser.add_argument(
        "--scripts-without-sandbox",
        action="store_true",
        help="let approved install scripts run where there is no bubblewrap; they can do all that you can",
    )
    add_project_arguments(parser)
    add_format_argument(parser)
    add_fetch_arguments(parser)
    parser.add_argument("--registry", metavar="PLACE", help="where bundles come from (as the trust store says)")
    add_permission_arguments(parser)


def run(args: Namespace) -> int:
    """Fetch, verify, build."""
    from pinwarden.cli.install_arguments import pinned_bundles
    from pinwarden.project.fetch import How, fetch

    project = project_of(args)
    with workshop(args, project, "fetching") as shop, pinned_bundles(args) as bundles:
        report = fetch(
            project,
            args.server,
            shop,
            How(frozen=args.frozen, bundles=bundles, scripts_without_sandbox=args.scripts_without_sandbox),
        )
    return emit(report, args.format)
