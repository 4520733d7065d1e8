"""Newer releases of locked servers and of the packages that configurations name.

A package is looked up in the registry that this user's own package client is configured to use. The response is
reported unverified: a newer release has no pinned bytes and no approved surface until it is verified and
reviewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact import PackageRef
from pinwarden.artifacts.newest_release import NewestRelease, is_newer_tag, is_release_tag
from pinwarden.artifacts.python_package import parse_exact_version
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import refuse_uneditable
from pinwarden.clients.launchers import Launch
from pinwarden.clients.package_arguments import find_package_argument, replace_package_argument
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Row, build_kind_table
from pinwarden.core.text import plural
from pinwarden.core.versions import compare_versions
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, find_client
from pinwarden.lock.extension import is_enforced, read_extension, with_extension
from pinwarden.lock.locked_config import CONFIG_SOURCE, NON_REGISTRY_SOURCES, read_config_origin
from pinwarden.lock.locked_launch import LockedLaunch, read_locked_launch
from pinwarden.lock.server_entry import ServerEntry, parse_server_entry
from pinwarden.project.artifact_check import (
    find_newest_release,
    find_registry_url,
    parse_package_of_launch,
    refuse_other_index,
)
from pinwarden.project.client_install import is_as_approved
from pinwarden.project.configured_entry import build_plain_entry, client_name_in_lock
from pinwarden.project.fetch_context import FetchContext
from pinwarden.project.lock import (
    LockOptions,
    build_approval_candidate,
    build_extension,
    refuse_policy_violations,
    write_entries,
)
from pinwarden.project.locked_servers import not_locked_error
from pinwarden.project.project import Project
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Policies
    from pinwarden.surface.surface import Surface

_ECOSYSTEMS = ("npm", "pypi", "oci")
_MAX_LOOKUPS = 8
NOTHING_TO_LOOK_UP = "there is nothing to look up"

UPDATE_KINDS: FindingKinds = build_kind_table(
    review=(
        ("selectedTarget_changes", "A newer release would install a different package, or connect to a different URL."),
        ("config_changes", "A newer release would be configured differently."),
        ("capabilityManifest_changes", "A newer release declares different secrets, hosts or transports."),
        ("tier_changes", "A newer release has another tier."),
    ),
    info=(
        ("newer_release", "There is a release that is newer than the locked one."),
        ("version_floats", "A configuration names no exact release, so the newest one is started."),
    ),
)


class ListedRelease(Record):
    """An entry from an MCP registry, and the latest release that the registry lists."""

    entry: Entry
    latest: ServerEntry | None
    problem: str | None = None

    @property
    def locked(self) -> str:
        """The release in the lock."""
        return self.entry.version

    @property
    def is_newer(self) -> bool:
        """Whether the latest release is later than the locked one."""
        return self.latest is not None and compare_versions(self.latest.version or "", self.entry.version) > 0


class PackageRelease(Record):
    """One configured server that starts a package, and the newest release of that package."""

    entry: Entry
    launch: Launch
    """The package, with the version as the command names it."""
    latest: NewestRelease | None = None
    problem: str | None = None
    is_floating: bool = False
    """Whether the configuration names no exact release."""

    @property
    def is_newer(self) -> bool:
        """Whether the newest release is later than the locked one."""
        if self.latest is None:
            return False
        new, old = self.latest.version, self.locked
        if self.launch.kind == "oci":
            return is_newer_tag(new, old)
        if self.launch.kind == "pypi":
            return parse_exact_version(new) > parse_exact_version(old)
        return compare_versions(new, old) > 0

    @property
    def locked(self) -> str:
        """The release that the configuration names."""
        return (self.launch.version or "").removeprefix("v" if self.launch.kind == "npm" else "")

    @property
    def package(self) -> PackageRef:
        """The package at its newest release."""
        if self.latest is None:
            return parse_package_of_launch(self.launch)
        if self.launch.kind != "oci":
            return replace(parse_package_of_launch(self.launch), version=self.latest.version)
        return PackageRef(ecosystem="oci", name=f"{self.launch.identity}:{self.latest.version}")

    @property
    def publication(self) -> str:
        """Publisher, date and warnings of the newest release, according to the registry."""
        if self.latest is None:
            return ""
        facts = self.latest.facts
        when = f", published {facts.published_at[:10]}" if facts.published_at else ""
        by = f"{when or ', published'} by {facts.publisher}" if facts.publisher else when
        return by + (f"; deprecated: {facts.yanked}" if facts.yanked else "")

    @property
    def hint(self) -> str:
        """What to do about a configuration that names no exact release."""
        separator = {"npm": "@", "pypi": "=="}.get(self.launch.kind, ":")
        example = f"{self.launch.identity}{separator}1.2.3"
        return (
            f"{self.launch.identity} is configured without an exact version, so the newest release is started; "
            f"write the version you reviewed, such as {example}, then run pinwarden init"
        )


Release = ListedRelease | PackageRelease


class ReleaseLookup(Record):
    """The newest releases of the requested entries."""

    lock: Lock
    listed: tuple[ListedRelease, ...]
    """Entries from MCP registries."""
    packages: tuple[PackageRelease, ...]
    """Configured entries that start a package."""
    requested: int
    """How many entries were requested."""
    unlisted: tuple[str, ...]
    """Names of configured servers that do not come from a registry."""

    @property
    def releases(self) -> tuple[Release, ...]:
        """All entries with an exact locked release."""
        return (*self.listed, *(release for release in self.packages if not release.is_floating))

    @property
    def failed(self) -> tuple[Release, ...]:
        """The entries whose lookup failed."""
        return tuple(release for release in self.releases if release.problem is not None)

    @property
    def floating_rows(self) -> tuple[Row, ...]:
        """One row for each configuration that names no exact release."""
        level = UPDATE_KINDS["version_floats"].severity
        return tuple(
            Row(
                code="version_floats",
                severity=level,
                entity="server",
                name=release.entry.name,
                path="",
                message=release.hint,
            )
            for release in self.packages
            if release.is_floating
        )

    def summarize(self, outcome: str) -> str:
        """Summarize how many entries were looked up, and the outcome."""
        floating = len(self.packages) + len(self.listed) - len(self.releases)
        comes = "comes" if 1 in (self.requested, len(self.releases)) else "come"
        known = f"{len(self.releases)} of {plural(self.requested, 'entry', 'entries')} {comes} from a registry"
        known += f" at a locked version and {floating} at any" if floating else ""
        if not self.releases:
            return f"{known}; {NOTHING_TO_LOOK_UP}"
        if not self.failed:
            return f"{known}, {outcome}"
        others = f", the others {outcome}" if len(self.failed) < len(self.releases) else ""
        return f"{known}, {len(self.failed)} could not be looked up{others}"


def look_up_releases(project: Project, names: Sequence[str], context: FetchContext, *, offline: bool) -> ReleaseLookup:
    """Look up the newest releases of the named entries, or of all."""
    lock = lock_store.read(project.lock)
    if lock is None:
        raise lock_store.missing_lock_error(project.lock)
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked_error(lock.entries, unknown[0])
    requested = [entry for entry in lock.entries if not names or entry.name in names]
    configured = [entry for entry in requested if entry.source == CONFIG_SOURCE]
    packages = _look_up_packages(configured, context)
    packaged = {release.entry.key for release in packages}
    return ReleaseLookup(
        lock=lock,
        listed=tuple(_look_up_listed(project, requested, offline=offline)),
        packages=tuple(packages),
        requested=len(requested),
        unlisted=tuple(dict.fromkeys(entry.name for entry in configured if entry.key not in packaged)),
    )


def build_release_row(release: Release) -> Row:
    """Return a row for a newer release, or for a failed lookup."""
    if release.problem:
        code, level, message = COULD_NOT_CHECK, "review", release.problem
    else:
        code, level = "newer_release", UPDATE_KINDS["newer_release"].severity
        message = (
            f"{release.locked} is locked for {find_client(release.entry)}, {latest_version(release)} is the latest"
        )
        message += "" if isinstance(release, ListedRelease) else release.publication
    return Row(code=code, severity=level, entity="server", name=release.entry.name, path="", message=message)


def latest_version(release: Release) -> str:
    """Return the version of the latest release."""
    return (release.latest.version if release.latest else None) or "?"


class PackageUpdater:
    """Writes newer releases of configured packages into the lock, and builds the configurations for them."""

    def __init__(self, project: Project, policies: Policies, lock_options: LockOptions) -> None:
        self._project, self._policies, self._lock_options = project, policies, lock_options
        self.warnings: list[Row] = []
        """Scan warnings because of which the surface of a new release was not approved."""

    def build_updated_entry(self, release: PackageRelease) -> tuple[ConfiguredServer, Entry]:
        """Return the server as it would be configured, and its entry in the lock; nothing is written."""
        server = self._find_configured_server(release.entry)
        changed = _replace_release(release, server, read_locked_launch(release.entry))
        return changed, build_plain_entry(changed, self._lock_options.now, release.entry.key)

    def write_lock(self, release: PackageRelease) -> ConfiguredServer:
        """Write the lock. Returns the server as its client's file must have it; that file is not written yet."""
        lock_options = self._lock_options
        server, entry = self.build_updated_entry(release)
        published = release.latest.facts.published_at if release.latest else None
        refuse_policy_violations(self._policies, entry.document, lock_options.now, published)
        if not is_enforced(release.entry):
            refuse_uneditable(server, server.entry)
        candidate = build_approval_candidate(self._project, release.entry.name, self._probe(server), lock_options)
        if candidate is not None and candidate.is_blocked:
            self.warnings += candidate.warnings
            candidate = None
        extension = build_extension(candidate, self._project, entry.key, lock_options)
        extension = replace(extension, configured_in=read_config_origin(release.entry))
        sealed = entry if lock_options.plain_v2 else with_extension(entry, extension)
        write_entries(self._project, [sealed], candidate, lock_options)
        return server

    def _probe(self, server: ConfiguredServer) -> Surface | None:
        if self._lock_options.probe is None or server.target is None:
            return None
        from pinwarden.project.server_start import prepare_probe, probe_server

        return probe_server(prepare_probe(self._project, server.name, server.target, self._lock_options.probe))

    def _find_configured_server(self, entry: Entry) -> ConfiguredServer:
        """Return the server in its client's file. Raises if it is missing or not configured as approved."""
        where = read_config_origin(entry)
        for server in self._project.find_servers():
            if where is None:
                is_same = client_name_in_lock(server.client) == entry.client
            else:
                here = (server.client, server.scope, self._project.display_path(server.path))
                is_same = here == (where.client, where.scope, where.file)
            if server.name == entry.name and is_same:
                if is_as_approved(entry, server, get_client(server.client)):
                    return server
                raise PinwardenError("CONFIG_UNEDITABLE", "it is configured differently than approved")
        raise PinwardenError(
            "CONFIG_UNEDITABLE", "it is no longer configured there; remove it from the lock with pinwarden remove"
        )


