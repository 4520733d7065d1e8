"""Remove skills from the lock, and the folders that were installed from a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN
from pinwarden.core.report import Report
from pinwarden.install.folder_writes import FolderWrite, write_folders
from pinwarden.install.skill_install import is_as_locked
from pinwarden.project.skills import NO_SKILLS, read_skills_lock, write_skills
from pinwarden.skills.skills_file import LockedSkill, remove_places

if TYPE_CHECKING:
    from pinwarden.project.project import Project


def find_locked_skills(project: Project, name: str) -> tuple[LockedSkill, ...]:
    """Return the locked skills with this name, or of the bundle with this name."""
    lock = read_skills_lock(project) or NO_SKILLS
    return tuple(
        locked
        for locked in lock.skills
        if name == locked.skill.name or (locked.bundle is not None and locked.bundle.get("tool") == name)
    )


def remove_skills(project: Project, name: str, now: str, *, keep_folders: bool) -> Report:
    """Remove skills from the lock. Folders from a bundle are removed too, if they are as they were installed."""
    roots, skills = project.skill_roots, find_locked_skills(project, name)
    installed = {
        roots.locate_installed(place, user=project.scope == "user"): locked
        for locked in skills
        if locked.bundle is not None
        for place in locked.places
    }
    removed: list[Path] = []

    def plan() -> list[FolderWrite]:
        if not keep_folders:
            removed.extend(target for target, locked in installed.items() if is_as_locked(project, target, [locked]))
        return [FolderWrite(target=target, files=None) for target in removed]

    def commit() -> None:
        write_skills(project, lambda lock: remove_places(lock, [place for one in skills for place in one.places]), now)

    write_folders(project, plan, commit, list(installed))
    left = [target for target in installed if target not in removed and target.exists()]
    shown = [roots.display(target) for target in left]
    return Report(
        command="remove",
        subject=name,
        summary=f"removed {name} from the lock" + "".join(f"; {roots.display(target)} removed" for target in removed),
        exit_code=EXIT_CLEAN,
        notes=()
        if keep_folders
        else tuple(f"{place} was changed since it was installed, so it was left" for place in shown),
        facts={
            "removed": [locked.skill.name for locked in skills],
            "configs": [],
            "folders": [roots.display(target) for target in removed],
        },
    )
