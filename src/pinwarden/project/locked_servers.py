"""Group the entries of a lock into servers. Entries of several clients can be the same server."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.command_line import find_pinwarden_arguments, parse_run_command
from pinwarden.clients.similar_names import find_similar_name
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import list_approved_digests
from pinwarden.lock.entry import Entry, find_client, is_for_client
from pinwarden.lock.extension import has_surface, read_extension
from pinwarden.lock.locked_launch import describe_launch, is_remote, read_locked_launch, starts_local_command
from pinwarden.project.configured_servers import ServerIdentity, identify_entry

if TYPE_CHECKING:
    from pinwarden.clients.command_line import LockedStart

_PinnedBytes = tuple[object, ...]


class LockedServer(Record):
    """One server, with the entry of each client that has it."""

    entries: tuple[Entry, ...]
    identity: ServerIdentity | None
    """The identity of the server; None if its configuration cannot be parsed."""
    pinned_bytes: _PinnedBytes | None
    """The pinned bytes in comparable form; None if no bytes are pinned."""

    @property
    def entry(self) -> Entry:
        """The entry to start the server from: preferably with pinned bytes, an approved surface and no prompts."""
        return min(
            self.entries,
            key=lambda entry: (_list_pinned_bytes(entry) is None, not has_surface(entry), _needs_user_input(entry)),
        )

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that have it."""
        return tuple(map(find_client, self.entries))


def group_servers_by_name(entries: Iterable[Entry]) -> Mapping[str, tuple[LockedServer, ...]]:
    """Return all servers, in the order of the lock. A name has several servers if clients use it for different ones."""
    by_name: dict[str, list[LockedServer]] = {}
    for entry in entries:
        servers = by_name.setdefault(entry.name, [])
        identity, pinned = identify_entry(entry), _list_pinned_bytes(entry)
        index = next((index for index, server in enumerate(servers) if _is_same_server(server, identity, pinned)), None)
        if index is None:
            servers.append(LockedServer(entries=(entry,), identity=identity, pinned_bytes=pinned))
        else:
            known = servers[index]
            servers[index] = LockedServer(
                entries=(*known.entries, entry), identity=identity, pinned_bytes=known.pinned_bytes or pinned
            )
    return {name: tuple(servers) for name, servers in by_name.items()}


def find_locked_server(entries: Iterable[Entry], name: str, client: str | None, command: str) -> LockedServer:
    """Return the server of this name, for one client or for all.

    ``command`` is the command to suggest with ``--client`` if clients have different servers of that name.
    """
    known = tuple(entries)
    by_name = group_servers_by_name(entry for entry in known if entry.name == name and is_for_client(entry, client))
    if name not in by_name:
        raise not_locked_error(known, name, _build_other_client_hint(known, name, command))
    servers = by_name[name]
    if len(servers) > 1:
        raise PinwardenError(
            "USAGE",
            f"{name[:120]!a} is {describe_differences(servers)}",
            hint=f"Name the client: {_build_client_command(command, name, servers[0])}",
        )
    return servers[0]


def resolve_start(start: LockedStart, entries: Iterable[Entry]) -> Entry:
    """Return the entry that a ``pinwarden run`` command starts. Raises the error that ``pinwarden run`` would raise."""
    known = tuple(entries)
    server = find_locked_server(known, start.name, start.client, "run")
    entry = server.entry
    name = start.name[:120]
    if start.requires_lock and not any(map(has_surface, server.entries)):
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"nothing of the surface of {name!a} is approved in the lock",
            hint=f"Review and approve it: {build_approve_command(entry, known)}",
        )
    extension = read_extension(entry)
    if is_remote(entry) or (extension is not None and extension.bundle is not None):
        return entry
    refuse_own_program(name, read_locked_launch(entry).command)
    if starts_local_command(entry):
        return entry
    if extension is None or not extension.has_pinned_bytes:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {name!a} are not locked yet")
    return entry


