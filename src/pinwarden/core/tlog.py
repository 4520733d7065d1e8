"""Transparency logs: RFC 6962 hashing, RFC 9162 proofs, C2SP tiles.

A tree consists of *complete nodes*: node ``(level, index)`` is the hash of ``2**level`` leaves, the first of which is
leaf ``index * 2**level``. Callers pass a function that reads a node, so the same code makes proofs from memory, tile
files and databases.

`Frontier` is the right edge of a growing tree: the nodes that an append needs. `TileNodes` reads nodes from tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

HASH_SIZE = 32
TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
EMPTY_ROOT = sha256(b"").digest()

ReadNode = Callable[[int, int], bytes]


def hash_leaf(entry: bytes) -> bytes:
    """Return the hash of a log entry as a leaf of the tree."""
    return sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node from the hashes of its two children."""
    return sha256(b"\x01" + left + right).digest()


def compute_root(size: int, read: ReadNode) -> bytes:
    """Return the root of the tree of the first ``size`` leaves."""
    return EMPTY_ROOT if size == 0 else _hash_range(0, size, read)


def prove_inclusion(index: int, size: int, read: ReadNode) -> list[bytes]:
    """Return the path from the leaf at ``index`` to the root of the first ``size`` leaves (RFC 6962, section 2.1.1)."""
    if not 0 <= index < size:
        raise PinwardenError("LOG_PROOF_INVALID", f"there is no leaf {index} in a tree of {size}")
    path: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _largest_power_below(high - low)
        if index < middle:
            path.append(_hash_range(middle, high, read))
            high = middle
        else:
            path.append(_hash_range(low, middle, read))
            low = middle
    return path[::-1]


def prove_consistency(old_size: int, new_size: int, read: ReadNode) -> list[bytes]:
    """Return the proof that the tree of ``old_size`` leaves is a prefix of the new tree (RFC 6962, section 2.1.2)."""
    if not 0 <= old_size <= new_size:
        raise PinwardenError("LOG_PROOF_INVALID", f"a tree of {old_size} leaves cannot grow into one of {new_size}")
    if old_size in (0, new_size):
        return []
    path: list[bytes] = []
    low, high = 0, new_size
    while high != old_size:
        middle = low + _largest_power_below(high - low)
        if old_size <= middle:
            path.append(_hash_range(middle, high, read))
            high = middle
        else:
            path.append(_hash_range(low, middle, read))
            low = middle
    if low:
        path.append(_hash_range(low, high, read))
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Raise unless the leaf hash is at ``index`` in the tree with this size and root (RFC 9162, section 2.1.3.2)."""
    _check_hashes(leaf, root, *proof)
    if not 0 <= index < size:
        _refuse_proof(f"there is no leaf {index} in a tree of {size}")
    position, last, computed = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            _refuse_proof("the inclusion proof is too long")
        if position % 2 or position == last:
            computed = hash_children(sibling, computed)
            while position and not position % 2:
                position >>= 1
                last >>= 1
        else:
            computed = hash_children(computed, sibling)
        position >>= 1
        last >>= 1
    if last != 0:
        _refuse_proof("the inclusion proof is too short")
    if not compare_digest(computed, root):
        _refuse_proof("the inclusion proof does not lead to the root")


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise unless the old tree is a prefix of the new one (RFC 9162, section 2.1.4.2)."""
    _check_hashes(old_root, new_root, *proof)
    if not 0 <= old_size <= new_size:
        _refuse_proof(f"a tree of {old_size} cannot grow into one of {new_size}")
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        if proof or not compare_digest(old_root, expected):
            _refuse_proof("the two trees differ")
        return
    path = list(proof)
    if old_size & (old_size - 1) == 0:  # a complete tree is its own first node
        path.insert(0, old_root)
    if not path:
        _refuse_proof("the consistency proof is too short")
    position, last = old_size - 1, new_size - 1
    while position % 2:
        position >>= 1
        last >>= 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            _refuse_proof("the consistency proof is too long")
        if position % 2 or position == last:
            old, new = hash_children(sibling, old), hash_children(sibling, new)
            while position and not position % 2:
                position >>= 1
                last >>= 1
        else:
            new = hash_children(new, sibling)
        position >>= 1
        last >>= 1
    if last != 0:
        _refuse_proof("the consistency proof is too short")
    if not (compare_digest(old, old_root) and compare_digest(new, new_root)):
        _refuse_proof("the consistency proof does not lead to both roots")


