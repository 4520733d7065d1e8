"""Take a version back: the log says so, and no channel points to it any more. --undo brings it back, without channels.

A version that was taken back stays where it is, so that whoever locked it can still prove what they run.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, registry_key_of, writable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("tool", metavar="TOOL", help="the tool")
    parser.add_argument("version", metavar="VERSION", help="the version")
    parser.add_argument("--reason", default="yank", metavar="TEXT", help="why, for everybody to read in the log")
    parser.add_argument("--undo", action="store_true", help="bring it back")
    add_signer_arguments(parser)
    add_publisher_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Sign, send and report."""
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.registry.publisher import Changing, request_change
    from pinwarden.registry.statement import UNYANK, YANK

    body = {"tool": args.tool, "version": args.version, "reason": args.reason}
    with writable_registry(args) as registry:
        changing = Changing(registry=registry, signer=signer_of(args), registry_key=registry_key_of(args))
        return emit(request_change(changing, "registry yank", UNYANK if args.undo else YANK, body), args.format)