def _look_up_listed(project: Project, wanted: Sequence[Entry], *, offline: bool) -> Iterator[ListedRelease]:
    """Look up the entries that came from an MCP registry."""
    registries = project.load_registries(offline=offline)
    for entry in wanted:
        if entry.source in NON_REGISTRY_SOURCES:
            continue
        try:
            latest = parse_server_entry(registries.find(entry.name, None, entry.source))
        except PinwardenError as err:
            yield ListedRelease(entry=entry, latest=None, problem=err.message)
            continue
        yield ListedRelease(entry=entry, latest=latest)


def _look_up_packages(entries: Iterable[Entry], context: FetchContext) -> list[PackageRelease]:
    """Return the newest releases of all configured packages. ``problem`` says why a lookup failed."""
    releases = [release for entry in entries if (release := _parse_package_release(entry)) is not None]
    with ThreadPoolExecutor(_MAX_LOOKUPS) as pool:
        return list(
            pool.map(lambda release: release if release.is_floating else _look_up_package(release, context), releases)
        )


def _parse_package_release(entry: Entry) -> PackageRelease | None:
    """Return the package that an entry starts, if its releases can be looked up and compared."""
    try:
        runs = read_locked_launch(entry).parsed
    except PinwardenError:
        return None  # an address
    package = runs.via or runs
    if package.kind not in _ECOSYSTEMS or (package.kind == "oci" and package.digest and package.version is None):
        return None  # a digest alone cannot be compared with tags
    exact = is_release_tag(package.version or "") if package.kind == "oci" else package.pinned
    return PackageRelease(entry=entry, launch=package, is_floating=not exact)


