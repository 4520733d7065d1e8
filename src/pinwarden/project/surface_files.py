"""Which file beside the lock keeps the approved text of which entry.

Entries share a file only while they approve the same text. A server may be locked for two clients at different times
and in different versions; writing the text of one must never take away the text of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock.extension import Extension, extended, surface_path
from pinwarden.lock.record import extension_of

if TYPE_CHECKING:
    from pinwarden.core.digest import Digest
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import SurfacePin
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.approvable import Approvable


def in_own_files(
    old: Lock | None, entries: Sequence[Entry], texts: Mapping[str, Approvable]
) -> tuple[list[Entry], dict[str, bytes]]:
    """The entries that are about to be written, and the files of their newly approved texts.

    ``texts`` has those texts by the key of their entry. Each goes into the file that its entry names, unless that file
    holds another text for an entry that stays. Files that are there keep their names, so locks stay as they are.

    Raises ``WARNINGS_NOT_APPROVED`` for a text with scan warnings that were not approved.
    """
    fresh = {entry.key for entry in entries if entry.key in texts}
    staying = [entry for entry in (old.entries if old else ()) if entry.key not in fresh]
    taken = {pin.path: pin.file_digest for pin in map(_pin, staying) if pin is not None}
    made: list[Entry] = []
    files: dict[str, bytes] = {}
    for entry in entries:
        pin = _pin(entry)
        if pin is None or entry.key not in fresh:
            made.append(entry)
            continue
        path = _free_path(entry, pin, taken)
        taken[path] = pin.file_digest
        files[path] = texts[entry.key].to_bytes()
        made.append(entry if path == pin.path else _with_pin(entry, replace(pin, path=path)))
    return made, files


def _pin(entry: Entry) -> SurfacePin | None:
    extension = extension_of(entry)
    return None if extension is None else extension.surface


def _free_path(entry: Entry, pin: SurfacePin, taken: Mapping[str, Digest]) -> str:
    folder = pin.path.partition("/")[0]
    # The last one is for this entry alone: no name of a server, and no key, has an "@" in its file.
    wished = (pin.path, surface_path(entry.key, folder=folder), surface_path(entry.name, entry.client, folder))
    for path in wished:
        if taken.get(path, pin.file_digest) == pin.file_digest:
            return path
    raise PinwardenError("LOCK_INVALID", f"every file for the approved text of {entry.key[:120]!a} belongs to another")


def _with_pin(entry: Entry, pin: SurfacePin) -> Entry:
    return extended(entry, replace(extension_of(entry) or Extension(), surface=pin))
