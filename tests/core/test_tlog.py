"""Transparency-log arithmetic: known answers, every proof of small trees, and what a forged proof meets."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError
from pinwarden.core.tlog import (
    EMPTY_ROOT,
    TILE_WIDTH,
    compute_root,
    entries_path,
    hash_leaf,
    list_tiles,
    pack_entries,
    prove_consistency,
    prove_inclusion,
    tile_path,
    unpack_entries,
    verify_consistency,
    verify_inclusion,
)
from tests.core.node_store import NodeStore

# The eight entries and roots that Certificate Transparency implementations have in common.
ENTRIES = [
    bytes.fromhex(e)
    for e in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def tree(size: int) -> NodeStore:
    return NodeStore(hash_leaf(b"%d" % n) for n in range(size))


@pytest.mark.parametrize("size", range(9))
def test_roots_equal_the_known_answers(size: int) -> None:
    store = NodeStore(map(hash_leaf, ENTRIES))
    assert compute_root(size, store.read).hex() == ROOTS[size]


def test_every_proof_of_every_tree_up_to_40_leaves_verifies() -> None:
    store = tree(40)
    roots = [compute_root(size, store.read) for size in range(41)]
    for size in range(1, 41):
        for index in range(size):
            proof = prove_inclusion(index, size, store.read)
            verify_inclusion(store.read(0, index), index, size, roots[size], proof)
        for old in range(size + 1):
            verify_consistency(old, size, roots[old], roots[size], prove_consistency(old, size, store.read))


@given(st.integers(1, 300), st.data())
def test_a_proof_is_valid_only_for_its_own_leaf_and_index(size: int, data: st.DataObject) -> None:
    store = tree(size)
    root = compute_root(size, store.read)
    index = data.draw(st.integers(0, size - 1))
    proof = prove_inclusion(index, size, store.read)
    other = data.draw(st.integers(0, size))
    if other != index:
        refused(store.read(0, index), other, size, root, proof)
    refused(hash_leaf(b"forged"), index, size, root, proof)
    refused(store.read(0, index), index, size, sha256(b"x").digest(), proof)
    refused(store.read(0, index), index, size, root, [*proof, root])
    if proof:
        refused(store.read(0, index), index, size, root, proof[:-1])
        refused(store.read(0, index), index, size, root, [*proof[:-1], b"short"])


def refused(leaf: bytes, index: int, size: int, root: bytes, proof: list[bytes]) -> None:
    with pytest.raises(PinwardenError) as caught:
        verify_inclusion(leaf, index, size, root, proof)
    assert caught.value.code == "LOG_PROOF_INVALID"


@given(st.integers(0, 200), st.integers(0, 200), st.data())
def test_a_rewritten_history_is_never_consistent(old: int, new: int, data: st.DataObject) -> None:
    old, new = min(old, new), max(old, new)
    store = tree(new)
    old_root, new_root = compute_root(old, store.read), compute_root(new, store.read)
    proof = prove_consistency(old, new, store.read)
    forged = sha256(b"fork").digest()
    attempts = [
        (old, new, forged, new_root, proof),
        (old, new, old_root, new_root, [*proof, forged]),
        (new + 1, new, old_root, new_root, proof),
    ]
    if old:
        attempts.append((old, new, old_root, forged, proof))
    if proof:
        place = data.draw(st.integers(0, len(proof) - 1))
        attempts.append((old, new, old_root, new_root, [*proof[:place], forged, *proof[place + 1 :]]))
        attempts.append((old, new, old_root, new_root, proof[:-1]))
        attempts.append((old, new, old_root, new_root, []))
    for attempt in attempts:
        with pytest.raises(PinwardenError) as caught:
            verify_consistency(*attempt)
        assert caught.value.code == "LOG_PROOF_INVALID"


def test_a_proof_for_an_index_outside_the_tree_is_refused() -> None:
    store = tree(3)
    for make, place, size in ((prove_inclusion, 3, 3), (prove_inclusion, -1, 3), (prove_consistency, 4, 3)):
        with pytest.raises(PinwardenError):
            make(place, size, store.read)


def test_a_tree_that_grew_from_nothing_is_consistent_with_it() -> None:
    store = tree(5)
    verify_consistency(0, 5, EMPTY_ROOT, compute_root(5, store.read), [])


class TestTiles:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            (tile_path(0, 1234067), "tile/0/x001/x234/067"),
            (tile_path(0, 0), "tile/0/000"),
            (tile_path(1, 999, 3), "tile/1/999.p/3"),
            (tile_path(2, 1000, 255), "tile/2/x001/000.p/255"),
            (entries_path(5), "tile/entries/005"),
            (entries_path(123456, 17), "tile/entries/x123/456.p/17"),
        ],
    )
    def test_paths_are_those_of_the_specification(self, path: str, expected: str) -> None:
        assert path == expected

    @pytest.mark.parametrize(("level", "index", "width"), [(-1, 0, 1), (64, 0, 1), (0, -1, 1), (0, 0, 0), (0, 0, 257)])
    def test_a_tile_that_cannot_exist_has_no_path(self, level: int, index: int, width: int) -> None:
        with pytest.raises(PinwardenError):
            tile_path(level, index, width)

    def test_the_example_tree_of_the_specification_has_its_tiles(self) -> None:
        tiles = list_tiles(70_000)
        assert (0, 273, 112) in tiles  # 273 full tiles and one of 112 on level 0
        assert (1, 1, 17) in tiles
        assert (2, 0, 1) in tiles
        assert len(tiles) == 274 + 2 + 1
        assert list_tiles(0) == []
        assert list_tiles(256) == [(0, 0, 256), (1, 0, 1)]

    def test_entries_survive_packing(self) -> None:
        entries = [b"", b"x", b"y" * 65535]
        assert unpack_entries(pack_entries(entries)) == entries

    @pytest.mark.parametrize("bundle", [b"\x00", b"\x00\x05abc", b"\x00\x00" * (TILE_WIDTH + 1)])
    def test_a_damaged_bundle_is_refused(self, bundle: bytes) -> None:
        with pytest.raises(PinwardenError):
            unpack_entries(bundle)

    def test_an_entry_too_long_for_its_length_field_is_refused(self) -> None:
        with pytest.raises(PinwardenError):
            pack_entries([b"y" * 65536])
