"""``toolbundle.manifest``: every file of a bundle by the CID of its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.cid import manifest_root_cid
from pinwarden.core.record import Record, field
from pinwarden.documents.bundle.profile import default_profile, profile_in
from pinwarden.documents.bundle.shape import BLOB_CID, Shape, read, refuse

SCHEMA = "toolbundle.manifest.v0.1"
_BLOB_CID = re.compile(r"bafkrei[a-h][a-z2-7]{50}[aeimquy4]")
"""Every blob's CID and nothing else: four bytes that are always the same, 32 of the hash, and two bits of nothing."""


class Entry(Record):
    """One file."""

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
    """All entries. There are thousands of them, so those in which nothing is wrong are not looked at step by step."""
    found = shape.value.get("entries")
    if type(found) is not list:
        refuse(f"{shape.path}/entries", "is not a list")
    return tuple(_plain(each) or _entry(Shape(each, f"{shape.path}/entries/{n}")) for n, each in enumerate(found))


def _plain(value: Any) -> Entry | None:
    if type(value) is not dict:
        return None
    path, cid, size = value.get("path"), value.get("blob_cid"), value.get("size_bytes")
    executable = value.get("executable")
    if type(path) is not str or not path or type(cid) is not str or type(size) is not int or size < 0:
        return None
    if type(executable) is not bool or not _BLOB_CID.fullmatch(cid):
        return None
    return Entry(path=path, blob_cid=cid, size_bytes=size, executable=executable)


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
