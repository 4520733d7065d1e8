"""Whether a registry can do its work: its disk, its database, its archives, its key and its log. For ``/readyz``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic

from pinwarden.core.errors import PinwardenError
from pinwarden.registry.archive_store import FolderArchiveStore
from pinwarden.registry.checkpoint_file import check_not_behind
from pinwarden.registry.registry import Registry, check_current_key
from pinwarden.registry.store import publications

MIN_FREE_BYTES = 32 * 1024 * 1024
"""With less free space, the next archive might not be stored completely."""
_CHECK_SECONDS = 5.0
_CACHE_SECONDS = 1.0
_ARCHIVES_PER_CHECK = 1_000
_REMOTE_ARCHIVES_PER_CHECK = 3


class Problem(Exception):  # noqa: N818 - the result of a check, not an error of the program
    """Why a registry is not ready: a code for machines, and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Readiness:
    """Checks a registry. Results are kept for a second, so that anyone may ask as often as they like."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._archives = _ArchiveSample(registry)
        self._lock = Lock()
        self._checked_at = float("-inf")
        self._problems: list[dict[str, str]] = []
        self._workers = (
            _CheckWorker("disk_full", self._check_disk),
            _CheckWorker("database_unavailable", self._check_database),
            _CheckWorker("archives_unavailable", self._archives.check),
        )

    def find_problems(self) -> list[dict[str, str]]:
        """Run all checks at the same time, and return a row for each that fails. A check that hangs is a problem."""
        with self._lock:
            if monotonic() - self._checked_at > _CACHE_SECONDS:
                self._problems = self._run_checks()
                self._checked_at = monotonic()
            return self._problems

    def _run_checks(self) -> list[dict[str, str]]:
        deadline = monotonic() + _CHECK_SECONDS
        for worker in self._workers:
            worker.start_check()
        problems = [worker.wait(deadline) for worker in self._workers]
        return [{"code": problem.code, "message": problem.message} for problem in problems if problem is not None]

    def _check_disk(self) -> None:
        folders = {self._registry.checkpoint.parent} if self._registry.checkpoint is not None else set[Path]()
        if isinstance(self._registry.blobs, FolderArchiveStore):
            folders.add(self._registry.blobs.folder)
        for folder in folders:
            present = next(path for path in (folder, *folder.parents) if path.exists())
            free = shutil.disk_usage(present).free
            if free < MIN_FREE_BYTES:
                raise Problem("disk_full", f"{free // 1024} KiB are free; {MIN_FREE_BYTES // 1024} KiB are needed")
            _check_writable(present)

    def _check_database(self) -> None:
        registry = self._registry
        try:
            with registry.database.transaction() as transaction:
                check_current_key(transaction, registry)
                check_not_behind(transaction, registry.checkpoint, registry.identity.log_id, registry.identity.key)
        except PinwardenError as err:
            code = _DATABASE_PROBLEMS.get(err.code, "database_unavailable")
            raise Problem(code, _MESSAGES[code]) from err


class _CheckWorker:
    """Runs one check on a thread of its own, which keeps its database connection. A check that hangs runs only once."""

    def __init__(self, code: str, check: Callable[[], None]) -> None:
        self._code, self._check = code, check
        self._changed = Condition()
        self._is_running = False
        self._problem: Problem | None = None
        self._thread: Thread | None = None

    def start_check(self) -> None:
        """Start the check, unless the last one still runs."""
        with self._changed:
            self._is_running = True
            if self._thread is None:
                self._thread = Thread(target=self._run, daemon=True, name=f"readiness-{self._code}")
                self._thread.start()
            self._changed.notify_all()

    def wait(self, deadline: float) -> Problem | None:
        """Return the problem that the check found; None if there is none."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_running, max(0.0, deadline - monotonic())):
                return Problem(self._code, f"no response within {_CHECK_SECONDS:.0f} seconds")
            return self._problem

    def _run(self) -> None:
        while True:
            problem = _run_check(self._code, self._check)
            with self._changed:
                self._problem, self._is_running = problem, False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_running)


class _ArchiveSample:
    """Looks whether archives are still stored: in a folder a thousand for each check, in an OCI registry a few."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._after = ""
        self._missing: set[str] = set()

    def check(self) -> None:
        """Check the next archives, and those that were missing before."""
        is_folder = isinstance(self._registry.blobs, FolderArchiveStore)
        limit = _ARCHIVES_PER_CHECK if is_folder else _REMOTE_ARCHIVES_PER_CHECK
        try:
            with self._registry.database.transaction() as transaction:
                page = publications.list_archives(transaction, self._after, limit)
        except PinwardenError:
            return  # the check of the database reports it
        self._after = page[-1] if len(page) == limit else ""
        try:
            self._missing = {cid for cid in {*page, *self._missing} if not self._registry.blobs.has(cid)}
        except PinwardenError as err:
            raise Problem("archives_unavailable", f"the archive store cannot be reached ({err.code})") from err
        if self._missing:
            example = min(self._missing)
            raise Problem("archives_missing", f"{len(self._missing)} archives are missing, for example {example}")


_DATABASE_PROBLEMS = {
    "REGISTRY_KEY_MISMATCH": "key_ended",
    "REGISTRY_LOG_BEHIND": "log_behind",
    "LOG_STATE_CORRUPT": "log_behind",
}
_MESSAGES = {
    "key_ended": "the registry's key was rotated; restart this process with the new key",
    "log_behind": "the log in the database is behind the checkpoint that this registry signed",
    "database_unavailable": "the database does not respond",
}


def _run_check(code: str, check: Callable[[], None]) -> Problem | None:
    try:
        check()
    except Problem as problem:
        return problem
    except (OSError, PinwardenError) as err:
        return Problem(code, f"the check failed ({type(err).__name__})")
    return None


def _check_writable(folder: Path) -> None:
    """Write and remove a small file. A quota or a read-only file system does not show in the free space."""
    path = folder / f".ready-{os.getpid()}"
    try:
        path.write_bytes(b"\0" * 4096)
        path.unlink()
    except OSError as err:
        path.unlink(missing_ok=True)
        raise Problem("disk_full", f"a file cannot be written: {err.strerror}") from err
