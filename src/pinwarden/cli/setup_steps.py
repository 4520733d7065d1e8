"""The steps of ``setup``. Each asks, and calls the functions of the command that it is named after.

Every answer is written before the next question, so an interruption loses none. Each step looks at the files again and
asks only about what is left, so ``setup`` continues where it stopped.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.cli.questions import QUIT, ask
from pinwarden.cli.render.text import wrap
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, is_failing, plural
from pinwarden.system.clock import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinwarden.project.approve import PreparedServer
    from pinwarden.project.enforce import EnforcementPlan
    from pinwarden.project.lock import Approver
    from pinwarden.project.pin import PinPlan
    from pinwarden.project.project import Project
    from pinwarden.project.servers_to_approve import ServerToApprove
    from pinwarden.project.status import ServerStatus
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.surface import Surface

_STEPS = ("Find", "Pin", "Verify", "Review", "Enforce")


class QuitSetup(Exception):  # noqa: N818  not an error: the answer to a question
    """The user quit. Everything that was decided before is written."""


class Setup(Record):
    """What the steps work on, and what they may do without asking."""

    args: Namespace
    projects: tuple[Project, ...]
    approver: Approver
    asks: bool
    """Whether there are questions. Otherwise ``args`` says what is allowed."""

    @property
    def probe(self) -> ProbeOptions:
        """How servers are started and contacted, once that is allowed."""
        from pinwarden.surface.probe.probe import ProbeOptions

        # The question names every private address, so the answer allows it.
        private = self.asks or self.args.allow_private
        return ProbeOptions(allow_execute=True, allow_private=private, timeout=self.args.timeout, send_only=())

    def statuses(self, project: Project | None = None) -> tuple[ServerStatus, ...]:
        """The state of every server, in all scopes or in one, as the files say now."""
        from pinwarden.project.status import server_statuses

        return server_statuses(self.projects if project is None else (project,))


def pin_releases(setup: Setup) -> None:
    """Write exact releases into the clients' files, as ``pinwarden pin`` does."""
    from pinwarden.project.pin import build_pin_report, write_pins_plan

    _print_heading("Pin", "write exact releases into the clients' files")
    plans = _plan_pins(setup)
    proposal = build_pin_report(plans, written=False)
    if not any(plan.pins for plan in plans):
        _print_outcome(proposal)
        return
    sys.stdout.write(proposal.facts["diff"])
    files = len({pin.server.path for plan in plans for pin in plan.pins})
    where = "this file" if files == 1 else f"these {files} files"
    if _agrees(setup, f"Write these releases into {where}?"):
        write_pins_plan(*plans)
        _print_outcome(build_pin_report(plans, written=True))
    else:
        _print_outcome(proposal)


def lock_configured(setup: Setup) -> None:
    """Lock the servers as they are configured, as ``pinwarden init`` does. No server is started."""
    from pinwarden.cli.commands.init import ask_about_undecided
    from pinwarden.project.init import discover_servers, lock_discovered, probe_servers
    from pinwarden.project.init_decisions import AcceptedServers

    for project in setup.projects:
        discovery = discover_servers(project, AcceptedServers())
        if all(server.status.state == "unchanged" for server in discovery.servers):
            continue
        if setup.asks:
            discovery = ask_about_undecided(discovery, setup.approver)
        report = lock_discovered(probe_servers(discovery, None), now=now(), approver=setup.approver)
        refused = {row.name: row.message for row in reversed(report.rows) if is_failing(row)}
        sys.stdout.write("".join(wrap(f"{name}: {message}", label="- ") for name, message in refused.items()))


def verify_bytes(setup: Setup) -> None:
    """Download and hash what is not verified, as ``pinwarden prove`` does. No code of a package runs."""
    from pinwarden.cli.fetch_arguments import open_fetch_context
    from pinwarden.project.prove import prove_servers
    from pinwarden.project.scopes import combine_reports

    _print_heading("Verify", "download and hash every package with its dependencies")
    left = [(project, _names(setup, project, "verified")) for project in setup.projects]
    if not any(names for _, names in left):
        sys.stdout.write(wrap("The bytes of every package are verified."))
        return
    reports: list[tuple[Project, Report]] = []
    for project, names in left:
        if names:
            with open_fetch_context(setup.args, project, "downloading and hashing") as context:
                reports.append((project, prove_servers(project, names, context, now())))
    _print_outcome(combine_reports(reports))


