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


def find_missing_connections(projects: Sequence[Project]) -> tuple[str, ...]:
    """Return a note for each remote server that the user of this machine has to connect, or connect again."""
    from pinwarden.project.remote_access import uses_connections

    notes: dict[str, None] = {}
    for project in projects:
        if not uses_connections(project):
            continue
        from pinwarden.gateway.remote_grants import list_missing
        from pinwarden.gateway.state import open_state_for_reading
        from pinwarden.project.remote_access import find_local_owner

        try:
            with open_state_for_reading(project) as state:
                if not state.is_on_this_machine:
                    continue  # no network is used
                missing = list_missing(project, state.read_grants(), find_local_owner(state.folder))
        except PinwardenError as err:
            notes[f"whether remote servers are connected is not known: {err.message} [{err.code}]"] = None
        else:
            notes |= {f"{name} is not connected; run: pinwarden remote connect {name}": None for name in missing}
    return tuple(notes)
