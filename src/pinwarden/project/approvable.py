"""A server's surface on its way into the lock: nothing that the scan warns of is approved in passing.

Every command that records a surface takes it from here: ``in_own_files`` writes only an ``Approvable``, which refuses
to be written while it has warnings that the approver did not see and approve.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Row, counted, row_facts
from pinwarden.lock import lock_store
from pinwarden.lock.record import extension_of
from pinwarden.surface import surface as surface_document
from pinwarden.surface.surface import Surface

if TYPE_CHECKING:
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
        return surface_document.to_bytes(self.surface)

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
    from pinwarden.project.scan import warning_rows

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
        parsed = surface_document.parse(text)
        if parsed.digest == pin.digest:  # an edited file was not approved
            found.append(parsed)
    return found


def not_approved(offered: Approvable, hint: str | None = None) -> PinwardenError:
    """The refusal to approve what the scan warns of."""
    return PinwardenError(
        "WARNINGS_NOT_APPROVED",
        f"{offered.server[:120]}: {counted(len(offered.warnings), 'scan warning')} in text that is not approved yet",
        hint=hint,
        data={"warnings": warning_facts(offered.warnings)},
    )


def warning_facts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Warnings as JSON."""
    return [row_facts(row) for row in rows]
