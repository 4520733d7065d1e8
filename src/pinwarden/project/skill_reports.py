"""Skills and instruction files in the reports of ``status``, ``explain`` and ``scan``. Nothing is written."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.project.explain import Section
from pinwarden.project.skills import build_scan_rows, find_skills, read_skills_lock
from pinwarden.skills.instructions import read_instruction_file
from pinwarden.skills.powers import find_powers
from pinwarden.skills.skill import FoundSkill
from pinwarden.skills.skill_reader import HAS_MODES, read_skill_folder

if TYPE_CHECKING:
    from pinwarden.project.project import LockScope, Project
    from pinwarden.skills.skill import Skill
    from pinwarden.skills.skills_file import LockedSkill, SkillsLock

State = Literal["approved", "changed", "new", "missing", "not locked"]
"""How a skill on disk compares with the lock. ``not locked`` if the lock has no skills at all."""
_MAX_FILES_SHOWN = 50


class SkillState(Record):
    """One skill or instruction file of one scope, on disk or in the lock."""

    name: str
    noun: str
    scope: LockScope
    state: State
    places: tuple[str, ...]
    clients: tuple[str, ...]


def list_skill_states(project: Project) -> tuple[SkillState, ...]:
    """Return the state of every skill of a scope. Loads nothing of the scan; raises for an edited lock."""
    if not (project.has_skills() or project.lock.with_name(lock_store.skills_file_name(project.lock)).exists()):
        return ()
    lock = read_skills_lock(project)
    found = find_skills(project, instructions=lock is not None and lock.has_instructions)
    states = [
        SkillState(
            name=one.skill.name,
            noun=one.skill.noun,
            scope=project.scope,
            state=_compare(lock, one),
            places=(one.place,),
            clients=one.clients,
        )
        for one in found
    ]
    present = {one.place for one in found}
    for locked in lock.skills if lock is not None else ():
        gone = tuple(place for place in locked.places if place not in present)
        if gone:
            skill = locked.skill
            states.append(
                SkillState(
                    name=skill.name, noun=skill.noun, scope=project.scope, state="missing", places=gone, clients=()
                )
            )
    return tuple(sorted(states, key=lambda state: (state.name, state.places)))


def add_skills_to_status(report: Report, projects: Sequence[Project], *, check: bool) -> Report:
    """Add the skills to the report of ``status``. A lock that was edited is already in that report."""
    states: list[SkillState] = []
    for project in projects:
        try:
            states += list_skill_states(project)
        except PinwardenError as err:
            if report.facts["ok"]:
                report = replace(report, notes=(*report.notes, f"skills could not be read: {err.message}"))
    waiting = [state for state in states if state.state in ("changed", "new", "missing")]
    names = dict.fromkeys(shlex.quote(state.name[:120]) for state in waiting)
    command = " ".join(["pinwarden approve", *list(names)[:10]])
    refused = check and bool(waiting)
    next_command = report.next_command
    if waiting and next_command in (None, "pinwarden init-ci"):
        next_command = command
    return replace(
        report,
        exit_code=EXIT_REFUSED if refused else report.exit_code,
        notes=(*report.notes, *_describe_states(states, command if waiting else "")),
        facts={
            **report.facts,
            "attention": report.facts["attention"] or bool(waiting),
            "skills": [_state_to_json(state) for state in states],
        },
        next_command=next_command,
    )


def explain_skill(projects: Iterable[Project], name: str) -> Report | None:
    """Explain the approved skills with this name: the report of ``pinwarden explain``. None if there are none."""
    entries = []
    for project in projects:
        lock = read_skills_lock(project)
        for locked in lock.skills if lock is not None else ():
            bundle = str(locked.bundle.get("tool")) if locked.bundle is not None else None
            if name in (locked.skill.name, bundle):
                entries.append(_explain(project, locked, bundle))
    if not entries:
        return None
    summary = f"{name[:120]}: {plural(len(entries), 'approved skill')}; pinwarden ci compares them with the files"
    facts = {"server": name, "origin": "skills", "entries": entries, "problems": []}
    return Report(command="explain", subject=name, summary=summary, exit_code=EXIT_CLEAN, facts=facts)


def find_skills_to_scan(projects: Iterable[Project]) -> tuple[FoundSkill, ...]:
    """Find all skills and instruction files of these scopes."""
    return tuple(one for project in projects for one in find_skills(project, instructions=True))


def read_skills_at(path: Path, shown: str) -> tuple[FoundSkill, ...]:
    """Read the skill, the folder of skills, or the text file at a path that the user named."""
    if not path.is_dir():
        return (replace(read_instruction_file(path), place=shown),)
    one = read_skill_folder(path)
    if one is not None and _has_main_file(one.skill):
        return (replace(one, place=shown),)
    below = ((entry.name, read_skill_folder(entry)) for entry in sorted(path.iterdir()) if entry.is_dir())
    found = tuple(
        replace(skill, place=f"{shown}/{name}") for name, skill in below if skill and _has_main_file(skill.skill)
    )
    if not found:
        message = f"{shown} cannot be scanned: it is a directory without a SKILL.md"
        raise PinwardenError("TARGET_INVALID", message, hint="Name a skill, or a folder of skills.")
    return found


def add_skills_to_scan(report: Report, found: Sequence[FoundSkill]) -> Report:
    """Add what the scan finds in skills and instruction files to the report of ``scan``."""
    if not found:
        return replace(report, facts={**report.facts, "skills": []})
    rows = [(one, build_scan_rows(one.skill, one.place)) for one in found]
    problems = [
        Row(
            code="skill_link",
            severity="warning",
            entity=one.skill.noun,
            name=one.skill.name,
            path="",
            message=problem,
            file=one.place,
        )
        for one in found
        for problem in one.problems
    ]
    flat = [*problems, *(row for _, group in rows for row in group)]
    warnings = sum(row.severity == "warning" for row in flat)
    nouns = Counter(one.skill.noun for one in found)
    over = " and ".join(plural(nouns[noun], noun) for noun in sorted(nouns, reverse=True))
    said = f"{plural(warnings, 'warning')} in {over}" if warnings else f"nothing suspicious found in {over}"
    has_servers = bool(report.facts["servers"])
    return replace(
        report,
        exit_code=EXIT_REFUSED if warnings else report.exit_code,
        summary=f"{report.summary}; {said}" if has_servers else said,
        rows=(*report.rows, *flat),
        notes=report.notes if has_servers else (),
        facts={
            **report.facts,
            "skills": [
                {
                    "name": one.skill.name,
                    "kind": one.skill.kind,
                    "place": one.place,
                    "findings": [
                        {
                            "code": row.code,
                            "severity": row.severity,
                            "path": row.path,
                            "message": row.message,
                            "excerpt": row.excerpt or "",
                        }
                        for row in group
                    ],
                    "problems": list(one.problems),
                }
                for one, group in rows
            ],
        },
    )


def _has_main_file(skill: Skill) -> bool:
    return any("/" not in file.path and file.is_main for file in skill.files)


def _compare(lock: SkillsLock | None, one: FoundSkill) -> State:
    if lock is None:
        return "not locked"
    locked = lock.find_at(one.place)
    if locked is None:
        return "approved" if any(other.skill == one.skill for other in lock.skills) else "new"
    same = locked.skill.digest == one.skill.digest if HAS_MODES else _has_same_bytes(locked.skill, one.skill)
    return "approved" if same and not one.problems else "changed"


def _has_same_bytes(approved: Skill, present: Skill) -> bool:
    return [(file.path, file.digest) for file in approved.files] == [(one.path, one.digest) for one in present.files]


def _describe_states(states: Sequence[SkillState], command: str) -> Iterator[str]:
    for noun in ("skill", "instruction file"):
        listed = [state for state in states if state.noun == noun]
        if not listed:
            continue
        counts = Counter(state.state for state in listed)
        words = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        names = [state.name for state in listed if state.state in ("changed", "new", "missing")]
        shown = f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else ""
        todo = f"; to decide: {command}" if names else "; to lock them: pinwarden init" if counts["not locked"] else ""
        yield f"{plural(len(listed), noun)}: {words}{shown}{todo}"


def _state_to_json(state: SkillState) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": "skill" if state.noun == "skill" else "instructions",
        "scope": state.scope,
        "state": state.state,
        "places": list(state.places),
        "clients": list(state.clients),
    }


def _explain(project: Project, locked: LockedSkill, bundle: str | None) -> dict[str, Any]:
    skill = locked.skill
    powers = [str(power) for power in find_powers(skill)]
    states = {state.places: state.state for state in list_skill_states(project) if state.name == skill.name}
    now = ", ".join(f"{', '.join(places)}: {state}" for places, state in sorted(states.items()))
    readers = dict.fromkeys(
        get_client(client).title
        for one in find_skills(project, instructions=skill.kind == "instructions")
        if one.place in locked.places
        for client in one.clients
    )
    files = [f"{file.path} ({file.kind}, {plural(file.size, 'byte')})" for file in skill.files[:_MAX_FILES_SHOWN]]
    more = len(skill.files) - len(files)
    what = [f"{skill.noun} in {', '.join(locked.places)}"]
    what += [f"read by {', '.join(readers)}"] * bool(readers)
    what.append(f"on disk now: {now or 'missing'}")
    if locked.bundle is not None:
        pin = locked.bundle
        what.append(f"from the bundle {bundle} {pin.get('version')}, root CID {pin.get('rootCid')}")
    sections = [
        Section(heading="what it is", lines=tuple(what)),
        Section(heading="which files were approved", lines=(*files, *([f"and {more} more"] * (more > 0)))),
        Section(heading="what it does without being asked", lines=tuple(powers) or ("nothing",)),
        Section(heading="who approved it, and why", lines=(f"{locked.by}: {locked.why}",)),
    ]
    return {
        "name": skill.name,
        "kind": skill.kind,
        "scope": project.scope,
        "digest": str(skill.digest),
        "places": list(locked.places),
        "bundle": bundle,
        "powers": powers,
        "approval": {"by": locked.by, "why": locked.why},
        "sections": [section.to_json() for section in sections],
    }
