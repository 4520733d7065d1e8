"""Lock a server and install it: the lock first, then the configuration of each client, as the lock states it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.lock_arguments import add_lock_arguments, wanted_of, writing_of
from pinwarden.cli.output import emit
from pinwarden.cli.project_arguments import project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lock_arguments(parser)


def run(args: Namespace) -> int:
    """Lock, install and report."""
    from pinwarden.flows.lock.installing import install_locked
    from pinwarden.flows.lock.locking import lock_from_registry
    from pinwarden.flows.project import load_policies

    project, wanted = project_of(args), wanted_of(args)
    locked = lock_from_registry(project, wanted, load_policies(project), writing_of(args))
    return emit(install_locked(project, wanted, locked), args.format)
