"""Answers that never change, kept in memory up to a bound."""

from __future__ import annotations

from collections import OrderedDict

from pinwarden.registry.read_api import Found

_MOST_BYTES = 64 * 1024 * 1024
LARGEST_KEPT = 1024 * 1024


class FoundCache:
    """The answers that were asked for last. Used by the event loop alone."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._kept: OrderedDict[str, Found] = OrderedDict()
        self._most = most_bytes
        self._size = 0

    def get(self, path: str) -> Found | None:
        """What was kept for a path."""
        found = self._kept.get(path)
        if found is not None:
            self._kept.move_to_end(path)
        return found

    def keep(self, path: str, found: Found) -> None:
        """Keep an answer, and let go of the oldest that there is no room for."""
        if len(found.body) > LARGEST_KEPT or path in self._kept:
            return
        self._kept[path] = found
        self._size += len(found.body)
        while self._size > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.body)
