"""Convert a lockfile between lockfileVersion 2 and the vendor-neutral mcp-lock/1 draft, without losing anything.

The result goes to stdout, or with --output to a new file. An entry that the other format cannot express is set aside
inside the file, named, and restored on the way back. A lock that is not whole is not converted.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--to", required=True, choices=["mcp-lock/1", "v2"], help="the format that is wanted")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Convert, write and say what was set aside."""
    from pinwarden.core.visible import inert_in_log, show_invisible
    from pinwarden.project.lock_conversion import convert_lock
    from pinwarden.system.files import create_file

    converted = convert_lock(project_of(args).lock, args.to)
    if args.output != "-":
        create_file(Path(args.output), converted.data)
        return emit(converted.report, args.format)
    sys.stdout.buffer.write(converted.data)
    sys.stdout.flush()
    for row in converted.report.rows:
        sys.stderr.write(inert_in_log(f"warning: {show_invisible(f'{row.name}: {row.message}')}\n"))
    return converted.report.exit_code
