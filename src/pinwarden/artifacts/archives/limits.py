"""Bounds on archives from strangers."""

from __future__ import annotations

from pinwarden.core.record import Record


class ArchiveLimits(Record):
    """Bounds on one archive, against those that are small outside and enormous inside."""

    members: int = 100_000
    """The largest packages in use have about thirty thousand files."""
    total_bytes: int = 4 * 1024 * 1024 * 1024
    path_bytes: int = 1024
    header_bytes: int = 64 * 1024
    """For one header about another member. Long names and times need a few hundred."""


DEFAULT_LIMITS = ArchiveLimits()
