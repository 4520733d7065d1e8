"""Find configured servers that need a decision: new servers, and servers whose command or surface changed.

The criteria are those of ``pinwarden ci``: a difference that fails ``ci`` needs a decision before it is locked.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pinwarden.clients.table import get_client
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.lock.entry import find_client
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_config import read_config_origin
from pinwarden.project.approval_candidate import scan_for_warnings
from pinwarden.project.configs import (
    build_config_view,
    compare_with_lock,
    find_config_issues,
    find_unknown_servers,
    is_only_started_directly,
)
from pinwarden.project.configured_entry import find_started_entry
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import ITEM_KINDS, Surface, parse_surface

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.core.errors import PinwardenError
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project
    from pinwarden.surface.drift.changes import Change

LOCKING_KINDS: FindingKinds = build_kind_table(
    critical=(("not_locked", "A configured server was not locked."),),
    review=(("surface_new", "A server's tools have not been pinned yet; its current tools would be approved."),),
)

NOT_LOCKED_KINDS = ("rogue_entry", "unlocked_entry")
"""Changes of the configuration that only say that the server is not locked yet."""

State = Literal["first", "new", "changed", "unchanged"]
"""How a configured server relates to the lock; ``first`` if there is no lock yet."""


class AcceptedServers(Record):
    """The new or changed servers that the user accepts."""

    names: tuple[str, ...] = ()
    """Server names or keys of lock entries. A server with a critical finding is locked only if it is named here."""
    everything: bool = False
    warnings: bool = False
    """Whether the user also approves the scan warnings about the named servers."""
    direct_starts: bool = False
    """Whether accepted servers that were enforced, and are started directly again, are locked like that."""

    def is_named(self, name: str, key: str) -> bool:
        """Whether the user accepted this server by its name or its key."""
        return name in self.names or key in self.names


class LockStatus(Record):
    """How a configured server differs from its lock entry, as rows for the user to review."""

    state: State
    rows: tuple[Row, ...] = ()
    changes: tuple[Change, ...] = ()
    """The changes of the configuration."""
    scan_warnings: tuple[Row, ...] = ()
    """The rows that are scan warnings about text that has not been approved yet."""


class ApprovedServers:
    """The lock entries of a project, to compare configured servers with."""

    def __init__(
        self, project: Project, lock: Lock | None, pinned_files: Mapping[str, bytes], files: Sequence[ConfigFile]
    ) -> None:
        self._project, self._pinned_files = project, pinned_files
        self.exists = lock is not None
        self._entries = {entry.key: entry for entry in lock.entries} if lock is not None else {}
        view = build_config_view(tuple(self._entries.values()), files)
        self._unknown = {_locate(unknown.configured): unknown.change for unknown in find_unknown_servers(project, view)}
        self._drift = {
            (issue.key, project.display_path(issue.file)): issue.changes
            for issue in find_config_issues(project, view)
            if issue.kind == "drift"
        }

    def compare(self, server: ConfiguredServer, key: str) -> LockStatus:
        """Compare a configured server with the lock."""
        if not self.exists:
            return LockStatus(state="first")
        entry, file = self._entries.get(key), self._project.display_path(server.path)
        unknown = self._unknown.get(_locate(server))
        if unknown is not None or entry is None:
            state: State = "new" if entry is None else "changed"
            return _build_status(state, () if unknown is None else (unknown,), file)
        changes = self._drift.get((key, file)) or _compare_with_entry(server, entry)
        # A server that is started directly again needs no decision about what it is: enforcing it is enough.
        is_changed = bool(changes) and not is_only_started_directly(changes)
        return _build_status("changed" if is_changed else "unchanged", changes, file)

    def entry(self, key: str) -> Entry | None:
        """Return the lock entry with this key; None if the lock has none."""
        return self._entries.get(key)

    def list_clients(self) -> dict[str, str]:
        """Return the client of every entry, by the key of the entry."""
        return {key: find_client(entry) for key, entry in self._entries.items()}

    def find_started_entry(self, server: ConfiguredServer, key: str) -> Entry | None:
        """Return the entry that the server's ``pinwarden run`` command starts; None for other commands."""
        return find_started_entry(server, key, self._entries.values())

    def surface(self, key: str) -> Surface | None:
        """Return the approved surface of an entry; None if there is none, or its file is missing."""
        entry = self._entries.get(key)
        extension = read_extension(entry) if entry is not None else None
        pin = extension.surface if extension else None
        return (
            parse_surface(self._pinned_files[pin.path]) if pin is not None and pin.path in self._pinned_files else None
        )

    def with_surface(self, status: LockStatus, key: str, name: str, surface: Surface) -> LockStatus:
        """Add the differences of the probed surface to the status. They need a decision too.

        Text that has not been approved yet is scanned for signs of an attack, like ``pinwarden scan`` does.
        """
        approved = self.surface(key)
        if approved is not None and approved.digest == surface.digest:
            return status
        attacks = scan_for_warnings(surface, name, () if approved is None else (approved,))
        if approved is not None:
            changes = compare(approved, surface)
            rows = tuple(replace(build_change_row(change), server=name) for change in changes)
            state: State = "changed" if status.state == "unchanged" else status.state
            return replace(status, state=state, rows=(*status.rows, *rows, *attacks), scan_warnings=attacks)
        if status.state == "unchanged":
            return LockStatus(
                state="changed", rows=(_build_first_surface_row(name, surface), *attacks), scan_warnings=attacks
            )
        return replace(status, rows=(*status.rows, *attacks), scan_warnings=attacks) if attacks else status


