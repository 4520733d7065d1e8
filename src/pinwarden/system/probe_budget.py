"""Limits for probing an untrusted server, and the budget of time and bytes of one probe."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits

PROBE_SECONDS = 60.0
"""Default time for one complete probe. A launcher such as npx may need 20 seconds to download the package first."""
_CLOCK_STEP = 0.005  # seconds by which a wait can end early


class ProbeLimits(Record):
    """Limits on what one server may send, each with its reason."""

    max_message_bytes: int = 64 * 1024 * 1024
    """100,000 tools with full schemas in one response are below this."""
    max_total_bytes: int = 256 * 1024 * 1024
    """All messages of one probe. A small machine can hold this for a few parallel probes."""
    max_stderr_bytes: int = 64 * 1024 * 1024
    """Real servers write a few lines. The rest is read and discarded so that the server does not block."""
    stderr_tail_bytes: int = 4096
    """How much of the end of stderr is kept for error messages."""
    max_items: int = 200_000
    """Per list. The largest real list we know has fewer than 1,000."""
    max_pages: int = 10_000
    """Per list. A list with more pages counts as endless."""
    max_stray_messages: int = 10_000
    """Notifications and unsolicited responses."""
    max_server_requests: int = 100
    """Requests from the server (ping, roots, sampling, elicitation). Each gets a response."""
    max_noise_lines: int = 200
    """Log lines on stdout, where only messages belong. Some real servers write them while they start."""
    max_list_reads: int = 3
    """How often a list is read at most, if the server keeps announcing changes."""
    max_redirects: int = 5
    grace_seconds: float = 1.0
    """How long to wait for a server to exit, first after its input is closed, then after SIGTERM."""
    max_discovery_seconds: float = 10.0
    """How long to wait for ``server/discover`` before also trying ``initialize``; at most a third of the time limit."""

    @property
    def json(self) -> Limits:
        """The JSON limits of one message."""
        return Limits(max_bytes=self.max_message_bytes)


class ProbeBudget:
    """The remaining time and bytes of one probe."""

    def __init__(self, limits: ProbeLimits, seconds: float) -> None:
        self.limits = limits
        self.seconds = seconds
        self._end = monotonic() + seconds
        self._bytes = 0

    @property
    def is_expired(self) -> bool:
        """Whether the time limit has passed."""
        return self._end - monotonic() < _CLOCK_STEP

    def remaining(self, at_most: float | None = None) -> float:
        """Return the remaining seconds, but no more than ``at_most``. Raises the timeout error if there are none."""
        left = self._end - monotonic()
        if left < _CLOCK_STEP:
            raise self.timeout_error()
        return left if at_most is None else min(left, at_most)

    def timeout_error(self) -> PinwardenError:
        """Return the error for a server that exceeds the time limit."""
        return probe_error("timeout", f"the server did not finish within {self.seconds:g} seconds")

    def count_bytes(self, count: int) -> None:
        """Count received bytes. Raises PROBE_LIMIT if there are too many."""
        self._bytes += count
        if self._bytes > self.limits.max_total_bytes:
            raise probe_limit_error("bytes in all", self.limits.max_total_bytes)


_AUTHENTICATION_HINT = (
    "The server requires authentication. For an address, add --header 'Authorization: Bearer ${TOKEN}'. In a client's "
    "configuration, add the header there and pass its variable with --pass-env TOKEN."
)


def probe_error(
    reason: str, message: str, details: Mapping[str, object] | None = None, *, hint: str | None = None
) -> PinwardenError:
    """Return the error for a failed probe. ``reason`` is a stable word for programs."""
    data = {"reason": reason, **(details or {})}
    if data.get("status") in (401, 403):
        hint = _AUTHENTICATION_HINT
    return PinwardenError("PROBE_FAILED", message, hint=hint, data=data)


def probe_limit_error(what: str, allowed: int) -> PinwardenError:
    """Return the error for a server that exceeded a limit."""
    return PinwardenError(
        "PROBE_LIMIT", f"the server sent too many {what}: more than {allowed}", data={"limit": what, "allowed": allowed}
    )


def get_probe_stderr(err: PinwardenError) -> str | None:
    """Return the end of the server's stderr that a probe error contains; None if the server wrote nothing."""
    stderr = err.data.get("stderr")
    return stderr if isinstance(stderr, str) and stderr else None
