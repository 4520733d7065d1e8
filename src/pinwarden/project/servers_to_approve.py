"""Find what ``pinwarden approve`` decides on: servers that are configured but not locked, changed, or not reviewed.

A server is one package, command or address with its arguments. The same server in several clients and scopes is one
``ServerToApprove``, so that one approval covers all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import lock_store
from pinwarden.lock.entry import find_client, is_for_client
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_config import read_config_origin
from pinwarden.project.approval_candidate import is_reviewed, was_shown
from pinwarden.project.configured_entry import client_name_in_lock
from pinwarden.project.configured_servers import RELEASE_INDEX, ServerIdentity, identify_configured, identify_entry
from pinwarden.project.init import discover_servers
from pinwarden.project.init_decisions import AcceptedServers, DiscoveredServer, Discovery
from pinwarden.project.locked_servers import LockedServer, group_servers_by_name, not_locked_error

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project
    from pinwarden.surface.drift.changes import Change
    from pinwarden.surface.surface import Surface


class ApprovalPart(Record):
    """The entries of one server in one scope."""

    discovery: Discovery
    configured: tuple[DiscoveredServer, ...] = ()
    """Servers in client files that differ from the lock. An approval writes an entry for each."""
    entries: tuple[Entry, ...] = ()
    """Lock entries that are configured as approved, or in no client's file."""

    @property
    def project(self) -> Project:
        """The project, in the scope that this part is about."""
        return self.discovery.project

    def list_entries_as_configured(self) -> tuple[Entry, ...]:
        """Return the lock entries, without those whose server changed into one that Pinwarden does not lock."""
        servers = self.discovery.servers
        changed = {one.key for one in servers if one.refused is not None and one.status.state == "changed"}
        changed -= {one.key for one in servers if one.refused is None}
        return tuple(entry for entry in self.entries if entry.key not in changed)

    def list_earlier_entries(self) -> Iterator[Entry]:
        """Yield the lock entries with the approvals so far."""
        yield from self.entries
        for server in self.configured:
            entry = self.discovery.approved.entry(server.key)
            if entry is not None:
                yield entry


class ServerToApprove(Record):
    """One server, in all clients and scopes that have it."""

    name: str
    parts: tuple[ApprovalPart, ...]
    problem: str | None = None
    """Why it cannot be approved."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that have it."""
        configured = (server.configured.client for part in self.parts for server in part.configured)
        locked = (find_client(entry) for part in self.parts for entry in part.entries)
        return tuple(dict.fromkeys((*locked, *configured)))

    @property
    def client_titles(self) -> tuple[str, ...]:
        """The titles of the clients. ``entry.client`` is ``generic`` for several of them, so the origin comes first."""
        origins = ((entry, read_config_origin(entry)) for part in self.parts for entry in part.entries)
        clients = [entry.client if origin is None else origin.client for entry, origin in origins]
        clients += [configured.configured.client for part in self.parts for configured in part.configured]
        return tuple(dict.fromkeys(get_client(client).title for client in clients))

    @property
    def release(self) -> str | None:
        """The release of the package that the server starts; None if that is not known."""
        identity = _identify_server(self)
        return identity.launch_parts[RELEASE_INDEX] or None if _is_package(identity) and identity else None

    @property
    def config_changes(self) -> tuple[Change, ...]:
        """How the client files differ from the lock."""
        changes = (change for part in self.parts for server in part.configured for change in server.status.changes)
        return tuple({repr(change): change for change in changes}.values())

    @property
    def is_locked(self) -> bool:
        """Whether a lock has an entry of the server."""
        return any(True for part in self.parts for _ in part.list_earlier_entries())

    @property
    def needs_approval(self) -> bool:
        """Whether something about it is not approved, as far as that is known without starting it."""
        return (
            self.problem is not None
            or any(part.configured for part in self.parts)
            or not all(is_reviewed(entry) for part in self.parts for entry in part.entries)
        )

    def without_unlocked(self) -> ServerToApprove:
        """Return only what is configured as locked. The result has no parts if there is nothing like that."""
        parts = (replace(part, configured=(), entries=part.list_entries_as_configured()) for part in self.parts)
        return replace(self, parts=tuple(part for part in parts if part.entries))

    def reviewed_surfaces(self) -> tuple[Surface, ...]:
        """Return the distinct surfaces that a person approved."""
        return self._list_surfaces(was_shown)

    def list_recorded_surfaces(self) -> tuple[Surface, ...]:
        """Return the distinct surfaces in the lock, including those that were only recorded."""
        return self._list_surfaces(lambda _: True)

    def _list_surfaces(self, is_wanted: Callable[[Entry], bool]) -> tuple[Surface, ...]:
        surfaces: dict[str, Surface] = {}
        for part in self.parts:
            for entry in part.list_earlier_entries():
                surface = part.discovery.approved.surface(entry.key)
                if surface is not None and is_wanted(entry):
                    surfaces.setdefault(str(surface.digest), surface)
        return tuple(surfaces.values())


def find_servers_to_approve(
    projects: Sequence[Project], names: Collection[str] = (), client: str | None = None
) -> tuple[ServerToApprove, ...]:
    """Find the servers with these names, or all, for one client or for all. Nothing is started."""
    found: dict[tuple[str, object], ServerToApprove] = {}
    for project in projects:
        discovery = discover_servers(project, AcceptedServers(names=tuple(names)))
        for key, server in _find_in_scope(discovery, names, client):
            known = found.get(key)
            found[key] = server if known is None else replace(known, parts=(*known.parts, *server.parts))
    return tuple(sorted(found.values(), key=lambda server: server.name))


