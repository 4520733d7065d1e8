"""The places where approvals are kept, in one form: the lock, and the store of what was trusted on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pinwarden.adapters import lock_store
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.documents.lock.record import extension_of
from pinwarden.documents.lock.verification import refuse_if_tampered, verify, verify_files
from pinwarden.documents.surface import Surface, parse
from pinwarden.flows.gateway.state import FIRST_USE, GatewayState
from pinwarden.flows.lock.locking import Approver, approve_for_entries

if TYPE_CHECKING:
    from pinwarden.documents.lock.entry import Entry
    from pinwarden.flows.project import Project


class Baseline(Protocol):
    """What is approved of one server, and how to approve something else."""

    surface: Surface

    def approve(self, surface: Surface, approver: Approver, now: str) -> None:
        """Make a surface the approved one. Raises if the approved one is no longer the one that was read."""


class LockBaseline:
    """A server of a lock, for all clients that it is locked for."""

    def __init__(self, project: Project, server: str) -> None:
        self._project = project
        self._server = server
        self._entries, self.surface = self._read()

    def approve(self, surface: Surface, approver: Approver, now: str) -> None:
        """Write the lock and the approved text."""
        _, now_there = self._read()
        if now_there.digest != self.surface.digest:
            raise PinwardenError("REVIEW_STALE", f"what is approved of {self._server[:120]!a} was changed meanwhile")
        approve_for_entries(self._project, self._entries, surface, approver, now)

    def _read(self) -> tuple[list[Entry], Surface]:
        lock, texts = lock_store.read_with_files(self._project.lock)
        if lock is None:
            raise PinwardenError("LOCK_MISSING", f"there is no lockfile {self._project.lock}")
        refuse_if_tampered((*verify(lock), *verify_files(lock, texts)))
        entries = [entry for entry in lock.entries if entry.name == self._server]
        if not entries:
            raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {self._server[:120]!a}")
        pins = [extension.surface for entry in entries if (extension := extension_of(entry)) is not None]
        pinned = next((pin for pin in pins if pin is not None), None)
        if pinned is None:
            return entries, Surface(server=None, items={}, observed={})
        return entries, parse(texts[pinned.path])


class FirstUseBaseline:
    """A server that was trusted on first use."""

    def __init__(self, state: GatewayState, server: str) -> None:
        found = state.trusted.find(server)
        if found is None:
            raise PinwardenError("REVIEW_STALE", f"nothing is trusted of {server[:120]!a} any more")
        self._trusted = state.trusted
        self._found = found
        self.surface = found.surface

    def approve(self, surface: Surface, approver: Approver, now: str) -> None:
        """Put it into the store."""
        self._trusted.approve(self._found, surface, by=approver.by, why=approver.why, now=now)


def baseline_of(state: GatewayState, project: Project, server: str, name: str) -> Baseline:
    """The place of a review's approval. A lock need not be that of the project at hand: the review names it."""
    if name == FIRST_USE:
        return FirstUseBaseline(state, server)
    lock = Path(name.removeprefix("lock:"))
    return LockBaseline(replace(project, root=lock.parent, lock=lock), server)
