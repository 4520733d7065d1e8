"""Options of commands about bundles: their files, the registry to install from, and permissions."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.bundle.bundle_files import BundleFiles
    from pinwarden.bundle.oci_transfer import OciNetwork
    from pinwarden.bundle.trust import InstallerPolicy, TrustStore
    from pinwarden.install.bundle_fetcher import RegistryBundleFetcher
    from pinwarden.install.sources import Locations

_PERMISSIONS = ("network", "read-files", "write-files", "exec", "legacy")
_MAX_POLICY_BYTES = 64 * 1024


def add_bundle_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that name a bundle."""
    parser.add_argument("archive", metavar="FILE", help="bundle archive, ending in .car or .tar.zst")
    parser.add_argument("--descriptor", metavar="FILE", help="the bundle's descriptor (default: next to the archive)")
    parser.add_argument("--manifest", metavar="FILE", help="the bundle's manifest (default: next to the archive)")


def add_attestation_argument(parser: ArgumentParser) -> None:
    """Add ``--attestation``."""
    parser.add_argument(
        "--attestation",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="attestations for the bundle, as pinwarden attest writes them",
    )


def add_location_arguments(parser: ArgumentParser) -> None:
    """Add the options for the registry that bundles are installed from."""
    registry = parser.add_argument_group("the bundle registry")
    registry.add_argument(
        "--registry",
        metavar="LOCATION",
        help="URL, exported folder, or oci://host/repository (default: the registry in your trust store)",
    )
    registry.add_argument("--log", metavar="LOCATION", help="the log's location, if it differs from the registry's")
    registry.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")


def add_permission_arguments(parser: ArgumentParser) -> None:
    """Add the options for the permissions of an installed bundle."""
    allowed = parser.add_argument_group("permissions of the server")
    allowed.add_argument(
        "--policy",
        metavar="FILE",
        help="installer policy (default: installer-policy.json next to the trust store; without one, servers may only "
        "read the project folder)",
    )
    allowed.add_argument(
        "--allow", action="append", default=[], choices=_PERMISSIONS, help="permission to add to the policy; repeatable"
    )


def get_bundle_files(args: Namespace) -> BundleFiles:
    """Return the bundle that the arguments name."""
    from pinwarden.bundle.bundle_files import find_bundle_files

    return find_bundle_files(Path(args.archive), args.descriptor, args.manifest)


def load_installer_policy(args: Namespace) -> InstallerPolicy:
    """Return the installer policy of ``--policy`` or of the user, with the permissions of ``--allow`` added.

    Without a policy file, servers may only read the project.
    """
    from pinwarden.bundle import trust
    from pinwarden.bundle.trust import InstallerPolicy
    from pinwarden.bundle.trust_files import policy_path
    from pinwarden.core.record import replace
    from pinwarden.system.files import read_file

    path = Path(args.policy) if args.policy else policy_path(find_trust_file())
    if args.policy or path.exists() or path.is_symlink():
        policy = trust.parse_installer_policy(read_file(path, _MAX_POLICY_BYTES))
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


def find_trust_file() -> Path:
    """Return this user's trust store."""
    from pinwarden.bundle.trust_files import trust_path

    return trust_path(Path.home(), os.environ)


def find_registry_location(args: Namespace, trusted: TrustStore) -> str:
    """Return the location of the registry: from ``--registry``, or else the only location in the trust store.

    ``--registry`` is a location, or the name of a trusted registry.
    """
    if args.registry:
        url = next((root.url for root in trusted.registries if root.key.name == args.registry and root.url), None)
        return str(url or args.registry)
    urls = [root.url for root in trusted.registries if root.url]
    if len(urls) == 1:
        return str(urls[0])
    problem = f"{len(urls)} trusted registries have a location" if urls else "no trusted registry has a location"
    hint = "Name one with --registry."
    if not trusted.registries:
        hint = "Trust one first: pinwarden trust add registry.json --role registry --url URL."
    raise PinwardenError("USAGE", f"--registry is missing: {problem}", hint=hint)


@contextmanager
def open_locations(args: Namespace) -> Iterator[Locations]:
    """Open the locations to install from, with a network client that is closed when the command ends."""
    from pinwarden.install.sources import Locations
    from pinwarden.system.net.connections import SettingsSources
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    rules = FetchRules(
        offline=getattr(args, "offline", False), allow_plain_http=getattr(args, "allow_plain_http", False)
    )
    fetcher = Fetcher(rules, os.environ)
    try:
        yield Locations(fetcher, SettingsSources(home=Path.home(), project=None, variables=os.environ))
    finally:
        fetcher.close()


@contextmanager
def open_pinned_bundles(args: Namespace) -> Iterator[RegistryBundleFetcher]:
    """Open a fetcher that downloads the files of locked bundles."""
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.install.bundle_fetcher import RegistryBundleFetcher

    with open_locations(args) as locations:
        trust = find_trust_file()
        yield RegistryBundleFetcher(
            locations, lambda: load_trust(trust), lambda: load_installer_policy(args), args.registry, trust
        )


@contextmanager
def open_oci_network() -> Iterator[OciNetwork]:
    """Open a network client with the settings and logins of docker or podman."""
    from pinwarden.bundle.oci_transfer import OciNetwork
    from pinwarden.system.net.connections import SettingsSources
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    fetcher = Fetcher(FetchRules(), os.environ)
    try:
        yield OciNetwork(fetcher, SettingsSources(home=Path.home(), project=None, variables=os.environ))
    finally:
        fetcher.close()
