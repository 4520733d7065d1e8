"""Update the entries of a lock. Unchanged entries keep their bytes, so diffs stay small and signatures stay valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_pointer import escape_pointer_token
from pinwarden.core.record import replace
from pinwarden.lock.entry import EXTENSION, LOCK_LIMITS, Entry, as_reread, without_approval_time
from pinwarden.lock.entry import plain as plain_entry
from pinwarden.lock.lockfile import Lock, plain, sealed
from pinwarden.lock.verification import Problem, refuse_if_tampered, verify

# Locking again writes a missing seal, and an empty file holds nothing that could be tampered with.
_HEALED_BY_LOCKING = frozenset({"no_entries", "seal_missing"})
_TIMES = frozenset({"generatedAt", "verifiedAt"})


def relock(old: Lock | None, new_entries: Iterable[Entry], now: str, *, plain_v2: bool = False) -> Lock:
    """The lock with these entries in it. If they say nothing new, the result *is* ``old``.

    An entry that differs only in its times is kept as it was approved. Entries that are not mentioned stay. A lock
    that is not whole is refused, unless all that is wrong with it is replaced here: to seal it again would turn what
    somebody else wrote into what was approved.
    """
    finish = plain if plain_v2 else sealed
    fresh = {entry.key: plain_entry(entry) if plain_v2 else entry for entry in new_entries}
    if old is None:
        return finish(Lock(generated_at=now, updated_at=now, entries=tuple(fresh.values())))
    _refuse_tampered(verify(old), replaced=fresh)
    if plain_v2:
        old_plain = plain(old)
        old = old if old_plain == old else old_plain
    kept = {entry.key: entry for entry in old.entries}
    changed = {key: entry for key, entry in fresh.items() if key not in kept or not _says_the_same(kept[key], entry)}
    if not changed and (plain_v2 or old.seal is not None or not old.is_extended):
        return old
    entries = {key: as_reread(entry) for key, entry in kept.items()} | changed  # a replaced entry keeps its place
    return finish(replace(old, updated_at=now, entries=tuple(entries.values())))


def without(old: Lock, keys: Iterable[str], now: str) -> Lock:
    """The lock without these entries; the result is ``old`` if it has none of them."""
    gone = frozenset(keys)
    _refuse_tampered(verify(old), replaced=gone)
    rest = tuple(as_reread(entry) for entry in old.entries if entry.key not in gone)
    if len(rest) == len(old.entries):
        return old
    lock = replace(old, updated_at=now, entries=rest)
    return sealed(lock) if old.is_extended else lock


def _refuse_tampered(problems: Iterable[Problem], replaced: Iterable[str]) -> None:
    """By place and not by server: a forged entry under another key is not replaced by the honest one."""
    places = tuple(
        f"{parent}/{escape_pointer_token(key)}" for key in replaced for parent in ("/servers", f"/{EXTENSION}/entries")
    )
    refuse_if_tampered(
        problem
        for problem in problems
        if problem.code not in _HEALED_BY_LOCKING
        and not any(problem.path == place or problem.path.startswith(place + "/") for place in places)
    )


def _says_the_same(old: Entry, new: Entry) -> bool:
    try:
        return _timeless(old) == _timeless(new)
    except PinwardenError:
        return False


def _timeless(entry: Entry) -> bytes:
    """An entry without all that changes when the same thing is locked again."""
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
