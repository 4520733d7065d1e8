"""Serve the API of the official MCP registry, so that clients of this API can list the bundles of a registry.

A bundle ``com.acme.notes`` in the namespace ``com.acme`` has the name ``com.acme/notes`` in this API. An entry contains
the archive's URL and digest. Only ``pinwarden install`` verifies the log and the attestations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinwarden.core.record import Record
from pinwarden.core.versions import compare_versions
from pinwarden.registry.names import blob_path
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import publications, publishers
from pinwarden.system.database import Transaction

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
_OFFICIAL_META = "io.modelcontextprotocol.registry/official"
_PUBLISHER_META = "io.modelcontextprotocol.registry/publisher-provided"
_MAX_LIMIT = 100
_CURSOR_SEPARATOR = "#"  # a character that no name contains
_LAST_INDEX = 2**62
_MAX_DESCRIPTION = 100
"""The longest description that the API's schema allows."""


class ServerQuery(Record):
    """A query for one page of servers."""

    search: str = ""
    cursor: str = ""
    limit: int = 30
    latest_only: bool = False


def list_servers(registry: Registry, query: ServerQuery, base: str) -> dict[str, Any]:
    """Return one page of ``GET /v0.1/servers``. The cursor is the bundle and log index of the page's last version."""
    limit = max(1, min(query.limit, _MAX_LIMIT))
    with registry.database.transaction() as transaction:
        # This API writes a slash between namespace and name.
        page = (_read_latest_page if query.latest_only else _read_page)(
            transaction, query, query.search.replace("/", "."), limit
        )
        latest = {
            tool: choose_latest_release(publications.list_releases(transaction, tool))
            for tool in {version.tool for version in page}
        }
    listed = page[:limit]
    entries = [
        build_server_entry(version, base, is_latest=version.version == latest[version.tool]) for version in listed
    ]
    metadata: dict[str, Any] = {"count": len(entries)}
    if len(page) > limit:
        metadata["nextCursor"] = f"{listed[-1].tool}{_CURSOR_SEPARATOR}{listed[-1].seq}"
    return {"servers": entries, "metadata": metadata}


def _read_page(transaction: Transaction, query: ServerQuery, search: str, limit: int) -> list[PublishedVersion]:
    tool, _, seq = query.cursor.partition(_CURSOR_SEPARATOR)
    after = int(seq) if seq.isdecimal() and len(seq) < 16 else _LAST_INDEX  # must fit into 64 bits
    return publications.read_versions_page(transaction, tool, after, search, limit + 1)


def _read_latest_page(transaction: Transaction, query: ServerQuery, search: str, limit: int) -> list[PublishedVersion]:
    """Return one page with the latest version of each bundle."""
    page: list[PublishedVersion] = []
    after = query.cursor.partition(_CURSOR_SEPARATOR)[0]
    while len(page) <= limit and (
        names := publications.read_tools_page(transaction, search=search, after=after, limit=limit + 1)
    ):
        for name in names:
            newest = choose_latest_release(publications.list_releases(transaction, name))
            version = publications.find_version(transaction, name, newest) if newest else None
            page += [version] if version else []
        after = names[-1]
    return page[: limit + 1]


def list_server_versions(registry: Registry, name: str, base: str) -> dict[str, Any] | None:
    """Return the response to ``GET /v0.1/servers/{name}/versions``; None for an unknown server."""
    with registry.database.transaction() as transaction:
        entries = _list_entries(transaction, _find_tool(transaction, name), base, latest=False)
    return {"servers": entries, "metadata": {"count": len(entries)}} if entries else None


def find_server_version(registry: Registry, name: str, version: str, base: str) -> dict[str, Any] | None:
    """Return the response to ``GET /v0.1/servers/{name}/versions/{version}``. The version may be ``latest``."""
    with registry.database.transaction() as transaction:
        entries = _list_entries(transaction, _find_tool(transaction, name), base, latest=version == "latest")
    return next((entry for entry in entries if version in ("latest", entry["server"]["version"])), None)


def format_official_name(version: PublishedVersion) -> str:
    """Return a bundle's name in the API: namespace, slash, rest."""
    rest = version.tool.removeprefix(version.namespace).lstrip(".") or version.tool.rpartition(".")[2]
    return f"{version.namespace}/{rest}"


def _find_tool(transaction: Transaction, name: str) -> str:
    """Return the bundle with this API name; an empty string if there is none."""
    namespace, slash, rest = name.partition("/")
    if not slash or namespace not in publishers.list_namespaces(transaction):
        return ""
    tool = f"{namespace}.{rest}"
    versions = publications.list_versions(transaction, tool) or publications.list_versions(transaction, namespace)
    return versions[0].tool if versions and format_official_name(versions[0]) == name else ""


def _list_entries(transaction: Transaction, tool: str, base: str, *, latest: bool) -> list[dict[str, Any]]:
    versions = publications.list_versions(transaction, tool) if tool else []
    newest = choose_latest_version(versions)
    listed = [newest] if latest and newest else [] if latest else versions
    return [build_server_entry(version, base, is_latest=version == newest) for version in listed]


def choose_latest_version(versions: list[PublishedVersion]) -> PublishedVersion | None:
    """Return the highest version that is not yanked; None if there is none."""
    best = choose_latest_release([(version.version, not version.is_available) for version in versions])
    return next((version for version in versions if version.version == best), None)


def choose_latest_release(releases: Iterable[tuple[str, bool]]) -> str | None:
    """Return the highest version that is not yanked. ``releases`` are pairs of version and whether it is yanked."""
    best: str | None = None
    for version, yanked in releases:
        if not yanked and (best is None or compare_versions(version, best) > 0):
            best = version
    return best


def build_server_entry(version: PublishedVersion, base: str, *, is_latest: bool) -> dict[str, Any]:
    """Return a version as a server entry of the API."""
    package = {
        "registryType": "mcp-toolbundle",
        "identifier": f"{base.rstrip('/')}/{blob_path(version.archive_cid)}",
        "version": version.version,
        "fileSha256": version.content_hash.removeprefix("sha256:"),
        "transport": {"type": "stdio"},
    }
    details = {
        "tool": version.tool,
        "root_cid": version.root_cid,
        "descriptor_cid": version.descriptor_cid,
        "api_surface": version.api_surface,
        "log_index": version.seq,
    }
    return {
        "server": {
            "$schema": SCHEMA,
            "name": format_official_name(version),
            "description": version.description[:_MAX_DESCRIPTION] or version.tool,
            "version": version.version,
            "packages": [package],
            "_meta": {_PUBLISHER_META: {"pinwarden": details}},
        },
        "_meta": {
            _OFFICIAL_META: {
                "status": "active" if version.is_available else "deleted",
                "publishedAt": version.published_at,
                "updatedAt": version.published_at,
                "isLatest": is_latest,
            }
        },
    }
