"""``toolbundle.manifest``: every file of a bundle by the CID of its bytes; and the limits on a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from pinwarden.bundle.document import (
    BLOB_CID,
    DocumentReader,
    default_profile,
    read_json,
    read_profile,
    refuse_document,
)
from pinwarden.core.cid import manifest_root_cid
from pinwarden.core.record import Record, field

MANIFEST_SCHEMA = "toolbundle.manifest.v0.1"
_BLOB_CIDS = re.compile(r"(?:bafkrei[a-h][a-z2-7]{50}[aeimquy4](?: |\Z))+")
"""A sequence of blob CIDs: a constant prefix of four bytes, 32 bytes of hash, and two padding bits."""

_MEMBERS = itemgetter("path", "blob_cid", "size_bytes", "executable")


class ManifestEntry(NamedTuple):
    """One file. A tuple, because manifests have thousands of entries and a Record takes four times as long."""

    path: str
    blob_cid: str
    size_bytes: int
    executable: bool = False


class Manifest(Record):
    """The files of a bundle, linked to its descriptor."""

    cid_profile: Mapping[str, Any]
    entries: tuple[ManifestEntry, ...]
    descriptor_cid: str
    root_cid: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest. CIDs and paths are validated by `acceptance`, not here."""
    return manifest_from_json(read_json(data))


def manifest_from_json(document: Any) -> Manifest:
    """Build a manifest from a strictly parsed value."""
    reader = DocumentReader.for_schema(document, MANIFEST_SCHEMA)
    return Manifest(
        cid_profile=read_profile(reader),
        entries=_entries(reader),
        descriptor_cid=reader.cid("descriptor_cid"),
        root_cid=reader.cid("root_cid"),
        document=document,
    )


def _entries(reader: DocumentReader) -> tuple[ManifestEntry, ...]:
    """All entries. They are validated in bulk; one by one only to name the one that is invalid."""
    items = reader.value.get("entries")
    if type(items) is not list:
        refuse_document(f"{reader.path}/entries", "is not a list")
    rows = _plain_rows(items)
    if rows is None:
        return tuple(
            _entry(DocumentReader(each, f"{reader.path}/entries/{number}")) for number, each in enumerate(items)
        )
    return tuple(map(ManifestEntry._make, rows))


def _plain_rows(items: list[Any]) -> list[tuple[str, str, int, bool]] | None:
    """The members of all entries; None if any is missing or has the wrong type."""
    try:
        rows = list(map(_MEMBERS, items))
    except (KeyError, TypeError):
        return None
    if not rows:
        return rows
    paths, cids, sizes, executables = zip(*rows, strict=True)
    kinds = tuple(set(map(type, column)) for column in (paths, cids, sizes, executables))
    if kinds != ({str}, {str}, {int}, {bool}) or not all(paths) or min(sizes) < 0 or set(map(type, items)) != {dict}:
        return None
    return rows if _BLOB_CIDS.fullmatch(" ".join(cids)) else None


def _entry(reader: DocumentReader) -> ManifestEntry:
    return ManifestEntry(
        path=reader.text("path"),
        blob_cid=reader.cid("blob_cid", BLOB_CID),
        size_bytes=reader.integer("size_bytes"),
        executable=reader.boolean("executable"),
    )


def unlinked_manifest(entries: Iterable[ManifestEntry]) -> dict[str, Any]:
    """The part of a manifest that its root CID covers: sorted entries, without links to other documents."""
    return {
        "schema_version": MANIFEST_SCHEMA,
        "cid_profile": default_profile(),
        "entries": [
            {
                "path": entry.path,
                "blob_cid": entry.blob_cid,
                "size_bytes": entry.size_bytes,
                "executable": entry.executable,
            }
            for entry in sorted(entries, key=lambda entry: entry.path)
        ],
    }


def linked_manifest(unlinked: Mapping[str, Any], descriptor_cid: str) -> dict[str, Any]:
    """The complete manifest, once the descriptor's CID is known."""
    return {**unlinked, "descriptor_cid": descriptor_cid, "root_cid": str(manifest_root_cid(dict(unlinked)))}


class BundleLimits(Record):
    """Limits on one bundle, against archives that expand enormously."""

    files: int = 100_000
    """The largest packages in use have about 30,000."""
    archive_bytes: int = 512 * 1024 * 1024
    """A bundle is kept in memory, so that the verified bytes are the ones written."""
    total_bytes: int = 1024 * 1024 * 1024
    """All files together."""


DEFAULT_LIMITS = BundleLimits()
