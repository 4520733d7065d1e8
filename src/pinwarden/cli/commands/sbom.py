"""Export the lock and all dependencies as a bill of materials: CycloneDX 1.6 or SPDX 2.3, in JSON.

It goes to stdout, or with --output to a new file. The same lock gives the same bytes where SOURCE_DATE_EPOCH is set. A
lock that is not whole is refused.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--kind", default="cyclonedx", choices=["cyclonedx", "spdx"], help="the form that is wanted (cyclonedx)"
    )
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Write the bill and say what is missing from it."""
    from pinwarden import __version__
    from pinwarden.core.visible import show_invisible
    from pinwarden.project.locked_packages import bill_of_materials
    from pinwarden.system.clock import now
    from pinwarden.system.files import create_file

    made = bill_of_materials(project_of(args).lock, args.kind, now(), __version__)
    if args.output != "-":
        create_file(Path(args.output), made.data)
        return emit(made.report, args.format)
    sys.stdout.buffer.write(made.data)
    sys.stdout.flush()
    for row in made.report.rows:
        sys.stderr.write(f"warning: {show_invisible(row.name)}: {row.message}\n")
    return made.report.exit_code
