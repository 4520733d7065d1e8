"""``install``: install a server from a registry of signed bundles, or lock a container image."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import add_location_arguments, add_permission_arguments
from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_undo_arguments,
    add_warnings_argument,
    approver_from,
    find_project_to_extend,
    get_client_scope,
    list_client_ids,
    roll_back_interrupted_edits,
)
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.install.install import InstallTarget

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_HINT = "Set the variable where the server is started, and give only its name: --env NAME. Values are never stored."


def _configure_install(parser: ArgumentParser) -> None:
    parser.add_argument("tool", metavar="NAME", help="name of the tool, or NAME@CHANNEL (default channel: stable)")
    parser.add_argument(
        "--floor", metavar="VERSION", help="refuse versions older than this, now and in every later update"
    )
    parser.add_argument(
        "--image", metavar="IMAGE", help="instead of a bundle, lock this container image by the digest of its tag"
    )
    parser.add_argument(
        "--client",
        action="append",
        metavar="CLIENT",
        help=f"also add the server to this client's configuration: {list_client_ids()}; repeatable",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable to pass to the server; repeatable",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--allow-execute",
        action="store_true",
        help="start the server in its sandbox to record its tools, also if the registry recorded them",
    )
    choice.add_argument(
        "--no-execute", action="store_true", help="do not start the server; its tools may then be unknown"
    )
    parser.add_argument(
        "--literal",
        action="store_true",
        help="apply only the verifier rulebook v0.1.1, without Pinwarden's stricter checks",
    )
    parser.add_argument(
        "--allow-private", action="store_true", help="with --image: allow an image registry at a private address"
    )
    add_undo_arguments(parser, "install")
    add_location_arguments(parser)
    add_permission_arguments(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)


@command(_configure_install)
def install(args: Namespace) -> int:
    """Install a server from a registry of signed bundles, after checking signatures, permissions, log and bytes.

    A trusted registry must point to the bundle, keys you trust must have attested it, and you must allow the
    permissions it asks for. The pointer must be the newest in the registry's log, and every byte must match. Each step
    is reported. An accepted bundle is unpacked, locked with its provenance and approved surface, and started with
    pinwarden run in a sandbox that enforces its permissions.

    If the registry did not record the tools, and for an image, the server is started once in a sandbox to record them.

    Text that pinwarden scan warns about is shown and refused, unless you give --approve-warnings.

    With --client, the lock and all clients' files are written, or none of them. Every file is backed up; --undo shows
    what it would restore and asks.

    Examples:
      pinwarden install acme.notes --registry export
    """
    if args.undo:
        from pinwarden.cli.undo import undo

        return undo(args, "install", (args.tool.partition("@")[0],))
    if args.image:
        return _install_image(args)
    return _install_bundle(args)


def _install_bundle(args: Namespace) -> int:
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.bundle_arguments import (
        find_registry_location,
        find_trust_file,
        load_installer_policy,
        open_locations,
    )
    from pinwarden.install.decision import InstallRequest
    from pinwarden.install.install import InstallContext, install, is_locked_without_bundle
    from pinwarden.install.registry_log import LogFollower
    from pinwarden.project.approval_candidate import describe_command_approval
    from pinwarden.project.lock import LockOptions
    from pinwarden.project.project import load_policies, locate_store
    from pinwarden.registry.names import DEFAULT_CHANNEL, check_channel, check_tool, check_version
    from pinwarden.system.clock import now, wall_clock

    tool, _, channel = args.tool.partition("@")
    project, trusted = find_project_to_extend(args), load_trust(find_trust_file())
    request = InstallRequest(
        tool=check_tool(tool),
        channel=check_channel(channel or DEFAULT_CHANNEL),
        floor=check_version(args.floor) if args.floor else None,
        literal=args.literal,
        policy=load_installer_policy(args),
        trusted=trusted,
        now=wall_clock(),
    )
    roll_back_interrupted_edits([project])
    if is_locked_without_bundle(project, tool):
        raise PinwardenError("USAGE", f"{tool} is already locked, and was not installed from a bundle registry")
    location = find_registry_location(args, trusted)
    with open_locations(args) as locations:
        context = InstallContext(
            project=project,
            source=locations.open_source(location, request.channel, args.log),
            follower=LogFollower(find_trust_file(), request.now),
            store=Store(locate_store(project)),
            target=_build_install_target(args),
            policies=load_policies(project),
            lock_options=LockOptions(now=now(), approver=approver_from(args, describe_command_approval("install"))),
            probe=_choose_probe(args),
        )
        return emit(install(request, context), args.format)


def _build_install_target(args: Namespace) -> InstallTarget:
    from pinwarden.clients.table import GENERIC_CLIENT
    from pinwarden.install.install import InstallTarget

    for name in args.env:
        if not _VARIABLE.fullmatch(name):
            # A value is nearly always a secret, and the lock is committed to the repository.
            raise PinwardenError("USAGE", "--env takes the name of a variable, without a value", hint=_ENV_HINT)
    return InstallTarget(
        clients=tuple(dict.fromkeys(args.client or [GENERIC_CLIENT])),
        scope=get_client_scope(args),
        variables=tuple(args.env),
    )


def _choose_probe(args: Namespace) -> bool | None:
    """Return whether to start the server: yes, no, or None if its registry did not record its tools."""
    return True if args.allow_execute else False if args.no_execute else None


def _install_image(args: Namespace) -> int:
    """Lock a container image by the digest that its tag has now."""
    from pinwarden.cli.fetch_arguments import DownloadOptions, open_fetch_context
    from pinwarden.install.container_images import ImageInstall, install_image
    from pinwarden.project.approval_candidate import describe_command_approval
    from pinwarden.project.lock import LockOptions
    from pinwarden.project.project import load_policies
    from pinwarden.registry.names import check_tool
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.clock import now

    if args.floor or args.literal or args.registry or args.log or args.policy or args.allow:
        raise PinwardenError("USAGE", "--image excludes --floor, --literal, --registry, --log, --policy and --allow")
    project = find_project_to_extend(args)
    request = ImageInstall(
        name=check_tool(args.tool),
        image=args.image,
        project=project,
        target=_build_install_target(args),
        policies=load_policies(project),
        lock_options=LockOptions(now=now(), approver=approver_from(args, describe_command_approval("install"))),
        probe=None if args.no_execute else ProbeOptions(allow_execute=True),
        must_probe=args.allow_execute,
    )
    with open_fetch_context(DownloadOptions(allow_private=args.allow_private), project, "resolving the tag") as context:
        return emit(install_image(request, context), args.format)
