"""What a page is built from."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.core.record import Record, field


class PageRequest(Record):
    """A request for a page."""

    path: str
    """Without a leading slash."""
    query: Mapping[str, str] = field(default_factory=dict)
    base_url: str | None = None
    """The address of the registry; None if a static export does not know it."""
    is_static: bool = False
