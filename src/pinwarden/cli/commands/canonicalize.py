"""Print the canonical form of JSON under a named profile, exactly: no newline is added."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.inputs import read_input
from pinwarden.core.canonical import PROFILES, canonicalize
from pinwarden.core.errors import EXIT_CLEAN


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", help="JSON file, or - for standard input")
    parser.add_argument("--profile", default="jcs", choices=list(PROFILES), help="default: jcs (RFC 8785)")


def run(args: Namespace) -> int:
    """Write the canonical bytes to stdout."""
    sys.stdout.buffer.write(canonicalize(read_input(args.file), args.profile))
    return EXIT_CLEAN
