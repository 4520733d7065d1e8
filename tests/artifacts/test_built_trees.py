"""A built tree is what was locked, file by file, however many processes look at it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts.environments.tree import MANIFEST, TREE, audit_tree, hash_tree, write_file, write_manifest
from pinwarden.core.digest import format_file_list

SECTION = "files"
COUNT = 2100  # enough for several processes
FIRST, MIDDLE, LAST = "d0/f0.js", "d3/f1050.js", "d6/f2099.js"
# In a process of its own: one that has threads, as a worker of the tests has, is not forked. Says what is wrong with a
# tree for so many processors, how many processes were started for that, and how many of them are still there.
LOOK = """
import json, os, signal, sys, threading
from pathlib import Path
from pinwarden.artifacts.environments import tree
from pinwarden.artifacts.environments.tree import audit_tree

folder, digest, how = Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3]
anchors = {"files": frozenset([digest])}
here, fork, hash_some, started = os.getpid(), os.fork, tree._hash_files, []

def noted():
    number = fork()
    started.append(number)
    return number

def only_here(root, paths):
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return hash_some(root, paths)

os.fork = noted
if how == "killed":
    tree._hash_files = only_here
done = threading.Event()
if how == "threads":
    threading.Thread(target=done.wait).start()
found = []
for processors in (1, 2, 4):
    os.cpu_count = lambda: processors
    started.clear()
    problem = audit_tree(folder, anchors, anchors)
    left = 0
    for number in started:
        try:
            os.waitpid(number, os.WNOHANG)
            left += 1
        except ChildProcessError:
            pass
    found.append([problem, len(started), left])
done.set()
print(json.dumps(found))
"""


class Tree:
    """A built tree of thousands of files, and the digest that its manifest was locked with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / TREE
        self.place.mkdir()
        paths = [f"d{number * 7 // COUNT}/f{number}.js" for number in range(COUNT)]
        rows = [write_file(self.place, path, path.encode() * 40, executable=path.endswith("7.js")) for path in paths]
        write_manifest(folder, {SECTION: rows})
        self.locked = hashlib.sha256(format_file_list(rows)).digest()

    @property
    def problem(self) -> str | None:
        anchors = {SECTION: frozenset([self.locked])}
        return audit_tree(self.folder, anchors, anchors)

    def looked_at(self, how: str = "") -> list[Any]:
        """What is wrong with it for 1, 2 and 4 processors, the processes that were started, and those that are left."""
        command = [sys.executable, "-c", LOOK, str(self.folder), self.locked.hex(), how]
        found: list[Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=240).stdout)
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def _anew(place: Path, data: bytes) -> None:
    mode = place.stat().st_mode
    place.unlink()
    place.write_bytes(data)
    place.chmod(mode)


def _linked(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def _linked_out(place: Path) -> None:
    _linked(place)
    place.with_name("elsewhere").rename(place.parents[2] / "out")


def _pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def test_what_was_written_is_as_it_was_locked(tree: Tree) -> None:
    assert tree.looked_at() == [[None, 0, 0], [None, 1, 0], [None, 3, 0]]
    assert len(hash_tree(tree.place)) == COUNT


@pytest.mark.parametrize("path", [FIRST, MIDDLE, LAST])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda place: _anew(place, place.read_bytes()[:-1] + b"?"), "{} was changed"),
        (lambda place: place.chmod(0o555), "{} was changed"),
        (lambda place: _anew(place, b""), "{} was changed"),
        (Path.unlink, "{} is missing"),
        (lambda place: place.with_name("more.js").write_bytes(b""), "more.js does not belong to it"),
        (_pipe, "{} was changed"),
        (_linked, "elsewhere does not belong to it"),
        (_linked_out, "it cannot be read"),
    ],
    ids=["bytes", "mode", "empty", "gone", "more", "pipe", "link inside", "link out"],
)
def test_attack_one_changed_file_among_thousands_is_detected(
    tree: Tree, path: str, change: Callable[[Path], object], says: str
) -> None:
    change(tree.place / path)
    for problem, _, left in tree.looked_at():
        assert says.format(path) in (problem or "")
        assert left == 0


def test_attack_a_folder_replaced_by_a_link_to_the_same_files_is_detected(tree: Tree) -> None:
    (tree.place / "d3").rename(tree.folder / "d3")
    (tree.place / "d3").symlink_to("../d3")
    assert all((problem or "").startswith("d3") for problem, _, _ in tree.looked_at())


def test_a_process_that_has_threads_is_not_forked(tree: Tree) -> None:
    assert tree.looked_at("threads") == [[None, 0, 0]] * 3


def test_attack_what_a_process_that_was_killed_did_not_hash_is_hashed_here(tree: Tree) -> None:
    assert tree.looked_at("killed") == [[None, 0, 0], [None, 1, 0], [None, 3, 0]]
    _anew(tree.place / LAST, b"?")
    assert [problem for problem, _, _ in tree.looked_at("killed")] == [f"{LAST} was changed"] * 3


def test_attack_a_manifest_that_fits_a_changed_file_is_not_what_was_locked(tree: Tree) -> None:
    _anew(tree.place / FIRST, b"?")
    write_manifest(tree.folder, {SECTION: hash_tree(tree.place).values()})
    assert f"its manifest of '{SECTION}' is not the one locked" in (tree.problem or "")
    (tree.folder / MANIFEST).unlink()
    assert "cannot be read" in (tree.problem or "")
