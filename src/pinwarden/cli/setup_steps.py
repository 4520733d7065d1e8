"""The steps of ``setup``. Each asks, and calls the functions of the command that it is named after.

Every answer is written before the next question, so an interruption loses none. Each step looks at the files again and
asks only about what is left, so ``setup`` continues where it stopped.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.questions import QUIT, ask, quote_server, show_in_pages
from pinwarden.cli.render.text import render_command, wrap
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report, is_failing
from pinwarden.core.text import plural
from pinwarden.system.clock import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinwarden.project.enforce import EnforcementPlan
    from pinwarden.project.enforcement_preview import EnforcementPreview
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.lock import Approver
    from pinwarden.project.missing_programs import MissingProgram
    from pinwarden.project.parallel import ProgressCallback
    from pinwarden.project.pin import PinPlan
    from pinwarden.project.project import LockScope, Project
    from pinwarden.project.status import ServerStatus
    from pinwarden.surface.probe.probe import ProbeOptions

_STEPS = ("Find", "Pin", "Verify", "Review", "Enforce")


class QuitSetup(Exception):  # noqa: N818  not an error: the answer to a question
    """The user quit. Everything that was decided before is written."""


class Setup(Record):
    """What the steps work on, and what they may do without asking."""

    args: Namespace
    projects: tuple[Project, ...]
    approver: Approver
    asks: bool
    """Whether the steps ask the user. If not, the options in ``args`` say what is allowed."""
    pins: tuple[PinPlan, ...] = ()
    """The releases to write, once they were looked up."""
    missing_programs: tuple[MissingProgram, ...] = ()
    """Programs that this machine lacks. The steps leave out the servers that need them."""
    refused: frozenset[tuple[LockScope, str]] = frozenset()
    """Servers whose bytes were refused, by scope and name. The steps after that leave them out."""
    unverified: frozenset[tuple[LockScope, str]] = frozenset()
    """Servers whose bytes could not be verified. The steps after that leave them out too."""
    preview: EnforcementPreview | None = field(default=None, repr=False)
    """The edits of the last step, as the plan shows them; None if there was no plan."""
    plan_agreed: bool = False
    """Whether the user agreed to the plan, so that no step asks again. Each server is still a decision of its own."""

    @property
    def probe(self) -> ProbeOptions:
        """How servers are started and contacted, once that is allowed."""
        from pinwarden.surface.probe.probe import ProbeOptions

        # The question names every private address, so the answer allows it.
        private = self.asks or self.args.allow_private
        return ProbeOptions(allow_execute=True, allow_private=private, timeout=self.args.timeout, send_only=())

    def leaves_out(self, scope: LockScope, name: str) -> bool:
        """Whether a server is left out: it needs a program that is missing, or its bytes are not verified."""
        missing = any((scope, name) in program.needed_by for program in self.missing_programs)
        return missing or (scope, name) in self.refused | self.unverified

    @property
    def leaves_out_any(self) -> bool:
        """Whether any server is left out."""
        return bool(self.missing_programs or self.refused or self.unverified)

    def statuses(self, project: Project | None = None) -> tuple[ServerStatus, ...]:
        """Return the current state of every server that is not left out, in all scopes or in one."""
        from pinwarden.project.status import server_statuses

        statuses = server_statuses(self.projects if project is None else (project,))
        return tuple(status for status in statuses if not self.leaves_out(status.scope, status.name))


def look_up_releases(setup: Setup) -> Setup:
    """Choose the exact release of every floating server. Nothing is written."""
    from pinwarden.cli.fetch_arguments import DownloadOptions, open_fetch_context
    from pinwarden.project.floating_releases import ReleaseResolver
    from pinwarden.project.pin import plan_pins
    from pinwarden.project.undo_edits import recover_interrupted

    for note in recover_interrupted(setup.projects):
        sys.stdout.write(wrap(note))
    options = DownloadOptions(allow_private=setup.args.allow_private)
    with open_fetch_context(options, setup.projects[0], "looking up releases") as context:
        resolver = ReleaseResolver(setup.projects, context)
        return replace(setup, pins=tuple(plan_pins(project, (), context, resolver) for project in setup.projects))


def pin_releases(setup: Setup) -> None:
    """Write exact releases into the clients' files, as ``pinwarden pin`` does."""
    from pinwarden.project.pin import build_pin_report, list_file_edits, write_pins

    print_heading("Pin", "write exact releases into the clients' files")
    proposal = build_pin_report(setup.pins, written=False)
    if not any(plan.pins for plan in setup.pins):
        _print_outcome(proposal)
        return
    whole = proposal.facts["diff"]
    pins = [
        (plan.project.display_path(pin.server.path), f"{pin.server.name} {pin.version}")
        for plan in setup.pins
        for pin in plan.pins
    ]
    _print_edits(setup, pins, whole)
    files = len(list_file_edits(setup.pins))
    where = "this file" if files == 1 else f"these {files} files"
    if agrees(setup, f"Write these releases into {where}?", whole=whole):
        write_pins(setup.pins, in_setup=True)
        _print_outcome(build_pin_report(setup.pins, written=True))
    else:
        _print_outcome(proposal)


