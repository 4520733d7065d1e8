"""The lock against the files that clients really read: what is missing, what differs, what nobody approved.

The first part is ToolPin's ``doctor`` with its kinds and words. The second part is what that leaves out: every server
in every discovered file has to be one that the lock knows.
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


class DoctorIssue(Record):
    """One locked server that is not configured as it was approved."""

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
    issues: tuple[DoctorIssue, ...]

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
    """Every locked fragment against the file of its client. ``files`` are by path; one that is not there is missing."""
    entries = tuple(locked)
    issues = [issue for entry in entries for issue in _diagnose_entry(entry, files, paths, (lockfile, scope))]
    return DoctorReport(checked=len(entries), issues=tuple(issues))


def _diagnose_entry(
    entry: LockedConfig, files: Mapping[str, ConfigFile], paths: Mapping[Place, str], asked: tuple[str, str]
) -> Iterator[DoctorIssue]:
    lockfile, scope = asked
    if type(entry.entry) is not dict:
        yield _issue(entry, "invalid", ("", None), "locked plan does not contain a comparable client config entry")
        return
    scopes = (scope,) if scope != "all" else (entry.scope,) if entry.scope else ("project", "global")
    places = [(paths[entry.client, each], each) for each in scopes if (entry.client, each) in paths]
    missing: list[tuple[str, str]] = []
    found = False
    for path, each in places:
        file = files.get(path)
        if file and file.fault:
            found = True
            yield _issue(entry, "unreadable", (path, each), f"{path}: {file.problem}")
            continue
        config = installed(file, entry) if file else None
        if config is None:
            missing.append((path, each))
            continue
        found = True
        changes = _differences(entry, config)
        if changes:
            message = f"client config entry differs from {lockfile}"
            yield _issue(entry, "drift", (path, each), message, changes)
    if not found and missing:
        where = f" in checked scopes: {', '.join(each for _, each in missing)}" if scope == "all" else ""
        looked_for = ", ".join(path for path, _ in missing)
        message = f"missing {entry.client} config entry for {entry.name}{where}"
        yield _issue(entry, "missing", (looked_for, None if scope == "all" else scope), message)
    elif not found:
        message = f"cannot check {entry.client} at {scope} scope: no file is known for {', '.join(scopes)}"
        yield _issue(entry, "invalid", ("", None), message)


def _differences(entry: LockedConfig, config: Any) -> tuple[Change, ...]:
    """What differs, but for other spellings of the same placeholder, which mean the same to the client."""
    changes = compare_entries(entry.name, entry.entry, config, client_of(entry.client))
    return tuple(change for change in changes if change.kind != "placeholder_spelled")


def _issue(
    entry: LockedConfig,
    kind: IssueKind,
    where: tuple[str, str | None],
    message: str,
    changes: tuple[Change, ...] = (),
) -> DoctorIssue:
    return DoctorIssue(
        key=entry.key,
        kind=kind,
        client=entry.client,
        name=entry.name,
        file=where[0],
        scope=where[1],
        message=message,
        changes=changes,
    )


class Stranger(Record):
    """A configured server that the lock does not cover where it was found."""

    server: ConfiguredServer
    change: Change


def strangers(
    locked: Iterable[LockedConfig],
    files: Iterable[ConfigFile],
    paths: Mapping[Place, str],
    *,
    found_elsewhere: Iterable[LockedConfig] = (),
) -> tuple[Stranger, ...]:
    """Every server in any file that was not approved for that file, the attack of the planted entry.

    ``locked`` are approved for the file that their client installs to. ``found_elsewhere`` are approved as well, but
    for no such file: whoever gives them knows which.
    """
    installs = [entry for entry in locked if entry.client in CLIENTS]
    entries = [*installs, *(entry for entry in found_elsewhere if entry.client in CLIENTS)]
    covered = {(entry.name, path) for entry in installs for path in _files_of(entry, paths)}
    by_name: dict[str, list[LockedConfig]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    packages: set[str] | None = None  # worked out for the first stranger; most machines have none
    found: list[Stranger] = []
    for file in files:
        for server in file.servers:
            same_name = by_name.get(server.name, [])
            if (server.name, server.path) in covered:
                continue  # comparing the lock with this very file tells what differs
            if packages is None:
                packages = {package for entry in entries if (package := _package(entry))}
            change = _elsewhere(server, same_name) if same_name else unknown_entry(server, by_name, packages)
            found.append(Stranger(server=server, change=change))
    order = {id(change): place for place, change in enumerate(sort_changes(each.change for each in found))}
    return tuple(sorted(found, key=lambda each: order[id(each.change)]))


def repeated(files: Iterable[ConfigFile]) -> tuple[Stranger, ...]:
    """Every server that its file names more than once for the same scope: which of them is started, nobody knows.

    Claude Code keeps servers by project folder, and one folder can be spelt in two ways.
    """
    found: list[Stranger] = []
    for file in files:
        seen: set[tuple[str, str]] = set()
        for server in file.servers:
            if (server.name, server.scope) in seen:
                found.append(Stranger(server=server, change=_added("repeated_entry", server)))
            seen.add((server.name, server.scope))
    return tuple(found)


def _files_of(entry: LockedConfig, paths: Mapping[Place, str]) -> list[str]:
    scopes = (entry.scope,) if entry.scope else ("project", "global")
    return [paths[entry.client, scope] for scope in scopes if (entry.client, scope) in paths]


def _elsewhere(server: ConfiguredServer, entries: list[LockedConfig]) -> Change:
    """Approved for another client or scope: a matter of review if it is the same server, unknown if it is not."""
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
