"""``verify``, ``prove`` and ``fetch``: check, pin and download the bytes of servers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import add_permission_arguments
from pinwarden.cli.commands import command
from pinwarden.cli.fetch_arguments import (
    DownloadOptions,
    add_fetch_arguments,
    add_start_arguments,
    ask_to_start,
    get_start_permission,
    open_fetch_context,
    read_download_options,
)
from pinwarden.cli.key_arguments import PUBLIC_KEY_HELP
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_offline_argument,
    add_project_arguments,
    add_release_arguments,
    approver_from,
    find_project_to_extend,
    names_by_scope,
)
from pinwarden.cli.server_arguments import add_probe_arguments, add_target_arguments
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.core.report import Report
    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface
    from pinwarden.system.target import Target


def _configure_verify(parser: ArgumentParser) -> None:
    parser.add_argument(
        "server",
        nargs="?",
        help="the server's name in the registry; with --contract a URL, or a name from a client configuration",
    )
    parser.add_argument("--contract", metavar="FILE", help="contract that the live server has to match")
    parser.add_argument(
        "--public-key",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY",
        help=f"with --contract, {PUBLIC_KEY_HELP}",
    )
    add_release_arguments(parser)
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help="also connect to the live server")
    add_project_arguments(parser)
    add_format_argument(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


@command(_configure_verify, takes_command=True)
def verify(args: Namespace) -> int:
    """Check a server from an MCP registry before you lock it: what is verified, what is only claimed, what is missing.

    The package or image is downloaded and hashed, unless you give --offline. Nothing is installed, and the server is
    started only with both --live and --allow-execute.

    With --contract, checks a live server (a URL, a name from a client configuration, or a command after --) against the
    contract that its author published, and with --public-key also the author's signature.

    Examples:
      pinwarden verify io.github.acme/notes --offline
      pinwarden verify --contract mcp-fusion.lock --allow-execute -- python3 src/server.py
    """
    if args.contract:
        return _verify_contract(args)
    if not args.server or args.command or args.config or args.header or args.env or args.public_key:
        raise PinwardenError(
            "USAGE",
            "give the name of a server in a registry",
            hint="--config, --header, --env, --public-key and a command after -- work only with --contract.",
        )
    from pinwarden.project.verify import verify_server
    from pinwarden.system.clock import now

    project = find_project_to_extend(args)
    entry = project.load_registries(offline=args.offline).find(args.server, args.version, args.source)
    probe = _build_probe_function(args, project) if args.live else None
    downloads = DownloadOptions(offline=args.offline, allow_private=args.allow_private)
    with open_fetch_context(downloads, project, "downloading") as context:
        report = verify_server(entry, now=now(), probe=probe, context=None if args.offline else context)
    return emit(report, args.format)


def _configure_prove(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock (default: all)")
    parser.add_argument(
        "--allow-script",
        action="append",
        default=[],
        metavar="NAME@VERSION",
        help="approve the install script of this package, for the bytes it has now; repeatable",
    )
    add_start_arguments(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)
    add_fetch_arguments(parser)


@command(_configure_prove)
def prove(args: Namespace) -> int:
    """Download locked servers and all their dependencies, hash them on this machine, and pin the hashes in the lock.

    npm or uv resolves the dependencies, and no code of the packages runs meanwhile. To approve the install script of a
    package, use --allow-script; pinwarden fetch then runs it in a sandbox when it builds the server.

    Afterwards each server is started once from the verified bytes, in a sandbox without network, to record its API
    surface hash. Without a sandbox on this machine, you are asked. The lock has the reason if the hash is unknown.

    Examples:
      pinwarden prove
      pinwarden prove notes
    """
    from pinwarden.cli.streams import Progress
    from pinwarden.project.api_surfaces import add_to_report, record_api_surfaces
    from pinwarden.project.install_scripts import AllowedScripts
    from pinwarden.project.prove import prove_servers
    from pinwarden.project.scopes import report_in_scopes
    from pinwarden.system.clock import now

    permission = get_start_permission(args)
    scripts = tuple(args.allow_script)
    allowed = AllowedScripts(names=scripts, by=approver_from(args).by if scripts else "")

    def prove_in(project: Project, names: tuple[str, ...]) -> Report:
        with open_fetch_context(read_download_options(args), project, "downloading and hashing") as context:
            report = prove_servers(project, names, context, now(), allowed)
        with Progress("recording API surfaces"):
            pinned = [server["server"] for server in report.facts["servers"]]
            surfaces = record_api_surfaces(project, pinned, permission, now(), ask=ask_to_start) if pinned else []
        return add_to_report(report, surfaces)

    return emit(report_in_scopes(names_by_scope(args, args.server), prove_in), args.format)


def _configure_fetch(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock (default: all)")
    parser.add_argument(
        "--frozen", action="store_true", help="fail if the lock does not pin the bytes of a package or image"
    )
    parser.add_argument(
        "--scripts-without-sandbox",
        action="store_true",
        help="run approved install scripts even without bubblewrap; they can then do everything you can",
    )
    add_project_arguments(parser)
    add_format_argument(parser)
    add_fetch_arguments(parser)
    parser.add_argument(
        "--registry", metavar="LOCATION", help="registry to download bundles from (default: from your trust store)"
    )
    add_permission_arguments(parser)


@command(_configure_fetch)
def fetch(args: Namespace) -> int:
    """Download the pinned packages, verify every hash, and build the environments that the servers run in.

    Afterwards pinwarden run starts the servers without a network.

    Examples:
      pinwarden fetch
      pinwarden fetch --frozen notes
    """
    from pinwarden.cli.bundle_arguments import open_pinned_bundles
    from pinwarden.project.fetch import FetchOptions, fetch
    from pinwarden.project.scopes import report_in_scopes

    def fetch_in(project: Project, names: tuple[str, ...]) -> Report:
        downloads = read_download_options(args)
        with open_fetch_context(downloads, project, "downloading") as context, open_pinned_bundles(args) as bundles:
            options = FetchOptions(
                frozen=args.frozen, bundles=bundles, scripts_without_sandbox=args.scripts_without_sandbox
            )
            return fetch(project, names, context, options)

    return emit(report_in_scopes(names_by_scope(args, args.server), fetch_in), args.format)


def _build_probe_function(args: Namespace, project: Project) -> Callable[[str, Target], Surface]:
    from pinwarden.cli.server_arguments import probe_options
    from pinwarden.project.project import load_policies
    from pinwarden.project.server_start import prepare_probe, probe_server

    load_policies(project)  # an unreadable policy fails the command, not the server
    options = probe_options(args)
    return lambda name, target: probe_server(prepare_probe(project, name, target, options))


def _verify_contract(args: Namespace) -> int:
    from pinwarden.cli.key_arguments import read_public_keys
    from pinwarden.cli.server_arguments import (
        build_command_target,
        is_url,
        mask_command,
        mask_target,
        parse_target,
        probe_target,
    )
    from pinwarden.contract.check_report import verify_contract

    if bool(args.server) == bool(args.command):
        raise PinwardenError("USAGE", "give one server, or a command after --")
    target = build_command_target(args.command, args) if args.command else parse_target(args.server, args)
    subject = mask_target(args.server) if args.server else mask_command(args.command)
    surface = probe_target(args.server, target, args, typed=not args.server or is_url(args.server))
    keys = tuple(read_public_keys(args.public_key).values())
    return emit(verify_contract(Path(args.contract), surface, keys, subject), args.format)
