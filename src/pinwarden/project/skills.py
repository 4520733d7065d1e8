"""The skills of a project or user: what is approved, what is on disk, and what a person has to decide about.

The approved skills are in ``mcp-lock.skills.json`` next to the lock, whose seal covers that file. The skills of a
project are locked in its own lock, those in the folders of the user in the lock of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.table import get_client
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.lock import lock_store
from pinwarden.lock.extension import SkillsPin
from pinwarden.lock.lockfile import put_skills_pin, read_skills_pin, refuse_if_tampered, verify, verify_files
from pinwarden.skills.instructions import find_instructions
from pinwarden.skills.skill import FoundSkill, Skill
from pinwarden.skills.skill_reader import (
    find_project_skills,
    find_user_skills,
)
from pinwarden.skills.skills_file import (
    LockedSkill,
    SkillsLock,
    encode_skills,
    parse_skills,
    put_skills,
    remove_places,
)

if TYPE_CHECKING:
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project

NO_SKILLS = SkillsLock()
FOUND_ON_DISK = "found in the folder of a client; not shown, not reviewed"


class SkillReview(Record):
    """A skill that a person has to decide about: it is new, it changed, or it is gone."""

    project: Project
    name: str
    places: tuple[str, ...]
    present: Skill | None
    """The skill as it is on disk; None if it is gone."""
    approved: LockedSkill | None
    """The skill as it was approved; None if it is new."""
    clients: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    """The differences from the lock."""
    warnings: tuple[Row, ...] = ()
    """The warnings of the scan about text that is not approved yet."""
    problems: tuple[Row, ...] = ()
    """Why it cannot be approved at all, such as a link in its folder."""

    @property
    def noun(self) -> str:
        """What it is called in messages."""
        skill = self.present or (self.approved.skill if self.approved is not None else None)
        return skill.noun if skill is not None else "skill"

    @property
    def looks_like_attack(self) -> bool:
        """Whether something in it looks like an attack, so that only an approval by name may cover it."""
        serious = (row for row in self.rows if row.severity == "critical" and row.code != "skill_unlocked")
        return bool(self.warnings or self.problems) or any(serious)

    @property
    def client_titles(self) -> tuple[str, ...]:
        """The names of the clients that read it."""
        return tuple(get_client(client).title for client in self.clients)


def find_skills(project: Project, *, nested: bool = True, instructions: bool = False) -> tuple[FoundSkill, ...]:
    """Read the skills on disk that belong to the lock of this scope; with ``instructions``, also ``AGENTS.md`` etc."""
    if project.scope == "local":
        return ()
    if project.scope == "project":
        found = find_project_skills(project.skill_roots, nested=nested)
        return (*found, *find_instructions(project.skill_roots)) if instructions else found
    return tuple(replace(one, of_user=False) for one in find_user_skills(project.skill_roots))


def find_user_skills_of(project: Project) -> tuple[FoundSkill, ...]:
    """Read the skills of the user, which clients may prefer to those of the project."""
    return find_user_skills(project.skill_roots) if project.scope == "project" else ()


def read_skills_lock(project: Project) -> SkillsLock | None:
    """Read the approved skills; None if none were ever locked. Raises LOCK_TAMPERED for an edited lock or file."""
    lock, files = lock_store.read_with_files(project.lock)
    if lock is None or read_skills_pin(lock) is None:
        return None
    refuse_if_tampered((*verify(lock), *verify_files(lock, files, parse=False)))
    return parse_pinned_skills(lock, files)


def parse_pinned_skills(lock: Lock, files: dict[str, bytes]) -> SkillsLock:
    """Parse the approved skills among the files that the lock pins; none if the lock pins no skills."""
    pin = read_skills_pin(lock)
    return NO_SKILLS if pin is None else parse_skills(files[pin.path])


def find_bundle_names(project: Project) -> frozenset[str]:
    """Return the names of the bundles whose skills are locked."""
    lock = read_skills_lock(project) or NO_SKILLS
    return frozenset(str(locked.bundle["tool"]) for locked in lock.skills if locked.bundle is not None)


def review_skills(
    project: Project, names: Collection[str] = (), *, instructions: bool = False
) -> tuple[SkillReview, ...]:
    """Return every skill of this scope that is not as approved, sorted by name.

    Instruction files are among them if some are locked, or with ``instructions``. Otherwise only the named ones are.
    """
    lock = read_skills_lock(project) or NO_SKILLS
    wanted = instructions or lock.has_instructions
    found = find_skills(project, instructions=wanted or bool(names))
    if not wanted:
        found = tuple(one for one in found if one.skill.kind == "skill" or one.skill.name in names)
    reviews = [*_review_present(project, lock, found), *_review_gone(project, lock, found)]
    return tuple(sorted(reviews, key=lambda review: (review.name, review.places)))


def approve_skills(project: Project, reviews: Sequence[SkillReview], approver: Approver, now: str) -> None:
    """Write these skills into the lock as they were shown. Raises REVIEW_STALE if one changed on disk since then."""
    instructions = any(review.present is not None and review.present.kind != "skill" for review in reviews)
    by_place = {one.place: one.skill for one in find_skills(project, instructions=instructions)}
    for review in reviews:
        _refuse_open_problems(review, approver)
        if any(by_place.get(place) != review.present for place in review.places):
            raise PinwardenError("REVIEW_STALE", f"the {review.noun} {review.name[:120]!a} changed in the meantime")

    def change(lock: SkillsLock) -> SkillsLock:
        lock = remove_places(lock, (place for review in reviews if review.present is None for place in review.places))
        return put_skills(lock, (_build_locked(review, approver) for review in reviews if review.present is not None))

    write_skills(project, change, now)


def write_skills(project: Project, change: Callable[[SkillsLock], SkillsLock], now: str) -> SkillsLock:
    """Change the approved skills, as the only writer of the lock, and return them."""
    name = lock_store.skills_file_name(project.lock)
    written = NO_SKILLS

    def write(old: Lock | None) -> lock_store.LockWrite:
        nonlocal written
        before = read_skills_lock(project) or NO_SKILLS
        written = change(before)
        data = encode_skills(written)
        lock = put_skills_pin(old, SkillsPin(path=name, file_digest=Digest.of_bytes(data)), now)
        return lock_store.LockWrite(lock=lock, files={name: data})

    lock_store.update(project.lock, write)
    return written


def build_scan_rows(skill: Skill, place: str, approved: Skill | None = None) -> tuple[Row, ...]:
    """Return what the scan finds in a skill, without what it finds in the approved version too."""
    from pinwarden.skills.skill_scan import scan_skill  # loads the classifier

    known = {(one.code, one.path, one.excerpt) for one in scan_skill(approved)} if approved is not None else set()
    return tuple(
        Row(
            code=finding.code,
            severity=finding.severity,
            entity=skill.noun,
            name=skill.name,
            path=finding.path,
            message=finding.message,
            excerpt=finding.excerpt,
            file=skill.locate(place, finding.path),
        )
        for finding in scan_skill(skill)
        if (finding.code, finding.path, finding.excerpt) not in known
    )


def _review_present(project: Project, lock: SkillsLock, found: Sequence[FoundSkill]) -> Iterator[SkillReview]:
    """Yield what is not as approved. One skill in several folders is one decision."""
    from pinwarden.skills.skill_drift import build_row, compare_group, group_places  # loads the rules of drift

    for group in group_places(lock, found):
        first, locked = group[0], lock.find_at(group[0].place)
        is_known = any(other.skill == first.skill for other in ([locked] if locked is not None else lock.skills))
        problems = [
            build_row("skill_link", one.skill, "", f"cannot be locked: {problem}", file=one.place)
            for one in group
            for problem in one.problems
        ]
        if is_known and not problems:
            continue
        warnings = build_scan_rows(first.skill, first.place, None if locked is None else locked.skill)
        yield SkillReview(
            project=project,
            name=locked.skill.name if locked is not None else first.skill.name,
            places=tuple(one.place for one in group),
            present=first.skill,
            approved=locked,
            clients=tuple(dict.fromkeys(client for one in group for client in one.clients)),
            rows=tuple(row for row in compare_group(lock, group) if row.code != "skill_link"),
            warnings=tuple(row for row in warnings if row.severity == "warning"),
            problems=tuple(problems),
        )


def _review_gone(project: Project, lock: SkillsLock, found: Iterable[FoundSkill]) -> Iterator[SkillReview]:
    from pinwarden.skills.skill_drift import build_row

    present = {one.place for one in found}
    for locked in lock.skills:
        gone = tuple(place for place in locked.places if place not in present)
        if gone:
            name = locked.skill.name
            message = f"approved for {', '.join(gone)}, but not there; approving it removes it from the lock"
            rows = (build_row("skill_file_missing", locked.skill, "", message, file=gone[0]),)
            yield SkillReview(project=project, name=name, places=gone, present=None, approved=locked, rows=rows)


def _refuse_open_problems(review: SkillReview, approver: Approver) -> None:
    if review.problems:
        problem = review.problems[0].message
        raise PinwardenError("FILE_UNREADABLE", f"the {review.noun} {review.name[:120]!a} {problem}")
    if review.warnings and not approver.approves_warnings:
        raise PinwardenError(
            "WARNINGS_NOT_APPROVED", f"the {review.noun} {review.name[:120]!a} has text that looks like an attack"
        )


def _build_locked(review: SkillReview, approver: Approver) -> LockedSkill:
    if review.present is None:
        raise TypeError("a skill that is gone is not locked")
    codes = ", ".join(dict.fromkeys(row.code for row in review.warnings))
    reason = approver.reason or FOUND_ON_DISK
    return LockedSkill(
        skill=review.present,
        places=review.places,
        by=approver.by,
        why=f"{reason} (with scan warnings: {codes})" if codes else reason,
    )
