"""The digest of a whole lockfile, given only for one that is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.report import Report
from pinwarden.lock.lockfile import PROBLEMS
from pinwarden.project.lock_documents import digest_of, problem_facts, problem_rows, read_lock, seal_of_file

if TYPE_CHECKING:
    from pinwarden.project.project import Policies


def lock_digest(path: Path, policies: Policies | None = None) -> Report:
    """The report of ``pinwarden lock digest``. What a damaged file would digest to is a fact, but not the summary.

    With policies the summary is the digest that is kept outside of the repository. It covers the whole file and them.
    """
    document = read_lock(path)
    digest, broken = digest_of(document.lock), document.broken
    seal = seal_of_file(document.lock)
    sealed = None if policies is None else policies.sealed_with(str(seal or digest))
    count = f"{len(broken)} problem{'' if len(broken) == 1 else 's'}"
    return Report(
        command="lock digest",
        subject=path.name,
        summary=f"{path.name} is not what was approved: {count}" if broken else str(sealed or digest),
        exit_code=EXIT_REFUSED if broken else EXIT_CLEAN,
        rows=problem_rows(document),
        facts={
            "digest": digest,
            "seal": seal,
            **({} if sealed is None else {"sealed": sealed}),
            "entries": len(document.lock.entries),
            "ok": not broken,
            "problems": problem_facts(document.problems),
        },
        rule_texts=PROBLEMS,
    )
