"""Verify the whole transparency log of a registry, as a third party: its signed head, every entry, its tiles.

Each entry must be an event that the registry signed, in its place, following from the one before it on its channel, and
all together must hash to the signed head. With --witness, the witnesses must have signed that head, too.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_log_arguments, following_of, readable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_log_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    from pinwarden.registry.log_client import verify

    with readable_registry(args) as files:
        return emit(verify(files, following_of(args)), args.format)
