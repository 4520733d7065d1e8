"""``lock``, ``add``, ``remove`` and ``update`` change what the lock contains; ``outdated`` lists newer releases."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import add_location_arguments, add_permission_arguments
from pinwarden.cli.commands import command
from pinwarden.cli.fetch_arguments import (
    DownloadOptions,
    add_network_arguments,
    open_fetch_context,
    read_network_options,
)
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_offline_argument,
    add_project_arguments,
    add_release_arguments,
    add_undo_argument,
    add_undo_arguments,
    add_warnings_argument,
    approver_from,
    find_project_to_extend,
    get_client_scope,
    list_client_ids,
    names_by_scope,
    project_from,
    roll_back_interrupted_edits,
)
from pinwarden.cli.server_arguments import add_probe_arguments
from pinwarden.cli.undo import undo
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.project.api_surfaces import Permission
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.lock import LockOptions, LockRequest
    from pinwarden.project.project import Project

_LIVE_HELP = "connect to the server, and approve its current tools, prompts and instructions"
_PLAIN_HELP = "write only the fields of lockfileVersion 2, without Pinwarden's extension fields"


def _configure_lock(parser: ArgumentParser) -> None:
    from pinwarden.lock.launch_choice import TARGET_KINDS

    parser.add_argument("server", help="the server's name in the registry, e.g. io.github.owner/server")
    parser.add_argument(
        "--client",
        action="append",
        metavar="CLIENT",
        help=f"client that will use the server: {list_client_ids()}, or all (default: claude); repeatable",
    )
    add_release_arguments(parser)
    parser.add_argument(
        "--target", choices=TARGET_KINDS, help="kind of package or remote to use, if the server offers several"
    )
    parser.add_argument(
        "--modern", action="store_true", help="write the clients' newer configuration format (type: http, ${VAR})"
    )
    parser.add_argument(
        "--verify", action="store_true", help="download and hash the package, and record the evidence in the lock"
    )
    parser.add_argument("--plain-v2", action="store_true", help=_PLAIN_HELP)
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


@command(_configure_lock)
def lock(args: Namespace) -> int:
    """Look a server up in an MCP registry and write the exact version into mcp-lock.json.

    Client configurations are not changed; pinwarden add does that as well.

    Examples:
      pinwarden lock io.github.acme/notes
      pinwarden lock io.github.acme/notes --version 1.0.0 --client cursor
    """
    from pinwarden.core.record import replace
    from pinwarden.project.approval_candidate import describe_command_approval
    from pinwarden.project.lock import lock_from_registry
    from pinwarden.project.project import load_policies

    project = find_project_to_extend(args)
    with _open_fetch_context_if_verifying(args, project) as context:
        lock_options = replace(_build_lock_options(args, describe_command_approval("lock")), fetch_context=context)
        report = lock_from_registry(project, _build_lock_request(args), load_policies(project), lock_options)
    return emit(report, args.format)


def _configure_add(parser: ArgumentParser) -> None:
    _configure_lock(parser)
    parser.add_argument(
        "--enforce",
        action="store_true",
        help="also pin the bytes, and make clients start the server through pinwarden run",
    )
    add_undo_arguments(parser, "add")


@command(_configure_add)
def add(args: Namespace) -> int:
    """Lock a server from an MCP registry, and write the locked configuration into the files of its clients.

    Pinwarden writes the lock and all files, or none of them. Every file is backed up; --undo shows what it would
    restore and asks.

    Examples:
      pinwarden add io.github.acme/notes
      pinwarden add io.github.acme/notes --client cursor --client vscode
      pinwarden add io.github.acme/notes --undo --yes
    """
    if args.undo:
        return undo(args, "add", (args.server,))
    from pinwarden.core.record import replace
    from pinwarden.project.approval_candidate import describe_command_approval
    from pinwarden.project.client_install import add_server
    from pinwarden.project.project import load_policies

    project, request = find_project_to_extend(args), _build_lock_request(args)
    roll_back_interrupted_edits([project])
    with _open_fetch_context_if_verifying(args, project) as context:
        lock_options = replace(_build_lock_options(args, describe_command_approval("add")), fetch_context=context)
        report = add_server(project, request, load_policies(project), lock_options)
    should_enforce = args.enforce and report.exit_code == EXIT_CLEAN
    return emit(_enforce(args, project, report) if should_enforce else report, args.format)


def _configure_remove(parser: ArgumentParser) -> None:
    parser.add_argument("server", help="the server's name in the lock")
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="CLIENT",
        help=f"remove the server only for this client: {list_client_ids()}; repeatable",
    )
    parser.add_argument("--keep-config", action="store_true", help="do not change client configurations")
    add_undo_arguments(parser, "remove")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_remove)
def remove(args: Namespace) -> int:
    """Remove a server from the lock and from the configurations of the clients it was locked for.

    The name of a skill, or of a bundle of skills, removes it from the lock. Folders that were installed from a bundle
    are removed too, if they are as they were installed.

    Pinwarden writes the lock and all clients' files, or none of them. If it edits a client's file, it backs up all of
    them; --undo shows what it would restore and asks.

    Examples:
      pinwarden remove notes --keep-config
      pinwarden remove notes
      pinwarden remove notes --undo --yes
    """
    if args.undo:
        return undo(args, "remove", (args.server,))
    from pinwarden.install.skill_removal import find_locked_skills, remove_skills
    from pinwarden.project.client_install import remove_server
    from pinwarden.system.clock import now

    project = project_from(args)
    if find_locked_skills(project, args.server):
        if args.client:
            raise PinwardenError("USAGE", f"{args.server[:120]!a} is a skill, which is removed for all clients")
        return emit(remove_skills(project, args.server, now(), keep_folders=args.keep_config), args.format)
    roll_back_interrupted_edits([project])
    report = remove_server(project, args.server, args.client, now(), keep_config=args.keep_config)
    return emit(report, args.format)


def _configure_update(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="*", help="names of servers in the lock (default: all)")
    parser.add_argument("--yes", action="store_true", help="write the changes into the lock")
    add_undo_argument(parser, "restore the clients' files and the lock as they were before update")
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    parser.add_argument("--plain-v2", action="store_true", help=_PLAIN_HELP)
    parser.add_argument(
        "--on-drift",
        default="block",
        choices=["block", "warn"],
        help="what to do if the new version of a bundle looks like an attack (default: block)",
    )
    parser.add_argument(
        "--literal",
        action="store_true",
        help="for bundles installed with --literal: again skip Pinwarden's stricter checks",
    )
    add_location_arguments(parser)
    add_permission_arguments(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


@command(_configure_update)
def update(args: Namespace) -> int:
    """Show what newer releases, newer dependencies and moved tags would change, and write them if you agree.

    On a terminal, each newer release is downloaded, verified and started, and you decide after you saw what it changes:
    its tools, dependencies and publisher. Then the lock, the approval and the configurations of all clients are written
    together, or nothing is. In a script, --yes --allow-execute does the same. Without --allow-execute, --yes writes the
    release and leaves its tools to a later review; its API surface hash is still compared, in a sandbox.

    Installed bundles go through all checks of a first installation again. An update of a bundle that looks like an
    attack is blocked, unless you give --on-drift warn.

    --undo returns servers to the release that they had before, in the clients' files and in the lock. It shows what it
    would restore and asks. Bundles are not included.

    Examples:
      pinwarden update
      pinwarden update notes --yes --why "security fix"
      pinwarden update notes --yes --allow-execute
      pinwarden update notes --undo --yes
    """
    if args.undo:
        return undo(args, "update", args.server)
    from pinwarden.cli.guided_update import is_guided
    from pinwarden.project.api_surfaces import add_to_report, record_api_surfaces
    from pinwarden.project.approval_candidate import CONFIRMED_WITH_YES
    from pinwarden.project.project import load_policies
    from pinwarden.project.scopes import report_in_scopes
    from pinwarden.project.skills import find_bundle_names
    from pinwarden.project.update import UpdateRequest, build_empty_report, update

    lock_options = _build_lock_options(args, CONFIRMED_WITH_YES, approves=args.yes)

    def update_in(project: Project, names: tuple[str, ...]) -> Report:
        skills = find_bundle_names(project)
        servers = tuple(name for name in names if name not in skills)
        if names and not servers:
            return _update_bundles(args, project, names, lock_options, build_empty_report(project))
        if is_guided(args):
            guided = _update_with_questions(args, project, names)
            if guided is not None:
                return guided
        downloads = DownloadOptions(offline=args.offline, allow_private=args.allow_private)
        with open_fetch_context(downloads, project, "looking up releases") as context:
            request = UpdateRequest(names=servers, confirmed=args.yes, fetch_context=context)
            report = update(project, request, load_policies(project), lock_options)
            if report.facts["written"]:
                updated = sorted({row["name"] for row in report.facts["updates"]})
                permission: Permission = "anywhere" if args.allow_execute else "sandbox"
                surfaces = record_api_surfaces(project, updated, permission, lock_options.now)
                report = add_to_report(report, surfaces)
            return _update_bundles(args, project, names, lock_options, report)

    return emit(report_in_scopes(names_by_scope(args, args.server), update_in), args.format)


def _update_with_questions(args: Namespace, project: Project, names: tuple[str, ...]) -> Report | None:
    """Update one server after the other, each after a question or with ``--yes``; None if there is no newer release."""
    from pinwarden.cli.guided_update import GuidedUpdate
    from pinwarden.cli.server_arguments import probe_options
    from pinwarden.core.record import replace
    from pinwarden.project.approval_candidate import CONFIRMED_ON_TERMINAL, CONFIRMED_WITH_YES
    from pinwarden.project.lock import LockOptions
    from pinwarden.system.clock import now

    approver = approver_from(args, CONFIRMED_WITH_YES if args.yes else CONFIRMED_ON_TERMINAL)
    probe = replace(probe_options(args), allow_execute=True)  # used only after --allow-execute or the answer yes
    return GuidedUpdate(args, project, LockOptions(now=now(), approver=approver, probe=probe), approver).run(names)


def _configure_outdated(parser: ArgumentParser) -> None:
    add_offline_argument(parser)
    add_network_arguments(parser)
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_outdated)
def outdated(args: Namespace) -> int:
    """List the locked servers that have a newer release. The exit code is 0 even if there are some.

    Examples:
      pinwarden outdated
    """
    from pinwarden.project.scopes import report_in_scopes
    from pinwarden.project.update import outdated

    def outdated_in(project: Project, _: tuple[str, ...]) -> Report:
        with open_fetch_context(read_network_options(args), project, "looking up releases") as context:
            return outdated(project, context, offline=args.offline)

    return emit(report_in_scopes(names_by_scope(args), outdated_in), args.format)


def _build_lock_request(args: Namespace) -> LockRequest:
    """Return which server to lock, for which clients."""
    from pinwarden.project.lock import LockRequest

    clients = args.client or ["claude"]
    if "all" in clients:
        clients = _list_writable_clients(get_client_scope(args))
    return LockRequest(
        name=args.server,
        clients=tuple(dict.fromkeys(clients)),
        version=args.version,
        scope=get_client_scope(args),
        source=args.source,
        target=args.target,
        modern=args.modern,
        verify=args.verify,
    )


def _list_writable_clients(scope: str) -> list[str]:
    """Return the clients whose configuration of that scope Pinwarden can write."""
    from pinwarden.clients.table import GENERIC_CLIENT, find_installation_location, get_client
    from pinwarden.lock.entry import LOCK_CLIENTS

    clients = [client for client in LOCK_CLIENTS if client != GENERIC_CLIENT]
    return [client for client in clients if find_installation_location(get_client(client), scope)]


def _build_lock_options(args: Namespace, how: str, *, approves: bool = True) -> LockOptions:
    """Return how to write the lock. ``how`` is recorded as the reason of the approval, unless ``--why`` gives one."""
    from pinwarden.cli.server_arguments import probe_options
    from pinwarden.project.lock import LockOptions
    from pinwarden.system.clock import now

    return LockOptions(
        now=now(),
        approver=approver_from(args, how) if approves and not args.plain_v2 else None,
        plain_v2=args.plain_v2,
        offline=args.offline,
        probe=probe_options(args) if args.live else None,
    )


@contextmanager
def _open_fetch_context_if_verifying(args: Namespace, project: Project) -> Iterator[FetchContext | None]:
    """Open a context for downloading if --verify is given, unless --offline is too; otherwise yield None."""
    if not args.verify or args.offline:
        yield None
        return
    with open_fetch_context(DownloadOptions(allow_private=args.allow_private), project, "downloading") as context:
        yield context


def _enforce(args: Namespace, project: Project, report: Report) -> Report:
    """Prove, fetch and enforce. If a step fails, return its report; else add the outcome to ``report``."""
    from pinwarden.core.record import replace
    from pinwarden.project.enforce import apply_enforcement, plan_enforcement
    from pinwarden.project.fetch import FetchOptions, fetch
    from pinwarden.project.prove import prove_servers
    from pinwarden.system.clock import now

    names = [args.server]
    downloads = DownloadOptions(offline=args.offline, allow_private=args.allow_private)
    with open_fetch_context(downloads, project, "downloading and hashing") as context:
        outcome = prove_servers(project, names, context, now())
        if outcome.exit_code == EXIT_CLEAN:
            outcome = fetch(project, names, context, FetchOptions(frozen=True))
        if outcome.exit_code == EXIT_CLEAN:
            outcome = apply_enforcement(plan_enforcement([(project, names)]))
    if outcome.exit_code != EXIT_CLEAN:
        return replace(outcome, command="add", facts={**report.facts, "enforced": outcome.facts})
    return replace(
        report, summary=f"{report.summary}; {outcome.summary}", facts={**report.facts, "enforced": outcome.facts}
    )


def _update_bundles(
    args: Namespace, project: Project, names: tuple[str, ...], lock_options: LockOptions, report: Report
) -> Report:
    """Add the updates of installed bundles to the report, if the lock has bundles. ``--yes`` writes them."""
    from pinwarden.install.skill_update import merge_skill_updates, update_skills
    from pinwarden.lock import lock_store
    from pinwarden.project.run import is_bundle
    from pinwarden.project.skills import find_bundle_names

    locked, skills = lock_store.read(project.lock), find_bundle_names(project)
    if not skills and (locked is None or not any(is_bundle(entry) for entry in locked.entries)):
        return report
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.bundle_arguments import find_trust_file, load_installer_policy, open_locations
    from pinwarden.install.bundle_fetcher import RegistryBundleFetcher
    from pinwarden.install.bundle_update import UpdateContext, merge_reports, update_bundles
    from pinwarden.install.registry_log import LogFollower
    from pinwarden.project.project import load_policies, locate_store
    from pinwarden.system.clock import wall_clock

    trusted, current_time = load_trust(find_trust_file()), wall_clock()
    with open_locations(args) as locations:
        context = UpdateContext(
            project=project,
            locations=locations,
            fetcher=RegistryBundleFetcher(
                locations, lambda: trusted, lambda: load_installer_policy(args), args.registry, find_trust_file()
            ),
            follower=LogFollower(find_trust_file(), current_time),
            log=args.log,
            trusted=trusted,
            trust_path=find_trust_file(),
            policy=load_installer_policy(args),
            store=Store(locate_store(project)),
            policies=load_policies(project),
            lock_options=lock_options,
            now=current_time,
            confirmed=args.yes,
            probe=True if args.allow_execute else None,
            literal=args.literal,
            on_drift=args.on_drift,
        )
        report = merge_reports(report, update_bundles(names, context), context)
        return merge_skill_updates(report, update_skills(names, context), context)
