"""``toolbundle.manifest``: every file of a bundle by the CID of its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from pinwarden.bundle.profile import default_profile, profile_in
from pinwarden.bundle.shape import BLOB_CID, Shape, read, refuse
from pinwarden.core.cid import manifest_root_cid
from pinwarden.core.record import Record, field

SCHEMA = "toolbundle.manifest.v0.1"
_BLOB_CIDS = re.compile(r"(?:bafkrei[a-h][a-z2-7]{50}[aeimquy4](?: |\Z))+")
"""CIDs of blobs and nothing else: four bytes that are always the same, 32 of the hash, and two bits of nothing."""

_MEMBERS = itemgetter("path", "blob_cid", "size_bytes", "executable")


class Entry(NamedTuple):
    """One file. No record, because a manifest has thousands of them and a tuple is made in a quarter of the time."""

    path: str
    blob_cid: str
    size_bytes: int
    executable: bool = False


class Manifest(Record):
    """The files of a bundle, and what they belong to."""

    cid_profile: Mapping[str, Any]
    entries: tuple[Entry, ...]
    descriptor_cid: str
    root_cid: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""


def parse(data: bytes) -> Manifest:
    """A manifest. Whether its CIDs are right, and its paths safe, is for the rules of acceptance."""
    return of(read(data))


def of(document: Any) -> Manifest:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    return Manifest(
        cid_profile=profile_in(shape),
        entries=_entries(shape),
        descriptor_cid=shape.cid("descriptor_cid"),
        root_cid=shape.cid("root_cid"),
        document=document,
    )


def _entries(shape: Shape) -> tuple[Entry, ...]:
    """All entries. There are thousands of them, so they are looked at one by one only if something is wrong."""
    found = shape.value.get("entries")
    if type(found) is not list:
        refuse(f"{shape.path}/entries", "is not a list")
    rows = _plain_rows(found)
    if rows is None:
        return tuple(_entry(Shape(each, f"{shape.path}/entries/{number}")) for number, each in enumerate(found))
    return tuple(map(Entry._make, rows))


def _plain_rows(found: list[Any]) -> list[tuple[str, str, int, bool]] | None:
    """The members of all entries, if every one of them is of its kind."""
    try:
        rows = list(map(_MEMBERS, found))
    except (KeyError, TypeError):
        return None
    if not rows:
        return rows
    paths, cids, sizes, executables = zip(*rows, strict=True)
    kinds = tuple(set(map(type, column)) for column in (paths, cids, sizes, executables))
    if kinds != ({str}, {str}, {int}, {bool}) or not all(paths) or min(sizes) < 0 or set(map(type, found)) != {dict}:
        return None
    return rows if _BLOB_CIDS.fullmatch(" ".join(cids)) else None


def _entry(shape: Shape) -> Entry:
    return Entry(
        path=shape.text("path"),
        blob_cid=shape.cid("blob_cid", BLOB_CID),
        size_bytes=shape.number("size_bytes"),
        executable=shape.flag("executable"),
    )


def unlinked_value(entries: Iterable[Entry]) -> dict[str, Any]:
    """The part of a manifest that its root CID is taken over: entries sorted, nothing that points elsewhere."""
    return {
        "schema_version": SCHEMA,
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


def linked_value(unlinked: Mapping[str, Any], descriptor_cid: str) -> dict[str, Any]:
    """The whole manifest, once the descriptor has its CID."""
    return {**unlinked, "descriptor_cid": descriptor_cid, "root_cid": str(manifest_root_cid(dict(unlinked)))}
