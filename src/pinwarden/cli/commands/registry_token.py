"""Make a token for the publishers of a namespace (add NAMESPACE), list the tokens, or revoke one (revoke ID).

A token is printed once; the registry keeps only its digest. It is good for its namespace alone, and only together with
a signature by one of the namespace's keys.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.report import Report


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("action", choices=("add", "list", "revoke"))
    parser.add_argument("subject", nargs="?", metavar="NAME", help="the namespace, or the token's id to revoke it")
    parser.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    parser.add_argument("--days", type=int, default=90, metavar="N", help="how long it lasts (90)")
    add_operator_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Make, list or revoke, and report."""
    from pinwarden.registry.operator import add_token, list_tokens, revoke_token

    if args.action != "list" and not args.subject:
        raise PinwardenError("USAGE", f"{args.action} what? Name a namespace, or a token's id to revoke it")
    with operated_registry(args) as registry:
        if args.action == "add":
            report = add_token(registry, args.subject, args.label, args.days)
        elif args.action == "list":
            report = list_tokens(registry)
        else:
            report = revoke_token(registry, args.subject)
    if args.format == "text":
        return _print(args.action, report)
    return emit(report, args.format)


def _print(action: str, report: Report) -> int:
    if action == "add":  # only the token, so that a script can read it
        sys.stdout.write(f"{report.facts['token']}\n")
        sys.stderr.write("".join(f"note: {note}\n" for note in report.notes))
        return report.exit_code
    if action == "list" and report.facts["tokens"]:
        from pinwarden.cli.layout import table

        rows = [
            (each["id"], each["namespace"], "revoked" if each["revoked"] else "counts", each["label"] or "-")
            for each in report.facts["tokens"]
        ]
        sys.stdout.write(table(("ID", "NAMESPACE", "STATE", "LABEL"), rows))
    return emit(report, "text")
