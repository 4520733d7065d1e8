"""List what was asked of a registry, newest first: by which token, about what, and whether it was done or refused."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--most", type=int, default=100, metavar="N", help="how many (100)")
    add_operator_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """List and report."""
    from pinwarden.registry.operator import audit

    with operated_registry(args) as registry:
        report = audit(registry, args.most)
    if args.format == "text" and report.facts["requests"]:
        from pinwarden.cli.layout import table

        rows = [
            (_moment(each["at_ms"]), each["action"], each["outcome"], each["namespace"] or "-", each["subject"] or "-")
            for each in report.facts["requests"]
        ]
        sys.stdout.write(table(("AT", "ACTION", "OUTCOME", "NAMESPACE", "ABOUT"), rows))
    return emit(report, args.format)


def _moment(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
