"""Newer releases of what is locked: which there are, and what would change. Nothing changes without a yes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.table import client_of
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Report, Row, kind_table, plural
from pinwarden.core.versions import compare_versions
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_config import SOURCE, UNLISTED, configured_in, locked_config
from pinwarden.lock.locked_launch import is_enforced, locked_launch
from pinwarden.lock.server_entry import ServerEntry, from_value
from pinwarden.project.approvable import warning_facts
from pinwarden.project.lock import LockOptions, LockRequest, lock_from_registry
from pinwarden.project.locked_servers import approve_command, not_locked_error

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.clients.files import ConfigEdits
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.newer_releases import DependencyUpdate, PackageRelease, PackageUpdater
    from pinwarden.project.project import Policies, Project

NOTHING_TO_LOOK_UP = "there is nothing to look up"
_VOLATILE = ("generatedAt", "pinwarden", "serverVersion")  # that a release has another version is told anyway
_WARNED = (
    "text with scan warnings was not approved: read it, then pinwarden approve NAME, or repeat with --approve-warnings"
)
NOTHING_CHANGED = "nothing was changed; add --yes to update the lock and the clients' configurations"


UPDATE_KINDS: FindingKinds = kind_table(
    review=(
        ("selectedTarget_changes", "A newer release would install something else."),
        ("config_changes", "A newer release would be configured otherwise."),
        ("capabilityManifest_changes", "A newer release declares other secrets, hosts or transports."),
        ("tier_changes", "A newer release has another tier."),
    ),
    info=(
        ("newer_release", "There is a newer release than the locked one."),
        ("version_floats", "A configuration names no single release, so another may be started any day."),
    ),
)


class ListedRelease(Record):
    """One entry, and the latest release that its registry has."""

    entry: Entry
    latest: ServerEntry | None
    problem: str | None = None

    @property
    def locked(self) -> str:
        """The release in the lock."""
        return self.entry.version

    @property
    def is_newer(self) -> bool:
        """Whether the latest release is not the locked one but a later one."""
        return self.latest is not None and compare_versions(self.latest.version or "", self.entry.version) > 0


def outdated(project: Project, context: FetchContext, *, offline: bool) -> Report:
    """The report of ``pinwarden outdated``."""
    lookup = _look_up_releases(project, [], context, offline=offline)
    releases = lookup.entries
    rows = [_row(release) for release in releases if release.is_newer or release.problem]
    behind = sum(release.is_newer for release in releases)
    return Report(
        command="outdated",
        subject=project.lock.name,
        summary=lookup.summary(f"{behind} with a newer release"),
        exit_code=EXIT_UNCHECKED if lookup.failed else EXIT_CLEAN,
        rows=(*rows, *lookup.floating_rows),
        facts={
            "entries": [
                {
                    "name": release.entry.name,
                    "client": release.entry.client,
                    "locked": release.locked,
                    "latest": _version(release) if release.latest else None,
                    "outdated": release.is_newer,
                    "problem": release.problem,
                }
                for release in releases
            ]
        },
    )


class UpdateRequest(Record):
    """What is to be updated, and whether somebody agreed to it."""

    names: Sequence[str]
    """In the lock; none means all."""
    confirmed: bool
    fetch_context: FetchContext
    """Where releases are looked up, and the bytes that are pinned are looked at, unless that is offline."""


def update(project: Project, request: UpdateRequest, policies: Policies, lock_options: LockOptions) -> Report:
    """Show what newer releases, newer dependencies and moved tags would change; write it if that was agreed to.

    1. Look up the newest releases.
    2. Say what they, and newer dependencies of the others, would change.
    3. Write what was agreed to, but nothing whose bytes are not what somebody says they are.
    """
    lookup = _look_up_releases(project, request.names, request.fetch_context, offline=lock_options.offline)
    found = [release for release in lookup.entries if release.is_newer]
    updater = _package_updater(lookup, project, policies, lock_options)
    rows = tuple(row for release in found for row in _differences(release, updater, lock_options.now))
    failed = tuple(_row(release) for release in lookup.failed)
    renewed = _dependency_updates(project, request, found, lock_options)
    releases = tuple(_release_rows(request, found, lock_options))
    bytes_rows = (*(row for update in renewed for row in update.rows), *releases)
    failed += tuple(row for row in bytes_rows if row.code == COULD_NOT_CHECK)
    failed = tuple({(row.name, row.message): row for row in failed}.values())  # each reason once
    rows += (*(row for row in bytes_rows if row.code != COULD_NOT_CHECK), *lookup.floating_rows)
    bad = {row.name for row in releases if row.severity == "critical"}
    offered = [update for update in renewed if update.is_offered]
    refused = any(row.severity == "critical" for row in bytes_rows) or (
        bool(found or offered) and not request.confirmed
    )
    report = Report(
        command="update",
        subject=project.lock.name,
        summary=lookup.summary(f"{len(found)} with a newer release" if found else "each at its latest release"),
        exit_code=EXIT_REFUSED if refused else EXIT_UNCHECKED if failed else EXIT_CLEAN,
        rows=(*failed, *rows),
        notes=tuple(_notes(lookup, renewed)),
        facts={
            "updates": [_update_facts(release) for release in found],
            "renewals": [update.entry.name for update in offered],
            "written": False,
            "changes": [{"code": row.code, "name": row.name, "message": row.message} for row in rows],
            "unchecked": [{"name": row.name, "message": row.message} for row in failed],
        },
    )
    if not request.confirmed:
        nothing = (NOTHING_CHANGED,) if found or offered else ()
        return replace(report, notes=(*report.notes, *nothing))
    good = [release for release in found if release.entry.name not in bad]
    left, warnings = _write_releases(project, good, request, policies, lock_options, updater)
    _write_dependency_updates(project, offered, lock_options.now)
    lock = lock_store.read(project.lock)
    facts = {**report.facts, "written": lock != lookup.lock}
    done = [release for release in good if release.entry.name not in {row.name for row in left}]
    report = _written_report(report, lock, done, offered)
    if not left and not warnings:
        return replace(report, facts=facts)
    facts["configs"] = [{"name": row.name, "message": row.message} for row in left]
    facts["warnings"] = warning_facts(warnings)
    notes = (*report.notes, *((_WARNED,) if warnings else ()))
    return replace(report, rows=(*report.rows, *left, *warnings), notes=notes, facts=facts, exit_code=EXIT_REFUSED)


def _written_report(
    report: Report,
    lock: Lock | None,
    done: Sequence[ListedRelease | PackageRelease],
    renewed: Sequence[DependencyUpdate],
) -> Report:
    """The report after it was written: what would change did, and what comes next is named."""
    if not done and not renewed:
        return report
    written = {release.entry.name for release in done}
    rows = tuple(
        replace(row, message=_in_past_tense(row.message)) if row.name in written else row for row in report.rows
    )
    outcomes = [f"{release.entry.name} updated to {_version(release)}" for release in done]
    outcomes += [f"the dependencies of {update.entry.name} renewed" for update in renewed]
    summary = "; ".join((report.summary, *dict.fromkeys(outcomes)))
    return replace(report, rows=rows, summary=summary, notes=(*report.notes, *_next_steps(lock, written)))


def _in_past_tense(message: str) -> str:
    return message.replace(" would change", " changed").replace("its tier would be ", "its tier is ")


def _next_steps(lock: Lock | None, written: Collection[str]) -> Iterator[str]:
    """What an updated server still needs: its bytes pinned, and its text looked at."""
    steps: dict[str, None] = {}
    for entry in lock.entries if lock is not None else ():
        if entry.name not in written:
            continue
        extension = extension_of(entry)
        name = shlex.quote(entry.name[:120])
        prove = "" if extension is not None and extension.has_bytes else f"pinwarden prove {name}, then "
        approve = approve_command(entry, lock.entries if lock is not None else ())
        steps[f"next: {prove}{approve} shows what the new release tells the model"] = None
    yield from steps


def _update_facts(release: ListedRelease | PackageRelease) -> dict[str, Any]:
    facts = {
        "name": release.entry.name,
        "client": release.entry.client,
        "from": release.locked,
        "to": _version(release),
    }
    if isinstance(release, ListedRelease) or release.latest is None:
        return facts
    said = {"published_at": release.latest.published_at, "publisher": release.latest.publisher}
    return {**facts, "package": release.launched.identity, **{name: value for name, value in said.items() if value}}


def _notes(lookup: _Lookup, renewed: Sequence[DependencyUpdate]) -> Iterator[str]:
    """What was looked at beside registries, and what was not."""
    same = sum(not update.rows for update in renewed)
    if same:
        yield f"the pinned bytes of {plural(same, 'server')} are what they would be today, with all dependencies"
    if lookup.unlisted:
        yield f"no releases are looked up of programs of this machine and addresses: {', '.join(lookup.unlisted)}"


def _package_updater(
    lookup: _Lookup, project: Project, policies: Policies, lock_options: LockOptions
) -> PackageUpdater | None:
    """What brings configurations up to newer releases of their packages, where a configuration names one."""
    if not lookup.releases:
        return None
    from pinwarden.project.newer_releases import PackageUpdater

    return PackageUpdater(project, policies, lock_options)


def _write_releases(  # noqa: PLR0913, PLR0917  all that a release is locked with
    project: Project,
    releases: Sequence[ListedRelease | PackageRelease],
    request: UpdateRequest,
    policies: Policies,
    lock_options: LockOptions,
    updater: PackageUpdater | None,
) -> tuple[list[Row], list[Row]]:
    """Bring each server up to its newer release, in the lock and for every client, or leave all of it as it was.

    Returns where that was not possible, and the scan warnings for which a text was not approved.

    What is not found here is not written: the bytes of some are not what anybody says they are.
    """
    if not releases:
        return [], []
    from pinwarden.project.client_install import not_updated

    update = _ReleaseWriter(project, request, policies, lock_options, updater, releases)
    left: list[Row] = []
    for name in dict.fromkeys(release.entry.name for release in releases):
        try:
            update.server([release for release in releases if release.entry.name == name])
        except PinwardenError as err:
            left.append(not_updated(name, f"{update.client}: {err.message}; nothing was changed"))
    return left, [*update.warnings, *(updater.warnings if updater is not None else ())]


class _ReleaseWriter:
    """Writes newer releases that were agreed to."""

    def __init__(  # noqa: PLR0913, PLR0917  all that a release is locked with
        self,
        project: Project,
        request: UpdateRequest,
        policies: Policies,
        lock_options: LockOptions,
        updater: PackageUpdater | None,
        found: Sequence[ListedRelease | PackageRelease],
    ) -> None:
        from pinwarden.project.client_install import ClientEntries

        self._project, self._wish, self._policies, self._writing = project, request, policies, lock_options
        self._following = updater
        self._installed = ClientEntries(
            project, [release.entry for release in found if isinstance(release, ListedRelease)]
        )
        self.warnings: list[Row] = []
        """Scan warnings for which the text of a new release was not approved."""
        self.client = ""
        """Whose entry is being written, for those who report what went wrong."""

    def server(self, releases: Sequence[ListedRelease | PackageRelease]) -> None:
        """One server, for all of its clients: either all of it is written, or nothing is.

        1. Write the lock of every client.
        2. Pin the new bytes of those that are started through ``pinwarden run``.
        3. Write the clients' files. Whatever fails, the lock and the files are put back.
        """
        from pinwarden.clients.files import config_edits

        keys = [release.entry.key for release in releases]
        with lock_store.restored_on_error(self._project.lock, keys), config_edits() as edits:
            configured = [(release.entry, self._locked(release)) for release in releases]
            for entry, server in configured:
                if is_enforced(entry) and server is not None:
                    self._prove(entry)
            for entry, server in configured:
                if server is not None:
                    self._configure(entry, server, edits)

    def _locked(self, release: ListedRelease | PackageRelease) -> ConfiguredServer | None:
        """Write the lock; the server as its client's file is to hold it, None if no file does."""
        self.client = release.entry.client
        if not isinstance(release, ListedRelease):
            return self._following.write_lock(release) if self._following is not None else None
        self._installed.refuse_changed(release.entry.key)
        request = LockRequest(
            name=release.entry.name,
            clients=(release.entry.client,),
            version=_version(release),
            scope="global" if release.entry.scope == "global" else "project",
            source=release.entry.source,
        )
        locked = lock_from_registry(self._project, request, self._policies, self._writing)
        self.warnings += locked.rows if locked.exit_code == EXIT_REFUSED else ()
        return self._installed.updated_server(release.entry.key)

    def _prove(self, entry: Entry) -> None:
        from pinwarden.project.prove import pin_entry

        self.client = entry.client
        if self._writing.offline:
            raise PinwardenError(
                "BYTES_NOT_LOCKED", "it is started through pinwarden run, and its new bytes cannot be fetched offline"
            )
        pin_entry(self._project, entry.key, self._wish.fetch_context, self._writing.now)

    def _configure(self, entry: Entry, server: ConfiguredServer, edits: ConfigEdits) -> None:
        """Write a client's file. A server that is started through ``pinwarden run`` goes on being started so."""
        from pinwarden.project.client_install import locked_entry
        from pinwarden.project.enforce import EnforceOptions, enforce_entry

        self.client = entry.client
        if not is_enforced(entry):
            edits.exchange(server, server.entry)
            return
        how = EnforceOptions(project=self._project, servers=(), now=self._writing.now, edits=edits)
        enforce_entry(how, locked_entry(self._project, entry.key), server)


