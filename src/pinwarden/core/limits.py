"""Limits for parsing untrusted JSON, each with its reason."""

from __future__ import annotations

from pinwarden.core.record import Record


class Limits(Record):
    """Bounds on one JSON text."""

    max_bytes: int = 32 * 1024 * 1024
    """The largest real listing we know is below 1 MiB. 32 MiB parse in well under a second."""

    max_depth: int = 200
    """The limit of the strict parser. Real schemas stay below 30 levels; encoders stop at 254."""

    max_digits: int = 1000
    """Longest run of digits in a number. Converting digits to an integer takes quadratic time."""

    max_values: int = 8_000_000
    """Estimated memory of all values, in units of 64 bytes: a comma or colon counts 1, an array 2, an object 5. So a
    text needs at most 512 MiB besides its strings; an unlimited `[],[],…` would need twenty times its size. Real
    listings stay below 200,000. A text of at most 64 KiB, or with fewer bytes than this number, is not counted, because
    it cannot need more than half of it."""


DEFAULT_LIMITS = Limits()
