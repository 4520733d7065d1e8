"""Compare the lock with the files that clients read: missing, different, and unapproved servers.

The first part is ToolPin's ``doctor`` with its kinds and wording. The second part is what that does not cover: every
server in every discovered file must be in the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pinwarden.clients.config import ConfigFile, ConfiguredServer, configured_server
from pinwarden.clients.drift import CONFIG_KINDS, ENTITY, compare_entries, package_of, shown_server, unknown_entry
from pinwarden.clients.table import CLIENTS, client_of
from pinwarden.core.record import Record
from pinwarden.lock.locked_config import LockedConfig, Place, installed
from pinwarden.project.server_identity import configured_identity
from pinwarden.surface.drift.changes import ABSENT, Change, sort_changes

IssueKind = Literal["missing", "drift", "unreadable", "invalid"]


class ConfigIssue(Record):
    """One locked server that is not configured as approved."""

    key: str
    kind: IssueKind
    client: str
    name: str
    file: str
    scope: str | None
    message: str
    changes: tuple[Change, ...] = ()
    """For a drift: what exactly differs."""

    def to_json(self) -> dict[str, Any]:
        """The issue with the members and the order that ToolPin prints."""
        shown: dict[str, Any] = {
            "key": self.key,
            "kind": self.kind,
            "client": self.client,
            "serverName": self.name,
            "file": self.file,
        }
        if self.scope is not None:
            shown["scope"] = self.scope
        return {**shown, "message": self.message}


class DoctorReport(Record):
    """What was compared and found."""

    checked: int
    issues: tuple[ConfigIssue, ...]

    @property
    def ok(self) -> bool:
        """Whether every locked server is configured as approved."""
        return not self.issues

    def to_json(self) -> dict[str, Any]:
        """The report as ToolPin prints it."""
        return {"ok": self.ok, "checked": self.checked, "issues": [issue.to_json() for issue in self.issues]}


def diagnose(
    locked: Iterable[LockedConfig],
    files: Mapping[str, ConfigFile],
    paths: Mapping[Place, str],
    *,
    lockfile: str = "mcp-lock.json",
    scope: str = "all",
) -> DoctorReport:
    """Compare every locked fragment with the file of its client. ``files`` are by path."""
    entries = tuple(locked)
    issues = [issue for entry in entries for issue in _diagnose_entry(entry, files, paths, (lockfile, scope))]
    return DoctorReport(checked=len(entries), issues=tuple(issues))


def _diagnose_entry(
    entry: LockedConfig, files: Mapping[str, ConfigFile], paths: Mapping[Place, str], asked: tuple[str, str]
) -> Iterator[ConfigIssue]:
    lockfile, scope = asked
    if type(entry.entry) is not dict:
        yield _issue(entry, "invalid", ("", None), "locked plan does not contain a comparable client config entry")
        return
    scopes = (scope,) if scope != "all" else (entry.scope,) if entry.scope else ("project", "global")
    places = [
        (paths[entry.client, scope_name], scope_name) for scope_name in scopes if (entry.client, scope_name) in paths
    ]
    missing: list[tuple[str, str]] = []
    is_found = False
    for path, file_scope in places:
        file = files.get(path)
        if file and file.fault:
            is_found = True
            yield _issue(entry, "unreadable", (path, file_scope), f"{path}: {file.problem}")
            continue
        config = installed(file, entry) if file else None
        if config is None:
            missing.append((path, file_scope))
            continue
        is_found = True
        changes = _differences(entry, config)
        if changes:
            message = f"client config entry differs from {lockfile}"
            yield _issue(entry, "drift", (path, file_scope), message, changes)
    if not is_found and missing:
        where = f" in checked scopes: {', '.join(file_scope for _, file_scope in missing)}" if scope == "all" else ""
        looked_for = ", ".join(path for path, _ in missing)
        message = f"missing {entry.client} config entry for {entry.name}{where}"
        yield _issue(entry, "missing", (looked_for, None if scope == "all" else scope), message)
    elif not is_found:
        message = f"cannot check {entry.client} at {scope} scope: no file is known for {', '.join(scopes)}"
        yield _issue(entry, "invalid", ("", None), message)


def _differences(entry: LockedConfig, config: Any) -> tuple[Change, ...]:
    """What differs, except for other spellings of the same placeholder."""
    changes = compare_entries(entry.name, entry.entry, config, client_of(entry.client))
    return tuple(change for change in changes if change.kind != "placeholder_spelled")


def _issue(
    entry: LockedConfig,
    kind: IssueKind,
    where: tuple[str, str | None],
    message: str,
    changes: tuple[Change, ...] = (),
) -> ConfigIssue:
    return ConfigIssue(
        key=entry.key,
        kind=kind,
        client=entry.client,
        name=entry.name,
        file=where[0],
        scope=where[1],
        message=message,
        changes=changes,
    )


class UnknownServer(Record):
    """A configured server that the lock does not cover in that file."""

    server: ConfiguredServer
    change: Change


def unknown_servers(
    locked: Iterable[LockedConfig],
    files: Iterable[ConfigFile],
    paths: Mapping[Place, str],
    *,
    found_elsewhere: Iterable[LockedConfig] = (),
) -> tuple[UnknownServer, ...]:
    """Every configured server that was not approved for its file, such as a planted one.

    ``locked`` are approved for the file that their client installs to. ``found_elsewhere`` are approved for other
    files, which the caller checks.
    """
    installs = [entry for entry in locked if entry.client in CLIENTS]
    entries = [*installs, *(entry for entry in found_elsewhere if entry.client in CLIENTS)]
    covered = {(entry.name, path) for entry in installs for path in _files_of(entry, paths)}
    by_name: dict[str, list[LockedConfig]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    packages: set[str] | None = None  # computed for the first unknown server; most machines have none
    found: list[UnknownServer] = []
    for file in files:
        for server in file.servers:
            same_name = by_name.get(server.name, [])
            if (server.name, server.path) in covered:
                continue  # compared with this very file elsewhere
            if packages is None:
                packages = {package for entry in entries if (package := _package(entry))}
            change = _elsewhere(server, same_name) if same_name else unknown_entry(server, by_name, packages)
            found.append(UnknownServer(server=server, change=change))
    order = {id(change): place for place, change in enumerate(sort_changes(each.change for each in found))}
    return tuple(sorted(found, key=lambda unknown: order[id(unknown.change)]))


def repeated_servers(files: Iterable[ConfigFile]) -> tuple[UnknownServer, ...]:
    """Every server that its file has more than once for the same scope: it is unclear which one is started.

    Claude Code keeps servers by project folder, and one folder can be spelt in two ways.
    """
    repeated: list[UnknownServer] = []
    for file in files:
        seen: set[tuple[str, str]] = set()
        for server in file.servers:
            if (server.name, server.scope) in seen:
                repeated.append(UnknownServer(server=server, change=_added("repeated_entry", server)))
            seen.add((server.name, server.scope))
    return tuple(repeated)


def _files_of(entry: LockedConfig, paths: Mapping[Place, str]) -> list[str]:
    scopes = (entry.scope,) if entry.scope else ("project", "global")
    return [paths[entry.client, scope] for scope in scopes if (entry.client, scope) in paths]


def _elsewhere(server: ConfiguredServer, entries: list[LockedConfig]) -> Change:
    """Approved for another client or scope: needs review if it is the same server, unknown if it is not."""
    identity = configured_identity(server.name, server.entry, client_of(server.client))
    for entry in entries:
        approved = configured_identity(entry.name, entry.entry, client_of(entry.client))
        if identity is not None and identity == approved:
            return _added("unlocked_entry", server)
    return unknown_entry(server, ())


def _added(kind: str, server: ConfiguredServer) -> Change:
    row = CONFIG_KINDS[kind]
    return Change(
        entity=ENTITY,
        name=server.name,
        field="added",
        path="",
        kind=row.kind,
        severity=row.severity,
        before=ABSENT,
        after=shown_server(server),
        reason=row.reason,
    )


def _package(entry: LockedConfig) -> str | None:
    return package_of(configured_server(entry.name, entry.entry, client_of(entry.client)))
