"""What is approved of a server that no lock speaks of: what it said when it was used for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.approval import Approved
from pinwarden.gateway.store.trusted import Trusted, TrustedSurface
from pinwarden.surface.surface import Surface
from pinwarden.system.clock import now

_LOOK_SECONDS = 0.25  # how old an answer may be: an approval counts at once, as people see it
_AWAY_SECONDS = 5.0  # between looks while the database is away: each may wait for it, and calls wait meanwhile


class FirstUse:
    """An `ApprovedSource` over the store. Any thread may ask."""

    def __init__(self, server: str, trusted: Trusted, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._trusted = trusted
        self._clock = clock
        self._lock = Lock()
        self._next_look: float | None = None
        self._known: Approved | None = None
        self._generation = 0

    def current(self) -> Approved | None:
        """What is trusted; None if the server was never used."""
        with self._lock:
            if self._next_look is None or self._clock() >= self._next_look:
                pause = self._look()
                self._next_look = self._clock() + pause
            return self._known

    def trust(self, surface: Surface) -> Approved:
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
            return _AWAY_SECONDS
        if generation != self._generation or self._known is None:
            self._take(self._trusted.find(self._server))
        return _LOOK_SECONDS

    def _take(self, found: TrustedSurface | None) -> None:
        if found is None:
            self._generation, self._known = 0, None
            return
        self._generation = found.generation
        self._known = Approved(
            server=self._server, surface=found.surface, generation=f"first-use {found.generation}", origin="first-use"
        )
