"""How much a session takes from either side, with the reason beside each number."""

from __future__ import annotations

from pinwarden.core.limits import Limits
from pinwarden.core.record import Record


class SessionLimits(Record):
    """Bounds on one conversation."""

    max_frame: int = 128 * 1024 * 1024
    """Real results reach 50 MB of encoded pictures; a message is held in memory as a whole."""
    max_pages: int = 200
    """Of one list. The largest real servers need fewer than ten."""
    max_items: int = 5_000
    """Of one list; what a model could read ends far below. Comparing a new one takes up to a millisecond."""
    max_request_tools: int = 200
    """Tool definitions in one server request; models take at most 128."""
    max_input_requests: int = 100
    """Server requests in one result or task; real results have one or two."""
    max_list: int = 32 * 1024 * 1024
    """Bytes of all pages of one list together; the largest real ones stay below 1 MiB."""
    max_unread: int = 1024 * 1024
    """Bytes of a list answer that is taken apart because it cannot be read as a whole, which takes far longer."""
    max_open: int = 10_000
    """Requests without an answer, in each direction."""
    max_held: int = 1_000
    """Messages that wait for a list to be judged."""
    max_held_bytes: int = 160 * 1024 * 1024
    """Of all of them together: one largest message and some others. A server can send many while it is asked."""
    max_unwritten: int = 192 * 1024 * 1024
    """Bytes that wait for a side that does not read: all that was held at once, and some more. Then the server ends."""
    list_seconds: float = 20.0
    """How long a server may take for a list before its calls are refused."""
    max_rounds: int = 5
    """How often a list is asked for again because it changed while it was read."""
    notice_seconds: float = 0.25
    """For which further notices that a list changed are put together: one session cannot make all others of the same
    server list without end, nor a server its client."""
    source_seconds: float = 0.25
    """How long an answer of the lock or store counts before it is asked again: the delay of an approval."""

    @property
    def json(self) -> Limits:
        """What the strict reader takes."""
        return Limits(max_bytes=self.max_frame)


DEFAULT_SESSION_LIMITS = SessionLimits()
