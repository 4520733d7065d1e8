"""The facts about any artifact: which adapter looks, and at which registry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact import ArtifactFacts, PackageName
from pinwarden.artifacts.newest import Newest
from pinwarden.clients.launch.values import Launched
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_launch import LockedLaunch, locked_launch
from pinwarden.lock.server_entry import Package
from pinwarden.project.fetch_context import Workshop
from pinwarden.project.project import load_policies

if TYPE_CHECKING:
    from pinwarden.artifacts.mcpb import BundleSettings

# npm and uv read these before any file of settings.
_REGISTRY_VARIABLE = re.compile(
    r"npm_config_(?:.*registry|.*userconfig|.*globalconfig)|(?:uv|pip)_.*(?:index|find_links|config_file).*",
    re.IGNORECASE,
)


def facts_of(package: PackageName, shop: Workshop, *, now: str, server: str | None = None) -> ArtifactFacts:
    """Fetch and hash an artifact. Transport failures raise; problems with the artifact are returned.

    ``server`` is the name of the server that the artifact belongs to: the policy has rules for bundles by server.
    """
    sources, fetcher = shop.sources, shop.fetcher
    match package.ecosystem:
        case "npm":
            from pinwarden.artifacts import npm

            return npm.facts(package, fetcher, sources.npm(package.name), now=now)
        case "pypi":
            from pinwarden.artifacts import pypi

            return pypi.facts(package, fetcher, sources.pypi(), now=now)
        case "oci":
            from pinwarden.artifacts import oci

            return oci.facts(package, fetcher, sources.image(package.name, by_project=True), now=now)
        case "mcpb":
            from pinwarden.artifacts import mcpb

            return mcpb.facts(package, fetcher, _bundle_settings(server, shop), now=now)
        case "nuget":
            from pinwarden.artifacts import nuget

            return nuget.facts(package, fetcher, sources.nuget(), now=now)
        case "cargo":
            from pinwarden.artifacts import cargo

            return cargo.facts(package, fetcher, sources.cargo(), now=now)
        case _:
            raise PinwardenError("NOTHING_TO_RUN", f"{package.ecosystem} has no registry to ask")


def _bundle_settings(server: str | None, shop: Workshop) -> BundleSettings:
    """What the policy demands of a server's bundle. A policy that cannot be read raises."""
    from pinwarden.artifacts.certificate_path import load_anchors
    from pinwarden.artifacts.mcpb import BundleSettings

    policy = load_policies(shop.project).own
    rule = policy.mcpb_rule(server) if policy is not None and server is not None else None
    if rule is None:
        return BundleSettings()
    return BundleSettings(manifest_name=rule.name, anchors=load_anchors(rule.anchors))


def newest_of(package: PackageName, shop: Workshop) -> Newest | None:
    """The newest release of a package at the registry that this user's client is set to; None if that has none."""
    sources, fetcher = shop.sources, shop.fetcher
    match package.ecosystem:
        case "npm":
            from pinwarden.artifacts import npm

            return npm.newest(package, fetcher, sources.npm(package.name))
        case "pypi":
            from pinwarden.artifacts import pypi

            return pypi.newest(package, fetcher, sources.pypi())
        case "oci":
            from pinwarden.artifacts import oci

            return oci.newest(package, fetcher, sources.image(package.name, by_project=True))
        case _:
            raise PinwardenError("NOTHING_TO_RUN", f"releases of {package.ecosystem} packages are not looked up")


def registry_asked(package: PackageName, shop: Workshop) -> str | None:
    """The registry that would be asked about a package today; None for kinds that name their own address."""
    sources = shop.sources
    match package.ecosystem:
        case "npm":
            return sources.npm(package.name).url
        case "pypi":
            return sources.pypi().url
        case "oci":
            return sources.image(package.name, by_project=True).url
        case "nuget":
            return sources.nuget().url
        case "cargo":
            return sources.cargo().url
        case _:
            return None


def package_in(runs: Launched) -> PackageName:
    """What a command takes from a registry; an error if it takes nothing, or something that can be anything."""
    package = runs.via or runs
    if package.kind == "oci":
        tag = f":{package.version}" if package.version else ""
        return PackageName(
            ecosystem="oci", name=f"{package.identity}{tag}{f'@{package.digest}' if package.digest else ''}"
        )
    if package.kind not in ("npm", "pypi", "nuget"):
        raise PinwardenError("NOTHING_TO_RUN", f"it starts {package.identity[:120]!a}, which comes from no registry")
    if not package.pinned or package.version is None:
        raise PinwardenError("VERSION_FLOATS", f"{package.identity[:120]} is not locked at one version")
    version = package.version.removeprefix("v") if package.kind == "npm" else package.version
    return PackageName(ecosystem=package.kind, name=package.identity, version=version)


def package_of(entry: Entry) -> tuple[PackageName, Digest | None]:
    """What an entry takes from a registry, and the digest that the server's metadata gave for it, where it gave one.

    Bundles and crates are not named by the command that starts them, so for those the locked target counts.
    """
    target = entry.selected_target
    kind, name, version = (target.get(member) for member in ("registryType", "identifier", "version"))
    if kind == "mcpb" and isinstance(name, str):
        claim = target.get("fileSha256")
        return PackageName(ecosystem="mcpb", name=name), Digest.parse(f"sha256:{claim}") if claim else None
    if kind == "cargo" and isinstance(name, str) and isinstance(version, str):
        return PackageName(ecosystem="cargo", name=name, version=version), None
    return package_in(locked_launch(entry).runs), None


def refuse_other_index(launch: LockedLaunch) -> None:
    """Stop where the command brings its own registry: under the same name the user's may have another package."""
    runs = launch.runs
    if "other_index" in (*runs.dangers, *(runs.via.dangers if runs.via else ())):
        raise PinwardenError("REGISTRY_IN_COMMAND", "the command names the registry that the package comes from")
    named = [name for name in launch.variables if _REGISTRY_VARIABLE.fullmatch(name)]
    if named:
        raise PinwardenError("REGISTRY_IN_COMMAND", f"{named[0][:80]} says where the package comes from")


def declared_package(package: Package) -> PackageName | None:
    """What a server's metadata names; None for kinds that have no registry."""
    ecosystem: Any = package.registry_type
    if ecosystem in ("npm", "pypi", "nuget", "cargo"):
        return PackageName(ecosystem=ecosystem, name=package.identifier, version=package.version or "")
    if ecosystem in ("oci", "mcpb"):
        return PackageName(ecosystem=ecosystem, name=package.identifier)
    return None


def declared_digest(package: Package) -> Digest | None:
    """The digest that a server's metadata claims of its artifact."""
    if package.registry_type == "mcpb" and package.file_sha256:
        return Digest.parse(f"sha256:{package.file_sha256.lower()}")
    if package.registry_type == "oci" and "@" in package.identifier:
        return Digest.parse(package.identifier.rpartition("@")[2])
    return None
