"""Fetch a bundle from an OCI registry: host/name:tag, or host/name@sha256:... for exactly those bytes.

Every byte is checked against the bundle's documents before anything is written. Whether anybody vouches for it is
another question: pinwarden bundle accept.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("reference", metavar="REFERENCE", help="host/name:tag or host/name@digest")
    parser.add_argument("--output", "-o", default=".", metavar="DIR", help="where the files go (here)")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Pull and report."""
    from pinwarden.cli.oci_arguments import oci_network
    from pinwarden.flows.bundle.oci import pull_bundle

    with oci_network() as net:
        report = pull_bundle(args.reference, Path(args.output), net)
    return emit(report, args.format)
