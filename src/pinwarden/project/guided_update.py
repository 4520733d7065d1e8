"""Update one server to a newer release in one step: verify its bytes, read its tools, approve, and write everything.

The new release is prepared in a copy of the lock: the entries, the verified bytes, and the surface that the server has
when it is started from these bytes. Nothing of the project changes before the decision. Then the lock and the files of
all clients are written together, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact_drift import compare_closures
from pinwarden.clients.files import ConfigEdits
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.core.text import plural
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import is_enforced
from pinwarden.project.approval_candidate import (
    ApprovalCandidate,
    read_approved_surfaces,
    read_neighbours,
    scan_for_approval,
)
from pinwarden.project.client_edits import diff_edits, list_entry_edits
from pinwarden.project.client_install import read_locked_entry
from pinwarden.project.lock import approve_surfaces
from pinwarden.project.lock_draft import LockDraft, commit_draft, draft_lock
from pinwarden.project.locked_servers import LockedServer, group_servers_by_name, has_pinned_bytes
from pinwarden.project.newer_dependencies import compare_package_release, read_pinned_closure
from pinwarden.project.newer_releases import PackageRelease, PackageUpdater, latest_version
from pinwarden.project.server_start import prepare_locked_probe, prepare_probe, probe_server
from pinwarden.surface.drift.changes import CRITICAL, Change
from pinwarden.surface.drift.compare import compare

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.project.config_diff import FileEdit
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.lock import Approver, LockOptions
    from pinwarden.project.project import Policies, Project

_MAX_DEPENDENCIES = 10


class PackageUpdateContext(Record):
    """What the preparation of an update needs."""

    project: Project
    policies: Policies
    lock_options: LockOptions
    """How to write the lock. Its ``probe`` has the options for starting the new release."""
    fetch_context: FetchContext


class SurfaceUpdate(Record):
    """The surface of the new release, for the clients that have the same server."""

    server: LockedServer
    """The server, with the lock entries of the new release."""
    candidate: ApprovalCandidate
    """The surface, with scan warnings about text that was not approved before."""
    changes: tuple[Change, ...]
    """The changes since the approval."""
    is_first: bool
    """Whether no surface of the server was approved before."""

    @property
    def looks_like_attack(self) -> bool:
        """Whether a text or a change looks like an attack. A script then needs ``--approve-warnings``."""
        return bool(self.candidate.warnings) or any(change.severity == CRITICAL for change in self.changes)


class PreparedUpdate(Record):
    """A newer release of one server, ready to be written."""

    draft: LockDraft
    """A copy of the lock, which has the new release."""
    releases: tuple[PackageRelease, ...]
    surfaces: tuple[SurfaceUpdate, ...]
    dependencies: tuple[str, ...]
    """The changed dependencies, as sentences."""
    published: tuple[Row, ...]
    """Differences from the locked release in publisher and bytes."""
    configured: Mapping[str, ConfiguredServer]
    """The servers in the clients' files, by the key of their lock entry."""
    files: tuple[FileEdit, ...]
    """The edits of the clients' files."""

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.releases[0].entry.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its lock entries."""
        return tuple(release.entry.key for release in self.releases)

    def build_diff(self) -> str:
        """The edits of the clients' files as a unified diff, with secrets masked."""
        return "".join(f"{diff}\n" for _, diff in diff_edits(self.draft.project, self.files) if diff)


@contextmanager
def prepare_update(context: PackageUpdateContext, releases: Sequence[PackageRelease]) -> Iterator[PreparedUpdate]:
    """Verify and probe a newer release of one server. Nothing of the project is changed.

    1. Compare its publisher with that of the locked release.
    2. Write its entries into a copy of the lock. Download, hash and pin its bytes with all dependencies.
    3. Start it from these bytes, and compare its surface with the approved one.
    """
    with draft_lock(context.project) as draft:
        published = tuple(_check_publisher(context, releases[0]))
        drafted = replace(context, project=draft.copy)
        configured, edits = _write_releases(drafted, releases)
        entries = [read_locked_entry(draft.copy, release.entry.key) for release in releases]
        surfaces = tuple(
            _read_surface(drafted, server, configured[server.entry.key])
            for servers in group_servers_by_name(entries).values()
            for server in servers
        )
        yield PreparedUpdate(
            draft=draft,
            releases=tuple(releases),
            surfaces=surfaces,
            dependencies=tuple(_list_dependency_changes(draft, releases[0].entry)),
            published=published,
            configured=configured,
            files=list_entry_edits(edits),
        )


