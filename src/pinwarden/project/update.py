"""``pinwarden outdated`` and ``pinwarden update``: find newer releases of locked servers, and write them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.files import ConfigEdits
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, find_client, to_toolpin_scope
from pinwarden.lock.extension import is_enforced, read_extension
from pinwarden.lock.install_plan import build_install_plan
from pinwarden.lock.locked_config import read_config_origin, read_locked_config
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.project.approval_candidate import warnings_to_json
from pinwarden.project.client_edits import list_entry_edits
from pinwarden.project.client_install import ClientEntries, build_not_updated_row, read_locked_entry
from pinwarden.project.lock import LockOptions, LockRequest, lock_from_registry
from pinwarden.project.lock_draft import commit_draft, draft_lock
from pinwarden.project.locked_servers import build_approve_command, has_pinned_bytes
from pinwarden.project.newer_dependencies import (
    DependencyUpdate,
    compare_listed_release,
    compare_package_release,
    find_dependency_updates,
    write_dependency_update,
)
from pinwarden.project.newer_releases import (
    UPDATE_KINDS,
    ListedRelease,
    PackageUpdater,
    Release,
    ReleaseLookup,
    build_release_row,
    latest_version,
    look_up_releases,
)
from pinwarden.project.next_step import quote_name

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.clients.files import ConfigEdits
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Policies, Project

NOTHING_CHANGED = "nothing was changed; add --yes to update the lock and the clients' configurations"
_NOT_APPROVED = (
    "text with scan warnings was not approved: read it, then pinwarden approve NAME, or repeat with --approve-warnings"
)
_VOLATILE_MEMBERS = ("generatedAt", "pinwarden", "serverVersion")  # the row about the newer release shows the version


def outdated(project: Project, context: FetchContext, *, offline: bool) -> Report:
    """Build the report of ``pinwarden outdated``. The exit code says whether every lookup succeeded."""
    lookup = look_up_releases(project, [], context, offline=offline)
    rows = [build_release_row(release) for release in lookup.releases if release.is_newer or release.problem]
    newer = sum(release.is_newer for release in lookup.releases)
    return Report(
        command="outdated",
        subject=project.lock.name,
        summary=lookup.summarize(f"{newer} with a newer release"),
        exit_code=EXIT_UNCHECKED if lookup.failed else EXIT_CLEAN,
        rows=(*rows, *lookup.floating_rows),
        facts={
            "entries": [
                {
                    "name": release.entry.name,
                    "client": find_client(release.entry),
                    "locked": release.locked,
                    "latest": latest_version(release) if release.latest else None,
                    "outdated": release.is_newer,
                    "problem": release.problem,
                }
                for release in lookup.releases
            ]
        },
    )


class UpdateRequest(Record):
    """The servers to update, and whether to write the changes."""

    names: Sequence[str]
    """Server names in the lock; empty for all servers."""
    confirmed: bool
    fetch_context: FetchContext
    """For looking up releases, and for downloading the bytes of servers whose bytes are pinned."""


def update(project: Project, request: UpdateRequest, policies: Policies, lock_options: LockOptions) -> Report:
    """Report the changes of newer releases and dependencies, and write them if ``request.confirmed`` is set.

    1. Look up the newest releases.
    2. Compare them, and the current dependencies of the other servers, with the lock.
    3. Report the differences. Without confirmation, end here.
    4. Write the releases and dependencies. A release whose bytes have a critical finding is not written.
    5. Report what was written, what was not, and what to do next.
    """
    lookup = look_up_releases(project, request.names, request.fetch_context, offline=lock_options.offline)
    updater = PackageUpdater(project, policies, lock_options)
    proposal = _build_proposal(project, request, lookup, updater, lock_options)
    report = _report_proposal(project, request, proposal)
    if not request.confirmed:
        return report
    writer = _ReleaseWriter(project, request, policies, lock_options)
    failures = writer.write(proposal.writable)
    for dependency_update in proposal.dependencies:
        write_dependency_update(project, dependency_update, lock_options.now)
    return _report_written(report, proposal, lock_store.read(project.lock), failures, writer.warnings)


def build_empty_report(project: Project) -> Report:
    """Return the report of an update that is about no server."""
    facts = {"updates": [], "renewals": [], "written": False, "changes": [], "unchecked": []}
    return Report(command="update", subject=project.lock.name, summary="", exit_code=EXIT_CLEAN, facts=facts)


class _Proposal(Record):
    """The changes that an update would write."""

    lookup: ReleaseLookup
    newer: tuple[Release, ...]
    """The newer releases."""
    checked_dependencies: tuple[DependencyUpdate, ...]
    changes: tuple[Row, ...]
    failures: tuple[Row, ...]
    """Failed lookups and downloads."""
    refused_names: frozenset[str]
    """Names of servers whose newer release is not written, because of a critical finding about its bytes."""
    has_critical: bool
    """Whether there is a critical finding about the bytes of a release or dependency."""

    @property
    def writable(self) -> list[Release]:
        """The newer releases that may be written."""
        return [release for release in self.newer if release.entry.name not in self.refused_names]

    @property
    def dependencies(self) -> list[DependencyUpdate]:
        """The newer dependencies that may be written."""
        return [update for update in self.checked_dependencies if update.is_offered]


# Step 2: compare


def _build_proposal(
    project: Project, request: UpdateRequest, lookup: ReleaseLookup, updater: PackageUpdater, options: LockOptions
) -> _Proposal:
    newer = tuple(release for release in lookup.releases if release.is_newer)
    dependencies = () if options.offline else _find_dependency_updates(project, request, newer, options.now)
    published = () if options.offline else tuple(_check_newer_bytes(request, newer, options.now))
    bytes_rows = (*(row for update in dependencies for row in update.rows), *published)
    failures = (
        *(build_release_row(release) for release in lookup.failed),
        *(row for row in bytes_rows if row.code == COULD_NOT_CHECK),
    )
    return _Proposal(
        lookup=lookup,
        newer=newer,
        checked_dependencies=dependencies,
        changes=(
            *(row for release in newer for row in _compare_release(release, updater, options.now)),
            *(row for row in bytes_rows if row.code != COULD_NOT_CHECK),
            *lookup.floating_rows,
        ),
        failures=tuple({(row.name, row.message): row for row in failures}.values()),
        refused_names=frozenset(row.name for row in published if row.severity == "critical"),
        has_critical=any(row.severity == "critical" for row in bytes_rows),
    )


def _find_dependency_updates(
    project: Project, request: UpdateRequest, newer: Sequence[Release], now: str
) -> tuple[DependencyUpdate, ...]:
    names = frozenset(release.entry.name for release in newer)
    return tuple(find_dependency_updates(project, request.names, request.fetch_context, now, without=names))


def _check_newer_bytes(request: UpdateRequest, newer: Sequence[Release], now: str) -> Iterator[Row]:
    """Check publisher and bytes of newer releases, once for each server with pinned bytes."""
    reported: set[str] = set()
    for release in newer:
        if release.latest is None or not has_pinned_bytes(release.entry) or release.entry.name in reported:
            continue
        reported.add(release.entry.name)
        if isinstance(release, ListedRelease):
            yield from compare_listed_release(release.entry, release.latest, request.fetch_context, now)
        else:
            yield from compare_package_release(release.entry, release.package, request.fetch_context, now)


def _compare_release(release: Release, updater: PackageUpdater, now: str) -> list[Row]:
    """Report the differences between the newer release and the locked release."""
    if isinstance(release, ListedRelease):
        if release.latest is None:
            return []
        return _compare_plans(release, build_install_plan(release.latest, release.entry.client, now=now))
    try:
        fresh = updater.build_updated_entry(release)[1].document
    except PinwardenError as err:
        return [
            build_release_row(release),
            build_not_updated_row(release.entry.name, f"{find_client(release.entry)}: {err.message}"),
        ]
    return _compare_plans(release, fresh)


def _compare_plans(release: Release, plan: Mapping[str, Any]) -> list[Row]:
    enforced = is_enforced(release.entry)
    old = {**release.entry.document, **({"config": _build_launch_config(release.entry)} if enforced else {})}
    rows = [build_release_row(release)]
    for member, code, subject in (
        ("selectedTarget", "selectedTarget_changes", "what is installed"),
        ("config", "config_changes", "what pinwarden run starts" if enforced else "the client configuration"),
        ("capabilityManifest", "capabilityManifest_changes", "secrets, hosts or transports"),
    ):
        before, after = _remove_volatile_members(old.get(member)), _remove_volatile_members(plan.get(member))
        if before != after:
            rows.append(
                Row(
                    code=code,
                    severity=UPDATE_KINDS[code].severity,
                    entity="server",
                    name=release.entry.name,
                    path=f"/{member}",
                    message=f"{subject} would change",
                    before=_encode_text(before),
                    after=_encode_text(after),
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


def _build_launch_config(entry: Entry) -> Any:
    """Return the client configuration with the locked command in place of ``pinwarden run NAME``."""
    from pinwarden.clients.documents import build_config
    from pinwarden.clients.entry_edit import replace_command

    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    approved = read_locked_config(entry.key, entry.document).approved
    return build_config(client, entry.name, replace_command(approved, client, read_locked_launch(entry).command))


def _remove_volatile_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _remove_volatile_members(member) for name, member in value.items() if name not in _VOLATILE_MEMBERS
        }
    return value


def _encode_text(value: Any) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False, sort_keys=True)


# Step 3: report the proposal


def _report_proposal(project: Project, request: UpdateRequest, proposal: _Proposal) -> Report:
    lookup, newer = proposal.lookup, proposal.newer
    pending = bool(newer or proposal.dependencies) and not request.confirmed
    refused = pending or proposal.has_critical
    return Report(
        command="update",
        subject=project.lock.name,
        summary=lookup.summarize(f"{len(newer)} with a newer release" if newer else "each at its latest release"),
        exit_code=EXIT_REFUSED if refused else EXIT_UNCHECKED if proposal.failures else EXIT_CLEAN,
        rows=(*proposal.failures, *proposal.changes),
        notes=(*_build_notes(proposal), *((NOTHING_CHANGED,) if pending else ())),
        next_command=" ".join(["pinwarden update", *map(quote_name, request.names), "--yes"]) if pending else None,
        facts={
            "updates": [release_to_json(release) for release in newer],
            "renewals": [update.entry.name for update in proposal.dependencies],
            "written": False,
            "changes": [{"code": row.code, "name": row.name, "message": row.message} for row in proposal.changes],
            "unchecked": [{"name": row.name, "message": row.message} for row in proposal.failures],
        },
    )


def _build_notes(proposal: _Proposal) -> Iterator[str]:
    """Return notes about servers without newer dependencies, and servers whose releases cannot be looked up."""
    unchanged = sum(not update.rows for update in proposal.checked_dependencies)
    if unchanged:
        yield f"{plural(unchanged, 'server')} with pinned bytes: no newer dependencies"
    if proposal.lookup.unlisted:
        names = ", ".join(proposal.lookup.unlisted)
        yield f"releases of local programs and remote addresses cannot be looked up: {names}"


def release_to_json(release: Release) -> dict[str, Any]:
    """Return a newer release for ``--format json``."""
    facts = {
        "name": release.entry.name,
        "client": find_client(release.entry),
        "from": release.locked,
        "to": latest_version(release),
    }
    if isinstance(release, ListedRelease) or release.latest is None:
        return facts
    publication = {name: getattr(release.latest.facts, name) for name in ("published_at", "publisher")}
    known = {name: value for name, value in publication.items() if value}
    return {**facts, "package": release.launch.identity, **known}


# Step 4: write


class _ReleaseWriter:
    """Writes newer releases into the lock and the files of all clients."""

    def __init__(
        self,
        project: Project,
        request: UpdateRequest,
        policies: Policies,
        lock_options: LockOptions,
    ) -> None:
        self._project, self._request, self._policies, self._lock_options = project, request, policies, lock_options
        self.warnings: list[Row] = []
        """Scan warnings that prevented the approval of a new release's surface."""
        self._client = ""
        """The client whose entry is being written, for error messages."""

    def write(self, releases: Sequence[Release]) -> list[Row]:
        """Write newer releases, server by server. Returns rows for the servers that were left unchanged."""
        if not releases:
            return []
        listed = [release.entry for release in releases if isinstance(release, ListedRelease)]
        client_entries = ClientEntries(self._project, listed)
        failures: list[Row] = []
        for name in dict.fromkeys(release.entry.name for release in releases):
            try:
                self._write_server([release for release in releases if release.entry.name == name], client_entries)
            except PinwardenError as err:
                failures.append(build_not_updated_row(name, f"{self._client}: {err.message}; nothing was changed"))
        return failures

    def _write_server(self, releases: Sequence[Release], client_entries: ClientEntries) -> None:
        """Write one server for all of its clients, or change nothing.

        1. Write the entry of every client into a draft of the lock.
        2. Pin the new bytes of entries that are started through ``pinwarden run``.
        3. Back up the lock and the clients' files, and write all of them.
        """
        with draft_lock(self._project) as draft:
            servers = {release.entry.key: self._write_lock(draft.copy, release, client_entries) for release in releases}
            configured = {key: server for key, server in servers.items() if server is not None}
            edits = ConfigEdits()
            for entry in (release.entry for release in releases if release.entry.key in configured):
                if is_enforced(entry):
                    self._pin_bytes(draft.copy, entry)
                self._edit_config(draft.copy, entry, configured[entry.key], edits)
            files = list_entry_edits(edits.collected)
            commit_draft(draft, [release.entry.key for release in releases], configured, files, self._lock_options.now)

    def _write_lock(self, draft: Project, release: Release, client_entries: ClientEntries) -> ConfiguredServer | None:
        """Write the draft. Returns the server as its client's file must have it; None if no file has it."""
        self._client = find_client(release.entry)
        if not isinstance(release, ListedRelease):
            updater = PackageUpdater(draft, self._policies, self._lock_options)
            server = updater.write_lock(release)
            self.warnings += updater.warnings
            return server
        client_entries.refuse_changed(release.entry.key)
        request = LockRequest(
            name=release.entry.name,
            clients=(release.entry.client,),
            version=latest_version(release),
            scope=to_toolpin_scope(release.entry.scope),
            source=release.entry.source,
        )
        locked = lock_from_registry(draft, request, self._policies, self._lock_options)
        self.warnings += locked.rows if locked.exit_code == EXIT_REFUSED else ()
        return client_entries.build_updated_server(read_locked_entry(draft, release.entry.key))

    def _pin_bytes(self, draft: Project, entry: Entry) -> None:
        from pinwarden.project.prove import pin_entry

        self._client = find_client(entry)
        if self._lock_options.offline:
            raise PinwardenError(
                "BYTES_NOT_LOCKED",
                "it is started through pinwarden run, and its new bytes cannot be downloaded offline",
            )
        pin_entry(draft, entry.key, self._request.fetch_context, self._lock_options.now)

    def _edit_config(self, draft: Project, entry: Entry, server: ConfiguredServer, edits: ConfigEdits) -> None:
        """Edit a client's entry. A server that the client starts through ``pinwarden run`` keeps that command."""
        from pinwarden.project.enforced_entry import EnforceOptions, enforce_entry

        self._client = find_client(entry)
        if not is_enforced(entry):
            edits.replace_entry(server, server.entry)
            return
        options = EnforceOptions(project=draft, servers=(), now=self._lock_options.now, edits=edits)
        enforce_entry(options, read_locked_entry(draft, entry.key), server)


