"""How much of a hostile input we are willing to look at, with the reason beside each number."""

from __future__ import annotations

from pinwarden.core.record import Record


class Limits(Record):
    """Bounds on one JSON text."""

    max_bytes: int = 32 * 1024 * 1024
    """The largest real listing seen is below 1 MiB; 32 MiB parses in well under a second."""

    max_depth: int = 200
    """What the strict reader takes, and no more. Real schemas stay below 30 levels; encoders stop at 254."""

    max_digits: int = 1000
    """Longest run of digits in a number. Converting digits to an integer takes quadratic time."""

    max_values: int = 8_000_000
    """What the values may weigh together: a comma or colon counts one, an array two and an object five, which is what
    they take in memory by the 64 bytes. So a text takes at most 512 MiB beside its strings, four times the largest
    message of a server; `[],[],…` would take twenty times its size. Real listings weigh below 200,000. A text
    of no more bytes than this number, or of no more than 64 KiB, is not weighed: what is in it takes half of that."""


DEFAULT_LIMITS = Limits()
