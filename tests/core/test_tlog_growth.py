"""A growing log by its edge and its tiles: the same trees and proofs as from all of its nodes."""

from __future__ import annotations

import pytest

from pinwarden import PinwardenError
from pinwarden.core.tlog import (
    EMPTY_ROOT,
    TILE_HEIGHT,
    TILE_WIDTH,
    Frontier,
    TileNodes,
    TreeNode,
    compute_root,
    hash_leaf,
    prove_consistency,
    prove_inclusion,
    split_hashes,
    tile_width,
    verify_consistency,
    verify_inclusion,
)
from tests.core.node_store import NodeStore

LEAVES = [hash_leaf(b"%d" % number) for number in range(TILE_WIDTH * 3 + 7)]


def tiles(nodes: NodeStore, size: int) -> TileNodes:
    def fetch(level: int, index: int, width: int) -> bytes:
        assert width == tile_width(size, level, index)
        first = index * TILE_WIDTH
        return b"".join(nodes.read(level * TILE_HEIGHT, place) for place in range(first, first + width))

    return TileNodes(size, fetch)


def test_the_edge_has_the_root_of_the_whole_tree_at_every_size() -> None:
    edge, nodes = Frontier(), NodeStore()
    assert edge.root == EMPTY_ROOT
    for leaf in LEAVES:
        edge, made = edge.append(leaf)
        nodes.append(leaf)
        assert edge.root == compute_root(edge.size, nodes.read)
        assert made == tuple(
            TreeNode(level=node.level, index=node.index, hash=nodes.read(node.level, node.index)) for node in made
        )
        assert Frontier.from_bytes(edge.size, bytes(edge)) == edge


def test_proofs_from_tiles_equal_proofs_from_all_nodes() -> None:
    size = len(LEAVES)
    nodes = NodeStore(LEAVES)
    root = compute_root(size, nodes.read)
    read = tiles(nodes, size).read
    for index in (0, 1, 255, 256, 511, 767, 768, size - 1):
        proof = prove_inclusion(index, size, read)
        assert proof == prove_inclusion(index, size, nodes.read)
        verify_inclusion(LEAVES[index], index, size, root, proof)
    for old in (1, 2, 255, 256, 257, 512, 700, size - 1):
        proof = prove_consistency(old, size, read)
        verify_consistency(old, size, compute_root(old, nodes.read), root, proof)


@pytest.mark.parametrize(
    ("size", "hashes"), [(1, ()), (3, (b"x" * 32,)), (0, (b"x" * 32,)), (1, (b"x" * 31,)), (-1, ())]
)
def test_an_edge_that_does_not_fit_its_size_is_refused(size: int, hashes: tuple[bytes, ...]) -> None:
    with pytest.raises(PinwardenError) as caught:
        Frontier(size=size, hashes=hashes)
    assert caught.value.code == "LOG_PROOF_INVALID"


@pytest.mark.parametrize("tile", [b"", b"x" * 31, b"x" * 32, b"x" * 32 * 4])
def test_a_tile_of_another_width_is_refused(tile: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        TileNodes(3, lambda *_: tile).read(0, 0)
    assert caught.value.code == "LOG_PROOF_INVALID"


@pytest.mark.parametrize(("level", "index"), [(0, 3), (1, 1), (8, 0), (0, 300)])
def test_an_incomplete_node_is_refused(level: int, index: int) -> None:
    with pytest.raises(PinwardenError) as caught:
        tiles(NodeStore(LEAVES[:3]), 3).read(level, index)
    assert caught.value.code == "LOG_PROOF_INVALID"


def test_a_tile_is_cut_into_hashes() -> None:
    assert split_hashes(b"a" * 32 + b"b" * 32) == (b"a" * 32, b"b" * 32)
