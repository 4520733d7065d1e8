"""The check of ``pinwarden ci`` that compares the skills of a project with the approved ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import Row
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.lockfile import read_skills_pin, verify_files
from pinwarden.project.skills import NO_SKILLS, find_skills, find_user_skills_of, parse_pinned_skills
from pinwarden.skills.skill_drift import build_skill_row, compare_skills
from pinwarden.skills.skill_reader import HAS_MODES

if TYPE_CHECKING:
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Policies, Project
    from pinwarden.skills.skill import FoundSkill
    from pinwarden.skills.skills_file import SkillsLock


class SkillsCheck(Record):
    """The rows of the check, and how many approved skills and instruction files it compared."""

    rows: tuple[Row, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """By what they are called: ``skill`` and ``instruction file``."""


def check_skills(
    project: Project, lock: Lock | None, pinned_files: dict[str, bytes], policies: Policies
) -> SkillsCheck:
    """Compare the skills on disk with the approved ones.

    Without approved skills, one row says how many there are, unless the policy has ``skills = "locked"``: then each is
    a finding. Reads nothing if the lock or the file with the approved skills was edited, which another check reports.
    """
    name = lock_store.skills_file_name(project.lock)
    pin = read_skills_pin(lock) if lock is not None else None
    if lock is not None and pin is not None:
        if any(problem.path.endswith("/skills") for problem in verify_files(lock, pinned_files, parse=False)):
            return SkillsCheck()
        approved = parse_pinned_skills(lock, pinned_files)
        instructions = approved.has_instructions or policies.requires_locked_instructions
        found = (*find_skills(project, instructions=instructions), *find_user_skills_of(project))
        rows = (*compare_skills(approved, found, has_modes=HAS_MODES), *_check_yanked(project, approved))
        return SkillsCheck(rows=rows, counts=Counter(locked.skill.noun for locked in approved.skills))
    if project.lock.with_name(name).exists():
        message = f"{name} has approved skills, but no seal of {project.lock.name} covers it; it was removed or edited"
        return SkillsCheck(rows=(build_skill_row("skills_unpinned", "", "", message, file=name),))
    if policies.requires_locked_skills or policies.requires_locked_instructions:
        required = find_skills(project, instructions=policies.requires_locked_instructions)
        if not policies.requires_locked_skills:
            required = tuple(one for one in required if one.skill.kind == "instructions")
        return SkillsCheck(rows=compare_skills(NO_SKILLS, required))
    found = _find_without_failing(project)
    if not found:
        return SkillsCheck()
    message = (
        f"{plural(len(found), 'skill')} not locked: changes of them are not detected. To lock them: pinwarden init"
    )
    return SkillsCheck(rows=(build_skill_row("skills_not_locked", "", "", message),))


def _check_yanked(project: Project, approved: SkillsLock) -> tuple[Row, ...]:
    bundles = {str(one.bundle.get("tool")): one for one in approved.skills if one.bundle is not None}
    if not bundles:
        return ()
    from pinwarden.bundle.bundle_pin import parse_bundle_pin
    from pinwarden.project.installed_bundles import check_yanked_pins

    pins = [parse_bundle_pin(dict(one.bundle or {}), name) for name, one in bundles.items()]
    return tuple(check_yanked_pins(project, pins, "skill"))


def _find_without_failing(project: Project) -> tuple[FoundSkill, ...]:
    """Return the skills on disk; none if they cannot be read, because nothing depends on this check."""
    try:
        return find_skills(project, nested=False)
    except PinwardenError:
        return ()
