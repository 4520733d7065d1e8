"""Small registry entries for tests of rules."""

from __future__ import annotations

from typing import Any

from pinwarden.lock.server_entry import ServerEntry, parse_server_entry

NOW = "2026-07-20T12:00:00.000Z"
HEX = "a1" * 32


def package(**members: Any) -> dict[str, Any]:
    usual = {"registryType": "npm", "identifier": "p", "version": "1.2.3", "transport": {"type": "stdio"}}
    return {name: value for name, value in {**usual, **members}.items() if value is not None}


def remote(**members: Any) -> dict[str, Any]:
    return {"type": "streamable-http", "url": "https://mcp.acme.example/mcp", **members}


def entry(*packages: dict[str, Any], source: str = "official", meta: Any = None, **members: Any) -> ServerEntry:
    usual = {
        "name": "io.acme/notes",
        "version": "1.0.0",
        "description": "Notes.",
        "repository": {"url": "https://code.example/acme/notes"},
        "packages": list(packages),
    }
    server = {name: value for name, value in {**usual, **members}.items() if value is not None}
    return parse_server_entry({"server": server, "_meta": meta or {}, "source": source})