def _build_first_surface_row(name: str, surface: Surface) -> Row:
    """Report that the surface would be approved for the first time, with the names of its items."""
    message = (
        "Its tools have not been pinned yet; its current tools would be approved. "
        f"To read them first: pinwarden inspect {shlex.quote(name)} --allow-execute --format json"
    )
    names = ", ".join(f"{kind.entity} {item.name}" for kind in ITEM_KINDS for item in surface.items_of_kind(kind))
    return Row(
        code="surface_new",
        severity=LOCKING_KINDS["surface_new"].severity,
        entity="server",
        name=name,
        path="",
        message=message,
        excerpt=names or None,
    )


def _compare_with_entry(server: ConfiguredServer, entry: Entry) -> tuple[Change, ...]:
    """List every difference from the locked configuration, including differences that are not drift."""
    if read_config_origin(entry) is None:
        return ()
    return compare_with_lock(entry, server.entry, get_client(server.client))


def _locate(server: ConfiguredServer) -> tuple[str, str]:
    return server.path, server.pointer


def _build_status(state: State, changes: tuple[Change, ...], file: str) -> LockStatus:
    rows = tuple(replace(build_change_row(change), file=file) for change in changes)
    return LockStatus(state=state, rows=rows, changes=changes)


class DiscoveredServer(Record):
    """A configured server, and the user's decision about it."""

    configured: ConfiguredServer
    key: str
    status: LockStatus
    named: bool = False
    """Whether the user accepted the server by name."""
    accepted: bool = False
    """Whether the server may be locked as it is configured now."""
    confirmed: bool = False
    """Whether the server was shown on a terminal and the user accepted it there."""
    warnings_approved: bool = False
    """Whether the user saw and approved the scan warnings about the server's surface."""
    surface: Surface | None = None
    not_probed_reason: str | None = None
    """Why the surface of the server was not recorded."""
    probe_error: PinwardenError | None = None
    """Why the requested probe of the server failed."""
    refused: str | None = None
    """Why Pinwarden does not lock the server; None if it does."""

    @property
    def is_undecided(self) -> bool:
        """Whether the user must accept the server before it can be locked."""
        return self.refused is None and not self.accepted and self.status.state in ("new", "changed")


def _accept(server: DiscoveredServer) -> DiscoveredServer:
    return replace(
        server,
        accepted=True,
        confirmed=True,
        warnings_approved=server.warnings_approved or bool(server.status.scan_warnings),
    )


class Discovery(Record):
    """The configured servers, each compared with the lock."""

    project: Project
    files: tuple[ConfigFile, ...]
    lock: Lock | None
    approved: ApprovedServers
    servers: tuple[DiscoveredServer, ...]
    written_keys: frozenset[str] = frozenset()
    """The keys of entries that were written as soon as the user accepted them."""

    @property
    def undecided(self) -> tuple[DiscoveredServer, ...]:
        """The servers that the user must accept before they can be locked."""
        return tuple(server for server in self.servers if server.is_undecided)

    def is_only_new(self, server: DiscoveredServer) -> bool:
        """Whether a server is new, looks like no locked server, and takes the name of no other one."""
        names = {entry.name for entry in self.lock.entries} if self.lock is not None else set()
        return server.status.state == "new" and all(
            change.kind == "unlocked_entry" or (change.kind in NOT_LOCKED_KINDS and change.name not in names)
            for change in server.status.changes
        )

    def accept(self, key: str) -> Discovery:
        """Accept one server that was shown to the user with its warnings."""
        return replace(self, servers=tuple(_accept(server) if server.key == key else server for server in self.servers))

    def is_pinned(self, server: DiscoveredServer) -> bool:
        """Whether the server's surface is approved now, or was approved earlier for the same configuration."""
        kept = server.status.state == "unchanged" and self.approved.surface(server.key) is not None
        return server.refused is None and (server.surface is not None or kept)
