"""Edit a client's configuration file in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinwarden.clients.files import EntryInstalls


def install_entry(path: Path, client: str, name: str, fragment: Any) -> str:
    """Add or replace a server in a client's file. Returns what happened to the file."""
    installs = EntryInstalls()
    action = installs.plan(path, client, name, fragment)
    installs.write()
    return action
