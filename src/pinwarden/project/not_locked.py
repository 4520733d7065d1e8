"""The error for a server that the lock does not name, with the name that was perhaps meant."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.clients.near_names import near_name
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.entry import Entry


def not_locked(entries: Iterable[Entry], name: str, hint: str | None = None) -> PinwardenError:
    """That there is no entry of this name."""
    near = near_name(name, (entry.name for entry in entries))
    meant = f", did you mean {near[:120]!a}?" if near else ""
    return PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {name[:120]!a}{meant}", hint=hint)
