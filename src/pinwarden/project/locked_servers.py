"""The servers of a lock by name: the entries of several clients that mean the same server are one server."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from pinwarden.clients.near_names import find_near_name
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import approved_digests
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of, has_surface
from pinwarden.lock.locked_config import configured_in
from pinwarden.lock.locked_launch import started_in_words
from pinwarden.project.server_identity import ServerIdentity, entry_identity

_Bytes = tuple[object, ...]


class LockedServer(Record):
    """One server, with the entry of each client that has it."""

    entries: tuple[Entry, ...]
    identity: ServerIdentity | None
    """None if the configuration cannot be understood."""
    pinned: _Bytes | None
    """What a start is made from; None if no bytes are pinned."""

    @property
    def entry(self) -> Entry:
        """The entry to start the server by: its bytes are pinned, its text approved, and no client asks for a value."""
        return min(
            self.entries, key=lambda entry: (_pinned_bytes(entry) is None, not has_surface(entry), _prompts_user(entry))
        )

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that have it, as the lock calls them."""
        return tuple(entry.client for entry in self.entries)


def servers_by_name(entries: Iterable[Entry]) -> Mapping[str, tuple[LockedServer, ...]]:
    """All servers, in the order of the lock. A name with several of them means another server in each client."""
    by_name: dict[str, list[LockedServer]] = {}
    for entry in entries:
        servers = by_name.setdefault(entry.name, [])
        identity, pinned = entry_identity(entry), _pinned_bytes(entry)
        place = next((place for place, server in enumerate(servers) if _is_same(server, identity, pinned)), None)
        if place is None:
            servers.append(LockedServer(entries=(entry,), identity=identity, pinned=pinned))
        else:
            known = servers[place]
            servers[place] = LockedServer(
                entries=(*known.entries, entry), identity=identity, pinned=known.pinned or pinned
            )
    return {name: tuple(servers) for name, servers in by_name.items()}


def locked_server(entries: Iterable[Entry], name: str, client: str | None, command: str) -> LockedServer:
    """The one server of a name, for one client or for all.

    ``command`` is what the hint repeats with ``--client``, where several clients have different servers of that name.
    """
    known = tuple(entries)
    by_name = servers_by_name(entry for entry in known if entry.name == name and is_for_client(entry, client))
    if name not in by_name:
        raise not_locked_error(known, name, _other_client_hint(known, name, command))
    servers = by_name[name]
    if len(servers) > 1:
        raise PinwardenError(
            "USAGE",
            f"{name[:120]!a} is {describe_differences(servers)}",
            hint=f"Name the client: {_for_client(command, name, servers[0])}",
        )
    return servers[0]


def approve_command(entry: Entry, entries: Iterable[Entry]) -> str:
    """The command that shows what a server tells the model and approves it; the client is named where it is needed."""
    servers = servers_by_name(other for other in entries if other.name == entry.name).get(entry.name, ())
    client = f" --client {entry.client}" if len(servers) > 1 else ""
    return f"pinwarden approve {shlex.quote(entry.name[:120])}{client} --allow-execute"


def is_for_client(entry: Entry, client: str | None) -> bool:
    """Whether an entry is that of a client, by the lock's name for it or by the client's own."""
    where = configured_in(entry)
    return client is None or client == entry.client or (where is not None and where.client == client)


def describe_differences(servers: Iterable[LockedServer]) -> str:
    """Several servers of one name in words, with what each client starts or contacts."""
    listed = tuple(servers)
    shown = [started_in_words(server.entry)[:120] for server in listed]
    clients = [", ".join(server.clients) for server in listed]
    if len(set(shown)) == 1:
        why = "other bytes" if len({server.identity for server in listed}) == 1 else "other arguments or variables"
        return f"locked differently for {' and '.join(clients)}: {shown[0]} with {why}"
    parts = (f"{what} for {client}" for what, client in zip(shown, clients, strict=True))
    return f"locked differently: {'; '.join(parts)}"


def _other_client_hint(entries: tuple[Entry, ...], name: str, command: str) -> str | None:
    """What to do if the server is locked, but not for the client that was named."""
    named = tuple(entry for entry in entries if entry.name == name)
    if not named:
        hint = "A server that is configured is locked with pinwarden init --accept NAME; see pinwarden list."
        return hint if command == "approve" else None
    servers = servers_by_name(named)[name]
    clients = ", ".join(entry.client for entry in named)
    return f"It is locked for {clients}: {_for_client(command, name, servers[0])}"


def _for_client(command: str, name: str, server: LockedServer) -> str:
    return f"pinwarden {command} {shlex.quote(name[:120])} --client {server.clients[0]}"


def _is_same(server: LockedServer, identity: ServerIdentity | None, pinned: _Bytes | None) -> bool:
    same_bytes = None in (server.pinned, pinned) or server.pinned == pinned
    return identity is not None and server.identity == identity and same_bytes


def _pinned_bytes(entry: Entry) -> _Bytes | None:
    """What a start is made from: the bundle, the image, or the closure and the install scripts that may run."""
    extension = extension_of(entry)
    if extension is None:
        return None
    if extension.bundle is not None:
        return extension.bundle.get("rootCid"), extension.bundle.get("descriptorCid")
    if not extension.has_bytes:
        return None
    closure = extension.closure.file_digest if extension.closure is not None else None
    artifacts = tuple(sorted(repr(artifact) for artifact in extension.artifacts)) if closure is None else ()
    return closure, repr(extension.image), artifacts, tuple(sorted(map(str, approved_digests(extension))))


def _prompts_user(entry: Entry) -> bool:
    """Whether a client asks its user for a value, which nothing else can fill in."""
    return "${input:" in repr(entry.document.get("config"))


def has_bytes(entry: Entry) -> bool:
    """Whether the bytes of an entry were ever pinned."""
    extension = extension_of(entry)
    return extension is not None and bool(extension.artifacts or extension.image)


def not_locked_error(entries: Iterable[Entry], name: str, hint: str | None = None) -> PinwardenError:
    """That there is no entry of this name."""
    near = find_near_name(name, (entry.name for entry in entries))
    meant = f", did you mean {near[:120]!a}?" if near else ""
    return PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {name[:120]!a}{meant}", hint=hint)
