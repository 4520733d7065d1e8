"""``init``: lock the servers that client configurations already have."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_warnings_argument,
    approver_from,
    projects_in_scope,
)
from pinwarden.cli.server_arguments import add_probe_arguments, probe_options

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.project.init_decisions import Discovery
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project


def _configure_init(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="NAME",
        help="lock this server as it is configured now; repeatable",
    )
    parser.add_argument(
        "--accept-all",
        action="store_true",
        help="lock all servers as they are configured now, except those with critical findings",
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="also lock AGENTS.md, CLAUDE.md and the other files that agents read as instructions",
    )
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


@command(_configure_init)
def init(args: Namespace) -> int:
    """Find the MCP servers that your clients are configured to use, and lock them in mcp-lock.json.

    Reads the configuration files of all known clients, in this project and in your home folder. With --allow-execute,
    Pinwarden also starts the servers and records their tools, prompts and instructions, so that later changes to these
    are noticed.

    If there is a lock already, Pinwarden shows which servers are new or changed, and locks only those that you accept:
    one by one on a terminal, by name with --accept, or all with --accept-all. A server with a critical finding has to
    be accepted by name.

    Pinwarden also records the skills in the clients' folders in mcp-lock.skills.json; the skills stay where they are.
    With --instructions, it records AGENTS.md, CLAUDE.md, rules, agents and commands in the same way. What looks like an
    attack has to be approved by name, with pinwarden approve NAME.

    Examples:
      pinwarden init
      pinwarden init --allow-execute
      pinwarden init --accept notes
    """
    from pinwarden.cli.commit_line import build_commit_command
    from pinwarden.cli.streams import Progress
    from pinwarden.core.record import replace
    from pinwarden.project.init import discover_servers, lock_discovered, probe_servers, refuse_unknown_names
    from pinwarden.project.init_decisions import AcceptedServers
    from pinwarden.project.scopes import report_in_scopes
    from pinwarden.project.skills import review_skills
    from pinwarden.project.skills_init import SkillsLocking, add_skills, lock_skills_on_disk
    from pinwarden.system.clock import now

    approver = approver_from(args)
    accepted = AcceptedServers(
        names=tuple(args.accept),
        everything=args.accept_all,
        warnings=args.approve_warnings,
        direct_starts=True,
    )
    projects = projects_in_scope(args)
    if accepted.names:
        reviews = [review_skills(project, args.accept, instructions=args.instructions) for project in projects]
        skills = {review.name for found in reviews for review in found}
        refuse_unknown_names(accepted, [discover_servers(project, accepted) for project in projects], skills)

    def init_in(project: Project, _: tuple[str, ...]) -> Report:
        discovery = _decide(discover_servers(project, accepted), args, approver)
        if not discovery.undecided:
            connects = args.allow_execute or args.allow_private
            with Progress("connecting to the servers") as progress:
                discovery = probe_servers(discovery, probe_options(args) if connects else None, progress.update)
            discovery = _decide(discovery, args, approver)
        report = lock_discovered(discovery, now=now(), approver=approver)
        if discovery.undecided:
            return add_skills(report, SkillsLocking(project=project))
        return add_skills(report, lock_skills_on_disk(project, accepted, approver, now(), args.instructions))

    report = report_in_scopes([(project, ()) for project in projects], init_in)
    return emit(replace(report, commit_command=build_commit_command(projects)), args.format)


def _decide(discovery: Discovery, args: Namespace, approver: Approver) -> Discovery:
    if args.format != "text" or not sys.stdin.isatty():
        return discovery
    return ask_about_undecided(discovery, approver)[0]


def ask_about_undecided(discovery: Discovery, approver: Approver) -> tuple[Discovery, bool]:
    """Ask about each new or changed server. Each accepted one is written at once, so an interruption loses no answer.

    Returns False with the result if the answer was ``quit``. The other servers then stay undecided.
    """
    from pinwarden.cli.questions import QUIT, ask, quote_server
    from pinwarden.cli.render.text import render_rows
    from pinwarden.clients.table import get_client
    from pinwarden.project.init import lock_accepted
    from pinwarden.system.clock import now

    for server in discovery.undecided:
        sys.stderr.write(render_rows(server.status.rows))
        client = get_client(server.configured.client).title
        question = f"Lock {quote_server(server.configured.name)} for {client} as it is now?"
        answer = ask(question, ("yes", "no", QUIT), "no")
        if answer == QUIT:
            return discovery, False
        if answer == "yes":
            discovery = lock_accepted(discovery, server.key, now=now(), approver=approver)
    return discovery, True
