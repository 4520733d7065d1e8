"""Compare configured servers with locked servers, and decide which entries mean the same server.

Two entries are the same server if they have the same package, version, arguments and variables, or the same address and
headers. How a client writes it makes no difference: a line or a list, ``npx`` or ``pnpm dlx``, ``${NAME}`` or
``{env:NAME}``, the order of variables. Commands that cannot be parsed with certainty are compared word by word.

``diagnose`` reports the same issue kinds and messages as ToolPin's ``doctor``. ``find_uncovered_servers`` also reports
every configured server that is not in the lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.clients.command_line import parse_launch, split_command
from pinwarden.clients.config import ConfigFile, ConfiguredServer, parse_configured_server
from pinwarden.clients.drift import (
    build_added_change,
    build_unapproved_change,
    compare_entries,
    get_package_name,
    normalize_placeholders,
)
from pinwarden.clients.launchers import Launch
from pinwarden.clients.table import CLIENTS, Client, get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.extension import is_enforced, read_extension
from pinwarden.lock.locked_config import (
    CONFIG_SOURCE,
    NO_VERSION,
    ConfigLocation,
    LockedConfig,
    find_configured_entry,
    read_config_origin,
    read_locked_config,
)
from pinwarden.lock.locked_launch import is_approved_run_command, with_locked_launch
from pinwarden.lock.lockfile import is_same_json
from pinwarden.surface.drift.changes import Change, sort_changes
from pinwarden.system.environment_variables import to_variable_name
from pinwarden.system.redaction import UNNAMED_REFERENCE, redact_entry
from pinwarden.system.target import PROJECT_FOLDER, HttpAddress, HttpTarget, StdioTarget, Target

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry

_REGISTRY_TYPES = {"npm": "npm", "pypi": "pypi", "oci": "oci", "nuget": "nuget"}
RELEASE_INDEX = 2
"""The index of the release in ``ServerIdentity.launch_parts`` of a package."""
_INPUT_REFERENCE = re.compile(r"\$\{input:([^{}]+)\}")
_MASKED_VALUE = re.compile(r"<([^<>\s]+)>")
_PROJECT_FOLDERS = ("", ".", "./", PROJECT_FOLDER)
"""Values of ``cwd`` that mean the project's folder, where clients start servers by default."""

IssueKind = Literal["missing", "drift", "unreadable", "invalid"]


class ConfigIssue(Record):
    """A locked server that is not configured as approved."""

    key: str
    kind: IssueKind
    client: str
    name: str
    file: str
    scope: str | None
    message: str
    changes: tuple[Change, ...] = ()
    """The differences, if the kind is ``drift``."""

    def to_json(self) -> dict[str, Any]:
        """Return the issue as JSON, with the members and the order of ToolPin's ``doctor``."""
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
    """The number of compared entries, and the issues."""

    checked: int
    issues: tuple[ConfigIssue, ...]

    @property
    def ok(self) -> bool:
        """Whether every locked server is configured as approved."""
        return not self.issues

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, as ToolPin's ``doctor`` prints it."""
        return {"ok": self.ok, "checked": self.checked, "issues": [issue.to_json() for issue in self.issues]}


def diagnose(
    locked: Iterable[LockedConfig],
    files: Mapping[str, ConfigFile],
    paths: Mapping[ConfigLocation, str],
    *,
    lockfile: str = "mcp-lock.json",
    scope: str = "all",
) -> DoctorReport:
    """Compare every locked configuration with the file of its client. ``files`` maps paths to parsed files."""
    entries = tuple(locked)
    issues = [issue for entry in entries for issue in _diagnose_entry(entry, files, paths, lockfile, scope)]
    return DoctorReport(checked=len(entries), issues=tuple(issues))