def _dependency_updates(
    project: Project,
    request: UpdateRequest,
    releases: Sequence[ListedRelease | PackageRelease],
    lock_options: LockOptions,
) -> list[DependencyUpdate]:
    """What the pinned bytes would be today; not of servers that get another release anyway."""
    if lock_options.offline:
        return []
    from pinwarden.project.newer_releases import dependency_updates

    newer = frozenset(release.entry.name for release in releases)
    return dependency_updates(project, request.names, request.fetch_context, lock_options.now, without=newer)


def _write_dependency_updates(project: Project, offered: Sequence[DependencyUpdate], now: str) -> None:
    if not offered:
        return
    from pinwarden.project.newer_releases import write_dependency_update

    for renewal in offered:
        write_dependency_update(project, renewal, now)


def _release_rows(
    request: UpdateRequest, releases: Sequence[ListedRelease | PackageRelease], lock_options: LockOptions
) -> Iterator[Row]:
    """Who published the newer releases of servers whose bytes are pinned, each once."""
    if lock_options.offline:
        return
    from pinwarden.project.locked_servers import has_bytes
    from pinwarden.project.newer_releases import package_rows, release_rows

    reported: set[str] = set()
    for release in releases:
        if release.latest is None or not has_bytes(release.entry) or release.entry.name in reported:
            continue
        reported.add(release.entry.name)
        if isinstance(release, ListedRelease):
            yield from release_rows(release.entry, release.latest, request.fetch_context, lock_options.now)
        else:
            yield from package_rows(release.entry, release.package, request.fetch_context, lock_options.now)


