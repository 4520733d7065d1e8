"""Where a gateway reads what is approved: the lock with shared approvals, or the trust-on-first-use store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.guard import ApprovedSurface
from pinwarden.gateway.store.approvals import TrustedSurface, TrustedSurfaces
from pinwarden.surface.surface import Surface, parse_surface
from pinwarden.system.clock import now

if TYPE_CHECKING:
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.lock.lockfile import Lock as LockFile

_Stamp = tuple[int, int, int]


class LockApprovals:
    """An `ApprovedSource` over a lockfile. A lock that is gone, broken or edited approves nothing: it raises."""

    def __init__(
        self, lock: Path, server: str, client: str | None = None, shared: SharedApprovals | None = None
    ) -> None:
        """``shared`` approvals count in addition to the lock."""
        self._path = lock
        self._shared = shared
        self._generation = 0
        self._server = server
        self._client = client
        self._lock = Lock()
        self._stamp: _Stamp | None = None
        self._known: ApprovedSurface | None = None

    def current(self) -> ApprovedSurface | None:
        """What the lock approves. Cheap while the file is as it was."""
        with self._lock:
            stamp = _stamp(self._path)
            generation = 0 if self._shared is None else self._shared.generation
            if self._known is None or stamp != self._stamp or generation != self._generation:
                self._known = None
                self._known = self._read()
                self._stamp, self._generation = stamp, generation
            return self._known

    def trust(self, surface: Surface) -> ApprovedSurface:
        """A lock learns nothing by itself."""
        del surface
        raise PinwardenError("SERVER_NOT_LOCKED", f"nothing of {self._server[:120]!a} is approved in the lock")

    def _read(self) -> ApprovedSurface:
        from pinwarden.lock import lock_store

        lock = lock_store.read(self._path)
        if lock is None:
            raise PinwardenError("LOCK_MISSING", f"there is no lockfile {self._path}")
        surface, generation = read_approved_surface(lock, self._path, self._server, self._client)
        if self._shared is not None:
            from pinwarden.gateway.shared_approvals import server_identity

            identity = server_identity(lock.entries, self._server, self._client)
            applied = self._shared.applied(self._server, identity, surface)
            surface, generation = applied.surface, " ".join((generation, *applied.names))
        return ApprovedSurface(server=self._server, surface=surface, generation=generation)


def read_approved_surface(lock: LockFile, path: Path, server: str, client: str | None) -> tuple[Surface, str]:
    """The approved surface of a server, and the digest of its file."""
    from pinwarden.lock import lock_store
    from pinwarden.lock.extension import extension_of
    from pinwarden.lock.lockfile import refuse_if_tampered, verify

    refuse_if_tampered(verify(lock))
    for entry in lock.entries:
        extension = extension_of(entry)
        if entry.name != server or client not in (None, entry.client) or extension is None or extension.surface is None:
            continue
        pin = extension.surface
        data = lock_store.read_pinned(path, pin)
        if data is None or Digest.of_bytes(data) != pin.file_digest:
            raise PinwardenError("LOCK_TAMPERED", f"{pin.path} is not the file that the lock pins")
        return parse_surface(data), str(pin.file_digest)
    raise PinwardenError("SERVER_NOT_LOCKED", f"nothing that {server[:120]!a} tells the model is approved in the lock")


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_REFRESH_SECONDS = 0.25  # how old an answer may be: an approval counts at once, as people see it
_RETRY_SECONDS = 5.0  # between looks while the database is away: each may wait for it, and calls wait meanwhile


class FirstUseApprovals:
    """An `ApprovedSource` over the store. Any thread may ask."""

    def __init__(self, server: str, trusted: TrustedSurfaces, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._trusted = trusted
        self._clock = clock
        self._lock = Lock()
        self._next_look: float | None = None
        self._known: ApprovedSurface | None = None
        self._generation = 0

    def current(self) -> ApprovedSurface | None:
        """What is trusted; None if the server was never used."""
        with self._lock:
            if self._next_look is None or self._clock() >= self._next_look:
                pause = self._look()
                self._next_look = self._clock() + pause
            return self._known

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Keep the first surface; the one that another process kept, if it was faster."""
        with self._lock:
            self._take(self._trusted.first_use(self._server, surface, now()))
            assert self._known is not None  # noqa: S101 - it was taken in the line above
            return self._known

    def _look(self) -> float:
        """Read what is trusted, if it changed; in how many seconds to look again.

        While the database is away, what was read before still holds.
        """
        try:
            generation = self._trusted.generation(self._server)
        except PinwardenError as err:
            if err.code != "DATABASE_UNAVAILABLE" or self._known is None:
                raise
            return _RETRY_SECONDS
        if generation != self._generation or self._known is None:
            self._take(self._trusted.find(self._server))
        return _REFRESH_SECONDS

    def _take(self, found: TrustedSurface | None) -> None:
        if found is None:
            self._generation, self._known = 0, None
            return
        self._generation = found.generation
        self._known = ApprovedSurface(
            server=self._server, surface=found.surface, generation=f"first-use {found.generation}", origin="first-use"
        )