# Tiles: https://c2sp.org/tlog-tiles


def tile_path(level: int, index: int, width: int = TILE_WIDTH) -> str:
    """Return the path of a tile of hashes, for example ``tile/0/x001/x234/067`` or ``tile/1/000.p/3``."""
    if not 0 <= level <= 63:
        raise PinwardenError("LOG_PROOF_INVALID", f"there is no tile level {level}")
    return _format_tile_path(str(level), index, width)


def entries_path(index: int, width: int = TILE_WIDTH) -> str:
    """Return the path of an entry bundle of tlog-tiles, such as ``tile/entries/000``."""
    return _format_tile_path("entries", index, width)


def list_tiles(size: int) -> list[tuple[int, int, int]]:
    """Return all tiles (level, index, width) of a tree, full and partial."""
    tiles = []
    level = 0
    while nodes := size >> (TILE_HEIGHT * level):
        full, rest = divmod(nodes, TILE_WIDTH)
        tiles += [(level, index, TILE_WIDTH) for index in range(full)]
        if rest:
            tiles.append((level, full, rest))
        level += 1
    return tiles


def pack_entries(entries: Iterable[bytes]) -> bytes:
    """Encode an entry bundle: each entry is preceded by its length in two bytes."""
    packed = bytearray()
    for entry in entries:
        if len(entry) > 0xFFFF:
            raise PinwardenError("LOG_PROOF_INVALID", "a log entry has more than 65535 bytes")
        packed += len(entry).to_bytes(2, "big") + entry
    return bytes(packed)


def unpack_entries(bundle: bytes) -> list[bytes]:
    """Decode an entry bundle into its entries."""
    entries: list[bytes] = []
    end = 0
    while end < len(bundle):
        start = end + 2
        end = start + int.from_bytes(bundle[end:start], "big")
        if end > len(bundle) or len(entries) == TILE_WIDTH:
            _refuse_proof("the entry bundle is cut off or too long")
        entries.append(bundle[start:end])
    return entries


def _format_tile_path(kind: str, index: int, width: int) -> str:
    if index < 0 or not 1 <= width <= TILE_WIDTH:
        raise PinwardenError("LOG_PROOF_INVALID", f"there is no tile {index} of width {width}")
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.append(f"x{index % 1000:03d}")
    partial = "" if width == TILE_WIDTH else f".p/{width}"
    return f"tile/{kind}/{'/'.join(reversed(groups))}{partial}"


def _largest_power_below(count: int) -> int:
    """Return the largest power of two below ``count``."""
    return 1 << (count - 1).bit_length() - 1


def _hash_range(low: int, high: int, read: ReadNode) -> bytes:
    """Return the hash of leaves ``low`` to ``high - 1``. ``low`` must be aligned, as in the recursion of RFC 6962."""
    count = high - low
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return read(level, low >> level)
    middle = low + _largest_power_below(count)
    return hash_children(_hash_range(low, middle, read), _hash_range(middle, high, read))


def _check_hashes(*hashes: bytes) -> None:
    if any(len(value) != HASH_SIZE for value in hashes):
        _refuse_proof("a hash in the proof does not have 32 bytes")


def _refuse_proof(why: str) -> NoReturn:
    raise PinwardenError("LOG_PROOF_INVALID", why)


FetchTile = Callable[[int, int, int], bytes]
"""Returns the concatenated hashes of the tile with this level, index and width."""


