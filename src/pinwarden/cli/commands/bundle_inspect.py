"""Tell what a bundle says of itself: its files, what starts it, and what it asks for. The archive is not opened."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.bundle_arguments import add_bundle_arguments, bundle_of
from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_bundle_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Read and report."""
    from pinwarden.bundle.inspect import inspect_bundle

    return emit(inspect_bundle(bundle_of(args)), args.format)
