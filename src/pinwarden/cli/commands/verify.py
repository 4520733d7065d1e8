"""Verify a server of a registry before it is locked: what is proved, what is only claimed, what is missing.

The bytes of its package or image are fetched and hashed, unless --offline is given. Nothing is installed, and nothing
is started unless --live and --allow-execute are given.

With --contract, hold a live server (a URL, a name from a client config, or a command after --) against the contract
that its author published, and with --public-key against the author's signature on it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.fetch_arguments import workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments, add_target_arguments
from pinwarden.cli.project_arguments import (
    add_offline_argument,
    add_project_arguments,
    add_release_arguments,
    project_of,
)
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface
    from pinwarden.system.target import Target

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "server", nargs="?", help="the server's registry name; with --contract a URL or a config's name"
    )
    parser.add_argument("--contract", metavar="FILE", help="the author's lockfile, to hold the live server against")
    parser.add_argument(
        "--public-key", nargs="+", action="extend", default=[], metavar="KEY", help="[NAME=]FILE or [NAME=]did:key:…"
    )
    add_release_arguments(parser)
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help="ask the live server as well")
    add_project_arguments(parser)
    add_format_argument(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    if args.contract:
        return _against_contract(args)
    if not args.server or args.command or args.config or args.header or args.env or args.public_key:
        raise PinwardenError(
            "USAGE", "name a server of a registry", hint="What describes a live server or a key needs --contract."
        )
    from pinwarden.project.verify import verify_server
    from pinwarden.system.clock import now

    project = project_of(args)
    entry = project.registries(offline=args.offline).find(args.server, args.version, args.source)
    ask = _asking(args, project) if args.live else None
    with workshop(args, project, "fetching") as shop:
        report = verify_server(entry, now=now(), ask=ask, shop=None if args.offline else shop)
    return emit(report, args.format)


def _asking(args: Namespace, project: Project) -> Callable[[str, Target], Surface]:
    from pinwarden.cli.targets import options_of
    from pinwarden.project.project import load_policies
    from pinwarden.project.server_start import ask, prepare_probe

    load_policies(project)  # one that cannot be read is an error of this command, and not of the server
    options = options_of(args)
    return lambda name, target: ask(prepare_probe(project, name, target, options))


def _against_contract(args: Namespace) -> int:
    from pinwarden.cli.key_arguments import public_keys
    from pinwarden.cli.targets import command_target, is_address, probe_target, shown_command, shown_target, target_of
    from pinwarden.contract.verify_live import verify_contract

    if bool(args.server) == bool(args.command):
        raise PinwardenError("USAGE", "name one server, or give a command after --")
    target = command_target(args.command, args) if args.command else target_of(args.server, args)
    subject = shown_target(args.server) if args.server else shown_command(args.command)
    seen = probe_target(args.server, target, args, typed=not args.server or is_address(args.server))
    keys = tuple(public_keys(args.public_key).values())
    return emit(verify_contract(Path(args.contract), seen, keys, subject), args.format)