class TreeNode(Record):
    """A complete node of a tree: the hash over ``2**level`` leaves."""

    level: int
    index: int
    hash: bytes


class Frontier(Record):
    """The right edge of a tree: its largest complete nodes, from left to right, one per 1 bit of the size."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.hashes) != self.size.bit_count():
            raise PinwardenError("LOG_PROOF_INVALID", "the number of frontier hashes does not match the tree size")
        if any(len(digest) != HASH_SIZE for digest in self.hashes):
            raise PinwardenError("LOG_PROOF_INVALID", "a frontier hash does not have 32 bytes")

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> Frontier:
        """Parse a stored frontier."""
        return cls(size=size, hashes=split_hashes(data))

    def __bytes__(self) -> bytes:
        return b"".join(self.hashes)

    @property
    def root(self) -> bytes:
        """The root of the tree."""
        if not self.hashes:
            return EMPTY_ROOT
        root = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            root = hash_children(left, root)
        return root

    def append(self, leaf: bytes) -> tuple[Frontier, tuple[TreeNode, ...]]:
        """Append a leaf. Returns the new frontier, and the nodes that are now complete, beginning with the leaf."""
        hashes = list(self.hashes)
        level, index, node = 0, self.size, leaf
        nodes = [TreeNode(level=0, index=index, hash=leaf)]
        while index % 2:
            node = hash_children(hashes.pop(), node)
            level, index = level + 1, index // 2
            nodes.append(TreeNode(level=level, index=index, hash=node))
        return Frontier(size=self.size + 1, hashes=(*hashes, node)), tuple(nodes)


class TileNodes:
    """The nodes of a tree, read from its tiles. Each tile is fetched once.

    This class does not verify tiles. Compare a root computed from them with a trusted root.
    """

    def __init__(self, size: int, fetch: FetchTile) -> None:
        self._size = size
        self._fetch = fetch
        self._tiles: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def read(self, level: int, index: int) -> bytes:
        """Return the hash of a node, read from a tile or computed from the nodes in a tile."""
        tile_level, height = divmod(level, TILE_HEIGHT)
        first = index << height
        tile = self._read_tile(tile_level, first // TILE_WIDTH)
        start = first % TILE_WIDTH
        nodes = tile[start : start + (1 << height)]
        if len(nodes) != 1 << height:
            raise PinwardenError("LOG_PROOF_INVALID", f"there is no node {index} at level {level} of the tree")
        while len(nodes) > 1:
            nodes = tuple(hash_children(nodes[at], nodes[at + 1]) for at in range(0, len(nodes), 2))
        return nodes[0]

    def _read_tile(self, level: int, index: int) -> tuple[bytes, ...]:
        if (level, index) not in self._tiles:
            width = min(TILE_WIDTH, (self._size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH)
            if width < 1:
                raise PinwardenError("LOG_PROOF_INVALID", f"there is no tile {index} at level {level} of the tree")
            hashes = split_hashes(self._fetch(level, index, width))
            if len(hashes) != width:
                raise PinwardenError("LOG_PROOF_INVALID", "a tile of the log has the wrong width")
            self._tiles[level, index] = hashes
        return self._tiles[level, index]


def split_hashes(data: bytes) -> tuple[bytes, ...]:
    """Split concatenated hashes. Raises if the size is not a multiple of the hash size."""
    if len(data) % HASH_SIZE:
        raise PinwardenError("LOG_PROOF_INVALID", "the size of a tile is not a multiple of the hash size")
    return tuple(data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE))


def tile_width(size: int, level: int, index: int) -> int:
    """Return the number of hashes in a tile of a tree with this size; 0 if there is no such tile."""
    return max(0, min(TILE_WIDTH, (size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH))


def join_hashes(hashes: Sequence[bytes]) -> bytes:
    """Concatenate hashes, as tiles and stored frontiers contain them."""
    return b"".join(hashes)
