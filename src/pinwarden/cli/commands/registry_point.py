"""Let a channel point to another version that is published: forward, or back. Every move is an event of the log."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, registry_key_of, writable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("tool", metavar="TOOL", help="the tool")
    parser.add_argument("version", metavar="VERSION", help="the version to point to")
    parser.add_argument("--channel", default="stable", metavar="NAME", help="the channel (stable)")
    parser.add_argument("--reason", default="point", metavar="TEXT", help="why, for everybody to read in the log")
    add_signer_arguments(parser)
    add_publisher_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Sign, send and report."""
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.registry.publisher import Changing, request_change
    from pinwarden.registry.statement import POINT

    body = {"tool": args.tool, "version": args.version, "channel": args.channel, "reason": args.reason}
    with writable_registry(args) as registry:
        changing = Changing(registry=registry, signer=signer_of(args), registry_key=registry_key_of(args))
        return emit(request_change(changing, "registry point", POINT, body), args.format)
