"""Atom feeds of new versions and yanks: of the registry, of a publisher, of a bundle."""

from __future__ import annotations

from pinwarden.html.pages import PageContent
from pinwarden.registry.pages.events import LoggedChange, describe_entries
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import pointer_log, publications, publishers
from pinwarden.system.database import Transaction

ATOM = "application/atom+xml"
_ENTRIES = 50
_EPOCH = "1970-01-01T00:00:00Z"


def build_feed(registry: Registry, transaction: Transaction, _request: PageRequest) -> PageContent:
    """Build the feed of all bundles."""
    return _build(registry, transaction, registry.identity.name)


def build_publisher_feed(
    registry: Registry, transaction: Transaction, _request: PageRequest, namespace: str
) -> PageContent | None:
    """Build the feed of a namespace; None if it is not registered."""
    if publishers.find_created_at(transaction, namespace) is None:
        return None
    return _build(registry, transaction, f"{namespace} - {registry.identity.name}", namespace=namespace)


def build_package_feed(
    registry: Registry, transaction: Transaction, _request: PageRequest, tool: str
) -> PageContent | None:
    """Build the feed of a bundle; None if it is not published."""
    if not publications.list_releases(transaction, tool):
        return None
    return _build(registry, transaction, f"{tool} - {registry.identity.name}", tool=tool)


def _build(
    registry: Registry, transaction: Transaction, title: str, *, tool: str | None = None, namespace: str | None = None
) -> PageContent:
    rows = pointer_log.list_release_entries(transaction, _ENTRIES, tool=tool, namespace=namespace)
    entries = describe_entries(transaction, rows)
    values = {
        "title": title,
        "feed_id": _build_id(registry, f"{tool or ''}/{namespace or ''}"),
        "updated": entries[0].moment if entries else _EPOCH,
        "entries": [(entry, _build_id(registry, str(entry.seq)), _build_title(entry)) for entry in entries],
    }
    return PageContent(template="feed.xml", values=values, media_type=ATOM)


def _build_id(registry: Registry, name: str) -> str:
    """Return an identifier that stays the same when the registry's address changes."""
    return f"urn:pinwarden:{registry.identity.log_id.replace(' ', '+')}:{name}"


def _build_title(entry: LoggedChange) -> str:
    return f"{entry.tool} {entry.version or ''} {entry.action}"
