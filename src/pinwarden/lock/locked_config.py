"""The approved configuration fragment and secrets of a lock entry, and the configuration it was locked from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import ConfigFile
from pinwarden.clients.documents import find_entry
from pinwarden.clients.table import CLIENTS
from pinwarden.core.record import Record, field
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension

if TYPE_CHECKING:
    from pinwarden.lock.extension import ConfigOrigin

ConfigLocation = tuple[str, str]
"""Client and scope, which identify one configuration file."""
CONFIG_SOURCE = "local-config"
"""The registry source of entries that were locked from a configuration."""
BUNDLE_SOURCE = "bundle-registry"
"""The registry source of installed bundles, which are updated from their own registry."""
NON_REGISTRY_SOURCES = (CONFIG_SOURCE, BUNDLE_SOURCE)
"""Sources that are not MCP registries."""
NO_VERSION = "0.0.0"
"""The version of entries whose configuration names no version, because lockfileVersion 2 requires one."""
_MAX_NAMED = 8  # further members in a note are only counted


class LockedConfig(Record):
    """The part of a lock entry that is compared with a client's configuration file."""

    key: str
    name: str
    client: str
    scope: str | None
    """``None`` matches any scope."""
    approved: Any = field(repr=False)
    """The server's entry in the approved configuration; ``None`` if the configuration has no such server."""
    config_client: str = ""
    """The client whose entry format is used, by its own name. The lock calls some clients ``generic``."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Name and source (env or header) of each secret that the server needs."""


def read_locked_config(key: str, lock_entry: Mapping[str, Any]) -> LockedConfig:
    """Return the configuration and secrets of a lock entry, given its key and document."""
    name, client = _string_or_empty(lock_entry.get("name")), _string_or_empty(lock_entry.get("client"))
    locked = lock_entry.get("locked")
    fragment = locked.get("config") if type(locked) is dict else None
    if fragment is None:
        fragment = lock_entry.get("config")
    scope = lock_entry.get("scope")
    config_client = CLIENTS.get(_find_config_client(lock_entry) or client) or CLIENTS.get(client)
    return LockedConfig(
        key=key,
        name=name,
        client=client,
        scope=scope if type(scope) is str else None,
        approved=find_entry(fragment, config_client, name) if config_client else None,
        config_client=config_client.id if config_client else client,
        secrets=_read_secrets(lock_entry.get("capabilityManifest")),
    )


def _find_config_client(lock_entry: Mapping[str, Any]) -> str | None:
    """Return the client whose format the configuration has. A lock calls clients that it does not know ``generic``."""
    value: Any = lock_entry
    for step in ("capabilityManifest", "pinwarden", "configuredIn", "client"):
        value = value.get(step) if type(value) is dict else None
    return value if type(value) is str else None


def find_configured_entry(file: ConfigFile, locked: LockedConfig) -> Any:
    """Return the entry of a locked server in its client's configuration file; ``None`` if the file has none."""
    client = CLIENTS.get(locked.client)
    return find_entry(file.document, client, locked.name) if client else None


def read_config_origin(entry: Entry) -> ConfigOrigin | None:
    """Return the client configuration that an entry was locked from; None if it came from elsewhere."""
    extension = read_extension(entry)
    return extension.configured_in if extension is not None else None


def describe_uncovered_members(name: str, members: Sequence[str]) -> str:
    """Return a note that names the members of a configuration that the lock does not record."""
    more = f" and {len(members) - _MAX_NAMED} more" if len(members) > _MAX_NAMED else ""
    listed = ", ".join(members[:_MAX_NAMED])
    names = f"{listed}{more}"
    return f"{name}: the lock does not record {names}, which may be secret; Pinwarden does not detect changes to them"


def _read_secrets(manifest: Any) -> tuple[tuple[str, str], ...]:
    rows = manifest.get("secrets") if type(manifest) is dict else None
    if type(rows) is not list:
        return ()
    return tuple(
        (_string_or_empty(row.get("name")), _string_or_empty(row.get("source"))) for row in rows if type(row) is dict
    )


def _string_or_empty(value: Any) -> str:
    return value if type(value) is str else ""
