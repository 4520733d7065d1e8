"""Where the approved surfaces of a server are: in a lock, in a published lock, or in the trust-on-first-use store.

A `Baseline` names the place, and `open_baseline` reads it so that a review can change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.gateway.shared_approvals import apply_approvals, check_intact, compute_server_identity
from pinwarden.gateway.store.reviews import make_storable_name
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import find_client
from pinwarden.lock.extension import read_extension
from pinwarden.lock.lockfile import refuse_if_tampered, verify, verify_files
from pinwarden.surface.surface import parse_surface

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.approval_candidate import ApprovalCandidate
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface

LOCK, PUBLISHED = "lock", "published"
_FIRST_USE = "first-use"


class Baseline(Record):
    """The place of a server's approved surfaces. As text: ``lock:PATH``, ``published:NAME`` or ``first-use``."""

    kind: str
    """`LOCK` or `PUBLISHED`; ``first-use`` for `FIRST_USE`."""
    name: str = ""
    """The path of the lockfile, or the name of the published lock."""

    @classmethod
    def of_lock(cls, lock: Path) -> Baseline:
        """Return the baseline of servers with an entry in this lockfile."""
        return cls(kind=LOCK, name=str(lock.resolve()))

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Parse the text of a baseline, as a database has it. Raises ``DATABASE_CORRUPT``."""
        kind, _, name = text.partition(":")
        baseline = cls(kind=kind, name=name)
        if kind not in (LOCK, PUBLISHED, _FIRST_USE) or bool(name) == (kind == _FIRST_USE) or str(baseline) != text:
            raise PinwardenError("DATABASE_CORRUPT", f"{text[:120]!a} does not name the approvals of a server")
        return baseline

    @property
    def is_lock(self) -> bool:
        """Whether an approval writes a lockfile of this machine."""
        return self.kind == LOCK

    def __str__(self) -> str:
        return self.kind if self.kind == _FIRST_USE else f"{self.kind}:{self.name}"

    def describe(self) -> str:
        """Return how the server was approved, and where: two projects may each have a server of the same name."""
        if self.kind == _FIRST_USE:
            return "trusted on first use"
        return f"approved in {'the published lock ' if self.kind == PUBLISHED else ''}{self.name}"


FIRST_USE = Baseline(kind=_FIRST_USE)
"""The baseline of a server without a lock entry."""


def open_baseline(state: GatewayState, project: Project, server: str, text: str) -> OpenBaseline:
    """Return the approved surfaces that a review changes. The lock may belong to another project."""
    baseline = Baseline.parse(text)
    if baseline == FIRST_USE:
        return _OpenTrustedSurface(state, server)
    if baseline.kind == PUBLISHED:
        return _OpenPublishedLock(state, baseline.name, server)
    lock = Path(baseline.name)
    return _OpenLock(replace(project, root=lock.parent, lock=lock), server)


class OpenBaseline(Protocol):
    """The approved surfaces of one server, read from its baseline."""

    surfaces: Mapping[str, Surface]
    """Approved surfaces by lock entry. A server may have one entry for each client."""
    kind: str
    """``lock``, ``store`` or ``database``."""
    place: str
    """The name of the lock or store, for display."""
    lock: Path | None
    """The lockfile that an approval writes; None if it writes none."""
    identities: Mapping[str, str]
    """The identity of the server by lock entry; an empty text if it cannot be determined."""

    def find_location(self, state: GatewayState) -> str | None:
        """Return where the approval is made, as other gateways know it; None if it is not shared with them."""

    def refuse_unwritable(self) -> None:
        """Raise if an approval could not be written."""

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Replace approved surfaces. Raises if the surfaces changed since they were read."""

    def restore_on_error(self) -> AbstractContextManager[None]:
        """Restore the approved surfaces of a store if the block raises. Locks are restored all at once."""


