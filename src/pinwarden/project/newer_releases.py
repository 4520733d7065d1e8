"""Newer releases of the packages that configurations name: which there are, and the configuration that follows.

Each package is looked up at the registry that this user's own package client is set to. What a registry says is
told and never taken for proof; a release that somebody agreed to has no pinned bytes and no approved text yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact import ArtifactFacts, PackageRef
from pinwarden.artifacts.artifact_drift import ClosureChange, compare_closures, compare_releases
from pinwarden.artifacts.evidence import judge_artifact
from pinwarden.artifacts.newest import NewestRelease, is_newer_tag, is_release_tag
from pinwarden.artifacts.python_package import exact_version
from pinwarden.clients.command_line import replace_release, replace_word
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import refuse_uneditable
from pinwarden.clients.launchers import Launch
from pinwarden.clients.table import client_of
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Row, kind_table
from pinwarden.core.versions import compare_versions
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extended, extension_of
from pinwarden.lock.locked_config import configured_in
from pinwarden.lock.locked_launch import LockedLaunch, is_enforced, locked_launch
from pinwarden.lock.server_entry import ServerEntry
from pinwarden.project.artifact_check import (
    ExaminedArtifact,
    declared_package,
    examine_artifact,
    fetch_facts,
    newest_release,
    package_of_entry,
    package_of_launch,
    refuse_other_index,
    registry_of,
)
from pinwarden.project.client_install import is_as_approved
from pinwarden.project.configs import view_of
from pinwarden.project.configured_entry import entry_of, lock_client
from pinwarden.project.fetch import chosen_entries
from pinwarden.project.fetch_context import FetchContext
from pinwarden.project.install_scripts import lost_approval_rows
from pinwarden.project.lock import LockOptions, approval_candidate, extension_for, refuse_forbidden, write_entries
from pinwarden.project.locked_servers import has_bytes
from pinwarden.project.project import Project
from pinwarden.project.prove import VerifiedArtifact, resolve_closure, verify_bundle, write_pins
from pinwarden.surface.drift.changes import change_row
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.project import Policies
    from pinwarden.surface.surface import Surface

_ECOSYSTEMS = ("npm", "pypi", "oci")
_MAX_LOOKUPS = 8


class PackageRelease(Record):
    """One configured server that starts a package, and the newest release of that package."""

    entry: Entry
    launched: Launch
    """The package, with the version as it is written."""
    latest: NewestRelease | None = None
    problem: str | None = None
    is_floating: bool = False
    """The configuration names no release, so there is none to be newer than."""

    @property
    def is_newer(self) -> bool:
        """Whether the newest release is not the locked one but a later one."""
        if self.latest is None:
            return False
        new, old = self.latest.version, self.locked
        if self.launched.kind == "oci":
            return is_newer_tag(new, old)
        if self.launched.kind == "pypi":
            return exact_version(new) > exact_version(old)
        return compare_versions(new, old) > 0

    @property
    def locked(self) -> str:
        """The release that the configuration names."""
        return (self.launched.version or "").removeprefix("v" if self.launched.kind == "npm" else "")

    @property
    def package(self) -> PackageRef:
        """The package at its newest release."""
        if self.latest is None:
            return package_of_launch(self.launched)
        if self.launched.kind != "oci":
            return replace(package_of_launch(self.launched), version=self.latest.version)
        return PackageRef(ecosystem="oci", name=f"{self.launched.identity}:{self.latest.version}")

    @property
    def publication(self) -> str:
        """What the registry says about the newest release."""
        if self.latest is None:
            return ""
        when = f", published {self.latest.published_at[:10]}" if self.latest.published_at else ""
        by = f"{when or ', published'} by {self.latest.publisher}" if self.latest.publisher else when
        return by + (f"; its registry advises against it: {self.latest.withdrawn}" if self.latest.withdrawn else "")

    @property
    def hint(self) -> str:
        """What to do about a configuration that names no release."""
        separator = {"npm": "@", "pypi": "=="}.get(self.launched.kind, ":")
        example = f"{self.launched.identity}{separator}1.2.3"
        return (
            f"{self.launched.identity} is configured without an exact version, so the newest release is started; "
            f"write the version you reviewed, such as {example}, then run pinwarden init"
        )


def look_up_releases(entries: Iterable[Entry], context: FetchContext) -> list[PackageRelease]:
    """The newest releases of all configured packages; each that could not be looked up says why."""
    releases = [found for entry in entries if (found := _package_release(entry)) is not None]
    with ThreadPoolExecutor(_MAX_LOOKUPS) as pool:
        return list(pool.map(lambda release: release if release.is_floating else _look_up(release, context), releases))


def _package_release(entry: Entry) -> PackageRelease | None:
    """What an entry starts, if that is a package of a registry whose releases can be told apart."""
    try:
        runs = locked_launch(entry).runs
    except PinwardenError:
        return None  # an address
    package = runs.via or runs
    if package.kind not in _ECOSYSTEMS or (package.kind == "oci" and package.digest and package.version is None):
        return None  # a digest alone has no newer one
    exact = is_release_tag(package.version or "") if package.kind == "oci" else package.pinned
    return PackageRelease(entry=entry, launched=package, is_floating=not exact)


def _look_up(release: PackageRelease, context: FetchContext) -> PackageRelease:
    """What nobody could look up is not up to date for that."""
    try:
        package = package_of_launch(release.launched)
        refuse_other_index(locked_launch(release.entry))
        if _registry_changed(release.entry, package, context):
            return replace(release, problem="its bytes were locked from another registry than would be asked now")
        latest = newest_release(package, context)
    except PinwardenError as err:
        return replace(release, problem=err.message)
    return replace(
        release, latest=latest, problem=None if latest else f"its registry lists no release of {package.name}"
    )


def _registry_changed(entry: Entry, package: PackageRef, context: FetchContext) -> bool:
    """Whether the bytes were locked from another registry than would be asked."""
    extension = extension_of(entry)
    pinned = extension.registry if extension is not None else None
    return pinned is not None and registry_of(package, context) != pinned


class PackageUpdater:
    """Brings the lock up to newer releases that were agreed to, and says what configurations are to hold."""

    def __init__(self, project: Project, policies: Policies, lock_options: LockOptions) -> None:
        self._project, self._policies, self._writing = project, policies, lock_options
        self.warnings: list[Row] = []
        """Scan warnings for which the text of a new release was not approved."""

    def updated_entry(self, release: PackageRelease) -> tuple[ConfiguredServer, Entry]:
        """The server as it would be configured, and its entry in the lock; nothing is written."""
        server = self._configured(release.entry)
        changed = _at_newest(release, server, locked_launch(release.entry))
        return changed, entry_of(changed, self._writing.now)

    def write_lock(self, release: PackageRelease) -> ConfiguredServer:
        """Write the lock; the server as its client's file is to hold it, which is not written yet."""
        lock_options = self._writing
        server, made = self.updated_entry(release)
        published = release.latest.published_at if release.latest else None
        refuse_forbidden(self._policies, made.document, lock_options.now, published)
        if not is_enforced(release.entry):
            refuse_uneditable(server, server.entry)
        candidate = approval_candidate(self._project, release.entry.name, self._asked(server), lock_options)
        if candidate is not None and candidate.blocked:
            self.warnings += candidate.warnings
            candidate = None
        extension = extension_for(candidate, self._project, made.key, lock_options)
        extension = replace(extension, configured_in=configured_in(release.entry))
        sealed = made if lock_options.plain_v2 else extended(made, extension)
        write_entries(self._project, [sealed], candidate, lock_options)
        return server

    def _asked(self, server: ConfiguredServer) -> Surface | None:
        if self._writing.probe is None or server.target is None:
            return None
        from pinwarden.project.server_start import prepare_probe, probe_server

        return probe_server(prepare_probe(self._project, server.name, server.target, self._writing.probe))

    def _configured(self, entry: Entry) -> ConfiguredServer:
        """The server where it was found; one that is gone or not as it was approved is not touched."""
        where = configured_in(entry)
        for server in view_of(self._project, (), self._project.configs()).servers:
            if where is None:
                is_same = lock_client(server.client) == entry.client
            else:
                here = (server.client, server.scope, self._project.shown(server.path))
                is_same = here == (where.client, where.scope, where.file)
            if server.name == entry.name and is_same:
                if is_as_approved(entry, server, client_of(server.client)):
                    return server
                raise PinwardenError("CONFIG_UNEDITABLE", "it is configured otherwise than it was approved")
        raise PinwardenError("CONFIG_UNEDITABLE", "it is not configured there any more; pinwarden remove forgets it")


