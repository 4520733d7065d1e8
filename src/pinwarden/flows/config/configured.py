"""Entries that came from a client's configuration and not from a registry."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.lock.seal import extension_of

SOURCE = "local-config"
"""What stands for a registry in such entries."""

CONFIGURED_IN = "configuredIn"
"""The member of our record that says in which file of which client a server was found."""


def configured_in(entry: Entry) -> Mapping[str, str] | None:
    """Client, scope and file of an entry that came from a configuration."""
    extension = extension_of(entry)
    where = extension.others.get(CONFIGURED_IN) if extension else None
    known = ("client", "scope", "file")
    return where if isinstance(where, dict) and all(isinstance(where.get(name), str) for name in known) else None
