"""What is configured and nobody approved so far: servers that are new, and known ones that start or say other things.

The judgement is that of the gate: what ``ci`` would fail over needs a decision before it is locked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pinwarden.clients.drift import compare_entries
from pinwarden.clients.table import client_of
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Row, kind_table
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_config import configured_in, locked_config
from pinwarden.project.approvable import OPTION
from pinwarden.project.configs import config_issues, config_strangers, view_of
from pinwarden.project.configured_entry import entry_behind
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.rows import change_row
from pinwarden.surface.surface import ITEM_KINDS, Surface, parse_surface
from pinwarden.system.redaction import redact_entry

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.core.errors import PinwardenError
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project
    from pinwarden.surface.drift.changes import Change

LOCKING_KINDS: FindingKinds = kind_table(
    critical=(("not_locked", "A configured server was not locked."),),
    review=(("surface_new", "A server's tools were not pinned so far, and what it says now would be approved."),),
)

State = Literal["first", "new", "changed", "unchanged"]
"""How a configured server stands to the lock; ``first`` where there is no lock yet."""


class Accepted(Record):
    """Which servers somebody decided to lock although the lock does not hold them as they are."""

    names: tuple[str, ...] = ()
    """Names, or keys of lock entries. Only these may be locked with a critical finding."""
    everything: bool = False
    warnings: bool = False
    """Whether the scan warnings about the servers that are named are approved as well."""

    def by_name(self, name: str, key: str) -> bool:
        """Whether somebody named this very server."""
        return name in self.names or key in self.names


class Standing(Record):
    """How one configured server stands to the lock, and what a person has to look at."""

    state: State
    rows: tuple[Row, ...] = ()
    attacks: tuple[Row, ...] = ()
    """The scan warnings among the rows: text that is not approved yet and looks like an attack."""


class Approved:
    """What the lock holds of the servers in these files."""

    def __init__(
        self, project: Project, lock: Lock | None, texts: Mapping[str, bytes], files: Sequence[ConfigFile]
    ) -> None:
        self._project, self._texts = project, texts
        self.exists = lock is not None
        self._entries = {entry.key: entry for entry in lock.entries} if lock is not None else {}
        view = view_of(project, tuple(self._entries.values()), files)
        self._strangers = {_place(each.server): each.change for each in config_strangers(project, view)}
        self._drift = {
            (issue.key, project.shown(issue.file)): issue.changes
            for issue in config_issues(project, view)
            if issue.kind == "drift"
        }

    def standing(self, server: ConfiguredServer, key: str) -> Standing:
        """Whether the lock holds the server as it is configured."""
        if not self.exists:
            return Standing(state="first")
        entry, file = self._entries.get(key), self._project.shown(server.path)
        stranger = self._strangers.get(_place(server))
        if stranger is not None or entry is None:
            changes: Iterable[Change] = () if stranger is None else (stranger,)
            return Standing(state="new" if entry is None else "changed", rows=_rows(changes, file))
        changes = self._drift.get((key, file)) or _differences(server, entry)
        return Standing(state="changed" if changes else "unchanged", rows=_rows(changes, file))

    def entry(self, key: str) -> Entry | None:
        """The entry of this key."""
        return self._entries.get(key)

    def entry_behind(self, server: ConfiguredServer, key: str) -> Entry | None:
        """The entry that says what a server starts through us; None if it does not start through us."""
        return entry_behind(server, key, self._entries.values())

    def surface(self, key: str) -> Surface | None:
        """The surface that was approved for an entry; None if none was, or its text is gone."""
        entry = self._entries.get(key)
        extension = extension_of(entry) if entry is not None else None
        pin = extension.surface if extension else None
        return parse_surface(self._texts[pin.path]) if pin is not None and pin.path in self._texts else None

    def with_text(self, standing: Standing, key: str, name: str, seen: Surface) -> Standing:
        """The same once the server was asked: what it says needs a decision as well, unless it was approved.

        What is not approved yet is scanned as ``pinwarden scan`` does.
        """
        approved = self.surface(key)
        if approved is not None and approved.digest == seen.digest:
            return standing
        from pinwarden.project.surface_reports import warning_rows

        attacks = warning_rows(seen, name, () if approved is None else (approved,))
        if approved is not None:
            rows = tuple(change_row(change) for change in compare(approved, seen))
            rows = tuple(replace(row, entity=f"{name}: {row.entity}") for row in rows)
            state: State = "changed" if standing.state == "unchanged" else standing.state
            return replace(standing, state=state, rows=(*standing.rows, *rows, *attacks), attacks=attacks)
        if standing.state == "unchanged":
            return Standing(state="changed", rows=(_first_text(name, seen), *attacks), attacks=attacks)
        return replace(standing, rows=(*standing.rows, *attacks), attacks=attacks) if attacks else standing


def _first_text(name: str, seen: Surface) -> Row:
    """What would be approved, by its names, and how to read all of it before that."""
    message = (
        "Its tools were not pinned so far; what it tells the model now would be approved. "
        f"To read it first: pinwarden inspect {shlex.quote(name)} --allow-execute --format json"
    )
    names = ", ".join(f"{kind.entity} {item.name}" for kind in ITEM_KINDS for item in seen.items_of_kind(kind))
    return Row(
        code="surface_new",
        severity=LOCKING_KINDS["surface_new"].severity,
        entity="server",
        name=name,
        path="",
        message=message,
        excerpt=names or None,
    )


def _differences(server: ConfiguredServer, entry: Entry) -> tuple[Change, ...]:
    """What differs from an entry that was locked from this configuration, down to what is no drift."""
    if configured_in(entry) is None:
        return ()
    approved = locked_config(entry.key, entry.document).entry
    return compare_entries(server.name, approved, redact_entry(server.entry), client_of(server.client))


def _place(server: ConfiguredServer) -> tuple[str, str]:
    return server.path, server.pointer


def _rows(changes: Iterable[Change], file: str) -> tuple[Row, ...]:
    return tuple(replace(change_row(change), file=file) for change in changes)


class Found(Record):
    """One configured server, and what became of it."""

    server: ConfiguredServer
    key: str
    standing: Standing
    named: bool = False
    """Whether somebody accepted this very server."""
    accepted: bool = False
    """Whether it may be locked as it is now."""
    answered: bool = False
    """Whether it was shown on a terminal and accepted there."""
    warnings_approved: bool = False
    """Whether the scan warnings about its text were shown and approved."""
    surface: Surface | None = None
    unasked: str | None = None
    """Why its live surface was not approved."""
    failure: PinwardenError | None = None
    """Why it could not be asked although that was wanted."""
    refused: str | None = None
    """Why it was not locked."""

    @property
    def undecided(self) -> bool:
        """Whether somebody has to say first that it may be locked."""
        return self.refused is None and not self.accepted and self.standing.state in ("new", "changed")

    @property
    def how_to_accept(self) -> str:
        """The option by which somebody says so."""
        warnings = f" {OPTION}" if self.standing.attacks else ""
        return f"--accept {shlex.quote(self.server.name)}{warnings}"


def _accepted(each: Found) -> Found:
    return replace(
        each, accepted=True, answered=True, warnings_approved=each.warnings_approved or bool(each.standing.attacks)
    )


class Discovery(Record):
    """The configured servers, each beside what the lock holds of it."""

    project: Project
    files: tuple[ConfigFile, ...]
    lock: Lock | None
    approved: Approved
    found: tuple[Found, ...]
    saved: frozenset[str] = frozenset()
    """The keys of the entries that were written as soon as they were accepted."""

    @property
    def undecided(self) -> tuple[Found, ...]:
        """The servers that somebody has to decide about."""
        return tuple(each for each in self.found if each.undecided)

    def accepting(self, key: str) -> Discovery:
        """The same after one server was shown, with the warnings about it, and accepted."""
        return replace(self, found=tuple(_accepted(each) if each.key == key else each for each in self.found))

    def is_pinned(self, each: Found) -> bool:
        """Whether what a server tells the model is approved: now, or earlier for this very configuration."""
        kept = each.standing.state == "unchanged" and self.approved.surface(each.key) is not None
        return each.refused is None and (each.surface is not None or kept)
