"""``mcp-lock.json``, lockfileVersion 2: parse, write, update and verify it.

The file is ToolPin's, byte for byte, plus two members that ToolPin ignores: ``capabilityManifest.pinwarden`` in an
entry (``extension.py``) and ``pinwarden`` at the top, the *seal*. The seal lists the digest of every entry, and its
``integrity`` covers that list and everything else in the file, so no part of the file is without an integrity value and
removing an entry is detected. ToolPin drops the seal when it rewrites the file; `verify` reports that.

Anyone can compute an unkeyed digest, so a clean result of `verify` means that the file is complete and consistent, not
who wrote it. Signatures show that (``signature.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from unicodedata import normalize

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import parse_timestamp
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.entry import (
    EXTENSION,
    LOCK_LIMITS,
    Entry,
    as_reread,
    check_shape,
    entry_key,
    integrity_of_payload,
    integrity_payload,
    invalid,
    seal_of,
    uncovered,
    whole_digest,
    without_approval_time,
)
from pinwarden.lock.extension import ClosurePin, FilePin, SurfacePin, extension_of, pin_surface

FILE_NAME = "mcp-lock.json"
VERSION = 2
SEAL_FORMAT = "pinwarden-lock/1"
_SEAL_MEMBERS = ("format", "entries", "integrity")


class Lock(Record):
    """A lockfile: entries in file order, and every other member as it was read."""

    generated_at: str
    updated_at: str | None
    entries: tuple[Entry, ...]
    seal: Mapping[str, Any] | None = None
    """Pinwarden's top-level member as it was read; None in a plain v2 file."""
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
        """Whether the file has any Pinwarden member."""
        return self.seal is not None or any(EXTENSION in entry.manifest for entry in self.entries)


def parse(data: bytes) -> Lock:
    """Parse a lockfile strictly. `verify` checks its digests."""
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
    known_members = ("lockfileVersion", "generatedAt", "updatedAt", "servers", EXTENSION)
    return Lock(
        generated_at=document["generatedAt"],
        updated_at=document.get("updatedAt"),
        entries=tuple(Entry(key=key, document=entry) for key, entry in servers.items()),
        seal=seal,
        others={member: value for member, value in document.items() if member not in known_members},
    )


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("lockfileVersion")
    if isinstance(version, int | float) and not isinstance(version, bool) and version == VERSION:
        return
    hint = None
    if version == 1:
        hint = "Version 1 records too little to be trusted. Delete the file and lock the servers again."
    message = f"is {str(version)[:40]!a}, not {VERSION}" if "lockfileVersion" in document else "is missing"
    raise PinwardenError("LOCK_VERSION_UNSUPPORTED", f"lockfileVersion {message}", hint=hint)


def to_bytes(lock: Lock, *, plain_v2: bool = False) -> bytes:
    """The file as ``JSON.stringify`` would write it. ``plain_v2`` leaves out members that are not in version 2."""
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
    """ToolPin's whole-lock digest: entries and keys, without the file's timestamps and members that v2 ignores."""
    servers = {entry.key: integrity_payload(entry.document) for entry in lock.entries}
    payload = {"lockfileVersion": VERSION, "servers": servers}
    return Digest.of_bytes(canonicalize(payload, "toolpin", LOCK_LIMITS)).sri


def plain(lock: Lock) -> Lock:
    """The lock with the members of version 2 only."""
    return replace(lock, entries=tuple(lock_entry.plain(entry) for entry in lock.entries), seal=None, others={})


def sealed(lock: Lock) -> Lock:
    """The lock with a new seal over the whole file. Entries do not change."""
    other_members = {member: value for member, value in (lock.seal or {}).items() if member not in _SEAL_MEMBERS}
    seal = {
        "format": SEAL_FORMAT,
        "entries": {entry.key: whole_digest(entry) for entry in lock.entries},
        **other_members,
    }
    return replace(lock, seal={**seal, "integrity": seal_integrity(replace(lock, seal=seal))})


def seal_integrity(lock: Lock) -> str:
    """The digest over the seal (without this digest), which lists the entries' digests, and all other members."""
    seal = {member: value for member, value in (lock.seal or {}).items() if member != "integrity"}
    content = {**_header(lock), EXTENSION: seal, "others": lock.others}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri


