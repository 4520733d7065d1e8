"""Where the gateway finds out what was approved of a server."""

from __future__ import annotations

from typing import Protocol

from pinwarden.gateway.approval import Approved
from pinwarden.surface.surface import Surface


class ApprovedSource(Protocol):
    """The lock, or the store of what was trusted on first use.

    Both methods are called from any thread. What cannot be read raises ``PinwardenError``: the gateway then refuses
    everything, it never goes on with "nothing was approved".
    """

    def current(self) -> Approved | None:
        """What is approved now; None if nothing ever was and the first use may be trusted.

        Called for every message that is judged, so it must be cheap while nothing changed: look at the file's time or
        a counter, at most so often.
        """

    def trust(self, surface: Surface) -> Approved:
        """Keep the first surface ever seen as the approved one, and return it.

        If another process was faster, the surface that it kept is returned instead. A source that trusts nothing (a
        lock) raises ``SERVER_NOT_LOCKED``.
        """
