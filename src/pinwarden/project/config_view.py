"""The clients' configurations beside the lock: which files and entries concern this project, and which belong together.

The user's own file of Claude Code holds servers for all of their projects; those of other projects are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.table import CLIENTS
from pinwarden.core.record import Record, replace
from pinwarden.lock.configured import configured_in
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_config import LockedConfig, locked_config
from pinwarden.project.lock_documents import LockDocument, read_v2

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.project.project import Project

SCOPES = ("all", "project", "global")


class FoundEntry(Record):
    """A locked server that was found in a configuration, and where."""

    entry: Entry
    locked: LockedConfig
    client: str
    scope: str
    file: str
    """As the lock names it: relative to the project, or to the home folder."""


class ConfigView(Record):
    """What is configured and what is locked, for one scope or for all."""

    files: tuple[ConfigFile, ...]
    document: LockDocument | None
    """The lock; None if there is none."""
    installed: tuple[LockedConfig, ...]
    """Entries from a registry: they are in the file that their client installs to."""
    found: tuple[FoundEntry, ...]
    """Entries that were locked from a configuration, each in its own file."""

    @property
    def locked(self) -> tuple[LockedConfig, ...]:
        """Every locked configuration."""
        return (*self.installed, *(each.locked for each in self.found))

    @property
    def servers(self) -> tuple[ConfiguredServer, ...]:
        """Every configured server."""
        return tuple(server for file in self.files for server in file.servers)


def view_configs(project: Project, scope: str = "all") -> ConfigView:
    """Read the lock, if there is one, and every configuration of this scope."""
    document: LockDocument | None = None
    entries: tuple[Entry, ...] = ()
    if project.lock.exists() or project.lock.is_symlink():
        lock, document = read_v2(project.lock)
        entries = tuple(entry for entry in lock.entries if scope in ("all", entry.scope))
    return view_of(project, entries, project.configs(), document, scope)


def view_of(
    project: Project,
    entries: Sequence[Entry],
    files: Sequence[ConfigFile],
    document: LockDocument | None = None,
    scope: str = "all",
) -> ConfigView:
    """The same for what was read already."""
    installed, found = _split(entries)
    return ConfigView(files=_concerning(project, files, scope), document=document, installed=installed, found=found)


def _split(entries: Sequence[Entry]) -> tuple[tuple[LockedConfig, ...], tuple[FoundEntry, ...]]:
    installed: list[LockedConfig] = []
    found: list[FoundEntry] = []
    for entry in entries:
        locked, where = locked_config(entry.key, entry.document), configured_in(entry)
        if where is None or where["client"] not in CLIENTS:
            installed.append(locked)
        else:
            place = {"client": where["client"], "scope": where["scope"], "file": where["file"]}
            found.append(FoundEntry(entry=entry, locked=locked, **place))
    return tuple(installed), tuple(found)


def _concerning(project: Project, files: Sequence[ConfigFile], scope: str) -> tuple[ConfigFile, ...]:
    chosen: list[ConfigFile] = []
    for file in files:
        servers = tuple(server for server in file.servers if _is_ours(project, server) and _is_in(scope, server.scope))
        if _is_in(scope, file.scope) or servers:
            chosen.append(replace(file, servers=servers))
    return tuple(chosen)


def _is_ours(project: Project, server: ConfiguredServer) -> bool:
    if server.folder is None:
        return True
    try:
        return Path(server.folder).resolve() == project.root.resolve()
    except (ValueError, OSError, RuntimeError):  # no path, or links without an end: nobody can say whose it is
        return True


def _is_in(scope: str, found: str) -> bool:
    """``local`` is the user's own configuration for this one project."""
    return scope in ("all", "project" if found == "local" else found)
