"""Look around in a registry."""

from __future__ import annotations

from typing import Any

from pinwarden.registry.official_api import latest_release
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import publications
from pinwarden.system.database import Transaction

_PAGE = 50


def search_tools(registry: Registry, text: str, after: str = "") -> dict[str, Any]:
    """One page of tools whose name or description holds the text."""
    with registry.database.transaction() as step:
        names = publications.tools(step, search=text, after=after, most=_PAGE + 1)
        found = [_shown(step, name) for name in names[:_PAGE]]
    return {"tools": found, "next": names[_PAGE - 1] if len(names) > _PAGE else None}


def _shown(step: Transaction, name: str) -> dict[str, Any]:
    releases = publications.releases_of(step, name)
    latest = latest_release(releases)
    shown = publications.version_of(step, name, latest or releases[-1][0])
    return {
        "tool": name,
        "description": shown.description if shown else "",
        "latest": latest,
        "versions": len(releases),
    }
