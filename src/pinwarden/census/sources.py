"""The servers of a source: a lockfile, clients' files, a list of both, a fleet, or a registry with the API of MCP.

A server is kept as a lock entry or a configuration entry in which placeholders replace every possible secret, so a
source is read once, and any worker can do the job. A registry of bundles serves the same API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pinwarden.census.bundles import find_bundle_spec
from pinwarden.census.observation import CensusServer
from pinwarden.clients.command_line import parse_launch
from pinwarden.clients.config import ConfiguredServer, parse_configured_server
from pinwarden.clients.documents import read_document
from pinwarden.clients.table import CLIENTS, GENERIC_CLIENT
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.text import parse_timestamp
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, build_entry_key, with_integrity
from pinwarden.lock.extension import read_extension, with_extension
from pinwarden.lock.install_plan import build_install_plan
from pinwarden.lock.mcp_registry import Registries, RegistryEntry, RegistrySource
from pinwarden.lock.server_entry import ServerEntry, parse_server_entry
from pinwarden.system.files import read_file
from pinwarden.system.net.fetch import RequestPace
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget, Target

_LISTING_SECONDS = 3600.0  # for all pages of a registry; 200 pages of 100 servers take some minutes
_MAX_NAME = 200
_MAX_SERVERS = 100_000  # of a registry; the official one has a tenth
_MAX_LISTING = 512 * 1024 * 1024  # bytes of all entries, which are in memory until they are stored
_OVERLAP = timedelta(hours=1)  # of two listings, because the clocks of a registry and of this machine differ
FLEET = "fleet"
"""The source that has what the machines of a fleet report."""
_LIST_SUFFIX = ".txt"
_ROOTS = (("mcpServers",), ("servers",), ("mcp_servers",), ("mcp", "servers"))
"""Where clients' files have their servers."""


class SourceAccess(Record):
    """How a registry is listed."""

    pace: RequestPace | None = None
    user_agent: str = "pinwarden"
    allow_private: bool = False
    allow_plain_http: bool = False
    cache_folder: Path | None = None


class SourceListing(Record):
    """The servers of a source. A registry lists only those that were updated since a time, if it is asked to."""

    servers: tuple[CensusServer, ...]
    removed: tuple[str, ...] = ()
    """The ids of servers that the source no longer has."""
    is_complete: bool = True
    """Whether a server that is not listed is no longer in the source."""
    unusable: tuple[tuple[str, str], ...] = ()
    """Servers that cannot be examined, with the reason."""


class FleetServer(Record):
    """A server that machines of a fleet run."""

    name: str
    runs: str
    """The package URL or address that a machine reported; empty for what only the machine has."""


def list_source(
    name: str, access: SourceAccess, updated_since: str, now: str, fleet: Sequence[FleetServer] = ()
) -> SourceListing:
    """List the servers of a source, which is a file, the address of a registry, or the fleet. Starts no server."""
    if name == FLEET:
        return _list_fleet(fleet)
    if name.startswith(("https://", "http://")):
        return _list_registry(name, access, updated_since, now)
    if "://" in name:
        raise PinwardenError(
            "USAGE", f"{name[:120]!a} is no source", hint="Give a lockfile, a client's file, or an address."
        )
    path, source = Path(name), name_source(name)
    return _list_files(path, source) if path.suffix == _LIST_SUFFIX else _list_file(path, source)


def name_source(name: str) -> str:
    """Return the name of a source in the database: the absolute path of a file, an address, or the fleet."""
    return name if "://" in name or name == FLEET else str(Path(name).resolve())


def _list_fleet(rows: Iterable[FleetServer]) -> SourceListing:
    """Return each package and address once, however many machines run it. Everything in a report is hostile."""
    servers: dict[str, CensusServer] = {}
    unusable: list[tuple[str, str]] = []
    for row in rows:
        entry = _build_fleet_entry(row.runs)
        if entry is None:
            unusable.append((ascii(row.name[:_MAX_NAME]), "only its machine has what it runs"))
            continue
        spec = {"client": GENERIC_CLIENT, "config": entry}
        identifier = f"{FLEET}#{row.runs}"
        servers[identifier] = CensusServer(id=identifier, source=FLEET, name=row.runs, spec=spec)
    return SourceListing(servers=tuple(servers.values()), unusable=tuple(dict.fromkeys(unusable)))


def _build_fleet_entry(runs: str) -> dict[str, Any] | None:
    """Return the configuration that starts or contacts what a machine reported; None if there is none."""
    if not _is_usable_name(runs):
        return None
    if runs.startswith("https://"):
        return {"url": runs}
    words = _COMMANDS.get(runs.partition("/")[0])
    if words is None:
        return None
    name, _, version = runs.partition("/")[2].partition("@")
    command = [*words[0], unquote(name) + (f"{words[1]}{unquote(version)}" if version else "")]
    # Only if it is read as the package that was reported: a name may contain an option or a path.
    same = parse_launch(StdioTarget(command=tuple(command))).purl == runs
    return {"command": command[0], "args": command[1:]} if same else None


_COMMANDS = {"pkg:npm": (("npx", "-y"), "@"), "pkg:pypi": (("uvx",), "=="), "pkg:nuget": (("dnx",), "@")}


