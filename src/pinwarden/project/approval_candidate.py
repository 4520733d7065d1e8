"""Surfaces that are about to be approved, with their scan warnings.

Every command that records a surface goes through ``assign_surface_files``, which accepts only an ``ApprovalCandidate``.
A candidate with scan warnings cannot be written until the approver saw and approved the warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row, row_to_json
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.entry import find_client
from pinwarden.lock.extension import LockExtension, format_surface_path, read_extension, with_extension
from pinwarden.surface import surface as surface_document
from pinwarden.surface.surface import Surface

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.core.digest import Digest
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.extension import SurfacePin
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project

APPROVE_WARNINGS_OPTION = "--approve-warnings"

CONFIGURED = "found in a client's configuration; not shown, not reviewed"
CONFIGURED_AND_PROBED = (
    "found in a client's configuration; its text was recorded from the server, not shown, not reviewed"
)
NAMED_WITH_ACCEPT = "named with --accept"
ACCEPTED_WITH_ALL = "taken with --accept-all, not named"
CONFIRMED_ON_TERMINAL = "shown on a terminal and approved there"
CONFIRMED_SHORTENED = "approved on a terminal; some texts were shown shortened"
CONFIRMED_WITH_YES = "approved with --yes"
CONFIRMED_WITH_ALL = "approved on a terminal together with other servers; its tools were not shown"
NAMED_WITH_REVIEW = "named with pinwarden review"
SHOWN_IN_DASHBOARD = "shown in the dashboard"
CONFIGURATION_ONLY = "its configuration was approved; its tools were not read"
UNREVIEWED_REASONS = (CONFIGURED, CONFIGURED_AND_PROBED, ACCEPTED_WITH_ALL, CONFIGURATION_ONLY)
"""Recorded reasons of entries whose tools no person looked at."""


class ApprovalCandidate(Record):
    """A surface to approve, and the scan warnings that must be approved with it."""

    server: str
    surface: Surface
    warnings: tuple[Row, ...] = ()
    """Scan warnings about text that was not approved before."""
    warnings_approved: bool = False
    """Whether the approver saw these warnings and approved them."""

    @property
    def is_blocked(self) -> bool:
        """Whether the surface has scan warnings that are not approved."""
        return bool(self.warnings) and not self.warnings_approved

    def to_bytes(self) -> bytes:
        """Return the surface document as stored next to the lock. Raises ``WARNINGS_NOT_APPROVED``."""
        self.refuse_if_blocked()
        return surface_document.encode_surface(self.surface)

    def refuse_if_blocked(self) -> None:
        """Raise ``WARNINGS_NOT_APPROVED`` if the surface has scan warnings that are not approved."""
        if self.is_blocked:
            raise warnings_not_approved_error(self)

    def build_reason(self, why: str) -> str:
        """Add the codes of the approved warnings to the approver's reason."""
        codes = ", ".join(dict.fromkeys(row.code for row in self.warnings))
        return f"{why} (with scan warnings: {codes})" if codes else why


def is_reviewed(entry: Entry) -> bool:
    """Whether a person looked at the tools of the release that the entry starts."""
    extension = read_extension(entry)
    return extension is not None and extension.surface_of is None and was_shown(entry)


def was_shown(entry: Entry) -> bool:
    """Whether a person looked at the approved surface of the entry, perhaps for an earlier release."""
    extension = read_extension(entry)
    if extension is None or extension.surface is None:
        return False
    return extension.approval is not None and extension.approval.why not in UNREVIEWED_REASONS


def scan_for_approval(
    server: str, surface: Surface, approved: Iterable[Surface] = (), *, warnings_approved: bool = False
) -> ApprovalCandidate:
    """Scan a surface. Only text that no approved surface contains can cause warnings."""
    rows = scan_for_warnings(surface, server, approved)
    return ApprovalCandidate(server=server, surface=surface, warnings=rows, warnings_approved=warnings_approved)


def scan_for_warnings(surface: Surface, server: str, approved: Iterable[Surface] = ()) -> tuple[Row, ...]:
    """Scan a surface, and return rows for warnings about text that is not in an approved surface."""
    from pinwarden.surface.scan.scan import build_scan_row, find_new_warnings  # loads the rules of the scan

    return tuple(build_scan_row(finding, server) for finding in find_new_warnings(surface, approved))


