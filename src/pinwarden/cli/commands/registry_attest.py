"""Send attestations to a registry, to stand beside a bundle that is published there.

An attestation is signed by itself, so anybody with a token may bring it; whom to believe is for whoever installs.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, writable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", nargs="+", metavar="FILE", help="attestations, as pinwarden attest writes them")
    add_publisher_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Send and report."""
    from pinwarden.registry.publisher import send_attestations

    with writable_registry(args) as registry:
        return emit(send_attestations(registry, [Path(each) for each in args.file]), args.format)
