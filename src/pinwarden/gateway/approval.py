"""What was approved of one server: the text of its surface, and digests that are allowed beside it."""

from __future__ import annotations

from pinwarden.core.record import Record
from pinwarden.surface.surface import Surface


class Approved(Record):
    """The measure that everything of one server is held against. It changes only by approval, never by being served."""

    server: str
    """The server's name in the lock, or the name under which it was trusted on first use."""
    surface: Surface
    generation: str
    """Changes whenever the content does: a digest, a counter, a time stamp. What was judged before is judged anew."""
    origin: str = "lock"
    """``lock`` or ``first-use``."""