def _diagnose_entry(
    entry: LockedConfig, files: Mapping[str, ConfigFile], paths: Mapping[ConfigLocation, str], lockfile: str, scope: str
) -> Iterator[ConfigIssue]:
    if type(entry.approved) is not dict:
        yield _build_issue(
            entry, "invalid", ("", None), "locked plan does not contain a comparable client config entry"
        )
        return
    scopes = (scope,) if scope != "all" else (entry.scope,) if entry.scope else ("project", "global")
    locations = [
        (paths[entry.client, scope_name], scope_name) for scope_name in scopes if (entry.client, scope_name) in paths
    ]
    missing: list[tuple[str, str]] = []
    is_settled = False
    for path, file_scope in locations:
        file = files.get(path)
        if file and file.fault:
            is_settled = True
            yield _build_issue(entry, "unreadable", (path, file_scope), f"{path}: {file.problem}")
            continue
        config = find_configured_entry(file, entry) if file else None
        if config is None:
            missing.append((path, file_scope))
            continue
        is_settled = True
        changes = _compare_config(entry, config)
        if changes:
            message = f"client config entry differs from {lockfile}"
            yield _build_issue(entry, "drift", (path, file_scope), message, changes)
    if not is_settled and missing:
        where = f" in checked scopes: {', '.join(file_scope for _, file_scope in missing)}" if scope == "all" else ""
        looked_for = ", ".join(path for path, _ in missing)
        message = f"missing {entry.client} config entry for {entry.name}{where}"
        yield _build_issue(entry, "missing", (looked_for, None if scope == "all" else scope), message)
    elif not is_settled:
        message = f"cannot check {entry.client} at {scope} scope: no file is known for {', '.join(scopes)}"
        yield _build_issue(entry, "invalid", ("", None), message)


def _compare_config(entry: LockedConfig, config: Any) -> tuple[Change, ...]:
    """List the differences, without other spellings of the same placeholder."""
    changes = compare_entries(entry.name, entry.approved, config, get_client(entry.client))
    return tuple(change for change in changes if change.kind != "placeholder_spelled")


