"""The options of commands that install: where from, whom to trust, and what is allowed."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.bundle.installer_policy import InstallerPolicy
    from pinwarden.bundle.trust_store import TrustStore
    from pinwarden.install.sources import Places
    from pinwarden.install.staging import PinnedBundles

ALLOWED = ("network", "read-files", "write-files", "exec", "legacy")
_POLICY_BYTES = 64 * 1024


def trust_file() -> Path:
    """The trust store of this user."""
    from pinwarden.bundle.trust_files import trust_path

    return trust_path(Path.home(), os.environ)


def add_place_arguments(parser: ArgumentParser) -> None:
    """Where bundles come from."""
    asked = parser.add_argument_group("the registry")
    asked.add_argument(
        "--registry",
        metavar="PLACE",
        help="an address, the folder of an export, or oci://host/repository (the one that you trust)",
    )
    asked.add_argument("--log", metavar="PLACE", help="where its log is, if not there")
    asked.add_argument("--allow-plain-http", action="store_true", help="allow an address without encryption")


def add_permission_arguments(parser: ArgumentParser) -> None:
    """What tools are allowed."""
    allowed = parser.add_argument_group("what it may do")
    allowed.add_argument(
        "--policy", metavar="FILE", help="what tools are allowed (installer-policy.json beside the trust store)"
    )
    allowed.add_argument(
        "--allow", action="append", default=[], choices=ALLOWED, help="allow this as well; may be given again"
    )


def policy_of(args: Namespace) -> InstallerPolicy:
    """What the options and the user's own file allow. Without either, tools may read the project and no more."""
    from pinwarden.bundle import installer_policy
    from pinwarden.bundle.installer_policy import InstallerPolicy
    from pinwarden.bundle.trust_files import policy_path
    from pinwarden.core.record import replace
    from pinwarden.system.files import read_file

    path = Path(args.policy) if args.policy else policy_path(trust_file())
    if args.policy or path.exists() or path.is_symlink():
        policy = installer_policy.parse(read_file(path, _POLICY_BYTES))
    else:
        policy = InstallerPolicy(filesystem="read_only")
    if "network" in args.allow:
        policy = replace(policy, network="allow")
    if "read-files" in args.allow and policy.filesystem == "deny":
        policy = replace(policy, filesystem="read_only")
    if "write-files" in args.allow:
        policy = replace(policy, filesystem="read_write")
    if "exec" in args.allow:
        policy = replace(policy, exec="allow")
    return replace(policy, allow_legacy=True) if "legacy" in args.allow else policy


@contextmanager
def places_of(args: Namespace) -> Iterator[Places]:
    """The places that can be installed from, open until the command is done."""
    from pinwarden.install.sources import Places
    from pinwarden.system.net.endpoint import Settings
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    rules = FetchRules(
        offline=getattr(args, "offline", False), allow_plain_http=getattr(args, "allow_plain_http", False)
    )
    fetcher = Fetcher(rules, os.environ)
    try:
        yield Places(fetcher, Settings(home=Path.home(), project=None, variables=os.environ))
    finally:
        fetcher.close()


def place_of(args: Namespace, trusted: TrustStore) -> str:
    """The place that is meant: the one that is named, or the only one that the trust store knows."""
    if args.registry:
        named = next((each.url for each in trusted.roots if each.key.name == args.registry and each.url), None)
        return str(named or args.registry)
    known = [each.url for each in trusted.roots if each.url]
    if len(known) == 1:
        return str(known[0])
    why = "no registry that you trust has an address" if not known else f"{len(known)} registries have an address"
    hint = "Name one with --registry."
    if not trusted.roots:
        hint = "Trust one first: pinwarden trust add registry.json --role registry --url URL."
    raise PinwardenError("USAGE", f"which registry? {why}", hint=hint)


@contextmanager
def pinned_bundles(args: Namespace) -> Iterator[PinnedBundles]:
    """Where the files of locked bundles are fetched from, if they are not in the store."""
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.install.staging import PinnedBundles

    with places_of(args) as places:
        trust = trust_file()
        yield PinnedBundles(places, lambda: load_trust(trust), lambda: policy_of(args), args.registry, trust)
