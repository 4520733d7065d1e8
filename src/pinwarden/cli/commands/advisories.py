"""Look every locked version up in a local export of known vulnerabilities: the servers and all their dependencies.

The export is a folder or a ZIP file of records in the OSV format. No network is used. Exit code 1 if any record is
about a locked version, also where versions cannot be compared; 3 if the export cannot be read or is empty.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--osv", required=True, metavar="PATH", help="a folder or ZIP file of OSV records")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Look up and report."""
    from pinwarden.project.locked_packages import look_up

    return emit(look_up(project_of(args), Path(args.osv)), args.format)