# Update


# Locking again writes a missing seal, and an empty file has nothing that could be tampered with.
_FIXED_BY_LOCKING = frozenset({"no_entries", "seal_missing"})
_TIMES = frozenset({"generatedAt", "verifiedAt"})


def relock(old: Lock | None, new_entries: Iterable[Entry], now: str, *, plain_v2: bool = False) -> Lock:
    """The lock with these entries added or replaced. If nothing changes, the result *is* ``old``.

    An entry that differs only in timestamps is kept as it was approved, with its bytes. A tampered lock is refused
    unless every problem is in an entry that is replaced: sealing it again would approve what another program wrote.
    """
    finish = plain if plain_v2 else sealed
    fresh = {entry.key: lock_entry.plain(entry) if plain_v2 else entry for entry in new_entries}
    if old is None:
        return finish(Lock(generated_at=now, updated_at=now, entries=tuple(fresh.values())))
    _refuse_tampered(verify(old), replaced=fresh)
    if plain_v2:
        old_plain = plain(old)
        old = old if old_plain == old else old_plain
    earlier = {entry.key: entry for entry in old.entries}
    changed = {
        key: entry for key, entry in fresh.items() if key not in earlier or not _is_unchanged(earlier[key], entry)
    }
    if not changed and (plain_v2 or old.seal is not None or not old.is_extended):
        return old
    entries = {key: as_reread(entry) for key, entry in earlier.items()} | changed  # a replaced entry keeps its place
    return finish(replace(old, updated_at=now, entries=tuple(entries.values())))


def without(old: Lock, keys: Iterable[str], now: str) -> Lock:
    """The lock without these entries; the result *is* ``old`` if it has none of them."""
    removed = frozenset(keys)
    _refuse_tampered(verify(old), replaced=removed)
    remaining = tuple(as_reread(entry) for entry in old.entries if entry.key not in removed)
    if len(remaining) == len(old.entries):
        return old
    lock = replace(old, updated_at=now, entries=remaining)
    return sealed(lock) if old.is_extended else lock


def _refuse_tampered(problems: Iterable[Problem], replaced: Iterable[str]) -> None:
    """Compare paths, not servers: a forged entry under another key is not replaced by the real one."""
    paths = tuple(
        f"{parent}/{escape_pointer_token(key)}" for key in replaced for parent in ("/servers", f"/{EXTENSION}/entries")
    )
    refuse_if_tampered(
        problem
        for problem in problems
        if problem.code not in _FIXED_BY_LOCKING
        and not any(problem.path == path or problem.path.startswith(path + "/") for path in paths)
    )


def _is_unchanged(old: Entry, new: Entry) -> bool:
    try:
        return _timeless(old) == _timeless(new)
    except PinwardenError:
        return False


def _timeless(entry: Entry) -> bytes:
    """An entry without the members that change when the same release is locked again."""
    document = {
        member: value
        for member, value in entry.document.items()
        if member not in ("resolvedAt", "lockedAt", "integrity", "locked")
    }
    document["trust"] = _without_times(entry.trust)
    manifest = {member: value for member, value in entry.manifest.items() if member != EXTENSION}
    document["capabilityManifest"] = _without_times(manifest)
    if EXTENSION in entry.manifest:
        document[EXTENSION] = without_approval_time(entry.manifest[EXTENSION])
    return canonicalize(document, "jcs", LOCK_LIMITS)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {member: _without_times(inner) for member, inner in value.items() if member not in _TIMES}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    return value


# Verify