def _list_files(path: Path, source: str) -> SourceListing:
    """List the servers of several files, one on each line. What several files start alike is one server."""
    servers: dict[bytes, CensusServer] = {}
    unusable: list[tuple[str, str]] = []
    is_complete = True
    lines = [line.strip() for line in read_file(path).decode("utf-8", "replace").splitlines()]
    for line in lines:
        if not line or line.startswith("#"):
            continue
        try:
            listing = _list_file(path.parent / line, f"{source}#{line}")
        except (PinwardenError, ValueError) as err:
            unusable.append((ascii(line[:_MAX_NAME]), getattr(err, "message", "it has no usable name")))
            is_complete = False  # its servers are not gone
            continue
        unusable += listing.unusable
        for server in listing.servers:
            key = canonicalize([server.spec.get("entry") or server.spec["config"], server.folder])
            servers.setdefault(key, replace(server, source=source))
    return SourceListing(servers=tuple(servers.values()), unusable=tuple(unusable), is_complete=is_complete)


def _list_file(path: Path, source: str) -> SourceListing:
    document = read_document(read_file(path), str(path))
    if isinstance(document, dict) and "lockfileVersion" in document:
        return _list_lock(path, source)
    return _list_config(path, document, source)


def _list_lock(path: Path, source: str) -> SourceListing:
    lock = lock_store.read_verified(path)
    return SourceListing(servers=tuple(_build_locked(source, entry, path.parent) for entry in lock.entries))


def _build_locked(source: str, entry: Entry, folder: Path) -> CensusServer:
    """Return a locked server. Pins that name files next to the lock are left out: a worker has no such files."""
    extension = read_extension(entry)
    if extension is not None:
        entry = with_extension(entry, replace(extension, surface=None, closure=None))
    return CensusServer(
        id=f"{source}#{entry.key}",
        source=source,
        name=entry.name,
        spec={"key": entry.key, "entry": dict(entry.document)},
        folder=str(folder.resolve()),
    )


def _list_config(path: Path, document: Any, source: str) -> SourceListing:
    servers, unusable = [], []
    for server in _read_configured(path, document):
        if server.target is None or server.disabled or not _is_usable_name(server.name):
            unusable.append((ascii(server.name[:_MAX_NAME]), server.problem or "it is disabled or has no usable name"))
            continue
        folder = str(path.parent.resolve()) if _needs_folder(server.target, path.parent) else ""
        spec = {"client": server.client, "config": redact_entry(server.entry)}
        servers.append(
            CensusServer(id=f"{source}#{server.name}", source=source, name=server.name, spec=spec, folder=folder)
        )
    if not servers and not unusable:
        raise PinwardenError("TARGET_INVALID", f"{path} has no servers", hint="Name a lock or a client's file.")
    return SourceListing(servers=tuple(servers), unusable=tuple(unusable))


def _needs_folder(target: Target, folder: Path) -> bool:
    """Whether a command depends on the folder of its file: a local program, or a package with a path."""
    if not isinstance(target, StdioTarget):
        return False
    words = [word for word in target.command[1:] if len(word) < _MAX_NAME and word.isprintable()]
    return parse_launch(target).is_local_command or any((folder / word).exists() for word in words)


def _is_usable_name(name: str) -> bool:
    """Whether both databases can store a name."""
    return 0 < len(name) <= _MAX_NAME and name.isprintable() and name.encode("utf-8", "ignore").decode() == name


def _read_configured(path: Path, document: Any) -> Iterator[ConfiguredServer]:
    """Yield the servers of a client's file. The generic client reads the member names of any client."""
    for root in _ROOTS:
        entries = document
        for step in root:
            entries = entries.get(step) if isinstance(entries, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            yield parse_configured_server(name, entry, CLIENTS[GENERIC_CLIENT], path=str(path))


def _list_registry(address: str, access: SourceAccess, updated_since: str, now: str) -> SourceListing:
    source = RegistrySource(
        id="census", url=address, allow_http=access.allow_plain_http, allow_private=access.allow_private
    )
    registries = Registries(
        sources=(source,),
        cache_folder=access.cache_folder,
        timeout_seconds=_LISTING_SECONDS,
        pace=access.pace,
        user_agent=access.user_agent,
    )
    since = parse_timestamp(updated_since)
    start = "" if since is None else (since - _OVERLAP).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _sort_entries(address, registries.list_servers(source, start), start, now)


def _build_entry_spec(declared: ServerEntry, now: str) -> dict[str, Any]:
    plan = build_install_plan(declared, GENERIC_CLIENT, now=now)
    entry = with_integrity(Entry(key=build_entry_key(declared.name, GENERIC_CLIENT), document=plan))
    return {"key": entry.key, "entry": dict(entry.document)}


def _sort_entries(address: str, rows: Iterable[RegistryEntry], updated_since: str, now: str) -> SourceListing:
    servers: dict[str, CensusServer] = {}
    removed: list[str] = []
    unusable: list[tuple[str, str]] = []
    size = 0
    for number, row in enumerate(rows):
        size += len(json.dumps(row))
        if number >= _MAX_SERVERS or size > _MAX_LISTING:
            raise PinwardenError(
                "REGISTRY_UNAVAILABLE", f"the registry lists more than {number} servers, or longer ones"
            )
        name = ascii(str(row["server"].get("name", ""))[:_MAX_NAME])
        try:
            declared = parse_server_entry(row, source="census")
            if not _is_usable_name(declared.name):
                unusable.append((name, "it has no usable name"))
                continue
            if declared.status == "deleted":
                removed.append(f"{address}#{declared.name}")
                continue
            spec = find_bundle_spec(row["server"], address) or _build_entry_spec(declared, now)
        except PinwardenError as err:
            unusable.append((name, err.message))
            continue
        identifier = f"{address}#{declared.name}"
        servers[identifier] = CensusServer(id=identifier, source=address, name=declared.name, spec=spec)
    return SourceListing(
        servers=tuple(servers.values()),
        removed=tuple(removed),
        is_complete=not updated_since,
        unusable=tuple(unusable),
    )