def _build_issue(
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
    """A configured server that was not approved for the file it is in, and the change to report."""

    configured: ConfiguredServer
    change: Change


def find_uncovered_servers(
    locked: Iterable[LockedConfig],
    files: Iterable[ConfigFile],
    paths: Mapping[ConfigLocation, str],
    *,
    locked_for_other_files: Iterable[LockedConfig] = (),
    started_by_run: Mapping[str, Entry] | None = None,
) -> tuple[UnknownServer, ...]:
    """Find every configured server that was not approved for the file it is in.

    Entries in ``locked`` are approved for the file that their client installs to. Entries in
    ``locked_for_other_files`` are approved for a different file; the caller compares them with that file.
    ``started_by_run`` has, by key, the lock entries that clients start through ``pinwarden run``: only the lock has
    their own command or address.
    """
    installs = [entry for entry in locked if entry.client in CLIENTS]
    entries = [*installs, *(entry for entry in locked_for_other_files if entry.client in CLIENTS)]
    covered = {(entry.name, path) for entry in installs for path in _list_install_paths(entry, paths)}
    by_name: dict[str, list[LockedConfig]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    packages: set[str] | None = None  # computed for the first unknown server; most machines have none
    unknown: list[UnknownServer] = []
    for file in files:
        for server in file.servers:
            same_name = by_name.get(server.name, [])
            if (server.name, server.path) in covered:
                continue  # diagnose compares it with this file
            if packages is None:
                packages = {package for entry in entries if (package := _get_package_of_entry(entry))}
            change = (
                _compare_with_other_files(server, same_name, started_by_run or {})
                if same_name
                else build_unapproved_change(server, by_name, packages)
            )
            unknown.append(UnknownServer(configured=server, change=change))
    if not unknown:
        return ()
    order = {id(change): rank for rank, change in enumerate(sort_changes(entry.change for entry in unknown))}
    return tuple(sorted(unknown, key=lambda entry: order[id(entry.change)]))


def find_repeated_servers(files: Iterable[ConfigFile]) -> tuple[UnknownServer, ...]:
    """Find servers that one file defines twice for the same scope, so that it is unclear which one is started.

    In Claude Code's file this happens if one project folder is spelled in two ways.
    """
    repeated: list[UnknownServer] = []
    for file in files:
        seen: set[tuple[str, str]] = set()
        for server in file.servers:
            if (server.name, server.scope) in seen:
                repeated.append(UnknownServer(configured=server, change=build_added_change("repeated_entry", server)))
            seen.add((server.name, server.scope))
    return tuple(repeated)


def _list_install_paths(entry: LockedConfig, paths: Mapping[ConfigLocation, str]) -> list[str]:
    scopes = (entry.scope,) if entry.scope else ("project", "global")
    return [paths[entry.client, scope] for scope in scopes if (entry.client, scope) in paths]


def _compare_with_other_files(
    server: ConfiguredServer, entries: list[LockedConfig], started_by_run: Mapping[str, Entry]
) -> Change:
    """Build the change for a server whose name is approved for another client or scope.

    The same server needs a review; a different server under that name counts as unknown.
    """
    identity = identify_configured(server.name, server.entry, get_client(server.client))
    for entry in entries:
        enforced = started_by_run.get(entry.key)
        approved = (
            identify_configured(entry.name, entry.approved, get_client(entry.config_client))
            if enforced is None
            else identify_entry(enforced)
        )
        if identity is not None and identity == approved:
            return build_added_change("unlocked_entry", server)
    return build_unapproved_change(server, ())


def _get_package_of_entry(entry: LockedConfig) -> str | None:
    return get_package_name(parse_configured_server(entry.name, entry.approved, get_client(entry.config_client)))


class ServerIdentity(Record):
    """The parts of a configuration that identify a server. Two entries with equal identities are one server."""

    launch_parts: tuple[str, ...]
    """For a package: its type, name, release, program and launcher settings. Otherwise the command or the URL."""
    arguments: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    """Variables or headers by name. A value that the lock leaves out counts as a reference to a variable."""
    folder: str | None = None


def identify_entry(entry: Entry) -> ServerIdentity | None:
    """Identify the server of a lock entry. Returns None if its configuration cannot be parsed.

    If the client starts the server with ``pinwarden run NAME``, the locked command is used instead.
    """
    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    approved = read_locked_config(entry.key, entry.document).approved
    target = parse_configured_server(entry.name, redact_entry(approved), client).target
    extension = read_extension(entry)
    if isinstance(target, StdioTarget) and extension is not None and extension.bundle is not None:
        tool = str(extension.bundle.get("tool"))
        return ServerIdentity(launch_parts=("bundle", tool), values=_normalize_values(target.env))
    if isinstance(target, StdioTarget) and is_enforced(entry):
        try:
            return identify_target(_redact_headers(with_locked_launch(target, entry)))
        except PinwardenError:
            return None
    return None if target is None else identify_target(target)


def _redact_headers(target: Target) -> Target:
    """Return the target with its headers as the lock stores them. The lock may store more of a variable's value."""
    if not isinstance(target, HttpTarget):
        return target
    return replace(target, headers=redact_entry({"headers": dict(target.headers)})["headers"])


def identify_configured(name: str, entry: Any, client: Client) -> ServerIdentity | None:
    """Identify the server of a client's entry. Secrets are left out, as in the lock."""
    target = parse_configured_server(name, redact_entry(entry), client).target
    return None if target is None else identify_target(target)


def identify_target(target: Target) -> ServerIdentity:
    """Identify the server that a target starts or contacts."""
    if isinstance(target, HttpTarget):
        # A server with two transports at one address is one server, so the transport does not count.
        headers = {name.lower(): value for name, value in target.headers.items()}
        return ServerIdentity(
            launch_parts=("url", normalize_placeholders(target.url)), values=_normalize_values(headers)
        )
    runs = parse_launch(target)
    package = runs.via or runs
    folder = None if target.cwd in (None, *_PROJECT_FOLDERS) else normalize_placeholders(target.cwd or "")
    if package.settings is None or package.purl is None or runs.wrappers:
        words = (_normalize_word(word) for word in split_command(target.command))
        return ServerIdentity(launch_parts=("command", *words), values=_normalize_values(target.env), folder=folder)
    return ServerIdentity(
        launch_parts=(
            package.kind,
            _normalize_package(package),
            _normalize_release(package),
            _normalize_program(package),
            *_list_launcher_settings(runs, package),
        ),
        arguments=tuple(_normalize_word(word) for word in package.arguments),
        values=_normalize_values(target.env),
        folder=folder,
    )


def _normalize_package(package: Launch) -> str:
    if package.kind == "oci":
        return package.identity.removeprefix("docker.io/").removeprefix("library/")
    if package.kind == "pypi":  # capitals, dots and underscores make no difference
        return (package.purl or "").removeprefix("pkg:pypi/").partition("@")[0]
    return package.identity


def _normalize_release(package: Launch) -> str:
    """Return the digest or version of a package; ``latest`` if the command names neither."""
    if package.digest:
        return package.digest
    version = package.version or "latest"
    if package.kind == "npm" and package.pinned:
        return version.removeprefix("v")
    if package.kind == "pypi" and package.pinned:
        from pinwarden.artifacts.python_package import is_same_version

        # 1.0 and 1.0.0 are one release; text that is not a version stays unchanged.
        shorter = version
        while shorter.endswith(".0") and is_same_version(shorter.removesuffix(".0"), version):
            shorter = shorter.removesuffix(".0")
        return shorter
    return version


def _normalize_program(package: Launch) -> str:
    """Return the program to start. For a Python package without one, this is the name of the package."""
    return package.program or (_normalize_package(package) if package.kind == "pypi" else "")


def _list_launcher_settings(runs: Launch, package: Launch) -> tuple[str, ...]:
    """Return the settings of the launcher and the dangers of the command, because both change which code is started."""
    return (*(_normalize_word(setting) for setting in package.settings or ()), *runs.dangers)


def _normalize_word(word: str) -> str:
    """Rewrite all placeholders in a word of a command in one spelling."""
    return normalize_placeholders(_MASKED_VALUE.sub(lambda match: f"${{{to_variable_name(match[1])}}}", word))


def _normalize_values(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, _normalize_value(name, value)) for name, value in values.items()))