def review_tools(setup: Setup) -> None:
    """Start the servers that are not approved, show what they offer, and approve it, as ``pinwarden approve`` does."""
    from pinwarden.project.servers_to_approve import find_servers_to_approve

    _print_heading("Review", "look at the tools of every server")
    servers = [server for server in find_servers_to_approve(setup.projects) if server.needs_approval]
    if not servers:
        sys.stdout.write(wrap("Every server is approved."))
        return
    prepared = list(_prepare(setup, servers))
    if not prepared or not _agrees_to_start(setup, prepared):
        sys.stdout.write(wrap("No server was started, and nothing was approved."))
        return
    approves_rest = not setup.asks
    for position, (server, surface) in enumerate(_read_surfaces(prepared), 1):
        if isinstance(surface, PinwardenError):
            sys.stdout.write(wrap(f"{server.name}: its tools could not be read: {surface.message} [{surface.code}]"))
            sys.stdout.write(wrap(surface.hint, label="hint: ") if surface.hint else "")
        else:
            heading = f"\n{position} of {len(prepared)}: {server.name} in {', '.join(_client_titles(server))}\n"
            approves_rest = _decide(setup, server, surface, heading=heading, without_asking=approves_rest)


def enforce_starts(setup: Setup) -> None:
    """Make the clients start approved servers through ``pinwarden run``, as ``pinwarden enforce`` does."""
    from pinwarden.cli.streams import Progress
    from pinwarden.project.enforce import apply_enforcement, build_enforcement_report
    from pinwarden.project.scopes import combine_reports

    _print_heading("Enforce", "let the clients start servers through pinwarden run")
    plans = list(_plan_enforcement(setup))
    changed = [plan for plan in plans if plan.changes_anything]
    if not changed:
        _print_refusals(plans)
        sys.stdout.write(wrap("There is no approved server that clients start in another way."))
        return
    for plan in changed:
        sys.stdout.write("".join(f"{diff}\n\n" for _, diff in plan.diffs))
    files = plural(sum(len(plan.files) for plan in changed), "client file")
    question = f"Start each server once with its new command, then edit {files} as shown?"
    agreed = _agrees(setup, question, otherwise=setup.args.enforce)
    reports: list[tuple[Project, Report]] = []
    for plan in changed:
        with Progress("starting servers with their new commands"):
            report = apply_enforcement(plan, setup.probe) if agreed else build_enforcement_report(plan, written=False)
        reports.append((plan.project, report))
    _print_outcome(combine_reports(reports))


def find_servers(setup: Setup) -> bool:
    """Show what is configured, and secrets in plain text. Returns whether there is any server."""
    from pinwarden.cli.commands.status import print_board, report_board

    _print_heading("Find", "read the files of all clients")
    result = report_board(setup.projects)
    print_board(result)
    sys.stdout.write(wrap(result.report.summary))
    return bool(result.servers)


def finish(setup: Setup) -> int:
    """Show the state of every server and what to do next. The exit code is 1 if something is left to do."""
    from pinwarden.cli.commands.status import print_board, report_board

    sys.stdout.write("\n")
    result = report_board(setup.projects)
    print_board(result)
    sys.stdout.write(wrap(result.report.summary))
    left = [server for server in result.servers if server.next_step is not None]
    if left:
        sys.stdout.write(wrap(f"Next: {result.report.next_command}"))
        return EXIT_REFUSED
    sys.stdout.write(wrap("Next, to check all this on every push: pinwarden init-ci"))
    return EXIT_CLEAN


def _print_heading(step: str, what: str) -> None:
    sys.stdout.write(f"\n{wrap(f'{_STEPS.index(step) + 1}/{len(_STEPS)} {step}: {what}')}")
    sys.stdout.flush()


def _print_outcome(report: Report) -> None:
    from pinwarden.cli.output import emit

    emit(replace(report, rows=tuple(row for row in report.rows if is_failing(row)), next_command=None), "text")


def _agrees(setup: Setup, question: str, *, otherwise: bool = True) -> bool:
    """Ask, with yes as the default. Without questions, the answer is what the options allow."""
    if not setup.asks:
        return otherwise
    answer = ask(question, ("yes", "no", QUIT), "yes")
    if answer == QUIT:
        raise QuitSetup
    return answer == "yes"


def _plan_pins(setup: Setup) -> list[PinPlan]:
    from pinwarden.cli.fetch_arguments import open_fetch_context
    from pinwarden.project.floating_releases import ReleaseResolver
    from pinwarden.project.pin import plan_pins

    with open_fetch_context(setup.args, setup.projects[0], "looking up releases") as context:
        resolver = ReleaseResolver(setup.projects, context)
        return [plan_pins(project, (), context, resolver) for project in setup.projects]


def _names(setup: Setup, project: Project, state: str) -> tuple[str, ...]:
    """The locked servers of a scope that are not, or not everywhere, in a state."""
    servers = setup.statuses(project)
    left = (server.name for server in servers if server.locked != "no" and getattr(server, state) in ("no", "partly"))
    return tuple(dict.fromkeys(left))


