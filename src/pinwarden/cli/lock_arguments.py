"""The options of commands that resolve a server and write it into the lock."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_offline_argument,
    add_project_arguments,
    add_release_arguments,
    add_warnings_argument,
    approver_of,
)

if TYPE_CHECKING:
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.lock import LockWriting, Wanted
    from pinwarden.project.project import Project


def add_lock_arguments(parser: ArgumentParser) -> None:
    """What to lock, for whom, from where."""
    from pinwarden.cli.output import add_format_argument
    from pinwarden.lock.launch_choice import TARGET_KINDS

    parser.add_argument("server", help="the server's registry name, e.g. io.github.owner/server")
    parser.add_argument(
        "--client", action="append", metavar="CLIENT", help="may be given again; 'all'; default: claude"
    )
    parser.add_argument("--scope", default="project", choices=["project", "global"])
    add_release_arguments(parser)
    parser.add_argument("--target", choices=TARGET_KINDS, help="another kind of target than the usual choice")
    parser.add_argument("--modern", action="store_true", help="the clients' newer dialect (type: http, ${VAR})")
    parser.add_argument("--verify", action="store_true", help="fetch and hash the bytes, and record the evidence")
    parser.add_argument("--plain-v2", action="store_true", help="write nothing but lockfileVersion 2")
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help="ask the server, and approve what it tells the model")
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def wanted_of(args: Namespace) -> Wanted:
    """What the options ask for."""
    from pinwarden.project.lock import Wanted

    clients = args.client or ["claude"]
    if "all" in clients:
        clients = _installed_clients(args.scope)
    return Wanted(
        name=args.server,
        clients=tuple(dict.fromkeys(clients)),
        version=args.version,
        scope=args.scope,
        source=args.source,
        target=args.target,
        modern=args.modern,
        verified=args.verify,
    )


def _installed_clients(scope: str) -> list[str]:
    """The clients that a lock can name and whose file of that scope can be written."""
    from pinwarden.clients.table import client_of, installation_place
    from pinwarden.lock.shape import LOCK_CLIENTS

    named = [client for client in LOCK_CLIENTS if client != "generic"]
    return [client for client in named if installation_place(client_of(client), scope)]


def writing_of(args: Namespace, how: str, *, approves: bool = True) -> LockWriting:
    """How the options want it written; only who approves something needs a name. ``how`` says what happened."""
    from pinwarden.cli.targets import options_of
    from pinwarden.project.lock import LockWriting
    from pinwarden.system.clock import now

    return LockWriting(
        now=now(),
        approver=approver_of(args, how) if approves and not args.plain_v2 else None,
        plain_v2=args.plain_v2,
        offline=args.offline,
        probe=options_of(args) if args.live else None,
    )


@contextmanager
def verifying_workshop(args: Namespace, project: Project) -> Iterator[Workshop | None]:
    """What fetching the bytes takes, where --verify asks for it."""
    if not args.verify or args.offline:
        yield None
        return
    from pinwarden.cli.fetch_arguments import workshop

    with workshop(args, project, "fetching") as shop:
        yield shop
