"""Update one server to a newer release in one step: verify its bytes, read its tools, approve, and write everything.

The new release is prepared in a copy of the lock: the entries, the verified bytes, and the surface that the server has
when it is started from these bytes. Nothing of the project changes before the decision. Then the lock and the files of
all clients are written together, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.artifact_drift import compare_closures
from pinwarden.clients.files import Action, ConfigEdits, edit_entry, read_server_file
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row, plural
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import is_enforced
from pinwarden.lock.lockfile import list_file_pins, put_entries
from pinwarden.project.approval_candidate import (
    ApprovalCandidate,
    read_approved_surfaces,
    read_neighbours,
    scan_for_approval,
)
from pinwarden.project.client_edits import (
    diff_edits,
    list_entry_edits,
    read_lock_edit,
    to_backup_server,
    write_edits,
)
from pinwarden.project.client_install import read_locked_entry
from pinwarden.project.edit_backups import EditSet
from pinwarden.project.lock import approve_surfaces
from pinwarden.project.locked_servers import LockedServer, group_servers_by_name, has_pinned_bytes
from pinwarden.project.newer_dependencies import compare_package_release, read_pinned_closure
from pinwarden.project.newer_releases import PackageRelease, PackageUpdater, latest_version
from pinwarden.project.server_start import prepare_locked_probe, prepare_probe, probe_server
from pinwarden.surface.drift.changes import CRITICAL, Change
from pinwarden.surface.drift.compare import compare
from pinwarden.system.files import write_atomically

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.lock.lockfile import Lock
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

    project: Project
    draft: Project
    """The same project with a copy of the lock, which has the new release."""
    releases: tuple[PackageRelease, ...]
    surfaces: tuple[SurfaceUpdate, ...]
    dependencies: tuple[str, ...]
    """The changed dependencies, as sentences."""
    published: tuple[Row, ...]
    """Differences from the locked release in publisher and bytes."""
    configured: tuple[tuple[str, ConfiguredServer], ...]
    """The servers in the clients' files, by the key of their lock entry."""
    files: tuple[FileEdit, ...]
    """The edits of the clients' files."""
    lock: Lock
    """The lock at the beginning of the preparation."""

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
        return "".join(f"{diff}\n" for _, diff in diff_edits(self.project, self.files) if diff)


@contextmanager
def prepare_update(context: PackageUpdateContext, releases: Sequence[PackageRelease]) -> Iterator[PreparedUpdate]:
    """Verify and probe a newer release of one server. Nothing of the project is changed.

    1. Compare its publisher with that of the locked release.
    2. Write its entries into a copy of the lock. Download, hash and pin its bytes with all dependencies.
    3. Start it from these bytes, and compare its surface with the approved one.
    """
    lock, files = lock_store.read_with_files(context.project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {context.project.lock.name}")
    with TemporaryDirectory(prefix="pinwarden-") as folder:
        draft = _copy_lock(context.project, Path(folder), files)
        published = tuple(_check_publisher(context, releases[0]))
        drafted = replace(context, project=draft)
        configured, edits = _write_releases(drafted, releases)
        entries = [read_locked_entry(draft, release.entry.key) for release in releases]
        surfaces = tuple(
            _read_surface(drafted, server, configured[server.entry.key])
            for servers in group_servers_by_name(entries).values()
            for server in servers
        )
        yield PreparedUpdate(
            project=context.project,
            draft=draft,
            releases=tuple(releases),
            surfaces=surfaces,
            dependencies=tuple(_list_dependency_changes(context.project, draft, releases[0].entry)),
            published=published,
            configured=tuple(configured.items()),
            files=list_entry_edits(edits),
            lock=lock,
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
        approve_surfaces(prepared.draft, [(entry, candidate) for entry in update.server.entries], approver, now)
    new, files = lock_store.read_with_files(prepared.draft.lock)
    entries = [entry for entry in (new.entries if new is not None else ()) if entry.key in prepared.keys]
    pinned = {pin.path for entry, _, pin in list_file_pins(new) if entry.key in prepared.keys} if new else set()

    edit = read_lock_edit(prepared.project.lock)
    old = lockfile.parse(edit.before)
    if _select(old, prepared.keys) != _select(prepared.lock, prepared.keys):
        raise PinwardenError("LOCK_BUSY", f"{prepared.project.lock.name} changed in the meantime")
    written = {path: data for path, data in files.items() if path in pinned}
    after = lockfile.to_bytes(put_entries(old, entries, now))
    edits = EditSet(
        command="update",
        files=prepared.files,
        locks=(replace(edit, after=after, new_files=written),),
        servers=tuple(
            to_backup_server(prepared.project, key, server, prepared.files) for key, server in prepared.configured
        ),
    )
    write_edits(prepared.project, edits)


class _CollectedEdits(ConfigEdits):
    """Collects the edits of clients' files instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[tuple[ConfiguredServer, dict[str, Any]]] = []

    def replace_entry(self, server: ConfiguredServer, entry: dict[str, Any]) -> Action:
        """Remember the entry. Raises if it cannot be written into the client's file."""
        data = read_server_file(server)
        if edit_entry(data, server, entry) == data:
            return "unchanged"
        self.collected.append((server, entry))
        return "updated"


def _copy_lock(project: Project, folder: Path, files: dict[str, bytes]) -> Project:
    """Copy the lock and the files next to it into a folder. Returns the project with that lock."""
    draft = replace(project, lock=folder / project.lock.name)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, data)
    write_atomically(draft.lock, lock_store.read_bytes(project.lock))
    return draft


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
    edits = _CollectedEdits()
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


def _list_dependency_changes(project: Project, draft: Project, entry: Entry) -> Iterator[str]:
    before, after = read_pinned_closure(project, entry), read_pinned_closure(draft, read_locked_entry(draft, entry.key))
    if before is None or after is None:
        return
    changes = compare_closures(before, after)
    for change in changes[:_MAX_DEPENDENCIES]:
        yield change.message
    if len(changes) > _MAX_DEPENDENCIES:
        yield f"{plural(len(changes) - _MAX_DEPENDENCIES, 'more change')}"


def _select(lock: Lock, keys: Sequence[str]) -> list[Entry]:
    return [entry for entry in lock.entries if entry.key in keys]
