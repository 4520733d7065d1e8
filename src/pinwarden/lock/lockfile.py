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
from pinwarden.core.text import lazy_pattern, parse_timestamp
from pinwarden.core.typed_json import JsonObject
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.entry import (
    EXTENSION,
    LOCK_LIMITS,
    Entry,
    build_entry_key,
    build_integrity_payload,
    check_shape,
    compute_entry_digest,
    compute_entry_integrity,
    compute_payload_integrity,
    has_expected_key,
    list_uncovered_paths,
    lock_error,
    raise_invalid,
    remove_approval_time,
    reorder_like_toolpin,
)
from pinwarden.lock.extension import ClosurePin, FilePin, SkillsPin, SurfacePin, pin_surface, read_extension

FILE_NAME = "mcp-lock.json"
VERSION = 2
SEAL_FORMAT = "pinwarden-lock/1"
_SEAL_MEMBERS = ("format", "entries", "integrity")
_SKILLS = "skills"
_SKILLS_PATH = lazy_pattern(r"[^./\\:*?\"<>|\x00-\x1f][^/\\:*?\"<>|\x00-\x1f]*\.skills\.json")


class Lock(Record):
    """A lockfile: entries in file order, and every other member as it was read."""

    generated_at: str
    updated_at: str | None
    entries: tuple[Entry, ...]
    seal: Mapping[str, Any] | None = None
    """Pinwarden's top-level member as it was read; None in a plain v2 file."""
    unknown_members: Mapping[str, Any] = field(default_factory=dict)
    """Unknown top-level members."""

    def find_entry(self, name: str, client: str) -> Entry | None:
        """Return the entry of a server for a client; None if the lock has none."""
        key = lock_entry.build_entry_key(name, client)
        return next((entry for entry in self.entries if entry.key == key), None)

    def entries_by_key(self) -> dict[str, Entry]:
        """Return all entries by key."""
        return {entry.key: entry for entry in self.entries}

    @property
    def is_extended(self) -> bool:
        """Whether the file has any Pinwarden member."""
        return self.seal is not None or any(EXTENSION in entry.manifest for entry in self.entries)


