"""The places where approvals are kept, in one form: the lock, and the store of what was trusted on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.shared_approvals import server_identity
from pinwarden.gateway.state import FIRST_USE, GatewayState
from pinwarden.gateway.store.reviews import storable_name
from pinwarden.lock import lock_store
from pinwarden.lock.extension import extension_of
from pinwarden.lock.lockfile import refuse_if_tampered, verify, verify_files
from pinwarden.project.approvable import ApprovalCandidate
from pinwarden.project.lock import Approver, approve_surfaces
from pinwarden.surface.surface import Surface, parse_surface

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project


class Baseline(Protocol):
    """What is approved of one server, and how to approve something else."""

    surfaces: Mapping[str, Surface]
    """The approved surfaces by a name: a server may be approved differently for different clients."""
    kind: str
    """lock or store."""
    place: str
    """Where an approval is written, as it is told to people."""
    lock: Path | None
    """The lock that an approval is written to; None for the store."""
    identities: Mapping[str, str]
    """Which server each surface is of; empty if that is not understood."""

    def refuse_unwritable(self) -> None:
        """Raise if nothing could be approved."""

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Make these the approved ones. Raises if what is approved is no longer what was read."""


class LockBaseline:
    """A server of a lock, for all clients that it is locked for."""

    kind = "lock"

    def __init__(self, project: Project, server: str) -> None:
        self._project = project
        self._server = server
        self.place = f"{project.lock} and the approved text in {lock_store.surfaces_folder(project.lock)}"
        self.lock: Path | None = project.lock
        self.surfaces: Mapping[str, Surface]
        self._entries, self.surfaces = self._read()

    def refuse_unwritable(self) -> None:
        """Hold the lock for a moment, and its folder of texts."""
        lock_store.refuse_unwritable(self._project.lock)

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Write the lock and the approved texts."""
        approve_surfaces(self._project, [(self._entries[key], changed[key]) for key in changed], approver, now)

    def _read(self) -> tuple[dict[str, Entry], dict[str, Surface]]:
        lock, texts = lock_store.read_with_files(self._project.lock)
        if lock is None:
            raise PinwardenError("LOCK_MISSING", f"there is no lockfile {self._project.lock}")
        refuse_if_tampered((*verify(lock), *verify_files(lock, texts)))
        entries: dict[str, Entry] = {}
        surfaces: dict[str, Surface] = {}
        for entry in lock.entries:
            extension = extension_of(entry)
            if entry.name == self._server and extension is not None and extension.surface is not None:
                entries[entry.key] = entry
                surfaces[entry.key] = parse_surface(texts[extension.surface.path])
        self.identities: Mapping[str, str] = {
            key: server_identity(lock.entries, self._server, entry.client) for key, entry in entries.items()
        }
        if not entries:
            raise PinwardenError(
                "SERVER_NOT_LOCKED", f"nothing that {self._server[:120]!a} tells the model is approved in the lock"
            )
        return entries, surfaces


class FirstUseBaseline:
    """A server that was trusted on first use."""

    kind = "store"

    def __init__(self, state: GatewayState, server: str) -> None:
        self.place = f"the store {state.shown}"
        self.lock: Path | None = None
        self.identities: Mapping[str, str] = {}
        whole = next((name for name in state.trusted.servers() if storable_name(name) == server), server)
        found = state.trusted.find(whole)
        if found is None:
            raise PinwardenError("REVIEW_STALE", f"nothing is trusted of {server[:120]!a} any more")
        self._trusted = state.trusted
        self._found = found
        self.surfaces: Mapping[str, Surface] = {server: found.surface}

    def refuse_unwritable(self) -> None:
        """The store has written down the decision itself."""

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Put it into the store."""
        for offered in changed.values():
            offered.refuse_if_blocked()
            why = offered.reason(approver.reason)
            self._trusted.approve(self._found, offered.surface, by=approver.by, why=why, now=now)


def baseline_of(state: GatewayState, project: Project, server: str, name: str) -> Baseline:
    """The place of a review's approval. A lock need not be that of the project at hand: the review names it."""
    if name == FIRST_USE:
        return FirstUseBaseline(state, server)
    lock = Path(name.removeprefix("lock:"))
    return LockBaseline(replace(project, root=lock.parent, lock=lock), server)
