"""The state of every server in every scope: pinned, approved, verified, enforced, and what to do next.

Reads only files on this machine. A server is one row, however many clients have it; a name that clients use for
different servers has a row for each of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.clients.command_line import parse_launch
from pinwarden.clients.enforceable import find_enforcement_obstacle, starts_through_pinwarden
from pinwarden.clients.secret_references import describe_secret_fix
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.project.approval_candidate import is_reviewed
from pinwarden.project.config_secrets import SecretFinding, audit_servers
from pinwarden.project.configs import (
    ConfigView,
    find_config_issues,
    is_only_started_directly,
    read_config_view,
)
from pinwarden.project.configured_servers import ServerIdentity, identify_configured
from pinwarden.project.explain import describe_target, find_release
from pinwarden.project.last_checked import LastChecked
from pinwarden.project.locked_files import lacks_files
from pinwarden.project.locked_servers import LockedServer, group_servers_by_name
from pinwarden.project.project import LockScope
from pinwarden.system.masking import mask_name, mask_text, mask_url
from pinwarden.system.target import HttpTarget

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.clients.launchers import Launch
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project

State = Literal["yes", "no", "partly", "n/a"]
Step = Literal["setup", "pin", "verify", "fetch", "approve", "enforce"]
"""The next step for a server. The steps are in the order in which they have to be taken."""

STEPS: tuple[Step, ...] = ("setup", "pin", "verify", "fetch", "approve", "enforce")
_PINNABLE = ("npm", "pypi", "oci", "nuget", "jsr", "source")
_VERIFIABLE = ("npm", "pypi", "oci", "nuget", "mcpb", "cargo", "bundle")
_WITH_DEPENDENCIES = ("npm", "pypi")
_STARTED_FROM_STORE = ("npm", "pypi", "mcpb", "bundle")


class PlainSecret(Record):
    """A secret in plain text in a client's file. Never contains the value."""

    server: str
    """The name of the server; empty for an input that the file declares for several servers."""
    client: str
    file: str
    source: str
    """The place of the secret: env, header, args, url, input or member."""
    name: str
    fix: str
    """The text that replaces the secret in the file of this client."""


