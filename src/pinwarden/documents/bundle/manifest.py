"""``toolbundle.manifest``: every file of a bundle by the CID of its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.cid import manifest_root_cid
from pinwarden.core.record import Record, field
from pinwarden.documents.bundle.profile import default_profile, profile_in
from pinwarden.documents.bundle.shape import BLOB_CID, Shape, read

SCHEMA = "toolbundle.manifest.v0.1"


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
        entries=tuple(_entry(each) for each in shape.each("entries")),
        descriptor_cid=shape.cid("descriptor_cid"),
        root_cid=shape.cid("root_cid"),
        document=document,
    )


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
