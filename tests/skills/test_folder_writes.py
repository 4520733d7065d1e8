"""Folders of skills are written together with the lock, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.install.folder_writes import FolderWrite, write_folders
from pinwarden.project.project import Project
from pinwarden.skills.skill import FileBytes

NEW = {"SKILL.md": FileBytes(data=b"new\n"), "bin/run": FileBytes(data=b"#!/bin/sh\n", executable=True)}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return Project(root=root, lock=root / "mcp-lock.json", home=tmp_path / "home", variables={})


def listed(project: Project) -> dict[str, bytes]:
    return {
        path.relative_to(project.root).as_posix(): path.read_bytes()
        for path in project.root.rglob("*")
        if path.is_file()
    }


def earlier(project: Project, *clients: str) -> list[Path]:
    targets = [project.root / client / "skills" / "pdf" for client in clients]
    for target in targets[:1]:
        target.mkdir(parents=True)
        (target / "SKILL.md").write_bytes(b"old\n")
    return targets


def test_all_folders_are_replaced_and_nothing_is_left_beside_them(project: Project) -> None:
    targets = earlier(project, ".claude", ".agents")
    write_folders(project, lambda: [FolderWrite(target=one, files=NEW) for one in targets], lambda: None, targets)
    files = {"SKILL.md": b"new\n", "bin/run": b"#!/bin/sh\n"}
    assert listed(project) == {
        f"{client}/skills/pdf/{path}": data for client in (".agents", ".claude") for path, data in files.items()
    }
    assert (targets[0] / "bin/run").stat().st_mode & 0o111
    assert not (targets[0] / "SKILL.md").stat().st_mode & 0o111


@pytest.mark.parametrize("failure", ["commit", "write", "interrupt"])
def test_a_failure_leaves_everything_as_it_was(project: Project, failure: str) -> None:
    targets = earlier(project, ".claude", ".agents")
    before = listed(project)
    files = {**NEW, "x" * 300: FileBytes(data=b"")} if failure == "write" else NEW

    def commit() -> None:
        raise KeyboardInterrupt if failure == "interrupt" else PinwardenError("LOCK_BUSY", "a test")

    with pytest.raises((PinwardenError, KeyboardInterrupt)):
        write_folders(project, lambda: [FolderWrite(target=one, files=files) for one in targets], commit, targets)
    assert listed(project) == before


def test_what_a_killed_command_left_is_restored(project: Project) -> None:
    targets = earlier(project, ".claude")
    write = FolderWrite(target=targets[0], files=NEW)
    before = listed(project)
    targets[0].rename(write.earlier)
    write.staged.mkdir()
    (write.staged / "SKILL.md").write_bytes(b"new\n")
    write_folders(project, list, lambda: None, targets)
    assert listed(project) == before


def test_a_removed_folder_comes_back_if_the_lock_cannot_be_written(project: Project) -> None:
    targets = earlier(project, ".claude")
    before = listed(project)

    def commit() -> None:
        raise PinwardenError("LOCK_BUSY", "a test")

    with pytest.raises(PinwardenError):
        write_folders(project, lambda: [FolderWrite(target=targets[0], files=None)], commit, targets)
    assert listed(project) == before
    write_folders(project, lambda: [FolderWrite(target=targets[0], files=None)], lambda: None, targets)
    assert listed(project) == {}
