"""A growing log, known by little: its right edge is enough to append, and its tiles are enough to prove.

`Frontier` holds one hash for each one bit of the tree's size, so an append costs the same for the first entry and for
the millionth. `TileNodes` reads the nodes of a tree from its tiles, wherever those lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.tlog import EMPTY_ROOT, HASH_SIZE, TILE_HEIGHT, TILE_WIDTH, node_hash

FetchTile = Callable[[int, int, int], bytes]
"""The hashes of the tile at level, index and width, one after another."""


class TreeNode(Record):
    """A complete node of a tree: the hash over ``2**level`` leaves."""

    level: int
    index: int
    hash: bytes


class Frontier(Record):
    """The right edge of a tree: its largest complete nodes, from left to right."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.hashes) != self.size.bit_count():
            raise PinwardenError("LOG_PROOF_INVALID", "the edge of the tree does not fit its size")
        if any(len(each) != HASH_SIZE for each in self.hashes):
            raise PinwardenError("LOG_PROOF_INVALID", "a hash of the tree's edge does not have 32 bytes")

    @classmethod
    def of_bytes(cls, size: int, data: bytes) -> Frontier:
        """An edge that was kept as bytes."""
        return cls(size=size, hashes=hashes_in(data))

    def __bytes__(self) -> bytes:
        return b"".join(self.hashes)

    @property
    def root(self) -> bytes:
        """The root of the tree."""
        if not self.hashes:
            return EMPTY_ROOT
        root = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            root = node_hash(left, root)
        return root

    def appended(self, leaf: bytes) -> tuple[Frontier, tuple[TreeNode, ...]]:
        """The edge after one more leaf, and every node that the leaf completes, itself first."""
        hashes = list(self.hashes)
        level, index, node = 0, self.size, leaf
        made = [TreeNode(level=0, index=index, hash=leaf)]
        while index % 2:
            node = node_hash(hashes.pop(), node)
            level, index = level + 1, index // 2
            made.append(TreeNode(level=level, index=index, hash=node))
        return Frontier(size=self.size + 1, hashes=(*hashes, node)), tuple(made)


class TileNodes:
    """The nodes of a tree, read from its tiles. Each tile is fetched once.

    Whoever fetched the tiles from somebody else holds what comes of them against a root that is trusted.
    """

    def __init__(self, size: int, fetch: FetchTile) -> None:
        self._size = size
        self._fetch = fetch
        self._tiles: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def read(self, level: int, index: int) -> bytes:
        """The node at that place: it is in a tile, or is made of nodes that are."""
        tile_level, height = divmod(level, TILE_HEIGHT)
        first = index << height
        tile = self._tile(tile_level, first // TILE_WIDTH)
        start = first % TILE_WIDTH
        nodes = tile[start : start + (1 << height)]
        if len(nodes) != 1 << height:
            raise PinwardenError("LOG_PROOF_INVALID", f"there is no node {index} at level {level} of the tree")
        while len(nodes) > 1:
            nodes = tuple(node_hash(nodes[at], nodes[at + 1]) for at in range(0, len(nodes), 2))
        return nodes[0]

    def _tile(self, level: int, index: int) -> tuple[bytes, ...]:
        if (level, index) not in self._tiles:
            width = min(TILE_WIDTH, (self._size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH)
            if width < 1:
                raise PinwardenError("LOG_PROOF_INVALID", f"there is no tile {index} at level {level} of the tree")
            hashes = hashes_in(self._fetch(level, index, width))
            if len(hashes) != width:
                raise PinwardenError("LOG_PROOF_INVALID", "a tile of the log does not have the width it should have")
            self._tiles[level, index] = hashes
        return self._tiles[level, index]


def hashes_in(data: bytes) -> tuple[bytes, ...]:
    """The hashes that stand one after another in a tile."""
    if len(data) % HASH_SIZE:
        raise PinwardenError("LOG_PROOF_INVALID", "a tile of the log is not a row of hashes")
    return tuple(data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE))


def width_of(size: int, level: int, index: int) -> int:
    """How many hashes the tile at that place has in a tree of this size; 0 if there is no such tile."""
    return max(0, min(TILE_WIDTH, (size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH))


def tile_bytes(hashes: Sequence[bytes]) -> bytes:
    """A tile as it is served."""
    return b"".join(hashes)
