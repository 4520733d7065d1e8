"""Compare the client configurations of a project with its lock.

Claude Code keeps the servers of all projects in one file of the user. Servers of other projects are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import (
    LockedStart,
    find_floating_package,
    parse_locked_start,
)
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.drift import build_direct_start_change, compare_entries, compare_proposed_inputs
from pinwarden.clients.enforceable import find_enforcement_obstacle, read_remote_entry, starts_through_pinwarden
from pinwarden.clients.entry_edit import replace_command, to_command_entry
from pinwarden.clients.findings import ConfigFinding, build_start_refused_finding, list_proposed_inputs
from pinwarden.clients.table import CLIENTS, get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.core.text import plural
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LaunchCommand, RemoteLaunch, is_enforced, read_extension
from pinwarden.lock.locked_config import LockedConfig, read_config_origin, read_locked_config
from pinwarden.lock.lockfile import Lock
from pinwarden.project.configured_servers import (
    ConfigIssue,
    IssueKind,
    UnknownServer,
    diagnose,
    find_repeated_servers,
    find_uncovered_servers,
)
from pinwarden.project.lock_documents import LockDocument, read_lock
from pinwarden.project.locked_servers import resolve_start
from pinwarden.project.project import project_in_scope
from pinwarden.surface.drift.changes import INFO
from pinwarden.system.masking import mask_name
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import PROJECT_FOLDER, StdioTarget

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.clients.table import Client
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.drift.changes import Change

STARTED_DIRECTLY = "started_directly"
_RELEASE_LEFT_OUT = "pin_loosened"
_FLOATING_CODE = "floating_release"
_MAX_FLOATING_NAMES = 20
_MAX_OBSTACLES = 5

FLOATING_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            _FLOATING_CODE,
            "Clients start servers without an exact release, so they can change at every start. A failure only with "
            "exact-releases = true in [policy.require], otherwise a warning.",
        ),
    )
)


class LocatedEntry(Record):
    """A lock entry that was made from a client configuration, and the file it came from."""

    entry: Entry
    locked: LockedConfig
    client: str
    scope: str
    file: str
    """The path in the lock: relative to the project, or to the home folder as ``~/``."""


class ConfigView(Record):
    """The configured servers and the locked servers, in the scope of one lock."""

    files: tuple[ConfigFile, ...]
    document: LockDocument | None
    """The lock; None if the project has no lock."""
    installed: tuple[LockedConfig, ...]
    """Entries from a registry. Each is expected in the file that its client installs servers into."""
    located: tuple[LocatedEntry, ...]
    """Entries that were locked from a configuration. Each is expected in that file."""

    @property
    def locked(self) -> tuple[LockedConfig, ...]:
        """The locked configuration of every entry."""
        return (*self.installed, *(located.locked for located in self.located))

    @property
    def servers(self) -> tuple[ConfiguredServer, ...]:
        """The configured servers of all files."""
        return tuple(server for file in self.files for server in file.servers)


def read_config_view(project: Project, *, parse_files: bool = True) -> ConfigView:
    """Read the lock, if the project has one, and every configuration that belongs to it.

    Without ``parse_files`` the files next to the lock are verified only by their digests.
    """
    document: LockDocument | None = None
    entries: tuple[Entry, ...] = ()
    if project.lock.exists() or project.lock.is_symlink():
        document = read_lock(project.lock, parse_files=parse_files)
        entries = document.lock.entries
    return build_config_view(entries, find_files_of(project, entries), document)


def find_files_of(project: Project, entries: Sequence[Entry]) -> list[ConfigFile]:
    """Read every configuration of this scope, and the user's files that the project's lock installed servers into.

    ToolPin locks the servers of a user in the project's lock. From the user's files, only these servers are compared.
    """
    files = project.find_configs()
    names = {
        (entry.client, entry.name) for entry in entries if entry.scope == "global" and not read_config_origin(entry)
    }
    if project.scope != "project" or not names:
        return files
    paths = project.find_install_paths()
    wanted = {(paths[client, "global"], name) for client, name in names if (client, "global") in paths}
    for file in project_in_scope(project, "user").find_configs():
        servers = tuple(server for server in file.servers if (file.path, server.name) in wanted)
        if servers or (file.fault and any(file.path == path for path, _ in wanted)):
            files.append(replace(file, servers=servers))
    return files


def build_config_view(
    entries: Sequence[Entry], files: Sequence[ConfigFile], document: LockDocument | None = None
) -> ConfigView:
    """Build the view from lock entries and configuration files that were already read."""
    installed, located = _split_entries(entries)
    return ConfigView(files=tuple(files), document=document, installed=installed, located=located)


def find_config_issues(project: Project, view: ConfigView) -> tuple[ConfigIssue, ...]:
    """Compare every locked server with the file of its client."""
    return (*_compare_installed(project, view), *_compare_located(project, view))


def find_unknown_servers(project: Project, view: ConfigView) -> tuple[UnknownServer, ...]:
    """Find every configured server that the lock does not cover in the file that configures it."""
    known = {(located.entry.name, located.scope, located.file) for located in view.located}
    files = [
        replace(
            file,
            servers=tuple(
                server
                for server in file.servers
                if (server.name, server.scope, project.display_path(server.path)) not in known
            ),
        )
        for file in view.files
    ]
    unknown = find_uncovered_servers(
        view.installed,
        files,
        project.find_install_paths(),
        # These entries are approved for one file, which may differ from the file that the client installs to.
        locked_for_other_files=[located.locked for located in view.located],
        started_by_run={located.entry.key: located.entry for located in view.located if is_enforced(located.entry)},
    )
    return (*find_repeated_servers(view.files), *unknown)


def check_configs(project: Project, lock: Lock, files: Sequence[ConfigFile], policies: Policies) -> Iterator[Row]:
    """Compare the client configurations with the lock, and report risky settings in them."""
    from pinwarden.clients.findings import check_file

    view = build_config_view(lock.entries, files)
    for issue in find_config_issues(project, view):
        # A locked server that is not configured is never started; doctor reports it. An unreadable file is reported
        # once, below, and not for every server that should be in it.
        for change in issue.changes if issue.kind == "drift" else ():
            yield _build_change_row(change, project.display_path(issue.file))
    for unknown in find_unknown_servers(project, view):
        yield _build_change_row(unknown.change, project.display_path(unknown.configured.path))
    for finding in find_unresolved_starts(project, lock.entries, view.servers):
        yield build_waivable_row(finding, project.display_path(finding.file), policies)
    for file in view.files:
        for finding in check_file(file):
            yield build_waivable_row(finding, project.display_path(file.path), policies)


def compare_with_lock(entry: Entry, configured: Any, client: Client) -> tuple[Change, ...]:
    """Compare a client's entry with the approved one. Returns all changes, the most severe first.

    If the client starts the approved server directly, as it did before ``pinwarden enforce``, that is one change of its
    own, and all others have the severity ``info``. That happens when someone restores an old copy of the client's file:
    nothing unknown is started then, but Pinwarden does not block changes any more.
    """
    approved = read_locked_config(entry.key, entry.document).approved
    present = redact_entry(configured)
    changes = compare_entries(entry.name, approved, present, client)
    if all(change.severity == INFO for change in changes):
        return changes
    try:
        direct = _compare_direct_start(entry, approved, configured, client)
    except PinwardenError:
        return changes
    if direct is None or any(change.severity != INFO and change.kind != _RELEASE_LEFT_OUT for change in direct):
        return changes
    is_floating = any(change.kind == _RELEASE_LEFT_OUT for change in direct)
    informative = (change for change in direct if change.severity == INFO)
    return (build_direct_start_change(entry.name, approved, present, client, is_floating=is_floating), *informative)


def is_only_started_directly(changes: Iterable[Change]) -> bool:
    """Whether these changes say that a client starts the approved server directly, and nothing else of importance."""
    return any(change.kind == STARTED_DIRECTLY for change in changes)


def _compare_direct_start(entry: Entry, approved: Any, configured: Any, client: Client) -> tuple[Change, ...] | None:
    """Compare a client's entry with the approved server as it was before enforcement; None if it was not enforced."""
    extension = read_extension(entry)
    launch = extension.launch if extension is not None else None
    enforced = parse_configured_server(entry.name, approved, client).target
    if not isinstance(enforced, StdioTarget):
        return None
    if isinstance(launch, LaunchCommand):
        before = redact_entry(replace_command(approved, client, launch.command))
        return compare_entries(entry.name, before, redact_entry(configured), client)
    if isinstance(launch, RemoteLaunch):
        remote = read_remote_entry(configured, client)
        found = (remote.url, remote.target.transport, dict(remote.headers), remote.url_variable)
        if found != (launch.url, launch.transport, dict(launch.headers), launch.url_variable):
            return None
        after = to_command_entry(configured, client, remote, enforced.command)
        return compare_entries(entry.name, approved, redact_entry(after), client)
    return None


