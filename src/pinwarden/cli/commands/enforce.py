"""``enforce``: make clients start locked servers through ``pinwarden run``, and take that back."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, names_by_scope, projects_in_scope
from pinwarden.cli.server_arguments import probe_seconds
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.core.report import Report
    from pinwarden.project.enforce import EnforcementPlan
    from pinwarden.surface.probe.probe import ProbeOptions


def _configure_enforce(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock (default: all)")
    parser.add_argument("--undo", action="store_true", help="restore the files as they were before enforce")
    parser.add_argument("--dry-run", action="store_true", help="show the edits and write nothing")
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument(
        "--allow-execute",
        action="store_true",
        help="start each server once with its new command, and leave it unchanged if it does not respond",
    )
    parser.add_argument(
        "--timeout", type=probe_seconds, default=60.0, metavar="SECONDS", help="time limit for each start (default: 60)"
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_enforce)
def enforce(args: Namespace) -> int:
    """Rewrite client configurations so that clients start locked servers through pinwarden run.

    The edits are shown first. On a terminal you are asked before anything is started or written; in scripts, add --yes,
    and --allow-execute to start each server once with its new command. Every file is backed up, and --undo restores it.
    Packages need pinned bytes (pinwarden prove). For a remote address, pinwarden run relays the client to it.

    Examples:
      pinwarden enforce --dry-run
      pinwarden enforce notes --yes --allow-execute
      pinwarden enforce --undo
    """
    from pinwarden.project.scopes import combine_reports

    if args.undo:
        return emit(_undo(args), args.format)
    plans = _plan(args)
    if args.format == "text":
        _show_diffs(plans)
    consent = _find_consent(args, plans)
    report = combine_reports([(plan.project, _apply(plan, consent)) for plan in plans])
    declined = not consent.write and not args.dry_run
    return emit(replace(report, exit_code=EXIT_REFUSED) if declined else report, args.format)


class _Consent(Record):
    """What the user agreed to."""

    write: bool
    probe: ProbeOptions | None = None
    """With it, each server is started once with its new command."""


def _plan(args: Namespace) -> list[EnforcementPlan]:
    """The plan of each scope. An error in one scope is raised only if no other scope has a plan."""
    from pinwarden.project.enforce import plan_enforcement

    plans: list[EnforcementPlan] = []
    errors: list[PinwardenError] = []
    for project, names in names_by_scope(args, args.server):
        try:
            plans.append(plan_enforcement(project, names, recover=not args.dry_run))
        except PinwardenError as err:
            if err.code not in ("LOCK_MISSING", "SERVER_NOT_LOCKED"):
                raise
            errors.append(err)
    if not plans:
        raise errors[0]
    return plans


def _show_diffs(plans: Sequence[EnforcementPlan]) -> None:
    for plan in plans:
        for _, diff in plan.diffs:
            sys.stdout.write(f"{diff}\n\n")
    sys.stdout.flush()


def _find_consent(args: Namespace, plans: Sequence[EnforcementPlan]) -> _Consent:
    """Ask whether to edit the files and to start the servers, unless options say so.

    Raises CONSENT_REQUIRED if there is no terminal to ask on.
    """
    from pinwarden.cli.questions import ask, can_ask
    from pinwarden.surface.probe.probe import ProbeOptions

    probe = ProbeOptions(allow_execute=True, timeout=args.timeout)
    if args.dry_run:
        return _Consent(write=False)
    if args.yes or not any(plan.changes_anything for plan in plans):
        return _Consent(write=True, probe=probe if args.allow_execute else None)
    if args.format != "text" or not can_ask():
        words = ("pinwarden", "enforce", *map(shlex.quote, args.server), "--yes", "--allow-execute")
        raise PinwardenError(
            "CONSENT_REQUIRED",
            "Pinwarden did not edit any file: editing needs your consent",
            hint=f"Look at the edits with --dry-run, then run: {' '.join(words)}",
        )
    files = plural(sum(len(plan.files) for plan in plans), "client file")
    if ask(f"Edit {files} as shown?", ("yes", "no"), "yes") != "yes":
        return _Consent(write=False)
    names = list(dict.fromkeys(name for plan in plans for name in plan.servers_to_start))
    question = f"Start {plural(len(names), 'server')} once first, to check the new commands ({', '.join(names)})?"
    start = args.allow_execute or (bool(names) and ask(question, ("yes", "no"), "yes") == "yes")
    return _Consent(write=True, probe=probe if start else None)


def _apply(plan: EnforcementPlan, consent: _Consent) -> Report:
    from pinwarden.cli.streams import print_notice
    from pinwarden.project.enforce import apply_enforcement, build_enforcement_report

    if not consent.write:
        return build_enforcement_report(plan, written=False)
    return apply_enforcement(plan, consent.probe, lambda name: print_notice(f"starting {name} with its new command"))


def _undo(args: Namespace) -> Report:
    from pinwarden.project.undo_enforcement import undo_enforcement

    if args.dry_run:
        raise PinwardenError("USAGE", "--undo and --dry-run cannot be used together")
    return undo_enforcement(projects_in_scope(args), args.server)
