"""The digests that seal an entry with our record in it. Checking a plain lock needs no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.lock.entry import EXTENSION, LOCK_LIMITS, Entry


def seal_of(entry: Entry) -> str:
    """The digest of an entry, its key and everything in it, except the seal itself."""
    record = {member: value for member, value in entry.manifest[EXTENSION].items() if member != "integrity"}
    return whole_digest(with_record(entry, record))


def whole_digest(entry: Entry) -> str:
    """The digest of an entry, its key and everything in it."""
    content = {"key": entry.key, "entry": entry.document}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri


def without_approval_time(record: Mapping[str, Any]) -> dict[str, Any]:
    """Our record without what changes when the same thing is approved again: the seal and the time."""
    rest = {member: value for member, value in record.items() if member != "integrity"}
    if isinstance(rest.get("approval"), dict):
        rest["approval"] = {member: value for member, value in rest["approval"].items() if member != "at"}
    return rest


def with_record(entry: Entry, record: Mapping[str, Any]) -> Entry:
    """The entry with another record of ours in it."""
    manifest = {**entry.manifest, EXTENSION: record}
    return replace(entry, document={**entry.document, "capabilityManifest": manifest})
