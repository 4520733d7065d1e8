"""Two versions of a client configuration, compared server by server as the gate does."""

from __future__ import annotations

from typing import Any

from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.drift import build_unapproved_change, compare_entries, get_package_name
from pinwarden.clients.table import CLIENTS, Client
from pinwarden.surface.drift.changes import Change, sort_changes


def compare_configs(before: Any, after: Any, client: Client = CLIENTS["generic"]) -> tuple[Change, ...]:
    """The changes of servers that are in both versions, and the servers that only the new one has."""
    approved, current = servers_in(before, client), servers_in(after, client)
    packages = [get_package_name(parse_configured_server(name, entry, client)) for name, entry in approved.items()]
    changes: list[Change] = []
    for name, entry in current.items():
        if name in approved:
            changes += compare_entries(name, approved[name], entry, client)
        else:
            server = parse_configured_server(name, entry, client)
            changes.append(build_unapproved_change(server, approved, [package for package in packages if package]))
    return sort_changes(changes)


def servers_in(config: Any, client: Client) -> dict[str, Any]:
    """The servers of a configuration by name, under the root member of any client."""
    servers: dict[str, Any] = {}
    for root in dict.fromkeys((client.root, *(other.root for other in CLIENTS.values()))):
        entries: Any = config
        for member in root:
            entries = entries.get(member) if isinstance(entries, dict) else None
        if isinstance(entries, dict):
            servers = {**entries, **servers}
    return servers
