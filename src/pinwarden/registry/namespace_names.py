"""Names of namespaces that readers could mistake for each other."""

from __future__ import annotations

from pinwarden.clients.similar_names import find_similar_name
from pinwarden.registry.store import publishers
from pinwarden.system.database import Transaction

_LOOK_ALIKES = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("-", ""), ("_", ""))
"""Letters that look like others in many fonts, and separators."""


def find_namespace_warning(transaction: Transaction, name: str) -> str | None:
    """Return a warning if readers could mistake a new namespace for one that exists; None otherwise."""
    others = [other for other in publishers.list_namespaces(transaction) if not _is_related(name, other)]
    folded = {_fold_look_alikes(other): other for other in others}
    similar = folded.get(_fold_look_alikes(name)) or find_similar_name(name, others)
    return None if similar is None else f"{name} is easily mistaken for {similar}, which has other owners"


def _fold_look_alikes(name: str) -> str:
    for letters, folded in _LOOK_ALIKES:
        name = name.replace(letters, folded)
    return name


def _is_related(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")