class _Lookup(Record):
    """What the registries said, and of how many entries they can know."""

    lock: Lock
    servers: tuple[ListedRelease, ...]
    """Those that a registry of servers was asked about."""
    releases: tuple[PackageRelease, ...]
    """Those that a configuration takes from a registry of packages."""
    requested: int
    """All that were asked about."""
    unlisted: tuple[str, ...]
    """Names of configured servers that come from no registry."""

    @property
    def entries(self) -> tuple[ListedRelease | PackageRelease, ...]:
        """All that have a locked release."""
        return (*self.servers, *(release for release in self.releases if not release.is_floating))

    @property
    def failed(self) -> tuple[ListedRelease | PackageRelease, ...]:
        """Those that could not be looked up."""
        return tuple(release for release in self.entries if release.problem is not None)

    @property
    def floating_rows(self) -> tuple[Row, ...]:
        """What is told of those whose configuration names no release."""
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
            for release in self.releases
            if release.is_floating
        )

    def summary(self, outcome: str) -> str:
        """How many were looked up, and what came of it."""
        floating = len(self.releases) + len(self.servers) - len(self.entries)
        comes = "comes" if 1 in (self.requested, len(self.entries)) else "come"
        known = f"{len(self.entries)} of {plural(self.requested, 'entry', 'entries')} {comes} from a registry"
        known += f" at a locked version and {floating} at any" if floating else ""
        if not self.entries:
            return f"{known}; {NOTHING_TO_LOOK_UP}"
        if not self.failed:
            return f"{known}, {outcome}"
        answered = f", the others {outcome}" if len(self.failed) < len(self.entries) else ""
        return f"{known}, {len(self.failed)} could not be looked up{answered}"


