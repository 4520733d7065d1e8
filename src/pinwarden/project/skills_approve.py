"""Approve skills: show what is new or changed, verdict first, and record the decision of a person."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row, collect_kind_reasons, is_failing, row_to_json
from pinwarden.core.text import plural
from pinwarden.project.approval_candidate import APPROVE_WARNINGS_OPTION
from pinwarden.project.project import load_policies
from pinwarden.project.skills import SkillReview, approve_skills, read_skills_lock, review_skills
from pinwarden.skills.powers import find_powers
from pinwarden.skills.skill_drift import SKILL_KINDS

if TYPE_CHECKING:
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project

_WORDS = {
    "skill_text_changed": "text changed",
    "skill_code_changed": "code changed",
    "skill_power_widened": "more powers",
    "skill_opaque_changed": "unreadable file changed",
    "skill_file_added": "file added",
    "skill_file_missing": "file missing",
    "skill_line_ends": "line ends changed",
    "skill_unlocked": "new",
    "skill_look_alike": "name easily mistaken",
    "skill_shadowed": "two skills with this name",
}


class SkillsToApprove(Record):
    """The skills that a command is about."""

    reviews: tuple[SkillReview, ...]
    names: frozenset[str]
    """The given names that are names of skills, approved or not."""


def find_skills_to_approve(projects: Sequence[Project], names: Collection[str]) -> SkillsToApprove:
    """Find the named skills that are not as approved; without names, all of them."""
    found = [
        review
        for project in projects
        for review in review_skills(
            project, names, instructions=not names and load_policies(project).requires_locked_instructions
        )
    ]
    locks = filter(None, map(read_skills_lock, projects))
    known = frozenset().union({review.name for review in found}, *(lock.names for lock in locks))
    return SkillsToApprove(
        reviews=tuple(review for review in found if not names or review.name in names),
        names=frozenset(names) & known,
    )


def summarize_review(review: SkillReview) -> str:
    """Return one sentence that says whether something looks like an attack, and then what is different."""
    attacks = [*review.problems, *(row for row in review.rows if _is_alarm(row)), *review.warnings]
    changes = [row for row in review.rows if not _is_alarm(row)]
    words = ", ".join(dict.fromkeys(_WORDS.get(row.code, row.code) for row in changes))
    if not attacks:
        return f"Nothing looks like an attack: {words}." if words else "Nothing changed."
    named = "; ".join(dict.fromkeys(row.message for row in attacks[:3]))
    more = f"; and {len(attacks) - 3} more" if len(attacks) > 3 else ""
    verb = "thing looks" if len(attacks) == 1 else "things look"
    return f"{len(attacks)} {verb} like an attack: {named}{more}." + (f" Also: {words}." if words else "")


def build_skill_report(review: SkillReview, hint: str = "") -> Report:
    """Return the report of what would be approved. ``hint`` is the command that approves it."""
    what = (
        f"{review.noun} to approve for the first time"
        if review.approved is None
        else plural(len(review.rows), "change")
    )
    return Report(
        command="approve",
        subject=review.name,
        summary=f"{review.name}: {what}" + (f"; to approve it: {hint}" if hint else ""),
        exit_code=EXIT_REFUSED,
        rows=(*review.problems, *review.rows, *review.warnings),
        facts={
            "skill": review.name,
            "verdict": summarize_review(review),
            "places": list(review.places),
            "digest": None if review.present is None else str(review.present.digest),
            "powers": [str(power) for power in find_powers(review.present)] if review.present is not None else [],
            "rows": [row_to_json(row) for row in (*review.problems, *review.rows, *review.warnings)],
        },
        rule_texts=collect_kind_reasons(SKILL_KINDS),
    )


def approve_skill(review: SkillReview, approver: Approver, now: str) -> Report:
    """Approve one skill as it was read, and report it. Warnings stop it, unless the approver approves them too."""
    shown = build_skill_report(review)
    if review.problems:
        return replace(shown, summary=f"{review.name}: not approved: {review.problems[0].message}")
    if review.warnings and not approver.approves_warnings:
        count = plural(len(review.warnings), "scan warning")
        text = f"{review.name}: not approved because of {count}; to approve them too: {APPROVE_WARNINGS_OPTION}"
        return replace(shown, summary=text)
    approve_skills(review.project, [review], approver, now)
    done = "removed from the lock" if review.present is None else "approved"
    return replace(
        shown,
        exit_code=EXIT_CLEAN,
        summary=f"{review.name}: {done} by {approver.by}",
        facts={**shown.facts, "approved": True, "by": approver.by},
    )


def build_unchanged_report(name: str) -> Report:
    """Return the report of a skill that is as approved."""
    summary = f"{name}: nothing to approve, it is as approved"
    return Report(command="approve", subject=name, summary=summary, exit_code=EXIT_CLEAN, facts={"skill": name})


def _is_alarm(row: Row) -> bool:
    return row.severity == "critical" and row.code != "skill_unlocked" and is_failing(row)