PROBLEMS: Mapping[str, str] = {
    "no_entries": "the lockfile has no entries",
    "entry_key_mismatch": "the entry's key is not its name and client",
    "integrity_missing": "the entry has no integrity value",
    "integrity_mismatch": "the entry does not match its integrity value",
    "locked_copy_differs": "the locked copy differs from the entry",
    "entry_inconsistent": "members of the entry name different servers or versions",
    "member_unprotected": "no integrity value covers this member",
    "timestamps_inconsistent": "the file's timestamp is older than its entries",
    "not_canonical": "the entry or its key has no single canonical form",
    "entry_seal_missing": "the Pinwarden extension of the entry has no seal",
    "entry_seal_mismatch": "the entry does not match its seal",
    "seal_missing": "the file has no seal although its entries are extended: another tool rewrote the file",
    "seal_format_unknown": "the seal of the file has an unknown format",
    "seal_mismatch": "the seal of the file does not match its members",
    "sealed_entry_changed": "the entry changed after the file was sealed",
    "sealed_entry_removed": "an entry was removed after the file was sealed",
    "sealed_entry_added": "the entry was added after the file was sealed",
    "not_extended": "the Pinwarden extension is required and missing",
    "surface_conflict": "two entries pin different surfaces in one file",
    "surface_missing": "the file with the approved surface is missing",
    "surface_mismatch": "the file with the approved surface does not match its pin",
    "closure_conflict": "two entries pin different dependency closures in one file",
    "closure_missing": "the file with the dependency closure is missing",
    "closure_mismatch": "the file with the dependency closure does not match its pin",
}
NOTES: frozenset[str] = frozenset({"timestamps_inconsistent"})
"""Problems that are information: a wrong clock explains them, and no integrity value depends on them."""
_MAX_CLOCK_SKEW = timedelta(days=1)  # clocks of machines that share a file differ


class Problem(Record):
    """One problem of a lock; ``path`` is a JSON Pointer into the lockfile."""

    code: str
    path: str
    detail: str = ""
    server: str | None = None
    client: str | None = None

    @property
    def level(self) -> str:
        """``critical``, or ``info`` for problems that do not prevent the use of the lock."""
        return "info" if self.code in NOTES else "critical"

    @property
    def message(self) -> str:
        """The problem as a sentence."""
        return PROBLEMS[self.code] + (f": {self.detail}" if self.detail else "")


def verify(lock: Lock, *, require_extension: bool = False) -> tuple[Problem, ...]:
    """Every problem of a lock; none if it is intact.

    Removing the Pinwarden extension from a file leaves a valid v2 file. ``require_extension`` reports entries without
    it, for locks that are known to have been written by Pinwarden.
    """
    problems: list[Problem] = []
    if not lock.entries:
        problems.append(Problem(code="no_entries", path="/servers"))
    seal_holds = _check_seal(lock, problems)
    for entry in lock.entries:
        problems += _entry_problems(entry, seal_holds=seal_holds, required=require_extension)
    if not seal_holds:
        problems += (
            Problem(code="member_unprotected", path=f"/{escape_pointer_token(member)}", detail=repr(member)[:80])
            for member in lock.others
        )
    problems += _equal_keys(lock.entries)
    problems += _timestamp_problems(lock)
    problems += _file_conflicts(lock.entries)
    return tuple(problems)


