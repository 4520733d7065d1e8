"""Lock the skills that are already on disk, as ``pinwarden init`` does with configured servers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_REFUSED
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row, collect_kind_reasons, row_to_json, severity_rank
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.project.approval_candidate import ACCEPTED_WITH_ALL, NAMED_WITH_ACCEPT
from pinwarden.project.skills import FOUND_ON_DISK, SkillReview, approve_skills, read_skills_lock, review_skills
from pinwarden.skills.skill_drift import SKILL_KINDS

if TYPE_CHECKING:
    from pinwarden.project.init_decisions import AcceptedServers
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project


class SkillsLocking(Record):
    """What ``init`` did with the skills on disk."""

    project: Project
    locked: tuple[SkillReview, ...] = ()
    undecided: tuple[SkillReview, ...] = ()
    """The skills that a person has to decide about."""


def lock_skills_on_disk(
    project: Project, accepted: AcceptedServers, approver: Approver, now: str, instructions: bool
) -> SkillsLocking:
    """Lock the skills of this scope in place, and with ``instructions`` also the instruction files.

    The first time, all without a scan warning are locked. Later, new and changed ones are locked only if they are
    accepted, and what looks like an attack only if it is named.
    """
    lock = read_skills_lock(project)
    is_first = {"skill": lock is None, "instruction file": lock is None or not lock.has_instructions}
    reviews = review_skills(project, accepted.names, instructions=instructions)
    chosen = tuple(review for review in reviews if _is_accepted(review, accepted, is_first=is_first[review.noun]))
    for named in (False, True):
        part = [review for review in chosen if (review.name in accepted.names) == named]
        why = NAMED_WITH_ACCEPT if named else FOUND_ON_DISK if any(is_first.values()) else ACCEPTED_WITH_ALL
        if part:
            reason = replace(approver, default_reason=approver.default_reason or why, approves_warnings=named)
            approve_skills(project, part, reason, now)
    return SkillsLocking(
        project=project, locked=chosen, undecided=tuple(review for review in reviews if review not in chosen)
    )


def add_skills(report: Report, skills: SkillsLocking) -> Report:
    """Add what was done with the skills to the report of ``init``."""
    if not skills.locked and not skills.undecided:
        return replace(report, facts={**report.facts, "skills": []})
    file = lock_store.skills_file_name(skills.project.lock)
    parts = [f"{_count(skills.locked)} locked in {file}"] if skills.locked else []
    rows = tuple(row for review in skills.undecided for row in _list_rows(review))
    if skills.undecided:
        parts.append(f"{_count(skills.undecided)} not locked")
    command = format_approve_command(skills.undecided)
    return replace(
        report,
        summary="; ".join([*([] if _found_no_servers(report) else [report.summary]), *parts]),
        exit_code=EXIT_REFUSED if skills.undecided else report.exit_code,
        rows=tuple(sorted((*report.rows, *rows), key=severity_rank)),
        notes=(*([] if _found_no_servers(report) else report.notes), *_describe(skills, command)),
        next_command=report.next_command or (command if skills.undecided else "pinwarden ci"),
        facts={
            **report.facts,
            "skills": [
                _to_json(review, locked=review in skills.locked) for review in (*skills.locked, *skills.undecided)
            ],
            "undecided": [*report.facts["undecided"], *map(row_to_json, rows)],
        },
        rule_texts={**collect_kind_reasons(SKILL_KINDS), **report.rule_texts},
    )


def format_approve_command(reviews: Sequence[SkillReview]) -> str:
    """Return the command that asks about these skills."""
    names = dict.fromkeys(shlex.quote(review.name[:120]) for review in reviews)
    return " ".join(["pinwarden approve", *names])


def _is_accepted(review: SkillReview, accepted: AcceptedServers, *, is_first: bool) -> bool:
    if review.problems:
        return False
    if review.name in accepted.names:
        return accepted.warnings or not review.warnings
    return (is_first or accepted.everything) and not review.looks_like_attack


def _list_rows(review: SkillReview) -> tuple[Row, ...]:
    return (*review.problems, *review.rows, *review.warnings)


def _describe(skills: SkillsLocking, command: str) -> tuple[str, ...]:
    locked = "pinwarden ci fails if a locked skill changes" if skills.locked else ""
    undecided = f"to see what is new or different in the skills, and decide: {command}" if skills.undecided else ""
    return tuple(filter(None, (locked, undecided)))


def _count(reviews: Sequence[SkillReview]) -> str:
    nouns = [review.noun for review in reviews]
    return " and ".join(plural(nouns.count(noun), noun) for noun in sorted(set(nouns), reverse=True))


def _found_no_servers(report: Report) -> bool:
    return not report.facts["servers"] and not report.rows


def _to_json(review: SkillReview, *, locked: bool) -> dict[str, object]:
    return {
        "name": review.name,
        "places": list(review.places),
        "clients": list(review.clients),
        "digest": None if review.present is None else str(review.present.digest),
        "locked": locked,
    }