class _OpenLock:
    """A server in a lock, with its entries for all clients."""

    kind = "lock"

    def __init__(self, project: Project, server: str) -> None:
        self._project = project
        self._server = server
        self.lock: Path | None = project.lock
        self.place = f"{project.lock} and the approved surfaces in {lock_store.surfaces_folder_name(project.lock)}"
        self.surfaces: Mapping[str, Surface]
        self._entries, self.surfaces = self._read()

    def find_location(self, state: GatewayState) -> str | None:
        """Return the host and the lockfile."""
        return state.get_lock_location(self._project.lock)

    def refuse_unwritable(self) -> None:
        """Check that the lockfile and the folder of approved surfaces can be written."""
        lock_store.check_writable(self._project.lock)

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Write the lock and the approved surfaces."""
        from pinwarden.project.lock import approve_surfaces  # gateways use `Baseline`, but approve nothing

        approve_surfaces(self._project, [(self._entries[key], changed[key]) for key in changed], approver, now)

    def restore_on_error(self) -> AbstractContextManager[None]:
        """Do nothing: `lock_store.restore_on_error` restores the lock."""
        return nullcontext()

    def _read(self) -> tuple[dict[str, Entry], dict[str, Surface]]:
        lock, texts = lock_store.read_with_files(self._project.lock)
        if lock is None:
            raise lock_store.missing_lock_error(self._project.lock)
        entries, surfaces, self.identities = _read_entries(lock, texts, self._server)
        return entries, surfaces


def _read_entries(
    lock: Lock, texts: Mapping[str, bytes], server: str
) -> tuple[dict[str, Entry], dict[str, Surface], Mapping[str, str]]:
    """Return the entries, approved surfaces and identities of a server, by lock entry. Raises if the lock has none."""
    refuse_if_tampered((*verify(lock), *verify_files(lock, texts)))
    entries: dict[str, Entry] = {}
    surfaces: dict[str, Surface] = {}
    for entry in lock.entries:
        extension = read_extension(entry)
        if entry.name == server and extension is not None and extension.surface is not None:
            entries[entry.key] = entry
            surfaces[entry.key] = parse_surface(texts[extension.surface.path])
    if not entries:
        raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no approved surface for {server[:120]!a}")
    identities = {
        key: compute_server_identity(lock.entries, server, find_client(entry)) for key, entry in entries.items()
    }
    return entries, surfaces, identities


class _OpenPublishedLock:
    """A server in a published lock. Approvals go to the database, and gateways that follow the lock apply them."""

    kind = "database"

    def __init__(self, state: GatewayState, name: str, server: str) -> None:
        published = state.published_locks.read_newest(name)
        if published is None:
            raise PinwardenError("LOCK_NOT_PUBLISHED", f"no lock {name[:80]} is published in {state.display_name}")
        self.lock: Path | None = None
        self.place = f"the database {state.display_name}, for gateways that follow the published lock {name}"
        self._location = str(Baseline(kind=PUBLISHED, name=name))
        _, surfaces, self.identities = _read_entries(lockfile.parse(published.content), published.files, server)
        approvals = [check_intact(row) for row in state.approvals.list_for_servers([make_storable_name(server)])]
        self.surfaces: Mapping[str, Surface] = {
            key: apply_approvals(
                surface, [approval for approval in approvals if approval.identity == self.identities[key]]
            )[0]
            for key, surface in surfaces.items()
        }

    def find_location(self, state: GatewayState) -> str | None:
        """Return the name of the published lock."""
        del state
        return self._location

    def refuse_unwritable(self) -> None:
        """Do nothing: the database that stored the review is writable."""

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Refuse blocked candidates. The shared approvals are all that is written."""
        del approver, now
        for candidate in changed.values():
            candidate.refuse_if_blocked()

    def restore_on_error(self) -> AbstractContextManager[None]:
        """Do nothing: undoing the decisions withdraws the shared approvals."""
        return nullcontext()


class _OpenTrustedSurface:
    """A server that was trusted on first use."""

    kind = "store"

    def __init__(self, state: GatewayState, server: str) -> None:
        self.lock: Path | None = None
        self.place = f"the store {state.display_name}"
        self.identities: Mapping[str, str] = {}
        self._store = state.trusted_surfaces
        full_name = next((name for name in self._store.list_servers() if make_storable_name(name) == server), server)
        trusted = self._store.find(full_name)
        if trusted is None:
            raise PinwardenError("REVIEW_STALE", f"{server[:120]!a} no longer has a trusted surface")
        self._trusted = trusted
        self.surfaces: Mapping[str, Surface] = {server: trusted.surface}

    def find_location(self, state: GatewayState) -> str | None:
        """Return None, because the store itself is shared."""
        del state
        return None

    def refuse_unwritable(self) -> None:
        """Do nothing: the database that stored the review is writable."""

    def approve(self, changed: Mapping[str, ApprovalCandidate], approver: Approver, now: str) -> None:
        """Write the trusted surface."""
        for candidate in changed.values():
            candidate.refuse_if_blocked()
            why = candidate.build_reason(approver.reason)
            self._store.approve(self._trusted, candidate.surface, by=approver.by, why=why, now=now)

    @contextmanager
    def restore_on_error(self) -> Iterator[None]:
        """Restore the trusted surface if the block raises, unless another process changed it."""
        before = self._trusted
        try:
            yield
        except BaseException:
            current = self._store.find(before.server)
            if current is not None and current.generation == before.generation + 1:
                self._store.approve(current, before.surface, by=before.changed_by, why=before.why, now=before.changed)
            raise