def _at_newest(release: PackageRelease, server: ConfiguredServer, launch: LockedLaunch) -> ConfiguredServer:
    """The server's entry with the newest release in place of the locked one, and everything else as it stands."""
    latest = release.latest
    known = extension_of(release.entry)
    if latest is None or not isinstance(server.target, StdioTarget):
        raise PinwardenError("CONFIG_UNEDITABLE", "there is no command to write a release into")
    entry: Any = server.entry
    target = server.target
    if known is not None and known.launch is not None:  # the client's file names pinwarden run
        from pinwarden.project.enforce import with_command

        entry = with_command(entry, client_of(server.client), launch.command)
        target = replace(target, command=launch.command)
    words = replace_release(target, latest.version, str(latest.digest) if latest.digest else None)
    changed = replace_word(entry, *words) if words is not None else None
    if words is None or changed is None:
        message = (
            f"its command does not name {release.locked} in a word of its own; write {latest.version} there yourself"
        )
        raise PinwardenError("CONFIG_UNEDITABLE", message)
    fresh = tuple(words[1] if word == words[0] else word for word in target.command)
    return replace(server, entry=changed, target=replace(target, command=fresh))


MAX_PUBLISHER_LOOKUPS = 50
"""Of how many changed packages it is looked up who published them; a review of more begins with the lock's diff."""

