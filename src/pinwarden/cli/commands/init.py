"""Find the MCP servers that are already configured here and lock them.

Reads the configurations of all known clients, of this project and of this user. With --allow-execute the servers are
also asked for their tools, so that what they tell the model is pinned as well.

Where there is a lock already, servers that are new or different are shown, and nothing is written until each of them
is accepted by name or all at once. On a terminal you are asked about each, and what you accept is written at once. A
server with a critical finding is only ever locked if it is accepted by name; text that pinwarden scan warns of, if
--approve-warnings approves the warnings as well.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_scope_argument,
    add_warnings_argument,
    approver_of,
    project_of,
)
from pinwarden.cli.targets import options_of

if TYPE_CHECKING:
    from pinwarden.project.init_decisions import Discovery
    from pinwarden.project.lock import Approver


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--accept", action="append", default=[], metavar="NAME", help="lock this server as it is configured now"
    )
    parser.add_argument(
        "--accept-all", action="store_true", help="lock all servers as they are now, but for critical findings"
    )
    add_scope_argument(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Discover, decide, lock and report."""
    from pinwarden.cli.progress import Progress
    from pinwarden.project.init import ask_servers, discover_servers, lock_found
    from pinwarden.project.init_decisions import Accepted
    from pinwarden.system.clock import now

    approver = approver_of(args)
    accepted = Accepted(names=tuple(args.accept), everything=args.accept_all, warnings=args.approve_warnings)
    discovery = _decide(discover_servers(project_of(args), accepted, args.scope), args, approver)
    if not discovery.undecided:
        asks = args.allow_execute or args.allow_private
        with Progress("asking the servers") as progress:
            discovery = ask_servers(discovery, options_of(args) if asks else None, progress.at)
        discovery = _decide(discovery, args, approver)
    return emit(lock_found(discovery, now=now(), approver=approver), args.format)


def _decide(discovery: Discovery, args: Namespace, approver: Approver) -> Discovery:
    """Ask on a terminal about each server that needs a decision. What is accepted is written at once, so that no answer
    is lost if a later question is interrupted."""
    if args.format != "text" or not sys.stdin.isatty():
        return discovery
    from pinwarden.cli.render.text import render_rows
    from pinwarden.core.visible import show_invisible
    from pinwarden.project.init import lock_answer
    from pinwarden.system.clock import now

    for each in discovery.undecided:
        sys.stderr.write(render_rows(each.standing.rows))
        sys.stderr.write(f"lock {show_invisible(each.server.name)} for {each.server.client} as it is now? [y/N] ")
        sys.stderr.flush()
        typed = sys.stdin.readline()
        if not typed:
            break
        if typed.strip().lower() in ("y", "yes"):
            discovery = lock_answer(discovery, each.key, now=now(), approver=approver)
    return discovery
