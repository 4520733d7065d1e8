"""Export the audit log as JSON Lines: each line is an entry exactly as it is kept, with the hash of the one before.

The head, which proves all of them, is told as well: on stderr, or with --output on stdout. Keep it somewhere else than
the log.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.gateway.audit.entry import Head
    from pinwarden.gateway.state import GatewayState


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--after", type=_number, default=0, metavar="NUMBER", help="only entries behind this one")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Write the lines."""
    from pinwarden.gateway.audit.report import export, export_report

    if args.output == "-" and args.format != "text":
        raise PinwardenError("USAGE", "--format is for the report about a file; name one with --output")
    with state_to_read_from(args) as state:
        if args.output != "-":
            head = _to_file(state, Path(args.output), args.after)
            return emit(export_report(args.output, args.after, head), args.format)
        head = export(state, sys.stdout.buffer.write, args.after)
        sys.stdout.flush()
    sys.stderr.write(f"{export_report('standard output', args.after, head).summary}\n")
    return 0


def _to_file(state: GatewayState, path: Path, after: int) -> Head:
    from pinwarden.gateway.audit.report import export
    from pinwarden.system.files import created_file

    with created_file(path) as stream:  # or half a log would pass for a whole one
        return export(state, stream.write, after)


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _LARGEST:
        raise ValueError
    return number


_LARGEST = 2**63 - 1  # what a database counts
