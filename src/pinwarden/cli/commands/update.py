"""Show what newer releases, newer dependencies and moved tags would change; --yes writes them into the lock.

Installed bundles are resolved and judged anew, like a first install; drift that looks like an attack blocks an update
that was agreed to, unless --on-drift warn says otherwise.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.fetch_arguments import workshop
from pinwarden.cli.install_arguments import add_permission_arguments, add_place_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_offline_argument,
    add_project_arguments,
    add_warnings_argument,
    project_of,
)

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.project.lock import LockWriting
    from pinwarden.project.project import Project


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    parser.add_argument("--yes", action="store_true", help="write the lock")
    add_offline_argument(parser)
    parser.add_argument("--live", action="store_true", help="ask the server, and approve what it tells the model")
    parser.add_argument("--plain-v2", action="store_true", help="write nothing but lockfileVersion 2")
    parser.add_argument(
        "--on-drift", default="block", choices=["block", "warn"], help="what critical drift of a bundle does (block)"
    )
    parser.add_argument(
        "--literal", action="store_true", help="by the letter of the rulebook, what was installed by it (hardened)"
    )
    add_place_arguments(parser)
    add_permission_arguments(parser)
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_warnings_argument(parser)
    add_format_argument(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Compare, and write if that was agreed to."""
    from pinwarden.cli.lock_arguments import writing_of
    from pinwarden.project.approvable import YES
    from pinwarden.project.project import load_policies
    from pinwarden.project.update import Wish, update

    project = project_of(args)
    writing = writing_of(args, YES, approves=args.yes)
    with workshop(args, project, "resolving") as shop:
        wish = Wish(names=args.server, agreed=args.yes, shop=shop)
        report = update(project, wish, load_policies(project), writing)
        report = _with_bundles(args, project, writing, report)
    return emit(report, args.format)


def _with_bundles(args: Namespace, project: Project, writing: LockWriting, report: Report) -> Report:
    """The same for what was installed from a registry of bundles, if anything was."""
    from pinwarden.lock import lock_store
    from pinwarden.project.run import is_bundle

    lock = lock_store.read(project.lock)
    if lock is None or not any(is_bundle(each) for each in lock.entries):
        return report
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.install_arguments import places_of, policy_of, trust_file
    from pinwarden.install.staging import PinnedBundles
    from pinwarden.install.upgrade import Updating, merged, update_bundles
    from pinwarden.project.project import load_policies, store_folder
    from pinwarden.system.clock import present

    trusted = load_trust(trust_file())
    with places_of(args) as places:
        updating = Updating(
            project=project,
            places=places,
            pinned=PinnedBundles(places, lambda: trusted, lambda: policy_of(args), args.registry, trust_file()),
            log=args.log,
            trusted=trusted,
            trust_path=trust_file(),
            policy=policy_of(args),
            store=Store(store_folder(project)),
            policies=load_policies(project),
            writing=writing,
            now=present(),
            agreed=args.yes,
            ask=args.allow_execute,
            literal=args.literal,
            on_drift=args.on_drift,
        )
        return merged(report, update_bundles(args.server, updating), updating)
