"""The review step of ``setup``: start the servers that are not approved, show their tools, and ask about each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pinwarden.cli.approvals import approve_shown, ask_decision, decide, is_overview, leave_lines, render_approval
from pinwarden.cli.questions import QUIT, ask, quote_server
from pinwarden.cli.render.surface_text import render_changes, render_warnings
from pinwarden.cli.render.text import wrap
from pinwarden.cli.setup_steps import QuitSetup, Setup, agrees, print_heading
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.text import plural
from pinwarden.project.approval_candidate import CONFIRMED_WITH_ALL
from pinwarden.project.approve import (
    Approval,
    PreparedServer,
    format_approve_command,
    list_config_changes,
    prepare_approval,
    prepare_server,
    reload_server,
)
from pinwarden.project.servers_to_approve import ServerToApprove, find_servers_to_approve, identify_package
from pinwarden.surface.drift.compare import compare

if TYPE_CHECKING:
    from pinwarden.cli.render.surface_text import Detail
    from pinwarden.project.lock import Approver
    from pinwarden.surface.surface import Surface


class ServerDecision(Record):
    """What one question is about: a server, or all configured releases of one package."""

    name: str
    servers: tuple[tuple[ServerToApprove, Surface], ...]
    """Each release with its surface, configured as locked."""

    @property
    def title(self) -> str:
        """The name and the clients, with the release in each of them if there are several."""
        clients = [", ".join(server.client_titles) for server, _ in self.servers]
        if len(clients) > 1:
            releases = [server.release or "no release" for server, _ in self.servers]
            clients = [f"{client} ({release})" for client, release in zip(clients, releases, strict=True)]
        return f"{self.name} in {' and '.join(clients)}"

    def prepare(self) -> tuple[Approval, ...]:
        """Compare each surface with what the lock has now."""
        return tuple(prepare_approval(reload_server(server), surface) for server, surface in self.servers)


def review_tools(setup: Setup) -> None:
    """Start the servers that are not approved, show what they offer, and approve it, as ``pinwarden approve`` does."""
    print_heading("Review", "look at the tools of every server")
    servers = find_unapproved(setup)
    if not servers:
        others = ", except those that are left out" if setup.leaves_out_any else ""
        sys.stdout.write(wrap(f"Every server is approved{others}."))
        return
    prepared = list(prepare_servers(setup, list(_leave_out_unlocked(setup, servers))))
    if not prepared or not _agrees_to_start(setup, prepared):
        sys.stdout.write(wrap("No server was started, and nothing was approved."))
        return
    decisions = _group_decisions(_read_surfaces(prepared))
    approves_rest = not setup.asks
    for position, decision in enumerate(decisions, 1):
        sys.stdout.write(f"\n{wrap(f'{position} of {len(decisions)}: {decision.title}')}")
        approves_rest = _decide(setup, decision, rest=decisions[position:], approves_rest=approves_rest)


def find_unapproved(setup: Setup) -> list[ServerToApprove]:
    """Return the servers that are not approved, or not as they are configured now, and are not left out."""
    return [
        server
        for server in find_servers_to_approve(setup.projects)
        if server.needs_approval and not any(setup.leaves_out(part.project.scope, server.name) for part in server.parts)
    ]


def _leave_out_unlocked(setup: Setup, servers: Sequence[ServerToApprove]) -> Iterator[ServerToApprove]:
    """Yield what is configured as locked. The rest is only reported: the user did not agree to lock it."""
    for server in servers:
        if server.problem is not None:
            yield server  # reported with its problem
            continue
        unlocked = [configured for part in server.parts for configured in part.configured]
        if unlocked:
            changes = () if setup.asks else list_config_changes(server)  # the question about the lock showed them
            clients = ", ".join(dict.fromkeys(get_client(one.configured.client).title for one in unlocked))
            is_changed = any(one.status.state == "changed" for one in unlocked)
            state = "is configured differently than locked" if is_changed else "is not locked"
            message = (
                f"{quote_server(server.name)} in {clients} {state}, so it was neither started nor approved. "
                f"To decide on it: {format_approve_command([server.name])}"
            )
            sys.stdout.write(wrap(message, label="- ") + (render_changes(changes) if changes else ""))
        locked = server.without_unlocked()
        if locked.needs_approval:
            yield locked


def prepare_servers(
    setup: Setup, servers: Sequence[ServerToApprove], *, silent: bool = False
) -> Iterator[tuple[ServerToApprove, PreparedServer]]:
    """Yield the servers that can be started or contacted. The others are reported, unless ``silent``."""
    for server in servers:
        try:
            if server.problem is not None:
                raise PinwardenError("POLICY_REFUSED", server.problem)
            yield server, prepare_server(server, setup.probe)
        except PinwardenError as err:
            if not silent:
                sys.stdout.write(wrap(f"{quote_server(server.name)} cannot be approved: {err.message}", label="- "))


def _agrees_to_start(setup: Setup, prepared: Sequence[tuple[ServerToApprove, PreparedServer]]) -> bool:
    """Ask once before any server is started or contacted, with the commands and addresses."""
    if setup.asks and not setup.plan_agreed:
        for server, ready in prepared:
            verb = "start" if ready.is_started else "connect to"
            sys.stdout.write(wrap(f"{server.name}: {verb} {ready.description}", label="- "))
    question = f"Start or contact {plural(len(prepared), 'server')} to read the tools?"
    return agrees(setup, question, otherwise=setup.args.allow_execute)


def _read_surfaces(
    prepared: Sequence[tuple[ServerToApprove, PreparedServer]],
) -> Iterator[tuple[ServerToApprove, Surface]]:
    """Yield the surface of every server that responds, and report the others."""
    from pinwarden.cli.streams import Progress
    from pinwarden.project.server_start import probe_prepared
    from pinwarden.system.bounded_task import describe_failure

    with Progress("reading the tools of the servers") as progress:
        surfaces = probe_prepared(
            [ready.probe for _, ready in prepared], on_progress=lambda step: progress.update(step.done, step.total)
        )
    for (server, _), surface in zip(prepared, surfaces, strict=True):
        if not isinstance(surface, PinwardenError):
            yield server, surface
            continue
        message = f"its tools could not be read: {describe_failure(surface)} [{surface.code}]"
        sys.stdout.write(wrap(f"{quote_server(server.name)}: {message}", label="- "))
        sys.stdout.write(wrap(surface.hint, label="  hint: ") if surface.hint else "")


def _group_decisions(servers: Iterator[tuple[ServerToApprove, Surface]]) -> list[ServerDecision]:
    """Group the servers into decisions. Several releases of one package, none approved before, are one decision."""
    groups: dict[object, list[tuple[ServerToApprove, Surface]]] = {}
    for server, surface in servers:
        package = None if server.reviewed_surfaces() else identify_package(server)
        groups.setdefault(id(server) if package is None else (server.name, repr(package)), []).append((server, surface))
    return [ServerDecision(name=group[0][0].name, servers=tuple(group)) for group in groups.values()]


def _decide(setup: Setup, decision: ServerDecision, *, rest: Sequence[ServerDecision], approves_rest: bool) -> bool:
    """Show one server and record the decision. Returns whether the rest is approved without a question.

    What looks like an attack is never approved without a question.
    """
    approvals = decision.prepare()
    suspicious = any(approval.looks_like_attack for approval in approvals)
    if approves_rest and not suspicious:
        _approve(
            replace(setup.approver, default_reason=CONFIRMED_WITH_ALL) if setup.asks else setup.approver, approvals
        )
        return True
    if not setup.asks and not all(approval.is_unchanged for approval in approvals):
        sys.stdout.write(_render(approvals))
        name = quote_server(decision.name)
        sys.stdout.write(wrap(f"{name} was not approved, because it looks like an attack. See: pinwarden approve"))
        return approves_rest
    if len(approvals) == 1 and (approvals[0].is_unchanged or not approvals[0].is_first):
        if decide(approvals[0], setup.approver) == QUIT:
            raise QuitSetup
        return approves_rest
    unseen = [] if approves_rest else [name for other in rest if (name := _name_if_harmless(other))]
    while True:
        given = ask_decision(
            f"Approve {quote_server(decision.name)}{_count_releases(approvals)}?",
            partial(_render, approvals),
            suspicious=suspicious,
            choices=("approve", "all") if unseen and not suspicious else ("approve",),
            is_overview=all(map(is_overview, approvals)),
        )
        if given.answer != "all" or _agrees_to_unseen(unseen):
            break
    if given.answer == QUIT:
        raise QuitSetup
    if given.answer in ("approve", "all"):
        _approve(given.describe_to(setup.approver), approvals)
    return approves_rest or given.answer == "all"


def _agrees_to_unseen(names: Sequence[str]) -> bool:
    count = f"the other {len(names)} servers" if len(names) > 1 else "the other server"
    question = f"Approve also {count}, without looking at their tools: {', '.join(names)}?"
    answer = ask(question, ("yes", "no", QUIT), "no")
    if answer == QUIT:
        raise QuitSetup
    return answer == "yes"


def _name_if_harmless(decision: ServerDecision) -> str:
    """Return the quoted name of a server that ``all`` would approve; empty if it looks like an attack."""
    suspicious = any(approval.looks_like_attack for approval in decision.prepare())
    return "" if suspicious else quote_server(decision.name)


def _approve(approver: Approver, approvals: Sequence[Approval]) -> None:
    for approval in approvals:
        approve_shown(approval, approver)


def _count_releases(approvals: Sequence[Approval]) -> str:
    count = len(approvals)
    return "" if count == 1 else " in both releases" if count == 2 else f" in all {count} releases"


def _render(approvals: Sequence[Approval], detail: Detail = "short") -> str:
    """Return the first release, and for each other one how it differs from it."""
    first = approvals[0]
    text = ""
    for other in approvals[1:]:
        text += render_warnings(other.candidate.warnings) if other.candidate.warnings else ""
        changes = compare(first.surface, other.surface)
        release = other.server.release or "The other release"
        if not changes:
            text += wrap(f"{release} has the same tools, with the same texts.")
            continue
        text += wrap(f"{release} differs from {first.server.release or 'this release'}:")
        text += render_changes(changes, detail=detail)
    return render_approval(first, leave_lines(detail, for_text=text)) + text
