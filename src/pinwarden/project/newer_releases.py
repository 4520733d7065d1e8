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
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import refuse_uneditable
from pinwarden.clients.launch.launch import Launch
from pinwarden.clients.launch.parse import replace_release, replace_word
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
    Examined,
    declared_package,
    examine,
    facts_of,
    newest_of,
    package_in,
    package_of,
    refuse_other_index,
    registry_asked,
)
from pinwarden.project.client_install import is_as_approved
from pinwarden.project.configs import view_of
from pinwarden.project.configured_entry import entry_of, lock_client
from pinwarden.project.fetch import chosen_entries
from pinwarden.project.fetch_context import Workshop
from pinwarden.project.install_scripts import lost_rows
from pinwarden.project.lock import LockWriting, extension_for, offered_surface, refuse_forbidden, write_entries
from pinwarden.project.locked_servers import has_bytes
from pinwarden.project.project import Project
from pinwarden.project.prove import Proof, bundle_proof, closure_for, write_proof
from pinwarden.surface.rows import change_row
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.project import Policies
    from pinwarden.surface.surface import Surface

_LOOKED_UP = ("npm", "pypi", "oci")
_AT_ONCE = 8


class Release(Record):
    """One configured server that starts a package, and the newest release of that package."""

    entry: Entry
    runs: Launch
    """The package, with the version as it is written."""
    latest: NewestRelease | None = None
    problem: str | None = None
    floats: bool = False
    """The configuration names no release, so there is none to be newer than."""

    @property
    def is_newer(self) -> bool:
        """Whether the newest release is not the locked one but a later one."""
        if self.latest is None:
            return False
        new, old = self.latest.version, self.locked
        if self.runs.kind == "oci":
            return is_newer_tag(new, old)
        if self.runs.kind == "pypi":
            return exact_version(new) > exact_version(old)
        return compare_versions(new, old) > 0

    @property
    def locked(self) -> str:
        """The release that the configuration names."""
        return (self.runs.version or "").removeprefix("v" if self.runs.kind == "npm" else "")

    @property
    def package(self) -> PackageRef:
        """The package at its newest release."""
        if self.latest is None:
            return package_in(self.runs)
        if self.runs.kind != "oci":
            return replace(package_in(self.runs), version=self.latest.version)
        return PackageRef(ecosystem="oci", name=f"{self.runs.identity}:{self.latest.version}")

    @property
    def told(self) -> str:
        """What the registry says about the newest release."""
        if self.latest is None:
            return ""
        when = f", published {self.latest.published_at[:10]}" if self.latest.published_at else ""
        by = f"{when or ', published'} by {self.latest.publisher}" if self.latest.publisher else when
        return by + (f"; its registry advises against it: {self.latest.withdrawn}" if self.latest.withdrawn else "")

    @property
    def hint(self) -> str:
        """What to do about a configuration that names no release."""
        example = {"npm": f"{self.runs.identity}@1.2.3", "pypi": f"{self.runs.identity}==1.2.3"}
        return (
            f"{self.runs.identity} is configured without one exact version, so whatever is newest is started; "
            f"write the version you reviewed, such as {example.get(self.runs.kind, self.runs.identity + ':1.2.3')}, "
            "then run pinwarden init"
        )


def releases_of(entries: Iterable[Entry], shop: Workshop) -> list[Release]:
    """The newest releases of all configured packages; each that could not be looked up says why."""
    wanted = [found for entry in entries if (found := _started(entry)) is not None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda each: each if each.floats else _look_up(each, shop), wanted))


def _started(entry: Entry) -> Release | None:
    """What an entry starts, if that is a package of a registry whose releases can be told apart."""
    try:
        runs = locked_launch(entry).runs
    except PinwardenError:
        return None  # an address
    package = runs.via or runs
    if package.kind not in _LOOKED_UP or (package.kind == "oci" and package.digest and package.version is None):
        return None  # a digest alone has no newer one
    exact = is_release_tag(package.version or "") if package.kind == "oci" else package.pinned
    return Release(entry=entry, runs=package, floats=not exact)


def _look_up(each: Release, shop: Workshop) -> Release:
    """What nobody could look up is not up to date for that."""
    try:
        package = package_in(each.runs)
        refuse_other_index(locked_launch(each.entry))
        if _is_elsewhere(each.entry, package, shop):
            return replace(each, problem="its bytes were locked from another registry than would be asked now")
        latest = newest_of(package, shop)
    except PinwardenError as err:
        return replace(each, problem=err.message)
    return replace(each, latest=latest, problem=None if latest else f"its registry lists no release of {package.name}")


