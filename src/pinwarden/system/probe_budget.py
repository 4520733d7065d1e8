"""How much of a hostile server we are willing to look at, and what is left of it during one conversation."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record

_CLOCK_STEP = 0.005  # a wait may end this much too early


class ProbeLimits(Record):
    """Bounds on what one server may send."""

    max_message_bytes: int = 64 * 1024 * 1024
    """100,000 tools with full schemas in one answer are below this."""
    max_total_bytes: int = 256 * 1024 * 1024
    """All messages of one probe together; what a small machine can hold for a few probes at once."""
    max_stderr_bytes: int = 64 * 1024 * 1024
    """Real servers write a few lines. The rest is read and thrown away so that the server does not block."""
    stderr_tail_bytes: int = 4096
    """The end of what the server wrote, for the person who looks for the reason of a failure."""
    max_items: int = 200_000
    """Per list. The largest real list seen has fewer than 1,000."""
    max_pages: int = 10_000
    """Per list. A list that is still not at its end is called endless."""
    max_stray_messages: int = 10_000
    """Notifications and answers that nobody asked for."""
    max_server_requests: int = 100
    """Questions from the server (ping, roots, sampling, elicitation); each is answered."""
    max_noise_lines: int = 200
    """Log lines on standard output, where only messages belong. Real servers do it while they start."""
    max_rounds: int = 3
    """How often lists are read again because the server said meanwhile that they changed."""
    max_redirects: int = 5
    grace_seconds: float = 1.0
    """How long a server may take to end by itself, and again after it was asked to."""
    max_discovery_seconds: float = 10.0
    """How long to wait for ``server/discover`` before also trying ``initialize``. Never more than a third of all."""

    @property
    def json(self) -> Limits:
        """The bounds of one message as JSON."""
        return Limits(max_bytes=self.max_message_bytes)


class ProbeBudget:
    """The time and the bytes that one probe has left."""

    def __init__(self, limits: ProbeLimits, seconds: float) -> None:
        self.limits = limits
        self.seconds = seconds
        self._end = monotonic() + seconds
        self._bytes = 0

    @property
    def is_expired(self) -> bool:
        """Whether the time is over."""
        return self._end - monotonic() < _CLOCK_STEP

    def remaining(self, at_most: float | None = None) -> float:
        """The seconds left; an error once there are none."""
        left = self._end - monotonic()
        if left < _CLOCK_STEP:
            raise self.timed_out()
        return left if at_most is None else min(left, at_most)

    def timed_out(self) -> PinwardenError:
        """The error for a server that takes too long."""
        return probe_failed("timeout", f"the server did not finish within {self.seconds:g} seconds")

    def count_bytes(self, count: int) -> None:
        """Count bytes that were received; an error once there are too many."""
        self._bytes += count
        if self._bytes > self.limits.max_total_bytes:
            raise probe_limit_exceeded("bytes in all", self.limits.max_total_bytes)


_DENIED = (
    "It wants to know who asks. Beside an address: --header 'Authorization: Bearer ${TOKEN}'. In a client's "
    "configuration: write the header there, and name its variable with --pass-env TOKEN."
)


def probe_failed(reason: str, message: str, details: Mapping[str, object] | None = None) -> PinwardenError:
    """A server that could not be asked. The reason is a word that programs can tell apart."""
    data = {"reason": reason, **(details or {})}
    return PinwardenError(
        "PROBE_FAILED", message, hint=_DENIED if data.get("status") in (401, 403) else None, data=data
    )


def probe_limit_exceeded(what: str, allowed: int) -> PinwardenError:
    """A server that sent too much of something."""
    return PinwardenError(
        "PROBE_LIMIT", f"the server sent too many {what}: more than {allowed}", data={"limit": what, "allowed": allowed}
    )
