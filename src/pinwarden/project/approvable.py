"""A server's surface on its way into the lock: nothing that the scan warns of is approved in passing.

Every command that records a surface takes it from here: ``in_own_files`` writes only an ``Approvable``, which refuses
to be written while it has warnings that the approver did not see and approve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row, plural, row_facts
from pinwarden.lock import lock_store
from pinwarden.lock.extension import Extension, extended, extension_of, surface_path
from pinwarden.surface import surface as surface_document
from pinwarden.surface.surface import Surface

if TYPE_CHECKING:
    from pinwarden.core.digest import Digest
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import SurfacePin
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project

OPTION = "--approve-warnings"


class Approvable(Record):
    """A surface, and the warnings that stand between it and its approval."""

    server: str
    surface: Surface
    warnings: tuple[Row, ...] = ()
    """What the scan warns of in text that was not approved before."""
    warnings_approved: bool = False
    """Whether the approver saw these warnings and approves the text with them."""

    @property
    def blocked(self) -> bool:
        """Whether it may not be approved yet."""
        return bool(self.warnings) and not self.warnings_approved

    def to_bytes(self) -> bytes:
        """The text as the lock keeps it. Raises ``WARNINGS_NOT_APPROVED`` for one that may not be approved yet."""
        self.refuse_if_blocked()
        return surface_document.encode_surface(self.surface)

    def refuse_if_blocked(self) -> None:
        """Raise ``WARNINGS_NOT_APPROVED`` if it may not be approved yet."""
        if self.blocked:
            raise not_approved(self)

    def reason(self, why: str) -> str:
        """The reason to record: what the approver said, and which warnings were approved with it."""
        codes = ", ".join(dict.fromkeys(row.code for row in self.warnings))
        return f"{why} (with scan warnings: {codes})" if codes else why


def approvable(
    server: str, seen: Surface, approved: Iterable[Surface] = (), *, warnings_approved: bool = False
) -> Approvable:
    """The surface with the scan's warnings about whatever is not in an approved surface."""
    from pinwarden.project.surface_reports import warning_rows

    rows = warning_rows(seen, server, approved)
    return Approvable(server=server, surface=seen, warnings=rows, warnings_approved=warnings_approved)


def approved_texts(project: Project, server: str) -> list[Surface]:
    """The surfaces that the lock approves of a server, for whichever client."""
    lock, texts = lock_store.read_with_files(project.lock)
    return _approved_in(lock, texts, server)


def _approved_in(lock: Lock | None, texts: dict[str, bytes], server: str) -> list[Surface]:
    found: list[Surface] = []
    for entry in lock.entries if lock is not None else ():
        extension = extension_of(entry) if entry.name == server else None
        pin = extension.surface if extension is not None else None
        text = texts.get(pin.path) if pin is not None else None
        if pin is None or text is None:
            continue
        parsed = surface_document.parse_surface(text)
        if parsed.digest == pin.digest:  # an edited file was not approved
            found.append(parsed)
    return found


def not_approved(offered: Approvable, hint: str | None = None) -> PinwardenError:
    """The refusal to approve what the scan warns of."""
    return PinwardenError(
        "WARNINGS_NOT_APPROVED",
        f"{offered.server[:120]}: {plural(len(offered.warnings), 'scan warning')} in text that is not approved yet",
        hint=hint,
        data={"warnings": warning_facts(offered.warnings)},
    )


def warning_facts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Warnings as JSON."""
    return [row_facts(row) for row in rows]


FOUND = "found in a client's configuration; not shown, not reviewed"
FOUND_WITH_TEXT = "found in a client's configuration; its text was recorded from the server, not shown, not reviewed"
NAMED = "named with --accept"
ALL = "taken with --accept-all, not named"
ANSWERED = "shown on a terminal and approved there"
YES = "approved with --yes"
REVIEW_NAMED = "named with pinwarden review"


def by_command(command: str) -> str:
    """A server that a command named and locked, without showing what it tells the model."""
    return f"named with pinwarden {command}; its text was not shown"


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
