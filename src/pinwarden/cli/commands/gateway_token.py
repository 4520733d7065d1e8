"""Let clients of the gateway in and out: add a token for a CLIENT, list all tokens, revoke a token or a client.

A token is shown once, when it is made; only its hash is kept.

    pinwarden gateway token add CLIENT
    pinwarden gateway token list
    pinwarden gateway token revoke CLIENT-or-ID
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.layout import told
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.cli.state_arguments import add_state_argument, state_from
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_HEADINGS = ("ID", "CLIENT", "SERVERS", "MADE", "REVOKED")


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("action", nargs="?", choices=["add", "list", "revoke"], help="what to do")
    parser.add_argument("name", nargs="?", help="the client that a token is for; to revoke also the id of a token")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME", help="a server that the client may see (all of them)"
    )
    add_project_arguments(parser)
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Do it, and report."""
    if args.action is None:
        raise PinwardenError("USAGE", "gateway token is followed by one of: add, list, revoke")
    if (args.action == "list") != (args.name is None):
        raise PinwardenError("USAGE", f"{args.action} takes {'no name' if args.name else 'the name of a client'}")
    if args.server and args.action != "add":
        raise PinwardenError("USAGE", f"--server is for add; {args.action} is about all servers")
    project = project_of(args)
    with state_from(args, project) as state:
        return _done(args, project, state)


def _done(args: Namespace, project: Project, state: GatewayState) -> int:
    from pinwarden.gateway.client_tokens import add_token, list_tokens, revoke_tokens
    from pinwarden.system.clock import now

    if args.action == "add":
        report, token = add_token(state, project, args.name, args.server, now())
        if args.format == "text":
            sys.stdout.write(f"{token}\n")
            sys.stdout.flush()
            sys.stderr.write("".join(map(told, (f"{report.summary}: {report.notes[0]}", *report.notes[1:]))))
            return report.exit_code
        return emit(report, args.format)
    if args.action == "revoke":
        return emit(revoke_tokens(state, args.name, now()), args.format)
    report = list_tokens(state)
    if args.format == "text" and report.facts["tokens"]:
        from pinwarden.cli.layout import table

        rows = [
            (
                each["id"],
                each["client"],
                ", ".join(each["servers"]) or "all",
                each["made_at"],
                each["revoked_at"] or "-",
            )
            for each in report.facts["tokens"]
        ]
        sys.stdout.write(table(_HEADINGS, rows))
    return emit(report, args.format)