DEPENDENCY_KINDS: FindingKinds = kind_table(
    critical=(("dependency_bytes", "The same version of a dependency now has other bytes."),),
    review=(
        ("dependency_scripts", "A dependency would now run scripts on installation."),
        ("dependency_version", "A dependency has another version."),
        ("dependency_files", "Files were added to or taken from the same version of a dependency."),
        ("dependency_place", "A dependency comes from another host."),
        ("dependency_added", "There is a dependency that was not locked."),
    ),
    info=(("dependency_removed", "A dependency that was locked is not needed any more."),),
)


class DependencyUpdate(Record):
    """What would be written for one server if somebody agrees."""

    entry: Entry
    verified: VerifiedArtifact | None
    rows: tuple[Row, ...]

    @property
    def is_offered(self) -> bool:
        """Whether there is something to agree to, and nothing that must not be agreed to."""
        return (
            self.verified is not None and bool(self.rows) and not any(row.severity == "critical" for row in self.rows)
        )


def dependency_updates(
    project: Project, names: Sequence[str], context: FetchContext, now: str, *, without: frozenset[str] = frozenset()
) -> list[DependencyUpdate]:
    """For every server whose bytes are pinned, what they would be if it were locked today.

    Those in ``without`` are not looked at: they get another release, so what this one would be is nobody's question.
    """
    entries = [entry for entry in chosen_entries(project, names) if has_bytes(entry) and entry.name not in without]
    return [_dependency_update(project, entry, context, now) for entry in entries]


def write_dependency_update(project: Project, renewal: DependencyUpdate, now: str) -> None:
    """Write what was agreed to."""
    if renewal.verified is not None:
        write_pins(project, renewal.entry, renewal.verified, now)


def _dependency_update(project: Project, entry: Entry, context: FetchContext, now: str) -> DependencyUpdate:
    try:
        examined = examine_artifact(entry, context, now)
        rows = [row for row in examined.rows if row.severity != "info"]
        if any(row.severity == "critical" for row in rows):
            return DependencyUpdate(entry=entry, verified=None, rows=tuple(rows))
        verified = _verify_current(examined, context)
        before = _pinned_closure(project, entry)
        if before is not None and verified.closure is not None:
            rows += _closure_rows(entry, compare_closures(before, verified.closure), context, now)
            rows += lost_approval_rows(entry.name, extension_of(entry), verified.closure)
        return DependencyUpdate(entry=entry, verified=verified if rows else None, rows=tuple(rows))
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        code, level = (err.code.lower(), "critical") if refused else (COULD_NOT_CHECK, "review")
        row = Row(code=code, severity=level, entity="server", name=entry.name, path="", message=err.message)
        return DependencyUpdate(entry=entry, verified=None, rows=(row,))


