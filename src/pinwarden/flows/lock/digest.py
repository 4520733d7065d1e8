"""The digest of a whole lockfile, given only for one that is whole."""

from __future__ import annotations

from pathlib import Path

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.documents.lock.verification import PROBLEMS
from pinwarden.flows.lock.documents import digest_of, problem_facts, problem_rows, read_lock, seal_of_file
from pinwarden.flows.report import Report


def lock_digest(path: Path, *, sealed: bool = False) -> Report:
    """The report of ``pinwarden lock digest``. What a damaged file would digest to is a fact, but not the summary."""
    document = read_lock(path)
    digest, broken = digest_of(document.lock), document.broken
    count = f"{len(broken)} problem{'' if len(broken) == 1 else 's'}"
    return Report(
        command="lock digest",
        subject=path.name,
        summary=f"{path.name} is not what was approved: {count}"
        if broken
        else str(seal_of_file(document.lock) if sealed else digest),
        exit_code=EXIT_REFUSED if broken else EXIT_CLEAN,
        rows=problem_rows(document),
        facts={
            "digest": digest,
            "seal": seal_of_file(document.lock),
            "entries": len(document.lock.entries),
            "ok": not broken,
            "problems": problem_facts(document.problems),
        },
        rule_texts=PROBLEMS,
    )
