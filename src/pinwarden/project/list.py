"""What is locked, one row a server and client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.report import Report
from pinwarden.lock.verification import PROBLEMS
from pinwarden.project.entry_text import approved_by, release_of, surface_is_pinned, target_in_words
from pinwarden.project.lock_documents import problem_facts, problem_rows, read_v2

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project


def list_locked(project: Project) -> Report:
    """The report of ``pinwarden list``. A lock that is not whole is listed as it lies, and refused."""
    lock, document = read_v2(project.lock)
    servers = len({entry.name for entry in lock.entries})
    counted = (
        f"{servers} server{'' if servers == 1 else 's'} in "
        f"{len(lock.entries)} entr{'y' if len(lock.entries) == 1 else 'ies'}"
    )
    broken = f"; the lock is not what was approved: {len(document.broken)} problems" if document.broken else ""
    return Report(
        command="list",
        subject=project.lock.name,
        summary=counted + broken,
        exit_code=EXIT_REFUSED if document.broken else EXIT_CLEAN,
        rows=problem_rows(document),
        facts={
            "ok": not document.broken,
            "entries": [_facts(entry) for entry in lock.entries],
            "problems": problem_facts(document.problems),
        },
        rule_texts=PROBLEMS,
    )


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": release_of(entry),
        "client": entry.client,
        "scope": entry.scope,
        "target": target_in_words(entry.selected_target),
        "tier": entry.trust.get("tier"),
        "surface_pinned": surface_is_pinned(entry),
        "approved_by": approved_by(entry),
        "locked_at": entry.locked_at,
    }
