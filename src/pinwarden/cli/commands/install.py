"""Install a server from a registry of bundles: NAME, or NAME@channel.

A registry that you trust must point to it, people whom you trust must vouch for it, and you must allow what it asks:
the nine steps of the verifier rulebook, told one by one. Then the registry's log must have the pointer as the newest,
and every byte must be the one that was named. What is accepted is unpacked by content, written into the lock with its
provenance and its approved text, and started with pinwarden run, in a sandbox that holds it to what it asked for.
Text that pinwarden scan warns of is shown and refused, unless --approve-warnings approves it.
--image NAME:TAG locks a container image instead, by the digest that the tag has now.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.install_arguments import add_permission_arguments, add_place_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_project_arguments,
    add_warnings_argument,
    project_of,
)
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.install.install import Placed

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_HINT = "Set it where the server is started, and name it here: --env NAME. Values are never written down."


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("tool", metavar="NAME", help="the tool, or NAME@channel (stable)")
    parser.add_argument("--floor", metavar="VERSION", help="the least version; also for every update")
    parser.add_argument("--image", metavar="IMAGE", help="a container image under this name, by the digest of its tag")
    parser.add_argument(
        "--client", action="append", metavar="CLIENT", help="configure it here, too; may be given again"
    )
    parser.add_argument("--scope", default="project", choices=["project", "global"])
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable that it is given")
    parser.add_argument(
        "--allow-execute", action="store_true", help="start it, in its sandbox, to learn what it tells the model"
    )
    parser.add_argument("--literal", action="store_true", help="the rulebook to the letter, with its holes")
    parser.add_argument("--allow-private", action="store_true", help="allow the registry of an image to be private")
    add_place_arguments(parser)
    add_permission_arguments(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Judge, install and report."""
    if args.image:
        return _install_image(args)
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.install_arguments import place_of, places_of, policy_of, trust_file
    from pinwarden.cli.project_arguments import approver_of
    from pinwarden.install.decision import Question
    from pinwarden.install.install import Installing, install, is_locked
    from pinwarden.project.approvable import by_command
    from pinwarden.project.lock import LockWriting
    from pinwarden.project.project import load_policies, store_folder
    from pinwarden.registry.names import DEFAULT_CHANNEL, check_channel, check_tool, check_version
    from pinwarden.system.clock import now, present

    tool, _, channel = args.tool.partition("@")
    project, trusted = project_of(args), load_trust(trust_file())
    question = Question(
        tool=check_tool(tool),
        channel=check_channel(channel or DEFAULT_CHANNEL),
        floor=check_version(args.floor) if args.floor else None,
        literal=args.literal,
        policy=policy_of(args),
        trusted=trusted,
        trust_path=trust_file(),
        now=present(),
    )
    if is_locked(project, tool):
        raise PinwardenError("USAGE", f"{tool} is locked already, and did not come from a registry of bundles")
    place = place_of(args, trusted)
    with places_of(args) as places:
        installing = Installing(
            project=project,
            source=places.source(place, question.channel, args.log),
            store=Store(store_folder(project)),
            placed=_placed(args),
            policies=load_policies(project),
            writing=LockWriting(now=now(), approver=approver_of(args, by_command("install"))),
            ask=args.allow_execute,
        )
        return emit(install(question, installing), args.format)


def _placed(args: Namespace) -> Placed:
    from pinwarden.install.install import Placed

    for name in args.env:
        if not _VARIABLE.fullmatch(name):
            # What stands after an equals sign is nearly always a secret, and the lock is committed.
            raise PinwardenError("USAGE", "--env takes the name of a variable, and no value", hint=_ENV_HINT)
    return Placed(clients=tuple(dict.fromkeys(args.client or ["generic"])), scope=args.scope, variables=tuple(args.env))


def _install_image(args: Namespace) -> int:
    """Ref-mode: what the tag is now, locked by its digest."""
    from pinwarden.cli.fetch_arguments import workshop
    from pinwarden.cli.project_arguments import approver_of
    from pinwarden.install.container_images import ImageInstall, install_image
    from pinwarden.project.approvable import by_command
    from pinwarden.project.lock import LockWriting
    from pinwarden.project.project import load_policies
    from pinwarden.registry.names import check_tool
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.clock import now

    if args.floor or args.literal or args.registry or args.log or args.policy or args.allow:
        raise PinwardenError("USAGE", "an image has no floor, no pointer and no installer policy")
    project = project_of(args)
    args.offline = False
    wanted = ImageInstall(
        name=check_tool(args.tool),
        image=args.image,
        project=project,
        placed=_placed(args),
        policies=load_policies(project),
        writing=LockWriting(now=now(), approver=approver_of(args, by_command("install"))),
        probe=ProbeOptions(allow_execute=True) if args.allow_execute else None,
    )
    with workshop(args, project, "resolving") as shop:
        return emit(install_image(wanted, shop), args.format)