def build_waivable_row(finding: ConfigFinding, file: str, policies: Policies) -> Row:
    """Report a finding about a setting. If the policy has a waiver for it, the severity is ``info``."""
    from pinwarden.lock.policy import SETTING_CODES
    from pinwarden.lock.policy_rules import apply_waivers

    code, level, message = finding.code, finding.severity, finding.message
    if policies.own is not None and code in SETTING_CODES:
        judged = apply_waivers(policies.own, file, code, message, policies.today)
        level, message = level if judged.refuses else "info", judged.full_message
    return Row(code=code, severity=level, entity="config", name=finding.name, path="", message=message, file=file)


def build_finding_row(project: Project, finding: ConfigFinding) -> Row:
    """Build the row of a finding about a configuration file, without applying waivers."""
    return Row(
        code=finding.code,
        severity=finding.severity,
        entity="config",
        name=finding.name,
        path=finding.pointer,
        message=finding.message,
        file=project.display_path(finding.file),
    )


def find_unresolved_starts(
    project: Project, entries: Iterable[Entry], servers: Iterable[ConfiguredServer]
) -> Iterator[ConfigFinding]:
    """Find servers that are configured to start through this lock and that ``pinwarden run`` would refuse to start."""
    known = tuple(entries)
    for server in servers:
        start = parse_locked_start(server.target.command) if isinstance(server.target, StdioTarget) else None
        if start is None or not _uses_this_lock(project, start):
            continue
        try:
            resolve_start(start, known)
        except PinwardenError as err:
            yield build_start_refused_finding(server, f"{err.message}; {err.hint}" if err.hint else err.message)


