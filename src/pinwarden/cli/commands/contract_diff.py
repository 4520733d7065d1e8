"""Tell what changed between two lockfiles of a server: how severe, which text moved, what it costs.

Severities are BREAKING, RISKY, SAFE and COSMETIC. Exit code 1 if anything is breaking or risky. --format markdown
writes a comment for a pull request. --compat gives the severities of mcp-fusion, to which a description is cosmetic.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("before", metavar="BEFORE", help="the lockfile as it was reviewed")
    parser.add_argument("after", metavar="AFTER", help="the lockfile as it is now")
    parser.add_argument("--compat", action="store_true", help="severities as mcp-fusion has them")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Compare and report."""
    from pinwarden.contract.diff_report import diff_files

    return emit(diff_files(Path(args.before), Path(args.after), compat=args.compat), args.format)
