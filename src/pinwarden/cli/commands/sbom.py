"""``sbom`` and ``advisories``: the locked packages as a bill of materials, and their known vulnerabilities."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_from


def _configure_sbom(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--kind", default="cyclonedx", choices=["cyclonedx", "spdx"], help="document format (default: cyclonedx)"
    )
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="new file to write (default: stdout)")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_sbom)
def sbom(args: Namespace) -> int:
    """Export the locked servers and all their dependencies as a bill of materials: CycloneDX 1.6 or SPDX 2.3, in JSON.

    The same lock gives the same bytes if SOURCE_DATE_EPOCH is set. A lock that was changed outside Pinwarden is
    refused.

    Examples:
      pinwarden sbom --output bom.json
      pinwarden sbom --kind spdx
    """
    from pinwarden.core.text import show_invisible
    from pinwarden.core.version import __version__
    from pinwarden.project.locked_packages import build_sbom
    from pinwarden.system.clock import now
    from pinwarden.system.files import create_file

    bill = build_sbom(project_from(args).lock, args.kind, now(), __version__)
    if args.output != "-":
        create_file(Path(args.output), bill.data)
        return emit(bill.report, args.format)
    sys.stdout.buffer.write(bill.data)
    sys.stdout.flush()
    for row in bill.report.rows:
        sys.stderr.write(f"warning: {show_invisible(row.name)}: {row.message}\n")
    return bill.report.exit_code


def _configure_advisories(parser: ArgumentParser) -> None:
    parser.add_argument("--osv", required=True, metavar="PATH", help="folder or ZIP file with OSV records")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_advisories)
def advisories(args: Namespace) -> int:
    """Check the locked servers and all their dependencies against a local export of known vulnerabilities.

    The export is a folder or ZIP file of records in the OSV format; no network is used. The exit code is 1 if a record
    applies to a locked version, or may apply because versions cannot be compared, and 3 if the export cannot be read or
    is empty.

    Examples:
      pinwarden advisories --osv osv-export
    """
    from pinwarden.project.locked_packages import find_advisories

    return emit(find_advisories(project_from(args), Path(args.osv)), args.format)