def lock_configured(setup: Setup) -> None:
    """Lock the servers as they are configured, as ``pinwarden init`` does. No server is started.

    The plan names servers that are new next to a lock, so they are locked without another question if the user agreed
    to it. Without questions, they are locked if servers may be started, and a changed server never. Raises QuitSetup.
    """
    from pinwarden.cli.commands.init import ask_about_undecided
    from pinwarden.project.init import discover_servers, lock_discovered, lock_new_servers, probe_servers
    from pinwarden.project.init_decisions import AcceptedServers

    for project in setup.projects:
        discovery = discover_servers(project, AcceptedServers())
        if all(server.status.state == "unchanged" for server in discovery.servers):
            continue
        if setup.plan_agreed or (setup.args.allow_execute and not setup.asks):
            discovery = lock_new_servers(discovery, now=now(), approver=setup.approver)
        if setup.asks:
            discovery, finished = ask_about_undecided(discovery, setup.approver)
            if not finished:
                raise QuitSetup
        report = lock_discovered(probe_servers(discovery, None), now=now(), approver=setup.approver)
        refused = {row.name: row.message for row in reversed(report.rows) if is_failing(row)}
        sys.stdout.write("".join(wrap(f"{name}: {message}", label="- ") for name, message in refused.items()))


def verify_bytes(setup: Setup) -> Setup:
    """Download and hash what is not verified, as ``pinwarden prove`` does, and locked files that the store lacks.

    No code of a package runs. Returns the setup without the servers whose bytes were refused or could not be verified.
    """
    from pinwarden.project.fetch import FetchOptions, fetch
    from pinwarden.project.prove import prove_servers

    print_heading("Verify", "download and hash every package with its dependencies")
    left = [(project, _names(setup, project, "verified")) for project in setup.projects]
    lacking = [
        (
            project,
            tuple(dict.fromkeys(server.name for server in setup.statuses(project) if server.next_step == "fetch")),
        )
        for project in setup.projects
    ]
    count = sum(len(names) for _, names in (*left, *lacking))
    if not count:
        others = ", except of the servers that are left out" if setup.leaves_out_any else ""
        sys.stdout.write(wrap(f"The bytes of every locked package are verified{others}."))
        return setup
    packages = "the package of 1 server" if count == 1 else f"the packages of {count} servers"
    if not agrees(setup, f"Download and hash {packages}, with all dependencies?"):
        sys.stdout.write(wrap("Nothing was downloaded."))
        return setup

    def prove_named(project: Project, names: tuple[str, ...], context: FetchContext) -> Report:
        return prove_servers(project, names, context, now())

    def fetch_named(project: Project, names: tuple[str, ...], context: FetchContext) -> Report:
        return fetch(project, names, context, FetchOptions(builds_environments=False))

    failed = {
        **_for_each_scope(setup, left, "downloading and hashing", prove_named),
        **_for_each_scope(setup, lacking, "downloading locked files", fetch_named),
    }
    refused = frozenset(server for server, severity in failed.items() if severity == "critical")
    unverified = frozenset(failed) - refused
    for servers, why in ((refused, "the bytes were refused"), (unverified, "the bytes could not be verified")):
        names = ", ".join(sorted({quote_server(name) for _, name in servers}))
        sys.stdout.write(wrap(f"Setup does not start or approve {names}, because {why}.", label="- ") if names else "")
    return replace(setup, refused=refused, unverified=unverified)