def _look_up_releases(project: Project, names: Sequence[str], context: FetchContext, *, offline: bool) -> _Lookup:
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked_error(lock.entries, unknown[0])
    wanted = [entry for entry in lock.entries if not names or entry.name in names]
    configured = [entry for entry in wanted if entry.source == SOURCE]
    releases = _configured_releases(configured, context)
    packaged = {release.entry.key for release in releases}
    return _Lookup(
        lock=lock,
        servers=tuple(_look_up_listed(project, wanted, offline=offline)),
        releases=releases,
        requested=len(wanted),
        unlisted=tuple(dict.fromkeys(entry.name for entry in configured if entry.key not in packaged)),
    )


def _look_up_listed(project: Project, wanted: Sequence[Entry], *, offline: bool) -> Iterator[ListedRelease]:
    """What registries of servers have of entries that came from one."""
    registries = project.registries(offline=offline)
    for entry in wanted:
        if entry.source in UNLISTED:
            continue
        try:
            latest = from_value(registries.find(entry.name, None, entry.source))
        except PinwardenError as err:
            yield ListedRelease(entry=entry, latest=None, problem=err.message)
            continue
        yield ListedRelease(entry=entry, latest=latest)


def _configured_releases(configured: Sequence[Entry], context: FetchContext) -> tuple[PackageRelease, ...]:
    if not configured:
        return ()
    from pinwarden.project.newer_releases import look_up_releases

    return tuple(look_up_releases(configured, context))


