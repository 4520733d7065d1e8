"""Paths that are the same file on every machine, judged one by one and all at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pinwarden import PinwardenError
from pinwarden.artifacts.archives.rules import PathSet, check_all_portable, check_portable

PIECES = [
    "a",
    "A",
    "b",
    ".",
    "..",
    "/",
    "-",
    "con",
    "aux.x",
    "COM1",
    "lpt9.y",
    "\u00e9",
    "\n",
    " ",
    ":",
    "x" * 256,
    "\\",
]
PATHS = st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), max_size=4)
TREES = st.lists(st.lists(st.sampled_from(["a", "b", "B", "lib", "Lib", "c.d"]), min_size=1, max_size=3).map("/".join))


def one_by_one(paths: list[str]) -> bool:
    together = PathSet()
    try:
        for path in paths:
            together.add(check_portable(path))
    except PinwardenError:
        return False
    return True


def at_once(paths: list[str]) -> bool:
    try:
        check_all_portable(paths)
    except PinwardenError as err:
        assert err.code == "ARCHIVE_UNSAFE"
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(PATHS | TREES)
def test_checking_all_paths_at_once_gives_the_same_result_as_one_by_one(paths: list[str]) -> None:
    assert at_once(paths) == one_by_one(paths)


def test_a_thousand_plain_paths_are_accepted_and_a_case_duplicate_is_refused() -> None:
    paths = [f"lib{number % 7}/file{number}.js" for number in range(1000)]
    assert at_once(paths)
    assert not at_once([*paths, "LIB1/other.js"])
    assert not at_once([*paths, "lib1"])
    assert not at_once([*paths, "lib1/file1.js/x"])
    assert not at_once([*paths, "lib1/nul.js"])


def test_a_path_that_is_too_deep_or_too_long_to_be_unpacked_is_refused() -> None:
    deepest, longest = "/".join("d" * 64), "/".join(["x" * 199] * 5)
    for path in (deepest, longest):
        assert at_once([path])
        assert one_by_one([path])
    for path in (f"d/{deepest}", f"{longest}yy", "é/" * 400 + "é" * 200, "/".join("d" * 100_000)):
        assert not at_once([path])
        assert not one_by_one([path])