def _for_each_scope(
    setup: Setup,
    scopes: Sequence[tuple[Project, tuple[str, ...]]],
    activity: str,
    work: Callable[[Project, tuple[str, ...], FetchContext], Report],
) -> dict[tuple[LockScope, str], str]:
    """Do the work for the named servers of each scope, and print one outcome. The progress counts all of them.

    Returns the severity of the worst finding about each server that failed, by scope and name.
    """
    from pinwarden.cli.fetch_arguments import DownloadOptions, open_fetch_context
    from pinwarden.project.scopes import combine_reports

    reports: list[tuple[Project, Report]] = []
    done, total = 0, sum(len(names) for _, names in scopes)
    for project, names in scopes:
        if names:
            options = DownloadOptions(allow_private=setup.args.allow_private)
            with open_fetch_context(options, project, activity) as context:
                counted = replace(context, on_servers=_count_from(context.on_servers, done, total))
                reports.append((project, work(project, names, counted)))
            done += len(names)
    if reports:
        _print_outcome(combine_reports(reports))
    rows = [(project.scope, row) for project, report in reports for row in report.rows if is_failing(row)]
    rows.sort(key=lambda found: found[1].severity == "critical")
    return {(scope, row.name): row.severity for scope, row in rows}


def _count_from(on_servers: ProgressCallback | None, done: int, total: int) -> ProgressCallback | None:
    """Return a callback that counts the servers of one scope after those that are done, out of the total of all."""
    if on_servers is None:
        return None
    return lambda progress: on_servers(replace(progress, done=done + progress.done, total=total))


def enforce_starts(setup: Setup) -> None:
    """Make the clients start approved servers through ``pinwarden run``, as ``pinwarden enforce`` does."""
    from pinwarden.cli.streams import Progress
    from pinwarden.project.enforce import apply_enforcement, build_enforcement_report

    print_heading("Enforce", "let the clients start servers through pinwarden run")
    plan = _plan_enforcement(setup)
    if plan is None or not plan.changes_anything:
        _print_refusals(plan)
        sys.stdout.write(wrap("There is no approved server that clients start in another way."))
        return
    whole = "".join(f"{diff}\n\n" for _, diff in plan.diffs)
    if setup.preview is None or not setup.preview.covers(plan):
        setup = replace(setup, plan_agreed=False)  # the plan did not show these edits
    entries = [
        (scope.project.display_path(entry.server.path), entry.entry.name)
        for scope in plan.scopes
        for entry in scope.entries
        if entry.server is not None and entry.action == "updated"
    ]
    _print_edits(setup, entries, whole)
    question = (
        f"Start each server once with its new command, then edit {plural(len(plan.files), 'client file')} as shown?"
    )
    if not agrees(setup, question, otherwise=setup.args.enforce, whole=whole):
        _print_outcome(build_enforcement_report(plan, written=False))
        return
    with Progress("starting servers with their new commands"):
        report = apply_enforcement(plan, setup.probe, in_setup=True)
    _print_outcome(report)


def find_servers(setup: Setup) -> bool:
    """Show what is configured, secrets in plain text, and missing programs. Returns whether there is any server."""
    from pinwarden.cli.commands.status import print_board, report_board

    print_heading("Find", "read the files of all clients")
    result = report_board(setup.projects)
    print_board(result)
    sys.stdout.write(wrap(result.report.summary))
    for program in setup.missing_programs:
        which = "this server" if len(program.servers) == 1 else "these servers"
        sys.stdout.write(wrap(program.describe(f"Setup leaves out {which} until it is."), label="- "))
    return bool(result.servers)


def finish(setup: Setup) -> int:
    """Show the state of every server and what to do next. The exit code is 1 if something is left to do."""
    from pinwarden.cli.commands.status import print_board, report_board
    from pinwarden.cli.commit_line import build_commit_command
    from pinwarden.project.undo_edits import can_undo

    sys.stdout.write("\n")
    result = report_board(setup.projects)
    print_board(result)
    sys.stdout.write(wrap(result.report.summary))
    if can_undo(setup.projects, "enforce"):
        sys.stdout.write(wrap("To return every client's file to what it was before: pinwarden enforce --undo"))
    left = [server for server in result.servers if server.next_step is not None]
    sys.stdout.write("".join(wrap(note) for note in result.report.notes))
    commit = build_commit_command(setup.projects)
    sys.stdout.write(render_command("Commit", commit) if commit else "")
    for program in setup.missing_programs:
        names = ", ".join(program.servers)
        sys.stdout.write(wrap(f"To continue with {names}, install {program.title}, and then run: pinwarden setup"))
    command = _choose_next_command(setup, result.report)
    reason = "Next, to check all this on every push" if command == "pinwarden init-ci" else "Next"
    sys.stdout.write(wrap(f"{reason}: {command}") if command else "")
    return EXIT_REFUSED if left else EXIT_CLEAN