def check_floating_releases(project: Project, files: Sequence[ConfigFile], policies: Policies) -> Iterator[Row]:
    """Report all servers without an exact release in one row. The row fails if the policy requires exact ones."""
    floating: dict[str, str] = {}
    entries = 0
    for file in files:
        for server in file.servers:
            if find_floating_package(server.target) is not None and not _is_waived(policies, server.name):
                entries += 1
                floating.setdefault(server.name, project.display_path(file.path))
    if not floating:
        return
    required = policies.own is not None and policies.own.require_exact_releases
    names = ", ".join(map(mask_name, list(floating)[:_MAX_FLOATING_NAMES]))
    more = f" and {len(floating) - _MAX_FLOATING_NAMES} more" if len(floating) > _MAX_FLOATING_NAMES else ""
    use = "server uses" if len(floating) == 1 else "servers use"
    counted = f"{len(floating)} {use} a floating version" + (f" ({entries} entries)" if entries > len(floating) else "")
    how = (
        "Pin them: pinwarden pin"
        if required
        else "Pin them: pinwarden pin. To make this a failure, set exact-releases = true in [policy.require] of "
        "pinwarden.toml"
    )
    yield Row(
        code=_FLOATING_CODE,
        severity=FLOATING_KINDS[_FLOATING_CODE].severity if required else "warning",
        entity="config",
        name="",
        path="",
        message=f"{counted}: {names}{more}. {how}",
        file=next(iter(floating.values())),
    )


def describe_enforcement(files: Iterable[ConfigFile]) -> str | None:
    """Say how many servers all clients start through ``pinwarden run``, and which cannot be; None without servers."""
    enforced: dict[str, bool] = {}
    obstacles: dict[str, str] = {}
    for server in (server for file in files for server in file.servers if not server.disabled):
        is_enforced_here = starts_through_pinwarden(server)
        enforced[server.name] = enforced.get(server.name, True) and is_enforced_here
        obstacle = None if is_enforced_here else find_enforcement_obstacle(server)
        if obstacle is not None:
            obstacles.setdefault(server.name, obstacle)
    if not enforced:
        return None
    counted = f"{sum(enforced.values())} of {plural(len(enforced), 'server')} enforced (started through pinwarden run)"
    return counted + describe_obstacles(obstacles)


