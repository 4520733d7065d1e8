"""A bare name leads where the system would look for it, and to nothing that cannot be started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pinwarden.system.files import find_program


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        for name, mode in (("both", 0o755), ("plain", 0o644)):
            (folder / name).touch(mode=mode)
    (first / "folder").mkdir()
    (first / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("folder", "gone", "later"):
        (second / name).touch(mode=0o755)
    return first, second


@pytest.mark.parametrize("name", ["both", "plain", "folder", "gone", "later", "missing", "", "./second/later", "x/y"])
@pytest.mark.parametrize("path", ["{first}:{second}", "{second}:{first}", ":{first}", "second", "/nowhere", ""])
def test_a_program_is_found_where_the_standard_library_finds_it(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    first, second = folders
    monkeypatch.chdir(first.parent)
    search_path = path.format(first=first, second=second)
    expected = shutil.which(name, path=search_path) if search_path else None
    assert find_program(name, search_path) == (None if expected is None else Path(expected))


def test_a_file_that_may_not_be_executed_is_no_program(folders: tuple[Path, Path]) -> None:
    assert find_program("plain", os.pathsep.join(map(str, folders))) is None


def test_a_folder_and_a_broken_link_are_passed_over(folders: tuple[Path, Path]) -> None:
    search_path = os.pathsep.join(map(str, folders))
    assert [find_program(name, search_path) for name in ("folder", "gone")] == [
        folders[1] / "folder",
        folders[1] / "gone",
    ]