def critical(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems that prevent the use of a lock."""
    return tuple(problem for problem in problems if problem.level == "critical")


def refuse_if_tampered(problems: Iterable[Problem]) -> None:
    """Raise LOCK_TAMPERED if there is any critical problem."""
    critical_problems = critical(problems)
    if critical_problems:
        first = critical_problems[0]
        more = f" (and {len(critical_problems) - 1} more)" if len(critical_problems) > 1 else ""
        rows = [
            {"code": problem.code, "path": problem.path, "message": problem.message} for problem in critical_problems
        ]
        only_seal = all(problem.code == "seal_missing" for problem in critical_problems)
        raise PinwardenError(
            "LOCK_TAMPERED",
            f"{first.path[:200]}: {first.message}{more}",
            hint="Review what the other tool changed, then lock again to seal the file." if only_seal else None,
            data={"problems": rows},
        )


# Verify one entry


def _entry_problems(entry: Entry, *, seal_holds: bool, required: bool) -> Iterator[Problem]:
    path = f"/servers/{escape_pointer_token(entry.key)}"

    def problem(code: str, step: str = "", detail: str = "") -> Problem:
        return Problem(code=code, path=path + step, detail=detail, server=entry.name, client=entry.client)

    if entry.key != entry_key(entry.name, entry.client):
        yield problem("entry_key_mismatch", detail=f"{entry_key(entry.name, entry.client)[:120]!a}")
    payload = integrity_payload(entry.document)
    try:
        if entry.integrity is None:
            yield problem("integrity_missing", "/integrity")
        elif entry.integrity != integrity_of_payload(payload):
            yield problem("integrity_mismatch", "/integrity")
        record_holds = False
        if EXTENSION in entry.manifest:
            code = _entry_seal_problem(entry)
            record_holds = code is None
            if code is not None:
                yield problem(code, f"/capabilityManifest/{EXTENSION}/integrity")
        elif required:
            yield problem("not_extended", f"/capabilityManifest/{EXTENSION}")
    except PinwardenError as err:
        if err.code != "JSON_CANONICALIZATION_ERROR":
            raise
        yield problem("not_canonical", detail=err.message)
        return
    for member in _differing_copies(entry):
        yield problem("locked_copy_differs", f"/locked/{member}")
    for step in _inconsistent(entry):
        yield problem("entry_inconsistent", step)
    if not (record_holds or seal_holds):
        for steps in uncovered(entry.document, payload):
            yield problem("member_unprotected", "".join("/" + escape_pointer_token(step) for step in steps))


def _entry_seal_problem(entry: Entry) -> str | None:
    extension_of(entry)  # raises if it is invalid
    seal = entry.manifest[EXTENSION].get("integrity")
    if seal is None:
        return "entry_seal_missing"
    return None if seal == seal_of(entry) else "entry_seal_mismatch"


def _differing_copies(entry: Entry) -> Iterator[str]:
    locked = entry.document.get("locked")
    if not isinstance(locked, dict):
        return
    originals = {
        "selectedTarget": entry.selected_target,
        "config": entry.config,
        "capabilityManifest": {name: value for name, value in entry.manifest.items() if name != EXTENSION},
    }
    for member, original in originals.items():
        if not same_json(locked.get(member), original if member in entry.document else None):
            yield member


def _inconsistent(entry: Entry) -> Iterator[str]:
    """Members that repeat a fact must agree, even though each of them is hashed."""
    identity = {"name": entry.name, "version": entry.version, "client": entry.client}
    for member, names in (
        ("resolved", {"name": "name", "version": "version"}),
        ("original", {"name": "name", "client": "client"}),
    ):
        claims = entry.document.get(member)
        for claim, fact in names.items():
            if isinstance(claims, dict) and claim in claims and claims[claim] != identity[fact]:
                yield f"/{member}/{claim}"


def same_json(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON. Python's ``==`` alone would treat 1 and true as equal."""
    if left != right:
        return False
    if repr(left) == repr(right):
        return True
    return canonicalize(left, "jcs", LOCK_LIMITS) == canonicalize(right, "jcs", LOCK_LIMITS)


# Verify the whole file


def _check_seal(lock: Lock, problems: list[Problem]) -> bool:
    """Whether the seal matches the file. Adds a problem for each entry that changed since."""
    path = f"/{EXTENSION}"
    seal = lock.seal
    if seal is None:
        if lock.is_extended:
            problems.append(Problem(code="seal_missing", path=path))
        return False
    digests = seal.get("entries")
    if seal.get("format") != SEAL_FORMAT or not isinstance(digests, dict):
        problems.append(Problem(code="seal_format_unknown", path=f"{path}/format"))
        return False
    before = len(problems)
    if seal.get("integrity") != seal_integrity(lock):
        problems.append(Problem(code="seal_mismatch", path=f"{path}/integrity"))
    problems += _sealed_entry_problems(lock.entries, digests)
    return len(problems) == before


def _sealed_entry_problems(entries: Iterable[Entry], digests: Mapping[str, Any]) -> Iterator[Problem]:
    present = set()
    for entry in entries:
        present.add(entry.key)
        path = f"/servers/{escape_pointer_token(entry.key)}"
        if entry.key not in digests:
            code = "sealed_entry_added"
        elif digests[entry.key] != _whole_digest(entry):
            code = "sealed_entry_changed"
        else:
            continue
        yield Problem(code=code, path=path, server=entry.name, client=entry.client)
    for key in digests:
        if key not in present:
            step = f"/{EXTENSION}/entries/{escape_pointer_token(key)}"
            yield Problem(code="sealed_entry_removed", path=step, detail=f"{key[:120]!a}")


def _whole_digest(entry: Entry) -> str | None:
    try:
        return whole_digest(entry)
    except PinwardenError:
        return None


def _equal_keys(entries: Iterable[Entry]) -> Iterator[Problem]:
    """Keys that are equal after Unicode normalisation: such a file has no whole-lock digest."""
    seen: set[str] = set()
    for entry in entries:
        normal = entry.key if entry.key.isascii() else normalize("NFC", entry.key)
        if normal in seen:
            path = f"/servers/{escape_pointer_token(entry.key)}"
            detail = "another key is equal after Unicode normalisation"
            yield Problem(code="not_canonical", path=path, detail=detail, server=entry.name, client=entry.client)
        seen.add(normal)


def _timestamp_problems(lock: Lock) -> Iterator[Problem]:
    """A file older than its entries by more than clocks differ. Digests of a plain v2 file ignore timestamps."""
    updated = parse_timestamp(lock.updated_at)
    newest = max((time for entry in lock.entries if (time := parse_timestamp(entry.locked_at))), default=None)
    if updated and newest and newest - updated > _MAX_CLOCK_SKEW:
        yield Problem(code="timestamps_inconsistent", path="/updatedAt")
    generated = parse_timestamp(lock.generated_at)
    if generated and updated and generated - updated > _MAX_CLOCK_SKEW:
        yield Problem(code="timestamps_inconsistent", path="/generatedAt")


def _file_conflicts(entries: Iterable[Entry]) -> Iterator[Problem]:
    pinned: dict[str, Any] = {}
    for entry in entries:
        record = entry.manifest.get(EXTENSION)
        extension = extension_of(entry) if record is not None else None
        if extension is None:
            continue
        for member, pin in (("surface", extension.surface), ("closure", extension.closure)):
            if pin is not None and pinned.setdefault(pin.path, pin.file_digest) != pin.file_digest:
                path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}/{member}/file"
                code = f"{member}_conflict"
                yield Problem(code=code, path=path, detail=pin.path, server=entry.name, client=entry.client)


