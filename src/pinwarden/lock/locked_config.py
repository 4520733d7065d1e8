"""What a lock says about one server in one client: the approved fragment of configuration and the declared secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.clients.config import ConfigFile, entry_in
from pinwarden.clients.table import CLIENTS
from pinwarden.core.record import Record, field

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