class ServerStatus(Record):
    """One server of one scope."""

    name: str
    scope: LockScope
    clients: tuple[str, ...]
    """The clients whose files configure the server."""
    files: tuple[str, ...]
    entries: int
    """The number of the server's entries in the clients' files."""
    package: str
    """The package, image, command or address, without secrets."""
    version: str | None
    """The version that the client's file or the lock names; None if it names none."""
    pinned: State
    approved: State
    verified: State
    enforced: State
    locked: State
    changed: bool = False
    """Whether a client's file differs from what was locked."""
    disabled: bool = False
    """Whether every client has switched the server off."""
    lacks_files: bool = False
    """Whether locked files that a start needs are not in the store of this machine, as in a fresh clone."""
    last_checked: str | None = None
    """When Pinwarden last probed or verified the server; None if that is not known."""
    plain_secrets: tuple[PlainSecret, ...] = ()
    enforcement_obstacle: str | None = None
    """Why the server cannot be enforced; None if it can be or is."""
    drift: tuple[str, ...] = ()
    """The items that had changed since the approval when the server was last probed, such as ``tool search``."""
    blocked: tuple[str, ...] = ()
    """The items that the gateway blocked and a person has to review, such as ``tool search``."""
    next_step: Step | None = None
    next_command: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of variables, headers and arguments with a secret in plain text."""
        return tuple(dict.fromkeys(secret.name for secret in self.plain_secrets))

    def to_json(self) -> dict[str, Any]:
        """Convert the status to a JSON object. A new field is a new member, unless ``_NOT_IN_JSON`` names it."""
        members = {name: getattr(self, name) for name in type(self).__slots__ if name not in _NOT_IN_JSON}
        members["secrets"] = self.secrets
        return {name: list(value) if isinstance(value, tuple) else value for name, value in members.items()}

    @property
    def needs_attention(self) -> bool:
        """Whether there is something to do: a next step, or a secret in plain text."""
        return self.next_step is not None or bool(self.plain_secrets)


_NOT_IN_JSON = frozenset({"entries", "lacks_files", "plain_secrets"})
BlockedItems = Mapping[tuple[Path, str], tuple[str, ...]]
"""The items that the gateway blocked, by lock and server."""


def server_statuses(
    projects: Sequence[Project],
    *,
    views: Mapping[Path, ConfigView] | None = None,
    last_checked: LastChecked | None = None,
    blocked: BlockedItems | None = None,
) -> tuple[ServerStatus, ...]:
    """Return the servers of all these scopes, configured or locked, in the order of the scopes and by name.

    ``views`` are the configurations that were already read, by path of the lock.
    """
    found: list[ServerStatus] = []
    for project in projects:
        view = views[project.lock] if views and project.lock in views else read_config_view(project, parse_files=False)
        rows = [_build_status(project, group, last_checked or LastChecked()) for group in _group_servers(project, view)]
        rows.sort(key=lambda row: (row.name.casefold(), row.name))
        found += (_add_next_step(row, rows, (blocked or {}).get((project.lock, row.name), ())) for row in rows)
    return tuple(found)


# Which configured servers and lock entries are one server


class _Group:
    """One server: its lock entries, and its entries in the files of clients."""

    def __init__(self, name: str, identity: ServerIdentity | None, locked: LockedServer | None) -> None:
        self.name = name
        self.identity = identity
        self.locked = locked
        self.configured: list[ConfiguredServer] = []
        self.covered = 0
        """How many of the configured entries the lock covers."""
        self.changed = False

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.locked.entries if self.locked is not None else ()


def _group_servers(project: Project, view: ConfigView) -> list[_Group]:
    entries = view.document.lock.entries if view.document is not None else ()
    groups: dict[str, list[_Group]] = {
        name: [_Group(name, server.identity, server) for server in servers]
        for name, servers in group_servers_by_name(entries).items()
    }
    by_key = {entry.key: group for listed in groups.values() for group in listed for entry in group.entries}
    keys = _map_entry_keys(project, view)
    changed = {
        (issue.key, project.display_path(issue.file))
        for issue in find_config_issues(project, view)
        if issue.kind == "drift" and not is_only_started_directly(issue.changes)
    }
    for server in view.servers:
        file = project.display_path(server.path)
        key = keys.get((server.name, server.scope, file))
        group = by_key.get(key) if key is not None else None
        if group is not None:
            group.covered += 1
            group.changed = group.changed or (key, file) in changed
        else:
            group = _find_uncovered_group(groups.setdefault(server.name, []), server)
        group.configured.append(server)
    return [group for listed in groups.values() for group in listed]


def _map_entry_keys(project: Project, view: ConfigView) -> dict[tuple[str, str, str], str]:
    """Return the key of the lock entry that covers a server, by its name, scope and file."""
    keys = {(located.entry.name, located.scope, located.file): located.entry.key for located in view.located}
    paths = project.find_install_paths()
    for locked in view.installed:
        for scope in (locked.scope,) if locked.scope else ("project", "global"):
            if (locked.client, scope) in paths:
                keys.setdefault((locked.name, scope, project.display_path(paths[locked.client, scope])), locked.key)
    return keys


def _find_uncovered_group(groups: list[_Group], server: ConfiguredServer) -> _Group:
    """Return the group of a server that no lock entry covers in its file: the same server elsewhere, or a new group."""
    identity = identify_configured(server.name, server.entry, get_client(server.client))
    for group in groups:
        if identity is not None and group.identity == identity:
            return group
    groups.append(_Group(server.name, identity, None))
    return groups[-1]


# The states of one server


def _build_status(project: Project, group: _Group, last_checked: LastChecked) -> ServerStatus:
    started = _find_launch(group)
    entry = group.locked.entry if group.locked is not None else None
    covered = group.covered == len(group.configured)
    locked: State = "no" if not group.entries else "yes" if covered else "partly"
    used = [server for server in group.configured if not server.disabled]
    return ServerStatus(
        name=group.name,
        scope=project.scope,
        clients=tuple(dict.fromkeys(server.client for server in group.configured)),
        files=tuple(dict.fromkeys(project.display_path(server.path) for server in group.configured)),
        entries=len(group.configured),
        package=_describe_package(group, entry, started),
        version=_find_version(entry, started),
        pinned=_compute_pinned_state(started, entry),
        approved="no" if group.changed else _compute_approved_state(group.entries, covered=covered),
        verified=_compute_verified_state(group, started),
        enforced=_compute_enforced_state(used or group.configured),
        enforcement_obstacle=_find_obstacle(used or group.configured),
        locked=locked,
        changed=group.changed,
        disabled=bool(group.configured) and not used,
        lacks_files=_find_kind(started, entry) in _STARTED_FROM_STORE and lacks_files(project, group.entries),
        last_checked=last_checked.find(project.lock, group.entries),
        drift=last_checked.find_drift(project.lock, group.entries),
        plain_secrets=tuple(describe_secret(project, finding) for finding in audit_servers(group.configured).findings),
    )


def _find_launch(group: _Group) -> Launch | None:
    """Return what the server starts or contacts; None if its configuration cannot be parsed."""
    if group.locked is not None and not group.changed:
        try:
            return read_locked_launch(group.locked.entry).parsed
        except PinwardenError:
            pass  # an address, which the configuration has
    target = next((server.target for server in group.configured if server.target is not None), None)
    return parse_launch(target) if target is not None else None


def _get_package(started: Launch) -> Launch:
    return started.via or started


def _find_kind(started: Launch | None, entry: Entry | None) -> str:
    """Return the kind of package: that of the lock, which also knows bundles, or that of the command."""
    extension = read_extension(entry) if entry is not None else None
    if extension is not None and extension.bundle is not None:
        return "bundle"
    if entry is not None and entry.selected_target.get("registryType") == "mcpb":
        return "mcpb"
    return _get_package(started).kind if started is not None else ""


def _compute_pinned_state(started: Launch | None, entry: Entry | None) -> State:
    kind = _find_kind(started, entry)
    if kind in ("bundle", "mcpb"):
        return "yes"
    if started is None or kind not in _PINNABLE:
        return "n/a"
    return "yes" if _get_package(started).pinned else "no"


def _compute_approved_state(entries: Sequence[Entry], *, covered: bool) -> State:
    reviewed = [is_reviewed(entry) for entry in entries]
    if not any(reviewed):
        return "no"
    return "yes" if all(reviewed) and covered else "partly"


def _compute_verified_state(group: _Group, started: Launch | None) -> State:
    entry = group.locked.entry if group.locked is not None else None
    kind = _find_kind(started, entry)
    if kind not in _VERIFIABLE:
        return "n/a"
    if group.changed:
        return "no"
    states = [_compute_entry_verified_state(entry, kind) for entry in group.entries]
    if not states or all(state == "no" for state in states):
        return "no"
    return "yes" if all(state == "yes" for state in states) else "partly"


def _compute_entry_verified_state(entry: Entry, kind: str) -> State:
    extension = read_extension(entry)
    if extension is None:
        return "no"
    if extension.bundle is not None or extension.closure or extension.image or extension.bundle_tree:
        return "yes"
    if not extension.artifacts:
        return "no"
    return "partly" if kind in _WITH_DEPENDENCIES else "yes"


def _compute_enforced_state(servers: Sequence[ConfiguredServer]) -> State:
    if not servers:
        return "n/a"
    enforced = [starts_through_pinwarden(server) for server in servers]
    if any(enforced):
        return "yes" if all(enforced) else "partly"
    return "n/a" if _find_obstacle(servers) is not None else "no"


def _find_obstacle(servers: Sequence[ConfiguredServer]) -> str | None:
    """Return why the first server that is not enforced and cannot be cannot be; None if there is none."""
    others = (server for server in servers if not starts_through_pinwarden(server))
    return next(filter(None, map(find_enforcement_obstacle, others)), None)


def _describe_package(group: _Group, entry: Entry | None, started: Launch | None) -> str:
    if entry is not None and not group.changed:
        return describe_target(entry.selected_target)
    if started is None:
        return "unknown"
    package = _get_package(started)
    target = next((server.target for server in group.configured), None)
    if isinstance(target, HttpTarget):
        return mask_url(target.url)
    return mask_text(f"{package.kind} {package.identity}")


def _find_version(entry: Entry | None, started: Launch | None) -> str | None:
    if started is not None:
        package = _get_package(started)
        return package.version or (package.digest[:19] if package.digest else None)
    return find_release(entry) if entry is not None else None


def describe_secret(project: Project, finding: SecretFinding) -> PlainSecret:
    """Return a finding of the audit, with the way to fix it in the file of this client."""
    source, name = finding.secret_source or "", finding.secret_name or ""
    return PlainSecret(
        server=finding.name,
        client=finding.client,
        file=project.display_path(finding.file),
        source=source,
        name=mask_name(name) if source in ("env", "header") else f"{source} {mask_name(name)}".strip(),
        fix=describe_secret_fix(finding.client, mask_name(finding.name), source, mask_name(name)),
    )


# What to do next


def _add_next_step(status: ServerStatus, rows: Sequence[ServerStatus], blocked: tuple[str, ...]) -> ServerStatus:
    is_waiting = status.approved == "yes" and bool(blocked or status.drift)
    row = replace(status, blocked=blocked, approved="partly" if is_waiting else status.approved)
    step = _choose_step(row, rows)
    return replace(row, next_step=step, next_command=None if step is None else _build_command(row, step, rows))


def _choose_step(status: ServerStatus, rows: Sequence[ServerStatus]) -> Step | None:
    """Return the next step of a server; None if there is none. ``rows`` are all servers of the scope."""
    if status.blocked:
        return "approve"
    if status.disabled or not status.clients:
        return None  # nothing starts it
    if status.locked == "no" and any(secret.source in ("args", "url") for secret in status.plain_secrets):
        return None  # it cannot be locked until the secret is moved, which no command does
    if all(other.locked == "no" for other in rows):
        return "setup"
    if status.changed or status.locked != "yes":
        # Approving locks the server too. An exact release comes first, so that it is the one that is approved.
        return "pin" if status.pinned == "no" else "approve"
    states: tuple[tuple[Step, State], ...] = (
        ("pin", status.pinned),
        ("verify", status.verified),
        ("fetch", "no" if status.lacks_files else "yes"),
        ("approve", status.approved),
        ("enforce", "n/a" if status.enforcement_obstacle is not None else status.enforced),
    )
    return next((step for step, state in states if state in ("no", "partly")), None)


def _build_command(status: ServerStatus, step: Step, rows: Sequence[ServerStatus]) -> str:
    """Return the command that takes one step. ``rows`` are all servers of the scope."""
    name = shlex.quote(status.name)
    is_ambiguous = sum(other.name == status.name for other in rows) > 1
    client = f" --client {status.clients[0]}" if is_ambiguous and status.clients else ""
    commands: Mapping[Step, str] = {
        "setup": "pinwarden setup",
        "pin": f"pinwarden pin {name}",
        "verify": f"pinwarden prove {name}",
        "fetch": f"pinwarden fetch {name}",
        "approve": f"pinwarden approve {name}{client}",
        "enforce": f"pinwarden enforce {name}",
    }
    return commands[step]