def _verify_current(examined: ExaminedArtifact, context: FetchContext) -> VerifiedArtifact:
    if examined.package.ecosystem == "mcpb":
        return verify_bundle(examined, context)
    if examined.package.ecosystem not in ("npm", "pypi"):
        return VerifiedArtifact(examined_artifact=examined, closure=None)
    closure = resolve_closure(examined.package, context)
    return VerifiedArtifact(examined_artifact=examined, closure=closure, data=closure_document.to_bytes(closure))


def _pinned_closure(project: Project, entry: Entry) -> Closure | None:
    extension = extension_of(entry)
    if extension is None or extension.closure is None:
        return None
    data = lock_store.read_pinned(project.lock, extension.closure)
    if data is None or Digest.of_bytes(data) != extension.closure.file_digest:
        raise PinwardenError("LOCK_TAMPERED", f"{extension.closure.path} is not the file that the lock pins")
    return closure_document.parse(data)


def _closure_rows(entry: Entry, changes: Sequence[ClosureChange], context: FetchContext, now: str) -> Iterator[Row]:
    ecosystem = "npm" if any(change.place.startswith("node_modules/") for change in changes) else "pypi"
    for index, change in enumerate(changes):
        message = change.message
        if change.after is not None and index < MAX_PUBLISHER_LOOKUPS:
            message += _publication_text(ecosystem, change, context, now)
        kind = DEPENDENCY_KINDS[f"dependency_{change.kind}"]
        yield Row(
            code=kind.kind,
            severity=kind.severity,
            entity="closure",
            name=entry.name,
            path="",
            message=message,
            before=change.before.version if change.before else None,
            after=change.after.version if change.after else None,
        )


def release_rows(entry: Entry, latest: ServerEntry, context: FetchContext, now: str) -> Iterator[Row]:
    """Who stands behind a newer release, and what is wrong with its bytes, held against the locked release."""
    kind = str(entry.selected_target.get("registryType") or "")
    target = next((package for package in latest.packages if package.registry_type == kind), None)
    wanted = declared_package(target) if target is not None else None
    if wanted is not None:
        yield from package_rows(entry, wanted, context, now)


def package_rows(entry: Entry, wanted: PackageRef, context: FetchContext, now: str) -> Iterator[Row]:
    """The same for a release that is named."""
    try:
        before = _as_pinned(entry, fetch_facts(package_of_entry(entry)[0], context, now=now, server=entry.name))
        after = fetch_facts(wanted, context, now=now, server=entry.name)
    except PinwardenError as err:
        yield Row(
            code=COULD_NOT_CHECK, severity="review", entity="server", name=entry.name, path="", message=err.message
        )
        return
    for change in compare_releases(entry.name, before, after):
        yield change_row(change)
    for issue in judge_artifact(after).issues:
        if issue.severity == "critical":
            yield Row(
                code=issue.code, severity="critical", entity="artifact", name=entry.name, path="", message=issue.message
            )


def _as_pinned(entry: Entry, facts: ArtifactFacts) -> ArtifactFacts:
    """The facts with the publisher that was pinned: what the registry says of an old release today may be rewritten."""
    extension = extension_of(entry)
    known = extension.publisher if extension is not None else None
    return replace(facts, publisher=known) if known is not None else facts


def _publication_text(ecosystem: str, change: ClosureChange, context: FetchContext, now: str) -> str:
    """Who published a package and when, as its registry says."""
    if change.after is None:
        return ""
    uploaded = max((file.uploaded_at for file in change.after.files if file.uploaded_at), default=None)
    if ecosystem == "pypi":
        return f", uploaded {uploaded[:10]}" if uploaded else ""
    try:
        package = PackageRef(ecosystem="npm", name=change.after.name, version=change.after.version)
        facts = fetch_facts(package, context, now=now)
    except PinwardenError as err:
        return f" (who published it could not be looked up: {err.message})"
    when = f", published {facts.published_at[:10]}" if facts.published_at else ""
    return when + (f" by {facts.publisher}" if facts.publisher else "")