# Step 5: report what was written


def _report_written(
    report: Report, proposal: _Proposal, lock: Lock | None, failures: Sequence[Row], warnings: Sequence[Row]
) -> Report:
    facts = {**report.facts, "written": lock != proposal.lookup.lock}
    failed = {row.name for row in failures}
    written = [release for release in proposal.writable if release.entry.name not in failed]
    report = _add_outcomes(report, lock, written, proposal.dependencies)
    if not failures and not warnings:
        return replace(report, facts=facts)
    facts["configs"] = [{"name": row.name, "message": row.message} for row in failures]
    facts["warnings"] = warnings_to_json(warnings)
    notes = (*report.notes, *((_NOT_APPROVED,) if warnings else ()))
    return replace(report, rows=(*report.rows, *failures, *warnings), notes=notes, facts=facts, exit_code=EXIT_REFUSED)


def _add_outcomes(
    report: Report, lock: Lock | None, written: Sequence[Release], dependencies: Sequence[DependencyUpdate]
) -> Report:
    if not written and not dependencies:
        return report
    names = {release.entry.name for release in written}
    rows = tuple(replace(row, message=_to_past_tense(row.message)) if row.name in names else row for row in report.rows)
    outcomes = [f"{release.entry.name} updated to {latest_version(release)}" for release in written]
    outcomes += [f"dependencies of {update.entry.name} updated" for update in dependencies]
    summary = "; ".join((report.summary, *dict.fromkeys(outcomes)))
    return replace(report, rows=rows, summary=summary, notes=(*report.notes, *_list_next_steps(lock, names)))


def _to_past_tense(message: str) -> str:
    return message.replace(" would change", " changed").replace("its tier would be ", "its tier is ")


def _list_next_steps(lock: Lock | None, names: Collection[str]) -> Iterator[str]:
    """Yield the commands that pin the bytes of an updated server and approve its surface."""
    entries = lock.entries if lock is not None else ()
    steps: dict[str, None] = {}
    for entry in entries:
        if entry.name in names:
            extension = read_extension(entry)
            name = shlex.quote(entry.name[:120])
            prove = "" if extension is not None and extension.has_pinned_bytes else f"pinwarden prove {name}, then "
            approve = build_approve_command(entry, entries)
            steps[f"next: {prove}{approve} to review what the new release tells the model"] = None
    yield from steps
