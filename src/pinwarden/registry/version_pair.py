"""Compare two published versions: their files, API surface hashes and surfaces."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import publications
from pinwarden.surface import surface as surface_document
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.surface import Surface
from pinwarden.system.database import Transaction
from pinwarden.system.fair_executor import check_items

PERMANENT_FAILURES = frozenset({"INPUT_LIMIT", "JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR", "SURFACE_INVALID"})
"""Codes of failures that depend only on the two versions."""


class VersionPair(Record):
    """Two versions to compare."""

    before: PublishedVersion
    after: PublishedVersion

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests that determine the result, used as the cache key."""
        return _list_digests(self.before) + _list_digests(self.after)


def find_pair(registry: Registry, tool: str, before: str, after: str) -> VersionPair:
    """Find two versions of a bundle. Raises if one is not published."""
    with registry.database.transaction() as transaction:
        return VersionPair(
            before=_find_version(transaction, tool, before), after=_find_version(transaction, tool, after)
        )


def compare_pair(registry: Registry, pair: VersionPair) -> dict[str, Any]:
    """Compare two versions. Raises if a surface has too many items."""
    old, new = pair.before, pair.after
    with registry.database.transaction() as transaction:
        manifests = _load_manifest(transaction, old), _load_manifest(transaction, new)
        surfaces = _load_surface(transaction, old), _load_surface(transaction, new)
    return {
        "same_content": old.root_cid == new.root_cid,
        "files": _compare_files(*manifests),
        "api_surface": {
            "before": old.api_surface,
            "after": new.api_surface,
            "same": old.api_surface == new.api_surface if old.api_surface and new.api_surface else None,
        },
        "drift": _compare_surfaces(*surfaces, registry.limits.compared_items),
    }


def _list_digests(version: PublishedVersion) -> tuple[str, ...]:
    surface = (version.surface_cid or "", version.api_surface or "")
    return (version.root_cid, version.descriptor_cid, *surface)


def _find_version(transaction: Transaction, tool: str, version: str) -> PublishedVersion:
    published = publications.find_version(transaction, tool, version)
    if published is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool[:80]!a} {version[:80]!a} is not published in this registry")
    return published


def _load_manifest(transaction: Transaction, version: PublishedVersion) -> bytes:
    body = publications.find_manifest(transaction, version.root_cid, version.descriptor_cid)
    if body is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the manifest of {version.tool} {version.version} is missing")
    return body


def _load_surface(transaction: Transaction, version: PublishedVersion) -> bytes | None:
    return publications.find_document(transaction, version.surface_cid) if version.surface_cid else None


def _compare_files(old: bytes, new: bytes) -> dict[str, list[str]]:
    before, after = _read_blob_cids(old), _read_blob_cids(new)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


def _read_blob_cids(body: bytes) -> dict[str, tuple[str, bool]]:
    return {entry.path: (entry.blob_cid, entry.executable) for entry in manifest_document.parse_manifest(body).entries}


def _compare_surfaces(old: bytes | None, new: bytes | None, limit: int) -> dict[str, Any] | None:
    """Return the drift between two surfaces; None if the registry lacks one or both."""
    if old is None or new is None:
        return None
    changes = compare(_parse_surface(old, limit), _parse_surface(new, limit))
    return {"changes": [change.to_json() for change in changes], "blocked_by_default": blocked_by_default(changes)}


def _parse_surface(body: bytes, limit: int) -> Surface:
    surface = surface_document.parse_surface(body)
    check_items(sum(map(len, surface.items.values())), limit, "items in one surface")
    return surface