def refuse_unknown_names(
    projects: Sequence[Project], names: Collection[str], servers: Sequence[ServerToApprove], client: str | None
) -> None:
    """Raise SERVER_NOT_LOCKED for a name that neither a lock nor a client's file has."""
    for name in names:
        if any(name == server.name for server in servers):
            continue
        entries = [entry for project in projects for entry in _read_entries(project)]
        if client is not None and (others := find_servers_to_approve(projects, [name])):
            clients = ", ".join(dict.fromkeys(client for other in others for client in other.clients))
            hint = f"It is there for {clients}: pinwarden approve {shlex.quote(name[:120])}"
            raise PinwardenError("SERVER_NOT_LOCKED", f"{name[:120]!a} is not there for {client[:40]!a}", hint=hint)
        hint = "No client's file has it either; pinwarden status shows the servers."
        configured = (server.name for server in find_servers_to_approve(projects))
        raise not_locked_error(entries, name, hint, configured=configured)


def _read_entries(project: Project) -> Sequence[Entry]:
    lock = lock_store.read(project.lock)
    return () if lock is None else lock.entries


def identify_package(server: ServerToApprove) -> ServerIdentity | None:
    """Return the identity of a server without its release, to find its other releases; None if it is no package."""
    identity = _identify_server(server)
    if identity is None or not _is_package(identity):
        return None
    parts = identity.launch_parts
    return replace(identity, launch_parts=(*parts[:RELEASE_INDEX], *parts[RELEASE_INDEX + 1 :]))


def find_earlier_release(server: ServerToApprove) -> str | None:
    """Return the release that the surface was approved for, if the server now starts another release; else None."""
    for part in server.parts:
        for entry in part.entries:
            extension = read_extension(entry)
            if extension is not None and extension.surface_of is not None:
                return extension.surface_of[:200]
    return None


def _find_in_scope(
    discovery: Discovery, names: Collection[str], client: str | None
) -> Iterator[tuple[tuple[str, object], ServerToApprove]]:
    """Yield the servers of one scope, each with a key that is equal for the same server in another scope."""
    wanted = [server for server in discovery.servers if _is_wanted(server, names, client)]
    usable = [server for server in wanted if server.refused is None]
    differing = [server for server in usable if server.status.state != "unchanged"]
    replaced = {server.key for server in differing}
    groups: list[tuple[ServerIdentity | None, LockedServer | None, list[DiscoveredServer]]] = [
        (locked.identity, locked, [])
        for name, servers in group_servers_by_name(_list_entries(discovery, replaced, client)).items()
        if not names or name in names
        for locked in servers
    ]
    for server in differing:
        identity = _identify(discovery, server)
        group = next((group for group in groups if _is_same(group, identity, server)), None)
        if group is None:
            groups.append((identity, None, [server]))
        else:
            group[2].append(server)
    for index, (identity, locked, configured) in enumerate(groups):
        name = configured[0].configured.name if locked is None else locked.entry.name
        entries = () if locked is None else locked.entries
        part = ApprovalPart(discovery=discovery, configured=tuple(configured), entries=entries)
        pinned = None if locked is None else locked.pinned_bytes
        alone = identity is None or sum(other[0] == identity for other in groups) > 1
        key = (name, (str(discovery.project.lock), index, pinned) if alone else repr(identity))
        yield key, ServerToApprove(name=name, parts=(part,))
    for server in wanted:
        if server.refused is not None:
            part = ApprovalPart(discovery=discovery, configured=(server,))
            place = (server.configured.name, (server.configured.path, server.configured.pointer))
            yield place, ServerToApprove(name=server.configured.name, parts=(part,), problem=server.refused)


def _identify_server(server: ServerToApprove) -> ServerIdentity | None:
    for part in server.parts:
        for entry in part.entries:
            return identify_entry(entry)
        for configured in part.configured:
            return _identify(part.discovery, configured)
    return None


def _is_package(identity: ServerIdentity | None) -> bool:
    return identity is not None and len(identity.launch_parts) > RELEASE_INDEX


def _is_wanted(server: DiscoveredServer, names: Collection[str], client: str | None) -> bool:
    known_as = (server.configured.client, client_name_in_lock(server.configured.client))
    is_named = not names or server.configured.name in names or server.key in names
    return is_named and (client is None or client in known_as)


def _list_entries(discovery: Discovery, replaced: Collection[str], client: str | None) -> Iterator[Entry]:
    for entry in discovery.lock.entries if discovery.lock is not None else ():
        if entry.key not in replaced and is_for_client(entry, client):
            yield entry


def _identify(discovery: Discovery, server: DiscoveredServer) -> ServerIdentity | None:
    started = discovery.approved.find_started_entry(server.configured, server.key)
    if started is not None:
        return identify_entry(started)
    return identify_configured(server.configured.name, server.configured.entry, get_client(server.configured.client))


def _is_same(
    group: tuple[ServerIdentity | None, LockedServer | None, list[DiscoveredServer]],
    identity: ServerIdentity | None,
    server: DiscoveredServer,
) -> bool:
    known, locked, configured = group
    name = configured[0].configured.name if locked is None else locked.entry.name
    return identity is not None and known == identity and name == server.configured.name
