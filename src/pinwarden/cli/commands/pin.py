"""``pin``: write exact releases into the clients' files."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.fetch_arguments import add_network_arguments, open_fetch_context, read_network_options
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_project_arguments,
    add_undo_argument,
    names_by_scope,
    roll_back_interrupted_edits,
)
from pinwarden.cli.questions import ask, can_ask
from pinwarden.cli.undo import undo

if TYPE_CHECKING:
    from pinwarden.project.pin import PinPlan


def _configure_pin(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers (default: all)")
    add_undo_argument(parser, "restore the clients' files as they were before pin")
    parser.add_argument("--dry-run", action="store_true", help="show the edits and write nothing")
    parser.add_argument("--yes", action="store_true", help="write the edits without asking")
    parser.add_argument("--offline", action="store_true", help="use only files that are already on this machine")
    add_network_arguments(parser)
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_pin)
def pin(args: Namespace) -> int:
    """Write exact releases into the clients' files, wherever a command names a package without one.

    A server that is configured as `npx -y notes`, `uvx notes@latest` or `docker run notes` can change at every start.
    Pinwarden looks up the release that it starts now, shows the edit of each file as a diff, and writes it if you
    agree. Comments and formatting are kept. The lock is changed together with the files; tools that you approved stay
    approved if they were read from the same release. Every file is backed up; --undo shows what it would restore and
    asks.

    Examples:
      pinwarden pin --dry-run
      pinwarden pin notes --yes
      pinwarden pin --undo --yes
    """
    if args.undo:
        return undo(args, "pin", args.server)
    from pinwarden.core.record import replace
    from pinwarden.project.pin import build_pin_report, write_pins

    plans = _plan(args)
    changes = any(plan.pins for plan in plans)
    proposal = build_pin_report(plans, written=False)
    if changes and args.format == "text":
        sys.stdout.write(proposal.facts["diff"])
        sys.stdout.flush()
    if changes and not args.dry_run and (args.yes or _confirm(plans)):
        write_pins(plans)
        return emit(build_pin_report(plans, written=True), args.format)
    if changes:
        words = ["pinwarden", "pin", *args.server, "--yes"]
        notes = ("Nothing was changed.", f"Next: {_join(words)}")
        proposal = replace(proposal, notes=(*proposal.notes, *notes))
    return emit(proposal, args.format)


def _plan(args: Namespace) -> list[PinPlan]:
    from pinwarden.project.floating_releases import ReleaseResolver
    from pinwarden.project.pin import plan_pins

    scopes = names_by_scope(args, args.server)
    if not scopes:
        return []
    if not args.dry_run:
        roll_back_interrupted_edits([project for project, _ in scopes])
    with ExitStack() as stack:
        context = stack.enter_context(
            open_fetch_context(read_network_options(args), scopes[0][0], "looking up releases")
        )
        resolver = ReleaseResolver([project for project, _ in scopes], context)
        return [plan_pins(project, names, context, resolver) for project, names in scopes]


def _confirm(plans: list[PinPlan]) -> bool:
    if not can_ask():
        return False
    files = len({pin.server.path for plan in plans for pin in plan.pins})
    where = "this file" if files == 1 else f"these {files} files"
    return ask(f"Write these releases into {where}?", ("yes", "no"), "yes") == "yes"


def _join(words: list[str]) -> str:
    import shlex

    return shlex.join(words)
