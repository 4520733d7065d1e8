"""Digests against an allowlist: the decision of a digest policy about one tool, with nothing but its pins known."""

from __future__ import annotations

from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.tool_digest import tool_digest


def digest_or_none(tool: Any, profile: str) -> Digest | None:
    """The digest of a tool; None if it has none in this form."""
    try:
        return tool_digest(tool, profile)
    except PinwardenError:
        return None
