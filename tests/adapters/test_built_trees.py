"""A built tree is what was locked, file by file, however many processes look at it."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pinwarden.adapters.environments import many_hashes
from pinwarden.adapters.environments.tree import (
    MANIFEST,
    TREE,
    Anchors,
    problem_of,
    rows_in,
    write_file,
    write_manifest,
)
from pinwarden.documents.artifacts.closure import tree_text

SECTION = "files"
COUNT = 2100  # enough for several processes
FIRST, MIDDLE, LAST = "d0/f0.js", "d1/f1050.js", "d6/f2099.js"


def _write(folder: Path) -> Anchors:
    tree = folder / TREE
    tree.mkdir()
    paths = [f"d{number * 7 // COUNT}/f{number}.js" for number in range(COUNT)]
    paths[COUNT // 2] = MIDDLE
    rows = [write_file(tree, path, path.encode() * 40, executable=path.endswith("7.js")) for path in paths]
    write_manifest(folder, {SECTION: rows})
    return {SECTION: frozenset([hashlib.sha256(tree_text(rows)).digest()])}


@pytest.fixture
def anchors(tmp_path: Path) -> Anchors:
    return _write(tmp_path)


@pytest.fixture(params=[1, 2, 4], ids=["alone", "two processes", "four processes"])
def _processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: request.param)


def _anew(place: Path, data: bytes, mode: int = 0o444) -> None:
    place.unlink()
    place.write_bytes(data)
    place.chmod(mode)


def _changed(place: Path) -> None:
    data = place.read_bytes()
    _anew(place, data[:-1] + b"?", place.stat().st_mode)


def _linked(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def _linked_out(place: Path) -> None:
    _linked(place)
    place.with_name("elsewhere").rename(place.parents[2] / "out")


def _pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


@pytest.mark.usefixtures("_processors")
class TestBuiltTree:
    def test_what_was_written_is_as_it_was_locked(self, tmp_path: Path, anchors: Anchors) -> None:
        assert problem_of(tmp_path, anchors, anchors) is None
        assert len(rows_in(tmp_path / TREE)) == COUNT

    @pytest.mark.parametrize("path", [FIRST, MIDDLE, LAST])
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (_changed, "{} was changed"),
            (lambda place: place.chmod(0o555 if place.stat().st_mode & 0o111 == 0 else 0o444), "{} was changed"),
            (lambda place: _anew(place, b""), "{} was changed"),
            (Path.unlink, "{} is missing"),
            (lambda place: place.with_name("more.js").write_bytes(b""), "more.js does not belong to it"),
            (_pipe, "was changed"),
            (_linked, "elsewhere does not belong to it"),
            (_linked_out, "cannot be read"),
        ],
        ids=["bytes", "mode", "empty", "gone", "more", "pipe", "link inside", "link out"],
    )
    def test_attack_one_file_of_thousands_is_found_wherever_it_is(
        self, tmp_path: Path, anchors: Anchors, path: str, change: Callable[[Path], object], says: str
    ) -> None:
        change(tmp_path / TREE / path)
        assert says.format(path) in (problem_of(tmp_path, anchors, anchors) or "")

    def test_attack_a_folder_that_is_a_link_to_one_with_the_same_files_is_found(
        self, tmp_path: Path, anchors: Anchors
    ) -> None:
        (tmp_path / TREE / "d3").rename(tmp_path / "d3")
        (tmp_path / TREE / "d3").symlink_to("../d3")
        assert (problem_of(tmp_path, anchors, anchors) or "").startswith("d3")


def test_a_process_that_has_threads_is_not_forked(
    tmp_path: Path, anchors: Anchors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it was forked"))
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert problem_of(tmp_path, anchors, anchors) is None
    finally:
        done.set()
        thread.join()


def test_what_another_process_could_not_hash_is_hashed_here(
    tmp_path: Path, anchors: Anchors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: end the process that would find the change."""
    here = os.getpid()
    hash_some = many_hashes._hash_some

    def only_here(root: str, paths: list[str]) -> list[many_hashes.Hashed]:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return hash_some(root, paths)

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(many_hashes, "_hash_some", only_here)
    assert problem_of(tmp_path, anchors, anchors) is None
    _changed(tmp_path / TREE / LAST)
    assert problem_of(tmp_path, anchors, anchors) == f"{LAST} was changed"


def test_no_process_is_left_behind(tmp_path: Path, anchors: Anchors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    (tmp_path / TREE / MIDDLE).unlink()
    assert problem_of(tmp_path, anchors, anchors) == f"{MIDDLE} is missing"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_attack_a_manifest_that_fits_a_changed_file_is_not_what_was_locked(tmp_path: Path, anchors: Anchors) -> None:
    _changed(tmp_path / TREE / FIRST)
    write_manifest(tmp_path, {SECTION: rows_in(tmp_path / TREE).values()})
    assert f"its manifest of '{SECTION}' is not what was locked" in (problem_of(tmp_path, anchors, anchors) or "")
    (tmp_path / MANIFEST).unlink()
    assert "cannot be read" in (problem_of(tmp_path, anchors, anchors) or "")
