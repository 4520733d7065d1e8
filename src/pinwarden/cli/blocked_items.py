"""Find the changes that the gateway blocked, for commands that show the state of servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.system.masking import mask_item_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.project.project import Project
    from pinwarden.project.status import BlockedItems


def find_blocked_items(projects: Sequence[Project]) -> tuple[BlockedItems, tuple[str, ...]]:
    """Return the pending reviews of these locks, and notes about a database that was not read.

    A database on another machine is not read, because ``pinwarden status`` uses no network.
    """
    from pinwarden.gateway.baselines import Baseline
    from pinwarden.gateway.state import open_state_for_reading

    blocked: dict[tuple[Path, str], tuple[str, ...]] = {}
    try:
        with open_state_for_reading(projects[0]) as state:
            if "://" in state.url and not state.url.startswith("sqlite:"):
                return {}, ("blocked changes are in a shared database; show them with pinwarden review list",)
            if "://" not in state.url and not Path(state.url).exists():
                return {}, ()  # no gateway was used yet
            locks = {str(Baseline.of_lock(project.lock)): project.lock for project in projects}
            for review in state.reviews.select():
                if review.baseline in locks:
                    key = locks[review.baseline], review.server
                    item = f"{review.entity} {mask_item_key(review.entity, review.item)}"
                    blocked[key] = (*blocked.get(key, ()), item)
    except PinwardenError as err:
        return {}, (f"the changes that the gateway blocked are unknown: {err.message}",)
    return blocked, ()
