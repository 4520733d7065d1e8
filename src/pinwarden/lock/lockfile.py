"""``mcp-lock.json``, lockfileVersion 2: which server, for which client, from which bytes, showing which tools.

The file is ToolPin's, byte for byte, plus two members that ToolPin ignores: ``capabilityManifest.pinwarden`` in an
entry (see ``lock_extension``) and ``pinwarden`` at the top, the *seal*. The seal lists the digest of every entry and
its own ``integrity`` covers that list and all else in the file, so that nothing is outside some integrity value and
an entry cannot be removed unseen. ToolPin drops the seal when it rewrites the file; then the file says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.json_pointer import escape_pointer_token
from pinwarden.core.record import Record, field, replace
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.entry import EXTENSION, LOCK_LIMITS, Entry, integrity_payload, whole_digest
from pinwarden.lock.shape import check_shape, invalid

FILE_NAME = "mcp-lock.json"
VERSION = 2
SEAL_FORMAT = "pinwarden-lock/1"
_SEAL_MEMBERS = ("format", "entries", "integrity")


class Lock(Record):
    """A lockfile: its entries in the order of the file, and every other member as it was read."""

    generated_at: str
    updated_at: str | None
    entries: tuple[Entry, ...]
    seal: Mapping[str, Any] | None = None
    """Our top-level member as the file states it; None in a plain v2 file."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Unknown top-level members."""

    def entry(self, name: str, client: str) -> Entry | None:
        """The entry of a server for a client."""
        key = lock_entry.entry_key(name, client)
        return next((entry for entry in self.entries if entry.key == key), None)

    def by_key(self) -> dict[str, Entry]:
        """All entries by key."""
        return {entry.key: entry for entry in self.entries}

    @property
    def is_extended(self) -> bool:
        """Whether anything of ours is in the file."""
        return self.seal is not None or any(EXTENSION in entry.manifest for entry in self.entries)


def parse(data: bytes) -> Lock:
    """Read a lockfile strictly. Reading does not verify: see ``lock_verification.verify``."""
    document = strict_json.parse_json(data, LOCK_LIMITS)
    if not isinstance(document, dict):
        invalid("", "is not an object")
    _check_version(document)
    if not isinstance(document.get("generatedAt"), str):
        invalid("/generatedAt", "is not text")
    if not isinstance(document.get("updatedAt", ""), str):
        invalid("/updatedAt", "is not text")
    servers, seal = document.get("servers"), document.get(EXTENSION)
    if not isinstance(servers, dict):
        invalid("/servers", "is not an object")
    if EXTENSION in document and not isinstance(seal, dict):
        invalid(f"/{EXTENSION}", "is not an object")
    for key, entry in servers.items():
        check_shape(entry, f"/servers/{escape_pointer_token(key)}")
    known = ("lockfileVersion", "generatedAt", "updatedAt", "servers", EXTENSION)
    return Lock(
        generated_at=document["generatedAt"],
        updated_at=document.get("updatedAt"),
        entries=tuple(Entry(key=key, document=entry) for key, entry in servers.items()),
        seal=seal,
        others={member: value for member, value in document.items() if member not in known},
    )


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("lockfileVersion")
    if isinstance(version, int | float) and not isinstance(version, bool) and version == VERSION:
        return
    hint = None
    if version == 1:
        hint = "Version 1 records too little to be trusted. Lock the servers again; the old file is not needed."
    message = f"is {str(version)[:40]!a}, not {VERSION}" if "lockfileVersion" in document else "is missing"
    raise PinwardenError("LOCK_VERSION_UNSUPPORTED", f"lockfileVersion {message}", hint=hint)


def to_bytes(lock: Lock, *, plain_v2: bool = False) -> bytes:
    """The file as ``JSON.stringify`` would write it. ``plain_v2`` leaves out all that v2 does not know."""
    return encode_javascript_json(_document(plain(lock) if plain_v2 else lock))


def _document(lock: Lock) -> dict[str, Any]:
    document = _header(lock)
    document["servers"] = {entry.key: entry.document for entry in lock.entries}
    if lock.seal is not None:
        document[EXTENSION] = lock.seal
    return {**document, **lock.others}


def _header(lock: Lock) -> dict[str, Any]:
    header: dict[str, Any] = {"lockfileVersion": VERSION, "generatedAt": lock.generated_at}
    if lock.updated_at is not None:
        header["updatedAt"] = lock.updated_at
    return header


def digest(lock: Lock) -> str:
    """ToolPin's whole-lock digest: all entries and their keys, without timestamps of the file and what v2 ignores."""
    servers = {entry.key: integrity_payload(entry.document) for entry in lock.entries}
    payload = {"lockfileVersion": VERSION, "servers": servers}
    return Digest.of_bytes(canonicalize(payload, "toolpin", LOCK_LIMITS)).sri


def plain(lock: Lock) -> Lock:
    """The lock with nothing but the members of v2."""
    return replace(lock, entries=tuple(lock_entry.plain(entry) for entry in lock.entries), seal=None, others={})


def sealed(lock: Lock) -> Lock:
    """The lock with a fresh seal of the whole file. Entries are listed as they are; none is touched."""
    kept = {member: value for member, value in (lock.seal or {}).items() if member not in _SEAL_MEMBERS}
    seal = {"format": SEAL_FORMAT, "entries": {entry.key: whole_digest(entry) for entry in lock.entries}, **kept}
    return replace(lock, seal={**seal, "integrity": seal_integrity(replace(lock, seal=seal))})


def seal_integrity(lock: Lock) -> str:
    """The digest of everything in the file but the entries, whose digests the seal lists, and itself."""
    seal = {member: value for member, value in (lock.seal or {}).items() if member != "integrity"}
    content = {**_header(lock), EXTENSION: seal, "others": lock.others}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri
