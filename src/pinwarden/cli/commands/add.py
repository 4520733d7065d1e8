"""Lock a server and install it: the lock first, then the configuration of each client, as the lock states it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.lock_arguments import add_lock_arguments, verifying_workshop, wanted_of, writing_of
from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import project_of
from pinwarden.core.errors import EXIT_CLEAN

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.project.project import Project


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lock_arguments(parser)
    parser.add_argument(
        "--enforce", action="store_true", help="pin its bytes, and let clients start it through pinwarden run"
    )


def run(args: Namespace) -> int:
    """Lock, install and report."""
    from pinwarden.core.record import replace
    from pinwarden.project.approvable import by_command
    from pinwarden.project.client_install import install_locked
    from pinwarden.project.lock import lock_from_registry
    from pinwarden.project.project import load_policies

    project, wanted = project_of(args), wanted_of(args)
    with verifying_workshop(args, project) as shop:
        writing = replace(writing_of(args, by_command("add")), shop=shop)
        locked = lock_from_registry(project, wanted, load_policies(project), writing)
    if locked.exit_code != EXIT_CLEAN:
        summary = f"{locked.summary}; no client was told of it"
        return emit(replace(locked, command="add", summary=summary), args.format)
    report = install_locked(project, wanted, locked)
    return emit(_enforced(args, project, report) if args.enforce else report, args.format)


def _enforced(args: Namespace, project: Project, report: Report) -> Report:
    """Prove, fetch, enforce: the first of them that does not succeed is what is told."""
    from pinwarden.cli.fetch_arguments import workshop
    from pinwarden.core.record import replace
    from pinwarden.project.enforce import enforce
    from pinwarden.project.fetch import How, fetch
    from pinwarden.project.prove import prove
    from pinwarden.system.clock import now

    names = [args.server]
    with workshop(args, project, "proving") as shop:
        done = prove(project, names, shop, now())
        if done.exit_code == EXIT_CLEAN:
            done = fetch(project, names, shop, How(frozen=True))
        if done.exit_code == EXIT_CLEAN:
            done = enforce(project, names, now())
    if done.exit_code != EXIT_CLEAN:
        return replace(done, command="add", facts={**report.facts, "enforced": done.facts})
    return replace(report, summary=f"{report.summary}; {done.summary}", facts={**report.facts, "enforced": done.facts})
