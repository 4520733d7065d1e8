"""The nodes of a growing tree, as a log would keep them."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.tlog import hash_children


class NodeStore:
    """The complete nodes of a growing tree, in memory."""

    __slots__ = ("_levels",)

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaf_hashes:
            self.append(leaf)

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add a leaf hash, and every node that it completes."""
        level, node = 0, leaf
        self._levels[0].append(node)
        while len(self._levels[level]) % 2 == 0:
            node = hash_children(self._levels[level][-2], self._levels[level][-1])
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(node)

    def read(self, level: int, index: int) -> bytes:
        """The node at that place."""
        return self._levels[level][index]
