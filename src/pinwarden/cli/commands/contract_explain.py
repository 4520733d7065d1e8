"""Tell what is known of each tool of a server, and how: from its source, its process, the wire, or not at all.

For each entitlement: the place in the code, and the way from the handler to it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.contract_arguments import add_server_arguments, observed_by
from pinwarden.cli.output import add_format_argument, emit

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--tool", action="append", default=[], metavar="NAME", help="only this tool; may be repeated")
    add_server_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Observe and explain."""
    import sys

    from pinwarden.cli.layout import told
    from pinwarden.contract.explain_report import explain, lines_of

    report = explain(observed_by(args), tuple(args.tool))
    if args.format == "text":
        for line in lines_of(report):
            sys.stdout.write(told(line))
    return emit(report, args.format)
