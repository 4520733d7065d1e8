"""Entries that came from a client's configuration and not from a registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.lock.entry import Entry
from pinwarden.lock.record import extension_of

if TYPE_CHECKING:
    from pinwarden.lock.extension import ConfiguredIn

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