def parse(data: bytes) -> Lock:
    """Parse a lockfile strictly. `verify` checks its digests."""
    document = strict_json.parse_json(data, LOCK_LIMITS)
    if not isinstance(document, dict):
        raise_invalid("", "is not an object")
    _check_version(document)
    if not isinstance(document.get("generatedAt"), str):
        raise_invalid("/generatedAt", "is not text")
    if not isinstance(document.get("updatedAt", ""), str):
        raise_invalid("/updatedAt", "is not text")
    servers, seal = document.get("servers"), document.get(EXTENSION)
    if not isinstance(servers, dict):
        raise_invalid("/servers", "is not an object")
    if EXTENSION in document and not isinstance(seal, dict):
        raise_invalid(f"/{EXTENSION}", "is not an object")
    for key, entry in servers.items():
        check_shape(entry, f"/servers/{escape_pointer_token(key)}")
    known_members = ("lockfileVersion", "generatedAt", "updatedAt", "servers", EXTENSION)
    return Lock(
        generated_at=document["generatedAt"],
        updated_at=document.get("updatedAt"),
        entries=tuple(Entry(key=key, document=entry) for key, entry in servers.items()),
        seal=seal,
        unknown_members={member: value for member, value in document.items() if member not in known_members},
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
    """Return the file as ``JSON.stringify`` would write it. ``plain_v2`` omits members that are not in version 2."""
    return encode_javascript_json(_build_document(to_plain_v2(lock) if plain_v2 else lock))


def _build_document(lock: Lock) -> dict[str, Any]:
    document = _build_header(lock)
    document["servers"] = {entry.key: entry.document for entry in lock.entries}
    if lock.seal is not None:
        document[EXTENSION] = lock.seal
    return {**document, **lock.unknown_members}


def _build_header(lock: Lock) -> dict[str, Any]:
    header: dict[str, Any] = {"lockfileVersion": VERSION, "generatedAt": lock.generated_at}
    if lock.updated_at is not None:
        header["updatedAt"] = lock.updated_at
    return header


def compute_lock_digest(lock: Lock) -> str:
    """Return ToolPin's lock digest over keys and entries, without the file's timestamps and members that v2 ignores."""
    servers = {entry.key: build_integrity_payload(entry.document) for entry in lock.entries}
    payload = {"lockfileVersion": VERSION, "servers": servers}
    return Digest.of_bytes(canonicalize(payload, "toolpin", LOCK_LIMITS)).sri


def to_plain_v2(lock: Lock) -> Lock:
    """Return the lock without members that lockfileVersion 2 does not define."""
    return replace(
        lock, entries=tuple(lock_entry.to_plain_entry(entry) for entry in lock.entries), seal=None, unknown_members={}
    )


def seal_lock(lock: Lock) -> Lock:
    """Return the lock with a new seal over the whole file. Entries do not change."""
    other_members = {member: value for member, value in (lock.seal or {}).items() if member not in _SEAL_MEMBERS}
    seal = {
        "format": SEAL_FORMAT,
        "entries": {entry.key: compute_entry_digest(entry) for entry in lock.entries},
        **other_members,
    }
    return replace(lock, seal={**seal, "integrity": compute_seal_integrity(replace(lock, seal=seal))})


def compute_seal_integrity(lock: Lock) -> str:
    """Return the digest of the file's header, unknown members and seal, without the seal's own ``integrity``."""
    seal = {member: value for member, value in (lock.seal or {}).items() if member != "integrity"}
    content = {**_build_header(lock), EXTENSION: seal, "others": lock.unknown_members}
    return Digest.of_bytes(canonicalize(content, "jcs", LOCK_LIMITS)).sri


# Update


# Locking again writes a missing seal, and an empty file has nothing that could be tampered with.
_FIXED_BY_LOCKING = frozenset({"no_entries", "seal_missing"})
_TIME_MEMBERS = frozenset({"generatedAt", "verifiedAt"})


def put_entries(old: Lock | None, new_entries: Iterable[Entry], now: str, *, plain_v2: bool = False) -> Lock:
    """Return the lock with these entries added or replaced. If nothing changes, the result *is* ``old``.

    An entry that differs only in timestamps is kept as it was approved, with its bytes. Raises
    LOCK_TAMPERED if an entry that stays was edited by another program: sealing the file again would approve the edit.
    """
    finish = to_plain_v2 if plain_v2 else seal_lock
    fresh = {entry.key: lock_entry.to_plain_entry(entry) if plain_v2 else entry for entry in new_entries}
    if old is None:
        return finish(Lock(generated_at=now, updated_at=now, entries=tuple(fresh.values())))
    _refuse_tampered(verify(old), replaced=fresh)
    if plain_v2:
        old_plain = to_plain_v2(old)
        old = old if old_plain == old else old_plain
    earlier = {entry.key: entry for entry in old.entries}
    changed = {
        key: entry for key, entry in fresh.items() if key not in earlier or not _is_unchanged(earlier[key], entry)
    }
    if not changed and (plain_v2 or old.seal is not None or not old.is_extended):
        return old
    entries = {
        key: reorder_like_toolpin(entry) for key, entry in earlier.items()
    } | changed  # a replaced entry keeps its place
    return finish(replace(old, updated_at=now, entries=tuple(entries.values())))


def remove_entries(old: Lock, keys: Iterable[str], now: str) -> Lock:
    """Return the lock without these entries; the result *is* ``old`` if it has none of them."""
    removed = frozenset(keys)
    _refuse_tampered(verify(old), replaced=removed)
    remaining = tuple(reorder_like_toolpin(entry) for entry in old.entries if entry.key not in removed)
    if len(remaining) == len(old.entries):
        return old
    lock = replace(old, updated_at=now, entries=remaining)
    return seal_lock(lock) if old.is_extended else lock


def put_skills_pin(old: Lock | None, pin: SkillsPin | None, now: str) -> Lock:
    """Return the lock with this pin of the approved skills, or without. If nothing changes, the result *is* ``old``.

    Raises LOCK_TAMPERED if another program edited the lock: sealing the file again would approve the edit.
    """
    if old is not None:
        _refuse_tampered(verify(old), replaced=())
        if read_skills_pin(old) == pin:
            return old
    lock = replace(old, updated_at=now) if old is not None else Lock(generated_at=now, updated_at=now, entries=())
    members = {member: value for member, value in (lock.seal or {}).items() if member != _SKILLS}
    if pin is not None:
        members[_SKILLS] = {"path": pin.path, "digest": str(pin.file_digest)}
    return seal_lock(replace(lock, seal=members))


def read_skills_pin(lock: Lock) -> SkillsPin | None:
    """Return the pin of the approved skills in the seal; None if it has none. Raises LOCK_INVALID if it is damaged."""
    if lock.seal is None or _SKILLS not in lock.seal:
        return None
    record = JsonObject(lock.seal[_SKILLS], f"/{EXTENSION}/{_SKILLS}", lock_error)
    return SkillsPin(
        path=record.string("path", _SKILLS_PATH, kind="a skills file"),
        file_digest=record.parse_string("digest", Digest.parse),
    )


def _refuse_tampered(problems: Iterable[LockProblem], replaced: Iterable[str]) -> None:
    """Raise LOCK_TAMPERED for problems outside the replaced entries.

    Entries are compared by key, because a forged entry may have the name of a real server under another key.
    """
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
        return _encode_without_times(old) == _encode_without_times(new)
    except PinwardenError:
        return False


def _encode_without_times(entry: Entry) -> bytes:
    """Return the canonical bytes of an entry, without members that change when the same release is locked again."""
    document = {
        member: value
        for member, value in entry.document.items()
        if member not in ("resolvedAt", "lockedAt", "integrity", "locked")
    }
    document["trust"] = _remove_times(entry.trust)
    manifest = {member: value for member, value in entry.manifest.items() if member != EXTENSION}
    document["capabilityManifest"] = _remove_times(manifest)
    if EXTENSION in entry.manifest:
        document[EXTENSION] = remove_approval_time(entry.manifest[EXTENSION])
    return canonicalize(document, "jcs", LOCK_LIMITS)


def _remove_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {member: _remove_times(inner) for member, inner in value.items() if member not in _TIME_MEMBERS}
    if isinstance(value, list):
        return [_remove_times(inner) for inner in value]
    return value


# Verify


PROBLEMS: Mapping[str, str] = {
    "no_entries": "the lockfile has no entries",
    "entry_key_mismatch": "the entry's key does not match its name and client",
    "integrity_missing": "the entry has no integrity value",
    "integrity_mismatch": "the entry does not match its integrity value",
    "locked_copy_differs": "the locked copy differs from the entry",
    "entry_inconsistent": "members of the entry name different servers or versions",
    "member_unprotected": "no integrity value covers this member",
    "timestamps_inconsistent": "the file's timestamp is older than its entries",
    "not_canonical": "the entry or its key has no single canonical form",
    "entry_seal_missing": "the Pinwarden extension of the entry has no seal",
    "entry_seal_mismatch": "the entry does not match its seal",
    "seal_missing": "the entries have the Pinwarden extension, but the file has no seal: another tool rewrote it",
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
    "skills_missing": "the file with the approved skills is missing",
    "skills_mismatch": "the file with the approved skills does not match its pin",
}
INFO_CODES: frozenset[str] = frozenset({"timestamps_inconsistent"})
"""Problems that do not prevent the use of a lock. A wrong clock can cause them."""
_MAX_SHARED_FILE_SKEW = timedelta(days=1)  # clocks of machines that share a file differ


class LockProblem(Record):
    """One problem of a lock; ``path`` is a JSON Pointer into the lockfile."""

    code: str
    path: str
    detail: str = ""
    server: str | None = None
    client: str | None = None

    @property
    def level(self) -> str:
        """``critical``, or ``info`` for problems that do not prevent the use of the lock."""
        return "info" if self.code in INFO_CODES else "critical"

    @property
    def message(self) -> str:
        """The problem as a sentence."""
        return PROBLEMS[self.code] + (f": {self.detail}" if self.detail else "")


def verify(lock: Lock, *, require_extension: bool = False) -> tuple[LockProblem, ...]:
    """Check the digests, seals and consistency of a lock. Return all problems; none if the lock is intact.

    Removing the Pinwarden extension from a file leaves a valid v2 file. ``require_extension`` reports entries without
    it, for locks that are known to have been written by Pinwarden.
    """
    problems: list[LockProblem] = []
    if not lock.entries and not (lock.seal is not None and _SKILLS in lock.seal):
        problems.append(LockProblem(code="no_entries", path="/servers"))
    seal_holds = _check_seal(lock, problems)
    for entry in lock.entries:
        problems += _check_entry(entry, seal_holds=seal_holds, required=require_extension)
    if not seal_holds:
        problems += (
            LockProblem(code="member_unprotected", path=f"/{escape_pointer_token(member)}", detail=repr(member)[:80])
            for member in lock.unknown_members
        )
    problems += _check_key_uniqueness(lock.entries)
    problems += _check_timestamps(lock)
    problems += _check_file_conflicts(lock.entries)
    return tuple(problems)


def select_critical(problems: Iterable[LockProblem]) -> tuple[LockProblem, ...]:
    """Return the problems that prevent the use of a lock."""
    return tuple(problem for problem in problems if problem.level == "critical")


def refuse_if_tampered(problems: Iterable[LockProblem]) -> None:
    """Raise LOCK_TAMPERED if there is any critical problem."""
    critical_problems = select_critical(problems)
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


def _check_entry(entry: Entry, *, seal_holds: bool, required: bool) -> Iterator[LockProblem]:
    path = f"/servers/{escape_pointer_token(entry.key)}"

    def build_problem(code: str, step: str = "", detail: str = "") -> LockProblem:
        return LockProblem(code=code, path=path + step, detail=detail, server=entry.name, client=entry.client)

    if not has_expected_key(entry):
        yield build_problem("entry_key_mismatch", detail=f"{build_entry_key(entry.name, entry.client)[:120]!a}")
    payload = build_integrity_payload(entry.document)
    try:
        if entry.integrity is None:
            yield build_problem("integrity_missing", "/integrity")
        elif entry.integrity != compute_payload_integrity(payload):
            yield build_problem("integrity_mismatch", "/integrity")
        record_holds = False
        if EXTENSION in entry.manifest:
            code = _check_entry_seal(entry)
            record_holds = code is None
            if code is not None:
                yield build_problem(code, f"/capabilityManifest/{EXTENSION}/integrity")
        elif required:
            yield build_problem("not_extended", f"/capabilityManifest/{EXTENSION}")
    except PinwardenError as err:
        if err.code != "JSON_CANONICALIZATION_ERROR":
            raise
        yield build_problem("not_canonical", detail=err.message)
        return
    for member in _list_differing_copies(entry):
        yield build_problem("locked_copy_differs", f"/locked/{member}")
    for step in _list_inconsistent_members(entry):
        yield build_problem("entry_inconsistent", step)
    if not (record_holds or seal_holds):
        for steps in list_uncovered_paths(entry.document, payload):
            yield build_problem("member_unprotected", "".join("/" + escape_pointer_token(step) for step in steps))


def _check_entry_seal(entry: Entry) -> str | None:
    read_extension(entry)  # raises if it is invalid
    integrity = entry.manifest[EXTENSION].get("integrity")
    if integrity is None:
        return "entry_seal_missing"
    return None if integrity == compute_entry_integrity(entry) else "entry_seal_mismatch"


def _list_differing_copies(entry: Entry) -> Iterator[str]:
    locked = entry.document.get("locked")
    if not isinstance(locked, dict):
        return
    originals = {
        "selectedTarget": entry.selected_target,
        "config": entry.config,
        "capabilityManifest": {name: value for name, value in entry.manifest.items() if name != EXTENSION},
    }
    for member, original in originals.items():
        if not is_same_json(locked.get(member), original if member in entry.document else None):
            yield member


def _list_inconsistent_members(entry: Entry) -> Iterator[str]:
    """Yield the paths of members that repeat the entry's name, version or client with another value."""
    identity = {"name": entry.name, "version": entry.version, "client": entry.client}
    for member, names in (
        ("resolved", {"name": "name", "version": "version"}),
        ("original", {"name": "name", "client": "client"}),
    ):
        claims = entry.document.get(member)
        for claim, fact in names.items():
            if isinstance(claims, dict) and claim in claims and claims[claim] != identity[fact]:
                yield f"/{member}/{claim}"


def is_same_json(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON. Python's ``==`` alone would treat 1 and true as equal."""
    if left != right:
        return False
    if repr(left) == repr(right):
        return True
    return canonicalize(left, "jcs", LOCK_LIMITS) == canonicalize(right, "jcs", LOCK_LIMITS)


# Verify the whole file


def _check_seal(lock: Lock, problems: list[LockProblem]) -> bool:
    """Whether the seal matches the file. Adds a problem for each entry that changed after the file was sealed."""
    path = f"/{EXTENSION}"
    seal = lock.seal
    if seal is None:
        if lock.is_extended:
            problems.append(LockProblem(code="seal_missing", path=path))
        return False
    digests = seal.get("entries")
    if seal.get("format") != SEAL_FORMAT or not isinstance(digests, dict):
        problems.append(LockProblem(code="seal_format_unknown", path=f"{path}/format"))
        return False
    before = len(problems)
    if seal.get("integrity") != compute_seal_integrity(lock):
        problems.append(LockProblem(code="seal_mismatch", path=f"{path}/integrity"))
    problems += _check_sealed_entries(lock.entries, digests)
    return len(problems) == before


def _check_sealed_entries(entries: Iterable[Entry], digests: Mapping[str, Any]) -> Iterator[LockProblem]:
    present = set()
    for entry in entries:
        present.add(entry.key)
        path = f"/servers/{escape_pointer_token(entry.key)}"
        if entry.key not in digests:
            code = "sealed_entry_added"
        elif digests[entry.key] != _try_compute_entry_digest(entry):
            code = "sealed_entry_changed"
        else:
            continue
        yield LockProblem(code=code, path=path, server=entry.name, client=entry.client)
    for key in digests:
        if key not in present:
            step = f"/{EXTENSION}/entries/{escape_pointer_token(key)}"
            yield LockProblem(code="sealed_entry_removed", path=step, detail=f"{key[:120]!a}")


def _try_compute_entry_digest(entry: Entry) -> str | None:
    try:
        return compute_entry_digest(entry)
    except PinwardenError:
        return None


def _check_key_uniqueness(entries: Iterable[Entry]) -> Iterator[LockProblem]:
    """Report keys that are equal after Unicode normalisation, because ToolPin cannot digest such a file."""
    seen: set[str] = set()
    for entry in entries:
        normal = entry.key if entry.key.isascii() else normalize("NFC", entry.key)
        if normal in seen:
            path = f"/servers/{escape_pointer_token(entry.key)}"
            detail = "another key is equal after Unicode normalisation"
            yield LockProblem(code="not_canonical", path=path, detail=detail, server=entry.name, client=entry.client)
        seen.add(normal)


def _check_timestamps(lock: Lock) -> Iterator[LockProblem]:
    """Report an entry or ``generatedAt`` that is later than ``updatedAt``, by more than clocks may differ."""
    updated = parse_timestamp(lock.updated_at)
    newest = max((time for entry in lock.entries if (time := parse_timestamp(entry.locked_at))), default=None)
    if updated and newest and newest - updated > _MAX_SHARED_FILE_SKEW:
        yield LockProblem(code="timestamps_inconsistent", path="/updatedAt")
    generated = parse_timestamp(lock.generated_at)
    if generated and updated and generated - updated > _MAX_SHARED_FILE_SKEW:
        yield LockProblem(code="timestamps_inconsistent", path="/generatedAt")


def _check_file_conflicts(entries: Iterable[Entry]) -> Iterator[LockProblem]:
    pinned: dict[str, Any] = {}
    for entry in entries:
        record = entry.manifest.get(EXTENSION)
        extension = read_extension(entry) if record is not None else None
        if extension is None:
            continue
        for member, pin in (("surface", extension.surface), ("closure", extension.closure)):
            if pin is not None and pinned.setdefault(pin.path, pin.file_digest) != pin.file_digest:
                path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}/{member}/file"
                code = _CONFLICT_CODES[member]
                yield LockProblem(code=code, path=path, detail=pin.path, server=entry.name, client=entry.client)


# Verify the files next to the lock

_CONFLICT_CODES = {"surface": "surface_conflict", "closure": "closure_conflict"}
_MISSING_CODES = {"surface": "surface_missing", "closure": "closure_missing"}
_MISMATCH_CODES = {"surface": "surface_mismatch", "closure": "closure_mismatch"}


def list_file_pins(lock: Lock) -> Iterator[tuple[Entry, str, SurfacePin | ClosurePin]]:
    """Yield the pinned files next to the lock, each as entry, member name (``surface`` or ``closure``) and pin."""
    for entry in lock.entries:
        extension = read_extension(entry)
        if extension is not None and extension.surface is not None:
            yield entry, "surface", extension.surface
        if extension is not None and extension.closure is not None:
            yield entry, "closure", extension.closure


def list_pins(lock: Lock) -> Iterator[FilePin]:
    """Yield the pins of all files next to the lock: approved surfaces, dependency closures, and the approved skills."""
    yield from (pin for _, _, pin in list_file_pins(lock))
    skills = read_skills_pin(lock)
    if skills is not None:
        yield skills


def verify_files(lock: Lock, files: Mapping[str, bytes], *, parse: bool = True) -> tuple[LockProblem, ...]:
    """Compare the files next to the lock, by path, with their pins.

    Without ``parse`` only their digests are compared, which is faster. The seal of the lock covers these digests.
    """
    problems: list[LockProblem] = []
    for entry, member, pin in list_file_pins(lock):
        detail = ""
        if pin.path not in files:
            code = _MISSING_CODES[member]
        else:
            detail = _compare_with_pin(pin, files[pin.path], parse=parse)
            code = _MISMATCH_CODES[member] if detail else ""
        if code:
            path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}/{member}"
            detail = detail or pin.path
            problems.append(LockProblem(code=code, path=path, detail=detail, server=entry.name, client=entry.client))
    skills = read_skills_pin(lock)
    if skills is not None and (skills.path not in files or Digest.of_bytes(files[skills.path]) != skills.file_digest):
        code = "skills_mismatch" if skills.path in files else "skills_missing"
        problems.append(LockProblem(code=code, path=f"/{EXTENSION}/{_SKILLS}", detail=skills.path))
    return tuple(problems)


def _compare_with_pin(pin: SurfacePin | ClosurePin, data: bytes, *, parse: bool) -> str:
    if Digest.of_bytes(data) != pin.file_digest:
        return f"{pin.path} does not have the pinned digest"
    if not parse:
        return ""
    return _compare_closure(pin, data) if isinstance(pin, ClosurePin) else _compare_surface(pin, data)


def _compare_closure(pin: ClosurePin, data: bytes) -> str:
    from pinwarden.lock import closure

    try:
        actual = closure.parse(data)
    except PinwardenError as err:
        return f"{pin.path}: {err.message}"
    return "" if len(actual.packages) == pin.packages else f"{pin.path} has another number of packages"


def _compare_surface(pin: SurfacePin, data: bytes) -> str:
    from pinwarden.surface import surface as surface_document

    try:
        actual = pin_surface(surface_document.parse_surface(data), pin.path)
    except PinwardenError as err:
        return f"{pin.path}: {err.message}"
    return "" if actual == pin else f"{pin.path} has items with other digests"
