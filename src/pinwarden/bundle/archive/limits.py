"""How much of a bundle is looked at, with the reason beside each number."""

from __future__ import annotations

from pinwarden.core.record import Record


class BundleLimits(Record):
    """Bounds on one bundle, against those that are small outside and enormous inside."""

    files: int = 100_000
    """The largest packages in use have about thirty thousand."""
    archive_bytes: int = 512 * 1024 * 1024
    """A bundle is held in memory, once, so that what was checked is what is written."""
    total_bytes: int = 1024 * 1024 * 1024
    """Of all files together, each counted as often as it is written."""


DEFAULT_LIMITS = BundleLimits()
