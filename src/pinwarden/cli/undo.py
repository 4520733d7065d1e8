"""``--undo`` of the commands that edit clients' files: show what would be restored, ask, and restore it."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import projects_in_scope
from pinwarden.cli.questions import ask, can_ask
from pinwarden.cli.render.text import wrap
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import is_failing
from pinwarden.core.text import plural

if TYPE_CHECKING:
    from pinwarden.project.edit_backups import EditCommand


def undo(args: Namespace, command: EditCommand, names: Sequence[str]) -> int:
    """Undo the edits of a command, for the named servers or all. With ``--dry-run`` only show them.

    Raises CONSENT_REQUIRED without a terminal and without ``--yes``.
    """
    from pinwarden.project.client_edits import diff_edits
    from pinwarden.project.undo_edits import apply_undo, plan_undo, recover_interrupted
    from pinwarden.project.undo_report import build_recovery_report, build_undo_report

    projects = projects_in_scope(args)
    dry_run = getattr(args, "dry_run", False)
    notes = () if dry_run else recover_interrupted(projects)
    try:
        plan = plan_undo(projects, command, names)
    except PinwardenError as err:
        if notes and err.code == "NOTHING_TO_UNDO":
            return emit(build_recovery_report(command, notes), args.format)
        raise
    proposal = build_undo_report(plan, command, written=False)
    if args.format == "text":
        sys.stdout.write("".join(f"{diff}\n\n" for _, diff in diff_edits(plan.project, plan.edits.files)))
        sys.stdout.flush()
    if dry_run:
        return emit(proposal, args.format)
    if not args.yes:
        _refuse_without_terminal(args, command, names)
        for row in filter(is_failing, proposal.rows):
            sys.stdout.write(f"{row.name}: {row.message}\n")
        for note in proposal.notes[:-1]:  # the last one says that nothing was written
            sys.stdout.write(wrap(f"note: {note}"))
        locks = f" and {plural(len(plan.edits.locks), 'lock')}" if plan.edits.locks else ""
        question = f"Restore {plural(len(plan.edits.files), 'client file')}{locks} as shown?"
        if ask(question, ("yes", "no"), "yes") != "yes":
            return emit(replace(proposal, exit_code=EXIT_REFUSED, notes=proposal.notes[-1:]), args.format)
    apply_undo(plan)
    report = build_undo_report(plan, command, written=True)
    return emit(replace(report, notes=(*notes, *report.notes)), args.format)


def _refuse_without_terminal(args: Namespace, command: EditCommand, names: Sequence[str]) -> None:
    if args.format == "text" and can_ask():
        return
    words = ("pinwarden", command, *map(shlex.quote, names), "--undo", "--yes")
    shown = "The edits are shown by --dry-run. " if hasattr(args, "dry_run") else ""
    raise PinwardenError(
        "CONSENT_REQUIRED",
        "Pinwarden did not restore any file: editing the clients' files needs your consent",
        hint=f"{shown}To make the edits, run: {' '.join(words)}",
    )