def _differences(release: ListedRelease | PackageRelease, updater: PackageUpdater | None, now: str) -> list[Row]:
    """What the newer release says about itself that the locked one did not."""
    if isinstance(release, ListedRelease):
        from pinwarden.lock.install_plan import install_plan

        if release.latest is None:
            return []
        return _plan_rows(release, install_plan(release.latest, release.entry.client, now=now))
    from pinwarden.project.client_install import not_updated

    try:
        fresh = updater.updated_entry(release)[1].document if updater is not None else release.entry.document
    except PinwardenError as err:
        return [_row(release), not_updated(release.entry.name, f"{release.entry.client}: {err.message}")]
    return _plan_rows(release, fresh)


def _plan_rows(release: ListedRelease | PackageRelease, plan: Mapping[str, Any]) -> list[Row]:
    enforced = is_enforced(release.entry)
    old = {**release.entry.document, **({"config": _launch_config(release.entry)} if enforced else {})}
    rows = [_row(release)]
    for member, what in (
        ("selectedTarget", "what is installed"),
        ("config", "what pinwarden run starts" if enforced else "the client configuration"),
        ("capabilityManifest", "secrets, hosts or transports"),
    ):
        before, after = _without_passing(old.get(member)), _without_passing(plan.get(member))
        if before != after:
            rows.append(
                Row(
                    code=f"{member}_changes",
                    severity=UPDATE_KINDS[f"{member}_changes"].severity,
                    entity="server",
                    name=release.entry.name,
                    path=f"/{member}",
                    message=f"{what} would change",
                    before=_text(before),
                    after=_text(after),
                )
            )
    before_tier, after_tier = old["trust"]["tier"], plan["trust"]["tier"]
    if before_tier != after_tier:
        message = f"its tier would be {after_tier} instead of {before_tier}"
        level = UPDATE_KINDS["tier_changes"].severity
        rows.append(
            Row(code="tier_changes", severity=level, entity="server", name=release.entry.name, path="", message=message)
        )
    return rows


def _launch_config(entry: Entry) -> Any:
    """The configuration with the command that ``pinwarden run`` stands for, which goes on standing for the next one."""
    from pinwarden.clients.config import config_with
    from pinwarden.project.enforce import with_command

    where = configured_in(entry)
    client = client_of(where.client if where else entry.client)
    approved = locked_config(entry.key, entry.document).entry
    return config_with(client, entry.name, with_command(approved, client, locked_launch(entry).command))


def _row(release: ListedRelease | PackageRelease) -> Row:
    if release.problem:
        code, level, message = COULD_NOT_CHECK, "review", release.problem
    else:
        code, level = "newer_release", UPDATE_KINDS["newer_release"].severity
        message = f"{release.locked} is locked for {release.entry.client}, {_version(release)} is the latest"
        message += "" if isinstance(release, ListedRelease) else release.publication
    return Row(code=code, severity=level, entity="server", name=release.entry.name, path="", message=message)


def _version(release: ListedRelease | PackageRelease) -> str:
    return (release.latest.version if release.latest else None) or "?"


def _without_passing(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_passing(member) for name, member in value.items() if name not in _VOLATILE}
    return value


def _text(value: Any) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False, sort_keys=True)