def _is_elsewhere(entry: Entry, package: PackageRef, shop: Workshop) -> bool:
    """Whether the bytes were locked from another registry than would be asked."""
    extension = extension_of(entry)
    pinned = extension.registry if extension is not None else None
    return pinned is not None and registry_asked(package, shop) != pinned


class Following:
    """Brings the lock up to newer releases that were agreed to, and says what configurations are to hold."""

    def __init__(self, project: Project, policies: Policies, writing: LockWriting) -> None:
        self._project, self._policies, self._writing = project, policies, writing
        self.warnings: list[Row] = []
        """Scan warnings for which the text of a new release was not approved."""

    def fresh(self, each: Release) -> tuple[ConfiguredServer, Entry]:
        """The server as it would be configured, and its entry in the lock; nothing is written."""
        server = self._configured(each.entry)
        changed = _at_newest(each, server, locked_launch(each.entry))
        return changed, entry_of(changed, self._writing.now)

    def lock(self, each: Release) -> ConfiguredServer:
        """Write the lock; the server as its client's file is to hold it, which is not written yet."""
        writing = self._writing
        server, made = self.fresh(each)
        published = each.latest.published_at if each.latest else None
        refuse_forbidden(self._policies, made.document, writing.now, published)
        if not is_enforced(each.entry):
            refuse_uneditable(server, server.entry)
        offered = offered_surface(self._project, each.entry.name, self._asked(server), writing)
        if offered is not None and offered.blocked:
            self.warnings += offered.warnings
            offered = None
        extension = extension_for(offered, self._project, made.key, writing)
        extension = replace(extension, configured_in=configured_in(each.entry))
        sealed = made if writing.plain_v2 else extended(made, extension)
        write_entries(self._project, [sealed], offered, writing)
        return server

    def _asked(self, server: ConfiguredServer) -> Surface | None:
        if self._writing.probe is None or server.target is None:
            return None
        from pinwarden.project.server_start import ask, prepare_probe

        return ask(prepare_probe(self._project, server.name, server.target, self._writing.probe))

    def _configured(self, entry: Entry) -> ConfiguredServer:
        """The server where it was found; one that is gone or not as it was approved is not touched."""
        where = configured_in(entry)
        for server in view_of(self._project, (), self._project.configs()).servers:
            here = (server.client, server.scope, self._project.shown(server.path))
            if where is None:
                found = lock_client(server.client) == entry.client
            else:
                found = here == (where.client, where.scope, where.file)
            if server.name == entry.name and found:
                if is_as_approved(entry, server, client_of(server.client)):
                    return server
                raise PinwardenError("CONFIG_UNEDITABLE", "it is configured otherwise than it was approved")
        raise PinwardenError("CONFIG_UNEDITABLE", "it is not configured there any more; pinwarden remove forgets it")


def _at_newest(each: Release, server: ConfiguredServer, launch: LockedLaunch) -> ConfiguredServer:
    """The server's entry with the newest release in place of the locked one, and everything else as it stands."""
    latest = each.latest
    known = extension_of(each.entry)
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
        message = f"its command does not name {each.locked} in a word of its own; write {latest.version} there yourself"
        raise PinwardenError("CONFIG_UNEDITABLE", message)
    fresh = tuple(words[1] if word == words[0] else word for word in target.command)
    return replace(server, entry=changed, target=replace(target, command=fresh))


MAX_LOOKED_UP = 50
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


class Renewal(Record):
    """What would be written for one server if somebody agrees."""

    entry: Entry
    proof: Proof | None
    rows: tuple[Row, ...]

    @property
    def offered(self) -> bool:
        """Whether there is something to agree to, and nothing that must not be agreed to."""
        return self.proof is not None and bool(self.rows) and not any(row.severity == "critical" for row in self.rows)


def renewals(
    project: Project, names: Sequence[str], shop: Workshop, now: str, *, without: frozenset[str] = frozenset()
) -> list[Renewal]:
    """For every server whose bytes are pinned, what they would be if it were locked today.

    Those in ``without`` are not looked at: they get another release, so what this one would be is nobody's question.
    """
    entries = [each for each in chosen_entries(project, names) if has_bytes(each) and each.name not in without]
    return [_renewal(project, entry, shop, now) for entry in entries]


