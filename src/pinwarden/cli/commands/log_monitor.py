"""Report every new event of the names you watch, and prove that the log only grew since the last time.

Only what is new is fetched. What was seen is kept in --state, and a log that shows an older head or another history is
refused. Exit code 1 if a watched name has a new event, so that a timer can tell you; on the first run it is 0.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_log_arguments, following_of, readable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_log_arguments(parser)
    parser.add_argument("--state", required=True, metavar="FILE", help="where it is kept what was seen")
    parser.add_argument(
        "--watch",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="tools, or namespaces as a whole",
    )
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Follow the log and report."""
    from pinwarden.registry.log_client import monitor

    with readable_registry(args) as files:
        return emit(monitor(files, Path(args.state), following_of(args), args.watch), args.format)
