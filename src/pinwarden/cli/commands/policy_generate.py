"""Propose a policy for the gateway from what it observed, for example in a week under enforcement = "audit".

Each definition is allowed by its digest, with how long it was seen and how often it was called. What reads like an
attack, changed while it was observed, was offered twice, rejected or withheld is left out and explained. In a project
with a lock it covers the servers of that lock, elsewhere all that were observed. The policy goes to stdout, or with
--output to a new file; nothing uses it before you put it into pinwarden.toml.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.progress import Progress
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME", help="only for this server; repeatable"
    )
    parser.add_argument(
        "--all", action="store_true", help="for all servers that were observed, of whatever project or command"
    )
    parser.add_argument("--only-called", action="store_true", help="leave out what nobody called while it was watched")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_project_arguments(parser)
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Propose and report."""
    from pinwarden.gateway.policy_generate import Coverage, generate_policy, locked_servers

    if args.all and args.server:
        raise PinwardenError("USAGE", "--all and --server contradict each other")
    project = project_of(args)
    named = tuple(args.server)
    covered = Coverage(servers=named) if named or args.all else locked_servers(project)
    with state_to_read_from(args, project) as state, Progress("reading what was observed"):
        made = generate_policy(state, covered, only_called=args.only_called)
    if args.output != "-":
        from pinwarden.system.files import create_file

        create_file(Path(args.output), made.text.encode())
    if args.output != "-" or args.format != "text":
        return emit(made.report, args.format)
    sys.stdout.write(made.text)
    sys.stdout.flush()
    sys.stderr.write(f"{made.report.summary}\n")
    for note in made.report.notes:
        sys.stderr.write(f"note: {note}\n")
    return made.report.exit_code
