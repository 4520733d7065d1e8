"""Reads and verifies a lockfile, and reports its problems and its digest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report, Row
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import Entry, build_entry_key, find_client
from pinwarden.lock.lockfile import PROBLEMS, Lock, LockProblem, list_pins, select_critical, verify, verify_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinwarden.project.project import Policies


class LockDocument(Record):
    """A lockfile: its bytes, its content, and the problems that verification found."""

    name: str
    """The name of the file."""
    data: bytes = field(repr=False)
    lock: Lock
    problems: tuple[LockProblem, ...]
    """All problems of any severity."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The surface and closure files next to the lock, by their path in the lock."""

    @property
    def critical_problems(self) -> tuple[LockProblem, ...]:
        """The critical problems. If there is one, the lock was changed since it was approved."""
        return select_critical(self.problems)


def read_lock(path: Path, *, parse_files: bool = True) -> LockDocument:
    """Read a lockfile and verify it together with the surface and closure files next to it.

    Without ``parse_files`` only the digests of these files are verified, not that their content agrees with the lock.
    """
    data = lock_store.read_bytes(path)
    with lock_store.add_path_to_errors(path):
        lock = lockfile.parse(data)
    files: dict[str, bytes] = {}
    if any(True for _ in list_pins(lock)):
        _, files = lock_store.read_with_files(path)
    problems = (*verify(lock), *verify_files(lock, files, parse=parse_files))
    return LockDocument(name=path.name, data=data, lock=lock, problems=problems, files=files)


def report_lock_digest(path: Path, policies: Policies | None = None) -> Report:
    """Return the report of ``pinwarden lock digest``. Its summary is the digest, or the number of critical problems.

    With policies, the digest covers the lock and the policies. It is the digest to keep outside the repository.
    """
    document = read_lock(path)
    digest, critical = compute_toolpin_digest(document.lock), document.critical_problems
    seal = find_seal(document.lock)
    sealed = None if policies is None else policies.digest_with_seal(str(seal or digest))
    count = f"{len(critical)} problem{'' if len(critical) == 1 else 's'}"
    return Report(
        command="lock digest",
        subject=path.name,
        summary=f"{path.name} was changed since it was approved: {count}" if critical else str(sealed or digest),
        exit_code=EXIT_REFUSED if critical else EXIT_CLEAN,
        rows=build_problem_rows(document),
        facts={
            "digest": digest,
            "seal": seal,
            **({} if sealed is None else {"sealed": sealed}),
            "entries": len(document.lock.entries),
            "ok": not critical,
            "problems": problems_to_json(document.problems),
        },
        rule_texts=PROBLEMS,
    )


def find_entries(lock: Lock, text: str) -> tuple[Entry, ...]:
    """Return the entries of a server, given as ``SERVER`` for all clients or ``SERVER:client`` for one client.

    Raises an error that suggests similar names if there is none.
    """
    entries = tuple(
        entry
        for entry in lock.entries
        if text in (entry.name, entry.key, build_entry_key(entry.name, find_client(entry)))
    )
    if entries:
        return entries
    from pinwarden.project.locked_servers import not_locked_error

    raise not_locked_error(lock.entries, text)


def compute_toolpin_digest(lock: Lock) -> str | None:
    """Return ToolPin's digest of the whole lock; None if two keys have the same canonical form."""
    try:
        return lockfile.compute_lock_digest(lock)
    except PinwardenError as err:
        if err.code != "JSON_CANONICALIZATION_ERROR":
            raise
        return None


def build_problem_rows(document: LockDocument) -> tuple[Row, ...]:
    """Return one report row per problem of a lockfile, with the line of the problem."""
    if not document.problems:
        return ()
    from pinwarden.core.json_values import locate_pointers

    locations = locate_pointers(document.data, [problem.path for problem in document.problems])
    return tuple(
        Row(
            code=problem.code,
            severity=problem.level,
            entity="lock" if problem.server is None else "server",
            name="" if problem.server is None else f"{problem.server}:{problem.client}",
            path=problem.path,
            message=problem.message,
            file=document.name,
            line=locations.get(problem.path, (None, None))[0],
            column=locations.get(problem.path, (None, None))[1],
        )
        for problem in document.problems
    )


def problems_to_json(problems: Iterable[LockProblem]) -> list[dict[str, Any]]:
    """Return the problems as a list for the JSON output of commands."""
    return [
        {
            "code": problem.code,
            "path": problem.path,
            "message": problem.message,
            "server": problem.server,
            "client": problem.client,
        }
        for problem in problems
    ]


def find_seal(lock: Lock) -> str | None:
    """Return the digest in Pinwarden's seal, which covers the whole file; None if there is no seal."""
    integrity = lock.seal.get("integrity") if lock.seal is not None else None
    return integrity if isinstance(integrity, str) else None