def commit_update(prepared: PreparedUpdate, approver: Approver, now: str) -> None:
    """Approve the new surface, and write the lock and the clients' files. If this raises, nothing was changed."""
    for update in prepared.surfaces:
        if update.looks_like_attack and not approver.approves_warnings:
            raise PinwardenError(
                "WARNINGS_NOT_APPROVED",
                f"{prepared.name[:120]}: the tools of {latest_version(prepared.releases[0])} look like an attack",
            )
        candidate = replace(update.candidate, warnings_approved=approver.approves_warnings)
        approve_surfaces(prepared.draft.copy, [(entry, candidate) for entry in update.server.entries], approver, now)
    commit_draft(prepared.draft, prepared.keys, prepared.configured, prepared.files, now)


def _check_publisher(context: PackageUpdateContext, release: PackageRelease) -> Iterator[Row]:
    """Compare publisher and bytes with the locked release. Raises if a difference looks like an attack."""
    if not has_pinned_bytes(release.entry):
        return
    for row in compare_package_release(release.entry, release.package, context.fetch_context, context.lock_options.now):
        if row.severity == CRITICAL:
            raise PinwardenError("BYTES_NOT_LOCKED", f"{release.entry.name[:120]}: {row.message} ({row.code})")
        yield row


_Edit = tuple["ConfiguredServer", dict[str, Any]]


def _write_releases(
    context: PackageUpdateContext, releases: Sequence[PackageRelease]
) -> tuple[dict[str, ConfiguredServer], list[_Edit]]:
    """Write the entries and verified bytes into the copy of the lock.

    Returns the servers by the key of their entry, and the edits of the clients' files.
    """
    from pinwarden.project.enforced_entry import EnforceOptions, enforce_entry
    from pinwarden.project.fetch import FetchOptions, fetch
    from pinwarden.project.prove import pin_entry

    draft, options = context.project, context.lock_options
    updater = PackageUpdater(draft, context.policies, replace(options, probe=None, approver=None))
    configured = [(release.entry, updater.write_lock(release)) for release in releases]
    for entry, _ in configured:
        if not has_pinned_bytes(read_locked_entry(draft, entry.key)):
            pin_entry(draft, entry.key, context.fetch_context, options.now)
    built = fetch(draft, [releases[0].entry.name], context.fetch_context, FetchOptions(frozen=True))
    if built.exit_code != EXIT_CLEAN:
        raise PinwardenError("BYTES_NOT_LOCKED", next((row.message for row in built.rows), built.summary))
    edits = ConfigEdits()
    for entry, server in configured:
        if is_enforced(entry):
            enforcing = EnforceOptions(project=draft, servers=(), now=options.now, edits=edits)
            enforce_entry(enforcing, read_locked_entry(draft, entry.key), server)
        else:
            edits.replace_entry(server, server.entry)
    return {entry.key: server for entry, server in configured}, edits.collected


def _read_surface(context: PackageUpdateContext, server: LockedServer, configured: ConfiguredServer) -> SurfaceUpdate:
    draft, probe = context.project, context.lock_options.probe
    if probe is None:
        raise PinwardenError("CONSENT_REQUIRED", f"{server.entry.name[:120]!a} was not started")
    if is_enforced(server.entry) or configured.target is None:
        prepared = prepare_locked_probe(draft, server.entry, draft.find_configs(), probe)
    else:  # the client's file still names the earlier release
        prepared = prepare_probe(draft, server.entry.name, configured.target, probe, server.entry)
    surface = probe_server(prepared)
    approved = read_approved_surfaces(draft, server.entry.name)
    neighbours = read_neighbours(draft.lock, server.entry.name) if approved else []
    return SurfaceUpdate(
        server=server,
        candidate=scan_for_approval(server.entry.name, surface, approved),
        changes=tuple(compare(approved[0], surface, neighbours)) if approved else (),
        is_first=not approved,
    )


def _list_dependency_changes(draft: LockDraft, entry: Entry) -> Iterator[str]:
    before = read_pinned_closure(draft.project, entry)
    after = read_pinned_closure(draft.copy, read_locked_entry(draft.copy, entry.key))
    if before is None or after is None:
        return
    changes = compare_closures(before, after)
    for change in changes[:_MAX_DEPENDENCIES]:
        yield change.message
    if len(changes) > _MAX_DEPENDENCIES:
        yield f"{plural(len(changes) - _MAX_DEPENDENCIES, 'more change')}"
