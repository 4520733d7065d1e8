"""Moments as documents write them: with a time zone, or not at all."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def moment_of(text: Any) -> datetime | None:
    """The moment that a text names; None for whatever else it is, a time without its zone too."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