def _normalize_value(name: str, value: str) -> str:
    """Rewrite a value that the client prompts for, or that the lock leaves out, as a reference to a variable."""
    if _INPUT_REFERENCE.fullmatch(value) or value == f"<{name}>{UNNAMED_REFERENCE}":
        return f"${{{to_variable_name(name)}}}"
    if match := _MASKED_VALUE.fullmatch(value):
        return f"${{{to_variable_name(match[1])}}}"
    return normalize_placeholders(_INPUT_REFERENCE.sub(lambda match: f"${{{to_variable_name(match[1])}}}", value))


# What the lock records about a configured server


def build_server_json(server: ConfiguredServer) -> dict[str, Any]:
    """Return a ``server.json`` that declares the package or address of a configured server."""
    target = server.target
    if target is None:
        raise PinwardenError("CONFIG_INVALID", f"{server.name[:80]!a} cannot be used: {server.problem}")
    launched = parse_launch(target)
    document: dict[str, Any] = {
        "name": server.name,
        "description": "",
        "version": launched.version if launched.version and launched.pinned else NO_VERSION,
    }
    if isinstance(target, HttpTarget):
        kind = "sse" if target.transport == "sse" else "streamable-http"
        return {**document, "remotes": [{"type": kind, "url": launched.identity}]}
    package = launched.via or launched
    identifier = f"{package.identity}@{package.digest}" if package.digest else package.identity
    row: dict[str, Any] = {
        "registryType": _REGISTRY_TYPES.get(package.kind, package.kind),
        "identifier": identifier,
        "transport": {"type": "stdio"},
    }
    if package.version:
        row["version"] = package.version
    return {**document, "packages": [row]}


def with_locked_command(server: ConfiguredServer, entry: Entry | None) -> ConfiguredServer:
    """Replace the command ``pinwarden run NAME`` of a server by the locked command. Other commands stay unchanged."""
    if entry is None or not is_enforced(entry) or not is_approved_run_command(entry, server.target):
        return server
    target = server.target
    return replace(server, target=with_locked_launch(target, entry)) if isinstance(target, StdioTarget) else server


def read_locked_server(entry: Entry) -> ConfiguredServer | None:
    """Return the server as it was configured when it was locked; None if it was not locked from a client's file."""
    origin = read_config_origin(entry)
    if entry.source != CONFIG_SOURCE or origin is None or origin.client not in CLIENTS:
        return None
    approved = read_locked_config(entry.key, entry.document).approved
    return with_locked_command(parse_configured_server(entry.name, approved, get_client(origin.client)), entry)


def contradicts_configuration(entry: Entry) -> bool:
    """Whether the package, transport or host that an entry records is not the one that its configuration starts."""
    server = read_locked_server(entry)
    if server is None:
        return False
    if server.target is None:
        return True
    declared = build_server_json(server)
    package: dict[str, Any] = next(iter(declared.get("packages", ())), {})
    remote: dict[str, Any] = next(iter(declared.get("remotes", ())), {})
    expected = {
        "kind": "package" if package else "remote",
        "registryType": package.get("registryType"),
        "identifier": package.get("identifier"),
        "url": remote.get("url"),
        "packageTypes": [package["registryType"]] if package else [],
        "transports": [remote["type"] if remote else "stdio"],
        "remoteHosts": _list_hosts(remote["url"], entry.manifest.get("remoteHosts")) if remote else [],
    }
    recorded = {
        **{name: entry.selected_target.get(name) for name in ("kind", "registryType", "identifier", "url")},
        **{name: entry.manifest.get(name) for name in ("packageTypes", "transports", "remoteHosts")},
    }
    return not is_same_json(expected, recorded)


def _list_hosts(url: str, recorded: Any) -> list[str]:
    """Return the host of an address as a lock records it."""
    with suppress(PinwardenError):
        host = HttpAddress.parse(url).host
        if recorded == [host]:
            return [host]
    from pinwarden.core.javascript import parse_whatwg_host  # ToolPin's spelling, which differs for few addresses

    address = parse_whatwg_host(url)
    return [] if address is None else [address.host]
