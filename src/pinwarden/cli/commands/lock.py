"""Resolve a server and write it into the lock, without touching any client configuration."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.lock_arguments import add_lock_arguments, verifying_workshop, wanted_of, writing_of
from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lock_arguments(parser)


def run(args: Namespace) -> int:
    """Lock and report."""
    from pinwarden.core.record import replace
    from pinwarden.project.approvable import by_command
    from pinwarden.project.lock import lock_from_registry
    from pinwarden.project.project import load_policies

    project = project_of(args)
    with verifying_workshop(args, project) as shop:
        writing = replace(writing_of(args, by_command("lock")), shop=shop)
        report = lock_from_registry(project, wanted_of(args), load_policies(project), writing)
    return emit(report, args.format)
