"""Tell whether a known key signed an author's lockfile, and that its body is the one that was signed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.contract_arguments import add_lockfile_argument
from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lockfile_argument(parser)
    parser.add_argument(
        "--public-key", nargs="+", action="extend", required=True, metavar="KEY", help="[NAME=]FILE or [NAME=]did:key:…"
    )
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    from pinwarden.cli.key_arguments import public_keys
    from pinwarden.contract.lock_command import place_of
    from pinwarden.contract.verify_live import verify_signature

    return emit(verify_signature(place_of(args.lock), tuple(public_keys(args.public_key).values())), args.format)
