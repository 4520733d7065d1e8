"""Reads approved surfaces for a gateway: from the lock with shared approvals, or from the trust-on-first-use store."""

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
from pinwarden.lock.entry import is_for_client
from pinwarden.surface.surface import Surface, parse_surface
from pinwarden.system.clock import now
from pinwarden.system.files import read_file_stamp

if TYPE_CHECKING:
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.lock.lockfile import Lock as LockFile


class LockApprovals:
    """An `ApprovedSource` that reads a lockfile.

    `get_current` raises if the lock is missing, invalid or tampered with.
    """

    def __init__(
        self, lock: Path, server: str, client: str | None = None, shared: SharedApprovals | None = None
    ) -> None:
        """``shared`` approvals apply in addition to the lock."""
        self._path = lock
        self._shared = shared
        self._generation = 0
        self._server = server
        self._client = client
        self._lock = Lock()
        self._file_stamp: tuple[int, int, int] | None = None
        self._known: ApprovedSurface | None = None

    def get_current(self) -> ApprovedSurface | None:
        """Return the approved surface. Cheap while the file is unchanged."""
        with self._lock:
            stamp = read_file_stamp(self._path)
            generation = 0 if self._shared is None else self._shared.generation
            if self._known is None or stamp != self._file_stamp or generation != self._generation:
                self._known = None
                self._known = self._read()
                self._file_stamp, self._generation = stamp, generation
            return self._known

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Raise ``SERVER_NOT_LOCKED``, because a lock never trusts on first use."""
        del surface
        raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no approved surface for {self._server[:120]!a}")

    def _read(self) -> ApprovedSurface:
        from pinwarden.lock import lock_store

        lock = lock_store.read_verified(self._path)
        surface, generation = _read_approved_surface(lock, self._path, self._server, self._client)
        if self._shared is not None:
            from pinwarden.gateway.shared_approvals import compute_server_identity

            identity = compute_server_identity(lock.entries, self._server, self._client)
            shared = self._shared.apply(self._server, identity, surface)
            surface, generation = shared.surface, " ".join((generation, *shared.names))
        return ApprovedSurface(
            server=self._server, surface=surface, generation=generation, read_neighbours=self._read_neighbours
        )

    def _read_neighbours(self) -> list[tuple[str, Surface]]:
        """Read the other servers' approved surfaces. If the files cannot be read, the server is judged without them."""
        from pinwarden.project.approval_candidate import read_neighbours

        try:
            return read_neighbours(self._path, self._server)
        except PinwardenError:
            return []


def _read_approved_surface(lock: LockFile, path: Path, server: str, client: str | None) -> tuple[Surface, str]:
    """Return the approved surface of a server, and the digest of the file that contains the surface."""
    from pinwarden.lock import lock_store
    from pinwarden.lock.extension import read_extension

    for entry in lock.entries:
        extension = read_extension(entry)
        if entry.name != server or not is_for_client(entry, client) or extension is None or extension.surface is None:
            continue
        pin = extension.surface
        data = lock_store.read_pinned_file(path, pin)
        if data is None or Digest.of_bytes(data) != pin.file_digest:
            raise PinwardenError("LOCK_TAMPERED", f"{pin.path} differs from the file that the lock pins")
        return parse_surface(data), str(pin.file_digest)
    raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no approved surface for {server[:120]!a}")


_REFRESH_SECONDS = 0.25  # pause between two queries
_RETRY_SECONDS = 5.0  # pause while the database is unavailable; long, because calls wait for each query


class FirstUseApprovals:
    """An `ApprovedSource` that reads the trust-on-first-use store. Thread-safe."""

    def __init__(self, server: str, trusted: TrustedSurfaces, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._trusted = trusted
        self._clock = clock
        self._lock = Lock()
        self._next_refresh: float | None = None
        self._known: ApprovedSurface | None = None
        self._generation = 0

    def get_current(self) -> ApprovedSurface | None:
        """Return the trusted surface; None if the server has none yet."""
        with self._lock:
            if self._next_refresh is None or self._clock() >= self._next_refresh:
                pause = self._refresh()
                self._next_refresh = self._clock() + pause
            return self._known

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Trust the server's first surface. If another process has already trusted one, returns that one instead."""
        with self._lock:
            self._set(self._trusted.trust_first_use(self._server, surface, now()))
            assert self._known is not None  # noqa: S101 - set in the line above
            return self._known

    def _refresh(self) -> float:
        """Read the trusted surface if it changed. Returns the seconds until the next refresh.

        While the database is unavailable, the last known surface stays valid.
        """
        try:
            generation = self._trusted.read_generation(self._server)
        except PinwardenError as err:
            if err.code != "DATABASE_UNAVAILABLE" or self._known is None:
                raise
            return _RETRY_SECONDS
        if generation != self._generation or self._known is None:
            self._set(self._trusted.find(self._server))
        return _REFRESH_SECONDS

    def _set(self, trusted: TrustedSurface | None) -> None:
        if trusted is None:
            self._generation, self._known = 0, None
            return
        self._generation = trusted.generation
        self._known = ApprovedSurface(
            server=self._server,
            surface=trusted.surface,
            generation=f"first-use {trusted.generation}",
            origin="first-use",
        )
