"""The approved configuration fragment and secrets of a lock entry, and the configuration it was locked from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import ConfigFile, entry_in
from pinwarden.clients.table import CLIENTS
from pinwarden.core.record import Record, field
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of

if TYPE_CHECKING:
    from pinwarden.lock.extension import ConfiguredIn

Place = tuple[str, str]
"""A client and a scope, which together name one file."""


class LockedConfig(Record):
    """The part of a lock entry that a client's file can be held against."""

    key: str
    name: str
    client: str
    scope: str | None
    """``None`` if the entry does not say, which means: wherever it is found."""
    entry: Any = field(repr=False)
    """The server's entry in the approved fragment; ``None`` if the fragment does not hold it."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Name and source (env or header) of each secret that the server needs."""


def locked_config(key: str, lock_entry: Mapping[str, Any]) -> LockedConfig:
    """Read the members of a version 2 lock entry that matter here; the rest is the lockfile's business."""
    name, client = _text(lock_entry.get("name")), _text(lock_entry.get("client"))
    locked = lock_entry.get("locked")
    fragment = locked.get("config") if type(locked) is dict else None
    if fragment is None:
        fragment = lock_entry.get("config")
    scope = lock_entry.get("scope")
    known = CLIENTS.get(client)
    return LockedConfig(
        key=key,
        name=name,
        client=client,
        scope=scope if type(scope) is str else None,
        entry=entry_in(fragment, known, name) if known else None,
        secrets=_secrets(lock_entry.get("capabilityManifest")),
    )


def installed(file: ConfigFile, locked: LockedConfig) -> Any:
    """The entry of a locked server in its client's file; ``None`` if it is not there."""
    known = CLIENTS.get(locked.client)
    return entry_in(file.document, known, locked.name) if known else None


def _secrets(manifest: Any) -> tuple[tuple[str, str], ...]:
    rows = manifest.get("secrets") if type(manifest) is dict else None
    if type(rows) is not list:
        return ()
    return tuple((_text(row.get("name")), _text(row.get("source"))) for row in rows if type(row) is dict)


def _text(value: Any) -> str:
    return value if type(value) is str else ""


_MOST_NAMED = 8  # members in one note
SOURCE = "local-config"
"""What stands for a registry in such entries."""

INSTALLED = "bundle-registry"
"""What stands there for servers that were installed from a registry of bundles, which has an update of its own."""

UNLISTED = (SOURCE, INSTALLED)
"""Entries that no MCP registry is asked about."""

NO_RELEASE = "0.0.0"
"""What stands for a version, which lockfileVersion 2 demands, where a configuration names none."""


def uncovered(name: str, members: Sequence[str]) -> str:
    """The note about members of a configuration whose text a lock does not hold."""
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    shown = ", ".join(members[:_MOST_NAMED])
    return f"{name}: the lock holds no text of {shown}{more}, because it may be secret; a change of it is not seen"


def configured_in(entry: Entry) -> ConfiguredIn | None:
    """The client configuration that an entry was locked from; None if it came from elsewhere."""
    extension = extension_of(entry)
    return extension.configured_in if extension is not None else None
