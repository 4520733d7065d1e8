"""Printing a report: the chosen format to stdout, colour only where someone sees it."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from pinwarden.cli.render import FORMATS, render

if TYPE_CHECKING:
    from pinwarden.flows.report import Report


def add_format_argument(parser: ArgumentParser) -> None:
    """``--format``."""
    parser.add_argument("--format", default="text", choices=FORMATS)


def colour_wanted() -> bool:
    """Whether somebody sees the colours of stdout, and wants to."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def emit(report: Report, form: str) -> int:
    """Print the report and return its exit code."""
    sys.stdout.write(render(report, form, colour=colour_wanted()))
    sys.stdout.flush()  # before anything goes to stderr: whoever reads both in one place reads them in order
    return report.exit_code
