"""Verify the audit log: every event is there, in its order, as it was written.

Who may write to the database can cut off its end or write it anew; a head that was kept elsewhere shows both. Give the
head that an earlier run printed, or the file of an earlier export, which is compared line by line. Exit code 1 if
anything is not as it was written.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.progress import Progress
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--head", action="append", default=[], metavar="HEAD", help="a head that was kept: NUMBER:sha256:HEX"
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="an earlier export, which must be in it line by line",
    )
    parser.add_argument("--file", metavar="FILE", help="verify this export and not the database")
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    from pinwarden.gateway.audit.entry import parse_head
    from pinwarden.gateway.audit.report import verify_export, verify_log

    try:
        heads = [parse_head(text) for text in args.head]
    except PinwardenError as err:
        raise PinwardenError("USAGE", f"--head: {err.message}", hint="Write NUMBER:sha256:HEX.") from err
    exports = [Path(name) for name in args.against]
    if args.file is not None:
        with Progress("verifying the export"):
            report = verify_export(Path(args.file), heads, exports)
        return emit(report, args.format)
    with state_to_read_from(args, needed=True) as state, Progress("verifying the audit log"):
        report = verify_log(state, heads, exports)
    return emit(report, args.format)
