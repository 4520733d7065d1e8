"""What a page is built from, and what a template is rendered from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.record import Record, field
from pinwarden.web.pages import HTML


class PageRequest(Record):
    """A request for a page."""

    path: str
    """Without a leading slash."""
    query: Mapping[str, str] = field(default_factory=dict)
    base_url: str | None = None
    """The address of the registry; None if a static export does not know it."""
    is_static: bool = False


class PageContent(Record):
    """The template of a page, and its values."""

    template: str
    values: Mapping[str, Any]
    media_type: str = HTML