def describe_obstacles(obstacles: Mapping[str, str]) -> str:
    """Return the end of a sentence that counts the servers that cannot be enforced, and says why; empty if all can."""
    if not obstacles:
        return ""
    shown = [f"{mask_name(name)} ({reason})" for name, reason in list(obstacles.items())[:_MAX_OBSTACLES]]
    more = f" and {len(obstacles) - _MAX_OBSTACLES} more" if len(obstacles) > _MAX_OBSTACLES else ""
    return f", {len(obstacles)} cannot be: {'; '.join(shown)}{more}"


def _is_waived(policies: Policies, name: str) -> bool:
    if policies.own is None:
        return False
    from pinwarden.lock.policy_rules import apply_waivers

    return not apply_waivers(policies.own, name, _FLOATING_CODE, "", policies.today).refuses


def _split_entries(entries: Sequence[Entry]) -> tuple[tuple[LockedConfig, ...], tuple[LocatedEntry, ...]]:
    installed: list[LockedConfig] = []
    located: list[LocatedEntry] = []
    for entry in entries:
        locked, where = read_locked_config(entry.key, entry.document), read_config_origin(entry)
        if where is None or where.client not in CLIENTS:
            installed.append(locked)
        else:
            located.append(
                LocatedEntry(entry=entry, locked=locked, client=where.client, scope=where.scope, file=where.file)
            )
    return tuple(installed), tuple(located)


def _compare_installed(project: Project, view: ConfigView) -> tuple[ConfigIssue, ...]:
    by_path = {file.path: file for file in view.files}
    return diagnose(view.installed, by_path, project.find_install_paths(), lockfile=project.lock.name).issues


def _compare_located(project: Project, view: ConfigView) -> Iterator[ConfigIssue]:
    """Compare entries that were locked from a file with that file.

    The lock has placeholders for values, so a value in the file never counts as a difference.
    """
    by_name = {project.display_path(file.path): file for file in view.files}
    for located in view.located:
        file = by_name.get(located.file)
        if file is not None and file.fault:
            yield _build_issue(located, "unreadable", f"{located.file}: {file.problem}")
            continue
        server = _find_configured_server(located, file)
        if server is None:
            yield _build_issue(located, "missing", f"missing {located.client} config entry for {located.entry.name}")
            continue
        answers = list_proposed_inputs(server, file.inputs if file else ())
        where = read_config_origin(located.entry)
        approved = where.answers if where is not None else {}
        changes = (
            *compare_with_lock(located.entry, server.entry, get_client(located.client)),
            *compare_proposed_inputs(located.entry.name, approved, answers),
        )
        if any(change.severity != INFO for change in changes):
            message = f"client config entry differs from {project.lock.name}"
            yield replace(_build_issue(located, "drift", message), changes=changes)


def _find_configured_server(located: LocatedEntry, file: ConfigFile | None) -> ConfiguredServer | None:
    servers = file.servers if file else ()
    return next(
        (server for server in servers if (server.name, server.scope) == (located.entry.name, located.scope)), None
    )


def _build_issue(located: LocatedEntry, kind: IssueKind, message: str) -> ConfigIssue:
    return ConfigIssue(
        key=located.entry.key,
        kind=kind,
        client=located.client,
        name=located.entry.name,
        file=located.file,
        scope=located.scope,
        message=message,
    )


def _build_change_row(change: Change, file: str) -> Row:
    from pinwarden.surface.drift.changes import build_change_row

    return replace(build_change_row(change), file=file)


def _uses_this_lock(project: Project, start: LockedStart) -> bool:
    """Whether a ``pinwarden run`` command starts a server from this project's lock."""
    if project.scope != (start.scope or "project"):
        return False
    if project.scope != "project":
        return True
    root = project.root.resolve()
    try:
        folder = root if start.project in (None, PROJECT_FOLDER) else (root / str(start.project)).resolve()
        lock = folder / (start.file or project.lock.name)
        return lock.resolve() == project.lock.resolve()
    except (ValueError, OSError, RuntimeError):  # not a path, or a symbolic link loop
        return False
