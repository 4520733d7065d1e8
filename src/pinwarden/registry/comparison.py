"""What changed between two versions: files, the API surface hash, and what the server tells the model.

A comparison takes two steps. `pair_of` finds the two versions, which is a look at two rows. `compare_pair` reads and
compares their contents, which takes up to seconds. Its result depends only on the digests of both, so it can be kept.
"""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import manifest as manifest_document
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import publications
from pinwarden.registry.version import PublishedVersion
from pinwarden.surface import surface as surface_document
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.surface import Surface
from pinwarden.system.database import Transaction
from pinwarden.system.fair_executor import check_items


class Pair(Record):
    """Two versions to be compared."""

    before: PublishedVersion
    after: PublishedVersion

    @property
    def digests(self) -> tuple[str, ...]:
        """What the result depends on."""
        return _digests(self.before) + _digests(self.after)


def pair_of(registry: Registry, tool: str, before: str, after: str) -> Pair:
    """Find two versions of a tool."""
    with registry.database.transaction() as step:
        return Pair(before=_version(step, tool, before), after=_version(step, tool, after))


def compare_pair(registry: Registry, pair: Pair) -> dict[str, Any]:
    """What changed, without the names of the tool and its versions. Raises if a surface has too many items."""
    old, new = pair.before, pair.after
    with registry.database.transaction() as step:
        manifests = _manifest(step, old), _manifest(step, new)
        surfaces = _surface(step, old), _surface(step, new)
    return {
        "same_content": old.root_cid == new.root_cid,
        "files": _files(*manifests),
        "api_surface": {
            "before": old.api_surface,
            "after": new.api_surface,
            "same": old.api_surface == new.api_surface if old.api_surface and new.api_surface else None,
        },
        "drift": _drift(*surfaces, registry.limits.compared_items),
    }


def _digests(version: PublishedVersion) -> tuple[str, ...]:
    surface = (version.surface_cid or "", version.api_surface or "")
    return (version.root_cid, version.descriptor_cid, *surface)


def _version(step: Transaction, tool: str, version: str) -> PublishedVersion:
    found = publications.version_of(step, tool, version)
    if found is None:
        raise PinwardenError("SERVER_NOT_FOUND", f"{tool[:80]!a} {version[:80]!a} is not published here")
    return found


def _manifest(step: Transaction, version: PublishedVersion) -> bytes:
    body = publications.manifest(step, version.root_cid, version.descriptor_cid)
    if body is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the manifest of {version.tool} {version.version} is gone")
    return body


def _surface(step: Transaction, version: PublishedVersion) -> bytes | None:
    return publications.document(step, version.surface_cid) if version.surface_cid else None


def _files(old: bytes, new: bytes) -> dict[str, list[str]]:
    before, after = _blobs(old), _blobs(new)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


def _blobs(body: bytes) -> dict[str, tuple[str, bool]]:
    return {each.path: (each.blob_cid, each.executable) for each in manifest_document.parse(body).entries}


def _drift(old: bytes | None, new: bytes | None, most: int) -> dict[str, Any] | None:
    """What the server tells the model differently; None where the registry could not ask one of the two."""
    if old is None or new is None:
        return None
    changes = compare(_read(old, most), _read(new, most))
    return {"changes": [each.to_json() for each in changes], "blocked_by_default": blocked_by_default(changes)}


def _read(body: bytes, most: int) -> Surface:
    surface = surface_document.parse_surface(body)
    check_items(sum(map(len, surface.items.values())), most, "items in one surface")
    return surface