def refuse_own_program(name: str, command: Sequence[str]) -> None:
    """Raise NOTHING_TO_RUN if the locked command of a server starts Pinwarden, which would then start itself."""
    if find_pinwarden_arguments(command) is not None or parse_run_command(command) is not None:
        raise PinwardenError("NOTHING_TO_RUN", f"the lock says that {name[:120]!a} starts Pinwarden itself")


def build_approve_command(entry: Entry, entries: Iterable[Entry]) -> str:
    """Return the command that approves a server's surface. It names the client if the name alone is ambiguous."""
    servers = group_servers_by_name(other for other in entries if other.name == entry.name).get(entry.name, ())
    client = f" --client {find_client(entry)}" if len(servers) > 1 else ""
    return f"pinwarden approve {shlex.quote(entry.name[:120])}{client} --allow-execute"


def has_pinned_bytes(entry: Entry) -> bool:
    """Whether an entry has the digests of its artifacts or of its image."""
    extension = read_extension(entry)
    return extension is not None and bool(extension.artifacts or extension.image)


def describe_differences(servers: Iterable[LockedServer]) -> str:
    """Describe how servers with the same name differ between clients."""
    listed = tuple(servers)
    shown = [describe_launch(server.entry)[:120] for server in listed]
    clients = [", ".join(server.clients) for server in listed]
    if len(set(shown)) == 1:
        why = "other bytes" if len({server.identity for server in listed}) == 1 else "other arguments or variables"
        return f"locked differently for {' and '.join(clients)}: {shown[0]} with {why}"
    parts = (f"{what} for {client}" for what, client in zip(shown, clients, strict=True))
    return f"locked differently: {'; '.join(parts)}"


def not_locked_error(
    entries: Iterable[Entry], name: str, hint: str | None = None, *, configured: Iterable[str] = ()
) -> PinwardenError:
    """Return the error for a name without a lock entry. ``configured`` are names that it could also be meant for."""
    near = find_similar_name(name, (*(entry.name for entry in entries), *configured))
    meant = f", did you mean {near[:120]!a}?" if near else ""
    return PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {name[:120]!a}{meant}", hint=hint)


def _build_other_client_hint(entries: tuple[Entry, ...], name: str, command: str) -> str | None:
    """Return the hint for a server that is locked, but not for the named client."""
    named = tuple(entry for entry in entries if entry.name == name)
    if not named:
        return None
    servers = group_servers_by_name(named)[name]
    clients = ", ".join(map(find_client, named))
    return f"It is locked for {clients}: {_build_client_command(command, name, servers[0])}"


def _build_client_command(command: str, name: str, server: LockedServer) -> str:
    return f"pinwarden {command} {shlex.quote(name[:120])} --client {server.clients[0]}"


def _is_same_server(server: LockedServer, identity: ServerIdentity | None, pinned: _PinnedBytes | None) -> bool:
    same_bytes = None in (server.pinned_bytes, pinned) or server.pinned_bytes == pinned
    return identity is not None and server.identity == identity and same_bytes


def _list_pinned_bytes(entry: Entry) -> _PinnedBytes | None:
    """Return what identifies the pinned bytes: a bundle, an image, or a closure with the scripts that may run."""
    extension = read_extension(entry)
    if extension is None:
        return None
    if extension.bundle is not None:
        return extension.bundle.get("rootCid"), extension.bundle.get("descriptorCid")
    if not extension.has_pinned_bytes:
        return None
    closure = extension.closure.file_digest if extension.closure is not None else None
    artifacts = tuple(sorted(repr(artifact) for artifact in extension.artifacts)) if closure is None else ()
    return closure, repr(extension.image), artifacts, tuple(sorted(map(str, list_approved_digests(extension))))


def _needs_user_input(entry: Entry) -> bool:
    """Whether the client asks its user for a value, which Pinwarden cannot fill in."""
    return "${input:" in repr(entry.document.get("config"))
