"""What changed between two versions: files, the API surface hash, and what the server tells the model."""

from __future__ import annotations

from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.documents import surface as surface_document
from pinwarden.documents.bundle import manifest as manifest_document
from pinwarden.documents.registry.version import PublishedVersion
from pinwarden.flows.registry.registry import Registry
from pinwarden.rules.drift.surface import blocked_by_default, compare
from pinwarden.store import publications
from pinwarden.store.database import Transaction


def compare_versions(registry: Registry, tool: str, before: str, after: str) -> dict[str, Any]:
    """The differences as a value."""
    with registry.database.transaction() as step:
        old, new = _version(step, tool, before), _version(step, tool, after)
        return {
            "tool": tool,
            "before": before,
            "after": after,
            "same_content": old.root_cid == new.root_cid,
            "files": _files(step, old, new),
            "api_surface": {
                "before": old.api_surface,
                "after": new.api_surface,
                "same": old.api_surface == new.api_surface if old.api_surface and new.api_surface else None,
            },
            "drift": _drift(step, old, new),
        }


def _version(step: Transaction, tool: str, version: str) -> PublishedVersion:
    found = publications.version_of(step, tool, version)
    if found is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool[:80]!a} {version[:80]!a} is not published here")
    return found


def _files(step: Transaction, old: PublishedVersion, new: PublishedVersion) -> dict[str, list[str]]:
    before, after = _blobs(step, old), _blobs(step, new)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


def _blobs(step: Transaction, version: PublishedVersion) -> dict[str, tuple[str, bool]]:
    body = publications.manifest(step, version.root_cid, version.descriptor_cid)
    if body is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the manifest of {version.tool} {version.version} is gone")
    return {each.path: (each.blob_cid, each.executable) for each in manifest_document.parse(body).entries}


def _drift(step: Transaction, old: PublishedVersion, new: PublishedVersion) -> dict[str, Any] | None:
    """What the server tells the model differently; None where the registry could not ask one of the two."""
    bodies = [publications.document(step, each.surface_cid) if each.surface_cid else None for each in (old, new)]
    if bodies[0] is None or bodies[1] is None:
        return None
    changes = compare(surface_document.parse(bodies[0]), surface_document.parse(bodies[1]))
    return {"changes": [each.to_json() for each in changes], "blocked_by_default": blocked_by_default(changes)}
