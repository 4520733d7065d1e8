"""Edit a client's configuration file in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinwarden.clients import files


def install_entry(path: Path, client: str, name: str, fragment: Any) -> str:
    """Add or replace a server in a client's file. Returns what happened to the file."""
    before = files.read_client_file(path, client)
    after = files.put_entry(before, path, client, name, fragment)
    if after == before:
        return "unchanged"
    files.write_if_unchanged(path, before, after)
    return "created" if before is None else "updated"


def remove_entry(path: Path, client: str, name: str) -> str:
    """Remove a server from a client's file. Returns what happened to the file."""
    before = files.read_client_file(path, client)
    after = files.remove_entry(before, path, client, name)
    if after == before:
        return "missing"
    files.write_if_unchanged(path, before, after)
    return "removed"
