"""The tiers of trust that a lock entry can have."""

from __future__ import annotations

from typing import Literal

Tier = Literal["verified", "conditional", "unverified", "blocked"]
TIERS_WORST_FIRST: tuple[Tier, ...] = ("blocked", "unverified", "conditional", "verified")


def tier_rank(tier: object) -> int:
    """Higher is better; what is no tier at all is below the worst."""
    return next((rank for rank, known in enumerate(TIERS_WORST_FIRST) if known == tier), -1)
