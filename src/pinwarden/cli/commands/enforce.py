"""``enforce``: make clients start locked servers through ``pinwarden run``, and take that back."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, add_undo_argument, names_by_scope
from pinwarden.cli.server_arguments import probe_seconds
from pinwarden.cli.undo import undo
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.text import plural
from pinwarden.system.probe_budget import PROBE_SECONDS

if TYPE_CHECKING:
    from pinwarden.project.enforce import EnforcementPlan


def _configure_enforce(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock (default: all)")
    add_undo_argument(parser, "restore the clients' files as they were before enforce, or before setup")
    parser.add_argument("--dry-run", action="store_true", help="show the edits and write nothing")
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument(
        "--allow-execute",
        action="store_true",
        help="with --yes, start each server once with its new command, and leave it unchanged if it does not respond",
    )
    parser.add_argument(
        "--timeout",
        type=probe_seconds,
        default=PROBE_SECONDS,
        metavar="SECONDS",
        help=f"time limit for each start (default: {PROBE_SECONDS:g})",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_enforce)
def enforce(args: Namespace) -> int:
    """Rewrite client configurations so that clients start locked servers through pinwarden run.

    The edits of all files are shown first, and all of them are made or none. On a terminal you are asked once before
    servers are started and files written; in scripts, add --yes, and --allow-execute to start each server once with its
    new command. Packages need pinned bytes (pinwarden prove). For a remote address, pinwarden run relays the client to
    it.

    Every file is backed up. --undo shows what it would restore and asks; after pinwarden setup it also takes back the
    releases that setup wrote, so that every file is as it was before.

    Examples:
      pinwarden enforce --dry-run
      pinwarden enforce notes --yes --allow-execute
      pinwarden enforce --undo --yes
    """
    if args.undo:
        return undo(args, "enforce", args.server)
    from pinwarden.project.enforce import apply_enforcement, build_enforcement_report, plan_enforcement

    plan = plan_enforcement(names_by_scope(args, args.server), recover=not args.dry_run)
    if args.format == "text":
        sys.stdout.write("".join(f"{diff}\n\n" for _, diff in plan.diffs))
        sys.stdout.flush()
    if args.dry_run:
        return emit(build_enforcement_report(plan, written=False), args.format)
    asked = not args.yes and plan.changes_anything
    if asked and not _agrees(args, plan):
        report = build_enforcement_report(plan, written=False)
        return emit(replace(report, exit_code=EXIT_REFUSED), args.format)
    from pinwarden.cli.streams import print_notice
    from pinwarden.surface.probe.probe import ProbeOptions

    probe = ProbeOptions(allow_execute=True, timeout=args.timeout) if asked or args.allow_execute else None
    report = apply_enforcement(plan, probe, lambda name: print_notice(f"starting {name} with its new command"))
    return emit(report, args.format)


def _agrees(args: Namespace, plan: EnforcementPlan) -> bool:
    """Ask whether to start the servers and edit the files. Raises CONSENT_REQUIRED if there is no terminal."""
    from pinwarden.cli.questions import ask, can_ask

    if args.format != "text" or not can_ask():
        words = ("pinwarden", "enforce", *map(shlex.quote, args.server), "--yes", "--allow-execute")
        raise PinwardenError(
            "CONSENT_REQUIRED",
            "Pinwarden did not edit any file: editing needs your consent",
            hint=f"Look at the edits with --dry-run, then run: {' '.join(words)}",
        )
    files = plural(len(plan.files), "client file")
    question = f"Start each server once with its new command, then edit {files} as shown?"
    return ask(question, ("yes", "no"), "yes") == "yes"
