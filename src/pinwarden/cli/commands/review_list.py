"""List the changes that the gateway holds back until somebody decides about them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError

_LEVELS = ("info", "review", "critical")
_HEADINGS = ("NAME", "LEVEL", "SERVER", "ITEM", "STATE", "APPROVED IN", "LAST SEEN", "WHY")


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--all", action="store_true", help="also those that were decided about or no longer served")
    parser.add_argument("--server", metavar="NAME", help="only changes of this server")
    parser.add_argument(
        "--level", action="append", default=[], choices=_LEVELS, help="only changes of this level; repeatable"
    )
    parser.add_argument(
        "--names", action="store_true", help="print only names, one on a line: for review approve --names-from"
    )
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """List and report."""
    from pinwarden.gateway.review import list_reviews

    with state_to_read_from(args) as state:
        report = list_reviews(state, every=args.all, server=args.server, levels=args.level)
    if args.names:
        if args.format != "text":
            raise PinwardenError("USAGE", "--names prints lines of text", hint="Leave --format out.")
        sys.stdout.write("".join(f"{each['name']}\n" for each in report.facts["reviews"]))
        return report.exit_code
    if args.format == "text" and report.facts["reviews"]:
        from pinwarden.cli.layout import table

        rows = [
            (
                each["name"],
                each["level"] or "-",
                each["server"],
                f"{each['entity']} {each['item']}",
                _state(each),
                _place(each["baseline"]),
                each["last_seen"],
                each["reason"] or each["code"],
            )
            for each in report.facts["reviews"]
        ]
        sys.stdout.write(table(_HEADINGS, rows))
    return emit(report, args.format)


def _state(review: dict[str, Any]) -> str:
    return f"{review['state']} by {review['decided_by']}" if review["decided_by"] else str(review["state"])


def _place(baseline: str) -> str:
    """Where an approval is kept: two projects may each have a server of one name."""
    lock = baseline.removeprefix("lock:")
    if lock == baseline:
        return "first use"
    path = Path(lock)
    shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else lock
    return shown if len(shown) <= _WIDEST else f"…{shown[1 - _WIDEST :]}"  # projects differ in the end of their paths


_WIDEST = 40
