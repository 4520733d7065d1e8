"""Timestamps in documents. A timestamp without a time zone is invalid."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def parse_timestamp(text: Any) -> datetime | None:
    """Parse an ISO 8601 timestamp; None for anything else, including a time without a zone."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