def _look_up_package(release: PackageRelease, context: FetchContext) -> PackageRelease:
    try:
        package = parse_package_of_launch(release.launch)
        refuse_other_index(read_locked_launch(release.entry))
        if _has_registry_changed(release.entry, package, context):
            return replace(release, problem="its bytes were locked from another registry than the one configured now")
        latest = find_newest_release(package, context)
    except PinwardenError as err:
        return replace(release, problem=err.message)
    return replace(
        release, latest=latest, problem=None if latest else f"its registry lists no release of {package.name}"
    )


def _has_registry_changed(entry: Entry, package: PackageRef, context: FetchContext) -> bool:
    """Whether the bytes were locked from another registry than the one configured now."""
    extension = read_extension(entry)
    pinned = extension.registry if extension is not None else None
    return pinned is not None and find_registry_url(package, context) != pinned


def _replace_release(release: PackageRelease, server: ConfiguredServer, launch: LockedLaunch) -> ConfiguredServer:
    """Return the server with the newest release in its command in place of the locked one."""
    latest = release.latest
    known = read_extension(release.entry)
    if latest is None or not isinstance(server.target, StdioTarget):
        raise PinwardenError("CONFIG_UNEDITABLE", "there is no command to write a release into")
    entry: Any = server.entry
    target = server.target
    if known is not None and known.launch is not None:  # the client's file names pinwarden run
        from pinwarden.clients.entry_edit import replace_command

        entry = replace_command(entry, get_client(server.client), launch.command)
        target = replace(target, command=launch.command)
    argument = find_package_argument(target, latest.version, str(latest.digest) if latest.digest else None)
    changed = replace_package_argument(entry, argument) if argument is not None else None
    if argument is None or changed is None:
        message = (
            f"its command does not contain {release.locked} as a separate word; write {latest.version} there yourself"
        )
        raise PinwardenError("CONFIG_UNEDITABLE", message)
    return replace(server, entry=changed, target=replace(target, command=argument.replace_in(target.command)))
