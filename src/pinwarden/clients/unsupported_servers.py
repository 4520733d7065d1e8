"""Servers that a file names where its client is not known to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pinwarden.core.json_pointer import escape_pointer_token

_SERVER_MEMBERS = frozenset(
    {"mcpServers", "mcp_servers", "mcp-servers", "context_servers", "amp.mcpServers", "mcp.servers"}
)
_STARTS = ("command", "cmd", "url", "uri", "serverUrl", "httpUrl")
_MAX_DEPTH = 12
_MAX_VALUES = 50_000


def unread_servers(document: Any, read: Iterable[str]) -> Iterator[str]:
    """Pointers to members that hold servers, of which none is among those that were read."""
    holders = {pointer.rpartition("/")[0] for pointer in read}
    waiting: list[tuple[Any, str, int]] = [(document, "", 0)]
    seen = 0
    while waiting:
        value, pointer, depth = waiting.pop()
        seen += 1
        if type(value) is not dict or depth > _MAX_DEPTH or seen > _MAX_VALUES:
            continue
        for name, inner in value.items():
            below = f"{pointer}/{escape_pointer_token(name)}"
            if name in _SERVER_MEMBERS and _holds_servers(inner):
                if below not in holders:
                    yield below
            else:
                waiting.append((inner, below, depth + 1))


def _holds_servers(value: Any) -> bool:
    entries = list(value.values()) if type(value) is dict else value if type(value) is list else []
    return any(type(entry) is dict and any(entry.get(member) for member in _STARTS) for entry in entries)
