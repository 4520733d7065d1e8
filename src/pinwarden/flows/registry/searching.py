"""Look around in a registry."""

from __future__ import annotations

from typing import Any

from pinwarden.flows.registry.official_api import latest_of
from pinwarden.flows.registry.registry import Registry
from pinwarden.store import publications

_PAGE = 50


def search_tools(registry: Registry, text: str, after: str = "") -> dict[str, Any]:
    """One page of tools whose name or description holds the text."""
    with registry.database.transaction() as step:
        names = publications.tools(step, search=text, after=after, most=_PAGE + 1)
        found = [_shown(name, publications.versions_of(step, name)) for name in names[:_PAGE]]
    return {"tools": found, "next": names[_PAGE - 1] if len(names) > _PAGE else None}


def _shown(name: str, versions: list[Any]) -> dict[str, Any]:
    latest = latest_of(versions)
    return {
        "tool": name,
        "description": (latest or versions[-1]).description,
        "latest": latest.version if latest else None,
        "versions": len(versions),
    }
