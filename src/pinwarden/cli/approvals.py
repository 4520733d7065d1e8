"""Ask a person to approve a server: show what it offers or what changed, and record the decision.

Every answer is written at once, so an interruption loses no answer and leaves nothing half-approved. ``approve`` and
``setup`` use this module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pinwarden.cli.questions import ALL, QUIT, ask, count_free_lines, quote_server, show_in_pages
from pinwarden.cli.render.surface_text import (
    render_changes,
    render_surface,
    render_warnings,
    shows_borderline_sentences,
)
from pinwarden.cli.render.text import wrap
from pinwarden.cli.streams import Progress
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.project.approval_candidate import CONFIRMED_SHORTENED
from pinwarden.project.approve import (
    Approval,
    build_item_change,
    describe_unchanged,
    list_config_changes,
    list_neighbours,
    prepare_approval,
    prepare_server,
    record_approval,
    record_configuration,
    split_changes,
    summarize_approved,
)
from pinwarden.system.clock import now

if TYPE_CHECKING:
    from pinwarden.cli.render.surface_text import Detail
    from pinwarden.core.report import Row
    from pinwarden.project.approve import PreparedServer
    from pinwarden.project.lock import Approver
    from pinwarden.project.servers_to_approve import ServerToApprove
    from pinwarden.surface.drift.changes import Change
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.surface import Surface

_MAX_MARGIN = 3  # texts of servers are indented by more
APPROVED, SKIPPED = "approved", "skipped"
"""The outcomes of a question about a server. The third outcome is ``QUIT``."""


def approve_at_terminal(
    server: ServerToApprove, options: ProbeOptions, approver: Approver, *, full: bool = False
) -> str:
    """Ask about one server: whether to start it, then whether to approve it. Returns the outcome."""
    _print_heading(server)
    if server.problem is not None:
        sys.stdout.write(wrap(f"It cannot be approved: {server.problem}"))
        return SKIPPED
    try:
        surface = _read_surface(server, options)
    except PinwardenError as err:
        from pinwarden.system.bounded_task import describe_failure

        sys.stdout.write(wrap(f"Its tools could not be read: {describe_failure(err)} [{err.code}]"))
        sys.stdout.write(wrap(err.hint, label="hint: ") if err.hint else "")
        return _lock_without_tools(server, approver)
    if surface == QUIT:
        return QUIT
    if isinstance(surface, str):
        return _lock_without_tools(server, approver)
    return decide(prepare_approval(server, surface), approver, full=full)


def decide(approval: Approval, approver: Approver, *, full: bool = False) -> str:
    """Show what would be approved, ask, and record the answer."""
    if approval.is_unchanged:
        sys.stdout.write(wrap("Nothing to approve: its surface is as approved."))
        return APPROVED
    can_split = len(approval.server.reviewed_surfaces()) == 1 and not approval.is_first
    decision = ask_decision(
        f"Approve {quote_server(approval.server.name)}?",
        lambda detail: render_approval(approval, "full" if full else detail),
        suspicious=approval.looks_like_attack,
        choices=("approve", "each") if can_split else ("approve",),
        is_overview=is_overview(approval),
    )
    if decision.answer == "approve":
        return approve_shown(approval, decision.describe_to(approver))
    return _decide_each(approval, approver) if decision.answer == "each" else decision.answer


class GivenAnswer(NamedTuple):
    """The answer to a question about what was shown."""

    answer: str
    saw_everything: bool
    """Whether every text was shown completely before the answer."""

    def describe_to(self, approver: Approver) -> Approver:
        """Return the approver with the reason that the lock records."""
        return approver if self.saw_everything else replace(approver, default_reason=CONFIRMED_SHORTENED)


def is_overview(approval: Approval) -> bool:
    """Whether the first screen is enough to decide: of a first approval, it has all that a person should read first."""
    return approval.is_first and shows_borderline_sentences(approval.surface)


def ask_decision(
    question: str,
    render: Callable[[Detail], str],
    *,
    suspicious: bool,
    choices: Sequence[str] = ("approve",),
    is_overview: bool = False,
) -> GivenAnswer:
    """Show what would be approved, and ask about it. The answer is one of ``choices``, ``SKIPPED`` or ``QUIT``.

    The default is ``skip`` if something looks like an attack, ``show`` while a part of a text was not shown, unless
    what was shown is an overview, and otherwise the first choice. What is longer than the terminal is shown page by
    page. The answer ``show`` first shows the texts that were shortened, then complete definitions.
    """
    shown = render(count_free_lines() or "short")
    rest = find_unshown(shown, render("text"))
    if show_in_pages(shown) == QUIT:
        return GivenAnswer(QUIT, saw_everything=False)
    while True:
        default = "skip" if suspicious else "show" if rest and not is_overview else choices[0]
        answer = ask(question, (*choices, "show", "skip", QUIT), default)
        if answer != "show":
            return GivenAnswer(SKIPPED if answer == "skip" else answer, saw_everything=not rest)
        outcome = show_in_pages(rest or render("full"), can_go_back=True)
        if outcome == QUIT:
            return GivenAnswer(QUIT, saw_everything=False)
        if outcome == ALL:
            rest = ""


def find_unshown(shown: str, complete: str) -> str:
    """Return the items of the complete text that were not shown, or not completely. An item begins at the margin."""
    known = set(_split_items(shown))
    return "".join(item for item in _split_items(complete) if item not in known)


def _split_items(text: str) -> list[str]:
    return re.findall(rf"^ {{0,{_MAX_MARGIN}}}(?! ).*\n(?: {{{_MAX_MARGIN + 1},}}.*\n)*", text, re.MULTILINE)


def render_approval(approval: Approval, detail: Detail = "short") -> str:
    """Render the changes, and the whole surface if nothing of it was approved before."""
    warnings = approval.candidate.warnings
    if approval.is_first:
        changes = render_changes(approval.changes, detail=detail) if approval.changes else ""
        left = leave_lines(detail, for_text=changes)
        return changes + render_surface(approval.surface, name=approval.server.name, warnings=warnings, detail=left)
    if not approval.changes and not warnings:
        sentence = describe_unchanged(approval)
        return wrap(f"{sentence[:1].upper()}{sentence[1:]}.")
    return render_changes_with_warnings(approval.changes, warnings, detail)


def leave_lines(detail: Detail, *, for_text: str) -> Detail:
    """Return the detail of a text that is shown together with another one."""
    return max(1, detail - for_text.count("\n")) if isinstance(detail, int) else detail


def render_changes_with_warnings(changes: Sequence[Change], warnings: Sequence[Row], detail: Detail = "short") -> str:
    """Render the changes of a surface, and the scan warnings about their text, if there are any."""
    shown = render_changes(changes, detail=detail)
    return shown + (render_warnings(warnings) if warnings else "")


def _print_heading(server: ServerToApprove) -> None:
    clients = ", ".join(server.client_titles)
    state = "" if server.is_locked else ", not locked yet"
    sys.stdout.write(wrap(f"\n{server.name}".lstrip("\n") + (f" in {clients}" if clients else "") + state))


def _read_surface(server: ServerToApprove, options: ProbeOptions) -> Surface | str:
    """Return the surface of the server, or the answer if the user did not agree to start it.

    Asks before it starts a command that differs from the lock, even if the options allow servers to be started.
    """
    prepared = prepare_server(server, replace(options, allow_execute=True))
    if server.config_changes or not (prepared.is_started and options.allow_execute):
        changes = list_config_changes(server)
        sys.stdout.write(render_changes(changes) if changes else "")
        answer = ask(_confirm_start(server, prepared), ("yes", "no", QUIT), "yes")
        if answer != "yes":
            return answer
    from pinwarden.project.server_start import probe_server

    with Progress(f"reading the tools of {server.name}"):
        return probe_server(prepared.probe)


def _confirm_start(server: ServerToApprove, prepared: PreparedServer) -> str:
    if prepared.is_started:
        return f"Start {quote_server(server.name)} ({prepared.description}) to read its tools?"
    return f"Connect to {quote_server(server.name)} ({prepared.description}) to read its tools?"


def _lock_without_tools(server: ServerToApprove, approver: Approver) -> str:
    """Offer to approve only the configuration. Asks nothing if the configuration did not change."""
    if not any(part.configured for part in server.parts):
        sys.stdout.write(wrap("Nothing was approved: its tools were not read."))
        return SKIPPED
    answer = ask(f"Lock {quote_server(server.name)} as it is configured, without its tools?", ("yes", "no", QUIT), "no")
    if answer != "yes":
        return QUIT if answer == QUIT else SKIPPED
    record_configuration(server, approver, now())
    sys.stdout.write(wrap(f"{server.name}: locked without its tools. To approve them later, run the command again."))
    return SKIPPED


def approve_shown(approval: Approval, approver: Approver) -> str:
    """Record an approval, with its warnings as approved: they must have been shown to the approver."""
    seen = replace(approval, candidate=replace(approval.candidate, warnings_approved=True))
    record_approval(seen, approver, now())
    sys.stdout.write(wrap(summarize_approved(seen, approver)))
    return APPROVED


def _decide_each(approval: Approval, approver: Approver) -> str:
    """Ask about the configuration and then about each changed item. Every approval is written at once."""
    server, served = approval.server, approval.surface
    configuration = list_config_changes(server)
    if any(part.configured for part in server.parts):
        sys.stdout.write(render_changes(configuration))
        answer = ask(f"Approve the configuration of {quote_server(server.name)}?", ("approve", "skip", QUIT), "skip")
        if answer != "approve":
            return QUIT if answer == QUIT else SKIPPED
        server = record_configuration(server, approver, now())
    (approved,) = approval.server.reviewed_surfaces()
    items, neighbours = list(split_changes(approved, served)), list_neighbours(server)
    skipped = 0
    for position, (member, key) in enumerate(items, 1):
        change = build_item_change(approved, served, member, key, neighbours)
        step = replace(prepare_approval(server, change.surface), changes=change.changes)
        answer = _decide_item(step, f"{position} of {len(items)}: approve {change.title}?")
        if answer == QUIT:
            return QUIT
        if answer == SKIPPED:
            skipped += 1
            continue
        seen = replace(step, candidate=replace(step.candidate, warnings_approved=True))
        partial = position < len(items) or skipped > 0
        server, approved = record_approval(seen, approver, now(), partial=partial), change.surface
    if skipped:
        sys.stdout.write(wrap(f"{server.name}: {skipped} of {len(items)} not approved; the gateway blocks these."))
        return SKIPPED
    sys.stdout.write(wrap(f"{server.name}: every change is approved by {approver.by}"))
    return APPROVED


def _decide_item(step: Approval, question: str) -> str:
    """Show one changed item and ask about it."""
    return ask_decision(question, partial(render_approval, step), suspicious=step.looks_like_attack).answer