# Verify the files next to the lock


def file_pins(lock: Lock) -> Iterator[tuple[Entry, str, FilePin]]:
    """Every file next to the lock that is pinned: the entry, the member (surface or closure), and the pin."""
    for entry in lock.entries:
        extension = extension_of(entry)
        if extension is not None and extension.surface is not None:
            yield entry, "surface", extension.surface
        if extension is not None and extension.closure is not None:
            yield entry, "closure", extension.closure


def verify_files(lock: Lock, files: Mapping[str, bytes]) -> tuple[Problem, ...]:
    """Compare the files next to the lock, by path, with their pins."""
    problems: list[Problem] = []
    for entry, member, pin in file_pins(lock):
        detail = ""
        if pin.path not in files:
            code = f"{member}_missing"
        else:
            detail = _difference(pin, files[pin.path])
            code = f"{member}_mismatch" if detail else ""
        if code:
            path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}/{member}"
            detail = detail or pin.path
            problems.append(Problem(code=code, path=path, detail=detail, server=entry.name, client=entry.client))
    return tuple(problems)


def _difference(pin: FilePin, data: bytes) -> str:
    return _closure_difference(pin, data) if isinstance(pin, ClosurePin) else _surface_difference(pin, data)


def _closure_difference(pin: ClosurePin, data: bytes) -> str:
    from pinwarden.lock import closure

    if Digest.of_bytes(data) != pin.file_digest:
        return f"{pin.path} does not have the pinned digest"
    try:
        actual = closure.parse(data)
    except PinwardenError as err:
        return f"{pin.path}: {err.message}"
    return "" if len(actual.packages) == pin.packages else f"{pin.path} has another number of packages"


def _surface_difference(pin: SurfacePin, data: bytes) -> str:
    from pinwarden.surface import surface as surface_document

    if Digest.of_bytes(data) != pin.file_digest:
        return f"{pin.path} does not have the pinned digest"
    try:
        actual = pin_surface(surface_document.parse_surface(data), pin.path)
    except PinwardenError as err:
        return f"{pin.path}: {err.message}"
    return "" if actual == pin else f"{pin.path} has items with other digests"
