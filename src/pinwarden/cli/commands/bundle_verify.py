"""Check every byte of a bundle: descriptor, manifest and archive belong together, and each file is what its CID names.

Nothing is written. Whether anybody vouches for the bundle is another question: pinwarden bundle accept.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.bundle_arguments import add_bundle_arguments, bundle_of
from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_bundle_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Check and report."""
    from pinwarden.bundle.inspect import verify_bundle

    return emit(verify_bundle(bundle_of(args)), args.format)