def write_renewal(project: Project, renewal: Renewal, now: str) -> None:
    """Write what was agreed to."""
    if renewal.proof is not None:
        write_proof(project, renewal.entry, renewal.proof, now)


def _renewal(project: Project, entry: Entry, shop: Workshop, now: str) -> Renewal:
    try:
        examined = examine(entry, shop, now)
        rows = [row for row in examined.rows if row.severity != "info"]
        if any(row.severity == "critical" for row in rows):
            return Renewal(entry=entry, proof=None, rows=tuple(rows))
        proof = _fresh(examined, shop)
        before = _pinned_closure(project, entry)
        if before is not None and proof.closure is not None:
            rows += _closure_rows(entry, compare_closures(before, proof.closure), shop, now)
            rows += lost_rows(entry.name, extension_of(entry), proof.closure)
        return Renewal(entry=entry, proof=proof if rows else None, rows=tuple(rows))
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        code, level = (err.code.lower(), "critical") if refused else (COULD_NOT_CHECK, "review")
        row = Row(code=code, severity=level, entity="server", name=entry.name, path="", message=err.message)
        return Renewal(entry=entry, proof=None, rows=(row,))


def _fresh(examined: Examined, shop: Workshop) -> Proof:
    if examined.package.ecosystem == "mcpb":
        return bundle_proof(examined, shop)
    if examined.package.ecosystem not in ("npm", "pypi"):
        return Proof(examined=examined, closure=None)
    closure = closure_for(examined.package, shop)
    return Proof(examined=examined, closure=closure, data=closure_document.to_bytes(closure))


def _pinned_closure(project: Project, entry: Entry) -> Closure | None:
    extension = extension_of(entry)
    if extension is None or extension.closure is None:
        return None
    data = lock_store.read_pinned(project.lock, extension.closure)
    if data is None or Digest.of_bytes(data) != extension.closure.file_digest:
        raise PinwardenError("LOCK_TAMPERED", f"{extension.closure.path} is not the file that the lock pins")
    return closure_document.parse(data)


def _closure_rows(entry: Entry, changes: Sequence[ClosureChange], shop: Workshop, now: str) -> Iterator[Row]:
    ecosystem = "npm" if any(change.place.startswith("node_modules/") for change in changes) else "pypi"
    for number, change in enumerate(changes):
        told = change.message
        if change.after is not None and number < MAX_LOOKED_UP:
            told += _who_and_when(ecosystem, change, shop, now)
        kind = DEPENDENCY_KINDS[f"dependency_{change.kind}"]
        yield Row(
            code=kind.kind,
            severity=kind.severity,
            entity="closure",
            name=entry.name,
            path="",
            message=told,
            before=change.before.version if change.before else None,
            after=change.after.version if change.after else None,
        )


def release_rows(entry: Entry, latest: ServerEntry, shop: Workshop, now: str) -> Iterator[Row]:
    """Who stands behind a newer release, and what is wrong with its bytes, held against the locked release."""
    kind = str(entry.selected_target.get("registryType") or "")
    target = next((each for each in latest.packages if each.registry_type == kind), None)
    wanted = declared_package(target) if target is not None else None
    if wanted is not None:
        yield from package_rows(entry, wanted, shop, now)


def package_rows(entry: Entry, wanted: PackageRef, shop: Workshop, now: str) -> Iterator[Row]:
    """The same for a release that is named."""
    try:
        before = _as_pinned(entry, facts_of(package_of(entry)[0], shop, now=now, server=entry.name))
        after = facts_of(wanted, shop, now=now, server=entry.name)
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


def _who_and_when(ecosystem: str, change: ClosureChange, shop: Workshop, now: str) -> str:
    """Who published a package and when, as its registry says."""
    if change.after is None:
        return ""
    uploaded = max((file.uploaded_at for file in change.after.files if file.uploaded_at), default=None)
    if ecosystem == "pypi":
        return f", uploaded {uploaded[:10]}" if uploaded else ""
    try:
        package = PackageRef(ecosystem="npm", name=change.after.name, version=change.after.version)
        facts = facts_of(package, shop, now=now)
    except PinwardenError as err:
        return f" (who published it could not be looked up: {err.message})"
    when = f", published {facts.published_at[:10]}" if facts.published_at else ""
    return when + (f" by {facts.publisher}" if facts.publisher else "")
