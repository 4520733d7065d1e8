"""Ask a person to approve a skill: the verdict, then what is new or changed, then the question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinwarden.cli.approvals import APPROVED, SKIPPED, ask_decision
from pinwarden.cli.questions import quote_server
from pinwarden.cli.render.text import render_rows, wrap
from pinwarden.core.record import replace
from pinwarden.core.text import neutralize_log_commands, plural, show_invisible
from pinwarden.project.skills_approve import approve_skill, summarize_review
from pinwarden.skills.powers import find_powers
from pinwarden.skills.skill import find_main_file
from pinwarden.surface.drift.text_diff import shorten_middle
from pinwarden.system.clock import now

if TYPE_CHECKING:
    from pinwarden.cli.render.surface_text import Detail
    from pinwarden.project.lock import Approver
    from pinwarden.project.skills import SkillReview

_MAX_TEXT = 1200  # characters of a new SKILL.md that are shown before the answer ``show``


def approve_skill_at_terminal(review: SkillReview, approver: Approver) -> str:
    """Show one skill, ask, and record the answer at once. Returns the outcome."""
    if review.problems:
        sys.stdout.write(render_review(review) + wrap(f"It cannot be approved: {review.problems[0].message}"))
        return SKIPPED
    answer = ask_decision(
        f"Approve the {review.noun} {quote_server(review.name)}?",
        lambda detail: render_review(review, detail),
        suspicious=review.looks_like_attack,
    ).answer
    if answer != "approve":
        return answer
    report = approve_skill(review, replace(approver, approves_warnings=True), now())
    sys.stdout.write(wrap(report.summary))
    return APPROVED


def render_review(review: SkillReview, detail: Detail = "short") -> str:
    """Render what a person decides about. A new skill is shown with its text, a changed one with the differences."""
    state = "new" if review.approved is None else "gone" if review.present is None else "changed"
    clients = f" in {', '.join(review.client_titles)}" if review.clients else ""
    lines = [wrap(f"{review.noun} {show_invisible(review.name)}{clients}, {state}: {', '.join(review.places)}")]
    lines.append(wrap(summarize_review(review)))
    if review.present is not None and review.approved is None:
        lines += _describe_new(review, detail)
    rows = [*review.problems, *(row for row in review.rows if row.code != "skill_unlocked"), *review.warnings]
    return "".join(lines) + render_rows(tuple(rows))


def _describe_new(review: SkillReview, detail: Detail) -> list[str]:
    skill = review.present
    if skill is None:
        return []
    lines = [
        wrap(f"{plural(len(skill.files), 'file')}: {', '.join(f'{one.path} ({one.kind})' for one in skill.files)}")
    ]
    lines += [wrap(f"It {show_invisible(str(power))}.") for power in find_powers(skill)]
    main = find_main_file(skill.files)
    shown = skill.files if detail != "short" else (main,) if main is not None else ()
    for file in shown:
        if file.text is not None:
            text = file.text if detail != "short" else shorten_middle(file.text, _MAX_TEXT)
            quoted = "".join(f"    {show_invisible(line)}\n" for line in text.splitlines())
            lines.append(neutralize_log_commands(f"{file.path}:\n{quoted}"))
    return lines