def _prepare(setup: Setup, servers: Sequence[ServerToApprove]) -> Iterator[tuple[ServerToApprove, PreparedServer]]:
    """The servers that can be started or contacted; the others are reported."""
    from pinwarden.project.approve import prepare_server

    for server in servers:
        try:
            if server.problem is not None:
                raise PinwardenError("POLICY_REFUSED", server.problem)
            yield server, prepare_server(server, setup.probe)
        except PinwardenError as err:
            sys.stdout.write(wrap(f"{server.name} cannot be approved: {err.message}", label="- "))


def _agrees_to_start(setup: Setup, prepared: Sequence[tuple[ServerToApprove, PreparedServer]]) -> bool:
    """Ask once before any server is started or contacted. "show" lists the commands and addresses."""
    if not setup.asks:
        return bool(setup.args.allow_execute)
    started = sum(server.is_started for _, server in prepared)
    parts = [f"start {plural(started, 'server')}"] if started else []
    addresses = [server.description for _, server in prepared if not server.is_started]
    parts += [f"connect to {', '.join(addresses)}"] if addresses else []
    question = f"{' and '.join(parts).capitalize()} to read the tools?"
    while (answer := ask(question, ("yes", "show", "skip", QUIT), "yes")) == "show":
        for server, ready in prepared:
            sys.stdout.write(wrap(f"{server.name}: {ready.description}", label="- "))
    if answer == QUIT:
        raise QuitSetup
    return answer == "yes"


def _client_titles(server: ServerToApprove) -> tuple[str, ...]:
    """The clients that have the server, as people call them. The lock has one name for several of them."""
    from pinwarden.clients.table import get_client
    from pinwarden.lock.locked_config import read_config_origin

    clients = [
        origin.client if (origin := read_config_origin(entry)) is not None else entry.client
        for part in server.parts
        for entry in part.entries
    ]
    clients += [configured.server.client for part in server.parts for configured in part.configured]
    return tuple(dict.fromkeys(get_client(client).title for client in clients))


def _read_surfaces(
    prepared: Sequence[tuple[ServerToApprove, PreparedServer]],
) -> list[tuple[ServerToApprove, Surface | PinwardenError]]:
    from pinwarden.cli.streams import Progress
    from pinwarden.project.server_start import probe_prepared

    with Progress("reading the tools of the servers") as progress:
        surfaces = probe_prepared(
            [ready.probe for _, ready in prepared], on_progress=lambda step: progress.update(step.done, step.total)
        )
    return list(zip((server for server, _ in prepared), surfaces, strict=True))


def _decide(setup: Setup, server: ServerToApprove, surface: Surface, *, heading: str, without_asking: bool) -> bool:
    """Show one server and record the decision. Returns whether the rest is approved without asking.

    What looks like an attack is never approved without asking.
    """
    from pinwarden.cli.approvals import approve_shown, decide, render_approval
    from pinwarden.project.approve import prepare_approval, reload_server

    approval = prepare_approval(reload_server(server), surface)
    sys.stdout.write(heading)
    if not setup.asks and approval.looks_like_attack and not approval.is_unchanged:
        sys.stdout.write(render_approval(approval))
        sys.stdout.write(wrap(f"{server.name} was not approved: it looks like an attack. See pinwarden approve."))
        return without_asking
    if without_asking and not approval.looks_like_attack:
        approve_shown(approval, setup.approver)
        return without_asking
    if approval.is_unchanged or not approval.is_first:
        if decide(approval, setup.approver) == QUIT:
            raise QuitSetup
        return without_asking
    sys.stdout.write(render_approval(approval))
    choices = ("yes", "show", "skip", QUIT) if approval.looks_like_attack else ("yes", "show", "skip", "all", QUIT)
    default = "skip" if approval.looks_like_attack else "yes"
    while (answer := ask(f"Approve {server.name}?", choices, default)) == "show":
        sys.stdout.write(render_approval(approval, full=True))
    if answer == QUIT:
        raise QuitSetup
    if answer in ("yes", "all"):
        approve_shown(approval, setup.approver)
    return answer == "all"


def _plan_enforcement(setup: Setup) -> Iterator[EnforcementPlan]:
    """The plan of each scope, for approved servers that a client starts in another way."""
    from pinwarden.project.enforce import plan_enforcement

    for project in setup.projects:
        servers = setup.statuses(project)
        unapproved = {server.name for server in servers if server.approved != "yes"}
        names = [name for name in _names(setup, project, "enforced") if name not in unapproved]
        if names:
            yield plan_enforcement(project, names)


def _print_refusals(plans: Sequence[EnforcementPlan]) -> None:
    for plan in plans:
        for entry, err in plan.refused:
            sys.stdout.write(wrap(f"{entry.name}: {err.message}", label="- "))