def _choose_next_command(setup: Setup, report: Report) -> str | None:
    """Return the next command that works now: a server that needs a missing program has none until it is installed."""
    from pinwarden.project.next_step import quote_name
    from pinwarden.project.status_report import choose_next_command

    if not setup.leaves_out_any or report.rows:
        return report.next_command
    command = choose_next_command(setup.statuses(), setup.projects)
    if command not in (None, "pinwarden init-ci"):
        return command
    if setup.refused:
        return f"pinwarden explain {quote_name(min(name for _, name in setup.refused))}"
    if setup.unverified:
        return f"pinwarden prove {quote_name(min(name for _, name in setup.unverified))}"
    installation = setup.missing_programs[0].installation
    is_command = installation is not None and not installation.startswith("see ")
    return installation if is_command else command


def print_heading(step: str, what: str) -> None:
    """Print the number and the name of a step, and what it does."""
    sys.stdout.write(f"\n{wrap(f'{_STEPS.index(step) + 1}/{len(_STEPS)} {step}: {what}')}")
    sys.stdout.flush()


def _print_outcome(report: Report) -> None:
    from pinwarden.cli.output import emit

    emit(replace(report, rows=tuple(row for row in report.rows if is_failing(row)), next_command=None), "text")


def _print_edits(setup: Setup, edits: Sequence[tuple[str, str]], whole: str) -> None:
    """Print the edits of a step, given as file and entry: a line for each file, or without questions, as diffs."""
    if not setup.asks:
        sys.stdout.write(whole)
        return
    files: dict[str, list[str]] = {}
    for file, entry in edits:
        files.setdefault(file, []).append(entry)
    sys.stdout.write("".join(wrap(f"{file}: {', '.join(entries)}", label="- ") for file, entries in files.items()))


def agrees(setup: Setup, question: str, *, otherwise: bool = True, whole: str = "") -> bool:
    """Ask about a step, with yes as the default, unless the user agreed to the plan.

    The answer ``show`` prints ``whole``, if there is such a text. Without questions, the answer is ``otherwise``: what
    the options allow.
    """
    if not setup.asks or setup.plan_agreed:
        return otherwise or setup.plan_agreed
    choices = ("yes", *(("show",) if whole else ()), "no", QUIT)
    while (answer := ask(question, choices, "yes")) == "show":
        if show_in_pages(whole, can_go_back=True) == QUIT:
            raise QuitSetup
    if answer == QUIT:
        raise QuitSetup
    return answer == "yes"


def _names(setup: Setup, project: Project, state: str) -> tuple[str, ...]:
    """Return the names of the locked servers of a scope that lack a state, such as ``verified``, in some client."""
    servers = setup.statuses(project)
    left = (server.name for server in servers if server.locked != "no" and getattr(server, state) in ("no", "partly"))
    return tuple(dict.fromkeys(left))


def _plan_enforcement(setup: Setup) -> EnforcementPlan | None:
    """Return the plan for approved servers that a client starts in another way; None if there is none."""
    from pinwarden.project.enforce import plan_enforcement

    scopes: list[tuple[Project, list[str]]] = []
    for project in setup.projects:
        servers = setup.statuses(project)
        unapproved = {server.name for server in servers if server.approved != "yes"}
        names = [name for name in _names(setup, project, "enforced") if name not in unapproved]
        if names:
            scopes.append((project, names))
    return plan_enforcement(scopes) if scopes else None


def _print_refusals(plan: EnforcementPlan | None) -> None:
    for entry, err in plan.refused if plan is not None else ():
        sys.stdout.write(wrap(f"{entry.name}: {err.message}", label="- "))