def read_approved_surfaces(project: Project, server: str) -> list[Surface]:
    """Read the approved surfaces of a server, for all clients."""
    lock, candidates = lock_store.read_with_files(project.lock)
    return _parse_approved_surfaces(lock, candidates, server)


def read_neighbours(lock: Path, server: str) -> list[tuple[str, Surface]]:
    """Read the approved surfaces of the other servers in a lock, each with its name."""
    document, files = lock_store.read_with_files(lock)
    names = dict.fromkeys(entry.name for entry in (document.entries if document else ()) if entry.name != server)
    return [(name, surface) for name in names for surface in _parse_approved_surfaces(document, files, name)[:1]]


def warnings_not_approved_error(candidate: ApprovalCandidate, hint: str | None = None) -> PinwardenError:
    """Return the error for a surface with scan warnings that are not approved."""
    return PinwardenError(
        "WARNINGS_NOT_APPROVED",
        f"{candidate.server[:120]}: {plural(len(candidate.warnings), 'scan warning')} in a surface not approved yet",
        hint=hint,
        data={"warnings": warnings_to_json(candidate.warnings)},
    )


def warnings_to_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Convert scan warnings to JSON values, for reports and error data."""
    return [row_to_json(row) for row in rows]


def describe_command_approval(command: str) -> str:
    """Return the reason to record for a server that the user named in a command that does not show its surface."""
    return f"named with pinwarden {command}; its text was not shown"


def assign_surface_files(
    old: Lock | None, entries: Sequence[Entry], candidates: Mapping[str, ApprovalCandidate]
) -> tuple[list[Entry], dict[str, bytes]]:
    """Choose the file next to the lock for each newly approved surface. Returns the entries and the files to write.

    ``candidates`` maps entry keys to newly approved surfaces. Pinwarden writes a surface to the file that its entry
    names, unless another entry keeps a different surface there: two clients may have different versions of a server.

    Raises ``WARNINGS_NOT_APPROVED`` for a surface with scan warnings that are not approved.
    """
    fresh = {entry.key for entry in entries if entry.key in candidates}
    remaining = [entry for entry in (old.entries if old else ()) if entry.key not in fresh]
    taken = {pin.path: pin.file_digest for pin in map(_find_surface_pin, remaining) if pin is not None}
    made: list[Entry] = []
    files: dict[str, bytes] = {}
    for entry in entries:
        pin = _find_surface_pin(entry)
        if pin is None or entry.key not in fresh:
            made.append(entry)
            continue
        path = _choose_free_path(entry, pin, taken)
        taken[path] = pin.file_digest
        files[path] = candidates[entry.key].to_bytes()
        made.append(entry if path == pin.path else _replace_surface_pin(entry, replace(pin, path=path)))
    return made, files


def _parse_approved_surfaces(lock: Lock | None, candidates: dict[str, bytes], server: str) -> list[Surface]:
    approved: list[Surface] = []
    for entry in lock.entries if lock is not None else ():
        extension = read_extension(entry) if entry.name == server else None
        pin = extension.surface if extension is not None else None
        text = candidates.get(pin.path) if pin is not None else None
        if pin is None or text is None:
            continue
        parsed = surface_document.parse_surface(text)
        if parsed.digest == pin.digest:  # an edited file is not approved
            approved.append(parsed)
    return approved


def _find_surface_pin(entry: Entry) -> SurfacePin | None:
    extension = read_extension(entry)
    return None if extension is None else extension.surface


def _choose_free_path(entry: Entry, pin: SurfacePin, taken: Mapping[str, Digest]) -> str:
    folder = pin.path.partition("/")[0]
    # The last path is unique to this entry: file names made from server names or keys have no "@".
    candidates = (
        pin.path,
        format_surface_path(entry.key, folder=folder),
        format_surface_path(entry.name, find_client(entry), folder),
    )
    for path in candidates:
        if taken.get(path, pin.file_digest) == pin.file_digest:
            return path
    raise PinwardenError("LOCK_INVALID", f"every file name for the surface of {entry.key[:120]!a} is taken")


def _replace_surface_pin(entry: Entry, pin: SurfacePin) -> Entry:
    return with_extension(entry, replace(read_extension(entry) or LockExtension(), surface=pin))
