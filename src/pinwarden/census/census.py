"""A census: start a run over a source, resume it, and work on its jobs.

1. `start_run` lists the source, and adds a run with one job for each server. A run that was interrupted is continued.
2. `work` does jobs until none is left: on this machine, and on every other one that has the database.
3. When every server has a result, the run is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pinwarden.artifacts.environments.store import Store
from pinwarden.census import store
from pinwarden.census.examination import ExaminationOptions, examine_server
from pinwarden.census.job_queue import (
    MAX_ATTEMPTS,
    Job,
    JobQueue,
    JobResult,
    SqliteQueue,
    WorkerOptions,
    repeat_while_unavailable,
)
from pinwarden.census.observation import ServerObservation
from pinwarden.census.pace import SharedPace
from pinwarden.census.run_cache import RunCache
from pinwarden.census.sources import FleetServer, SourceAccess, SourceListing, list_source, name_source
from pinwarden.census.store import CensusRun
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.version import __version__
from pinwarden.project.fetch_context import FetchContext, PackageSources
from pinwarden.project.project import Project, locate_store
from pinwarden.surface.surface import Surface
from pinwarden.system.clock import wall_clock
from pinwarden.system.database import Database, Transaction, load_schema, open_database
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules

CENSUS_SCHEMA = load_schema("census")
_FILE_BYTES = 512 * 1024 * 1024  # of one artifact; the largest servers in public registries have 200 MB
_KEPT_VARIABLES = ("PATH", "PINWARDEN_STORE", "XDG_DATA_HOME", "XDG_CACHE_HOME")


class CensusAccess(Record):
    """What a worker may contact besides the servers themselves."""

    allow_private: bool = False
    allow_plain_http: bool = False
    per_second: float = 10.0
    """Requests to one host, of all workers together."""
    contact: str = ""
    """The operator, for the user agent: an address of mail or of a page."""

    @property
    def user_agent(self) -> str:
        """The user agent of every request to a registry."""
        return f"pinwarden/{__version__} census" + (f" ({self.contact})" if self.contact else "")


class Census:
    """The database of a census, and its queue."""

    def __init__(self, location: str, *, create: bool = True) -> None:
        """``location`` is the path of an SQLite file, or the ``postgresql://`` address of a database."""
        self.database: Database = open_database(location, CENSUS_SCHEMA, create=create)
        self._location = location

    @property
    def queue(self) -> JobQueue:
        """The queue of jobs: procrastinate on PostgreSQL, else tables in the SQLite file."""
        if not self._location.startswith(("postgresql://", "postgres://")):
            return SqliteQueue(self.database)
        try:
            from pinwarden.census.postgres_queue import PostgresQueue
        except ImportError as err:
            raise PinwardenError(
                "DATABASE_UNAVAILABLE",
                "a census on PostgreSQL needs the Python package procrastinate, which is not installed",
                hint='In a checkout of Pinwarden, run: pip install ".[census]"',
            ) from err
        return PostgresQueue(self.database)

    def start_run(
        self, source: str, access: CensusAccess, *, refresh: bool = False, fleet: Sequence[FleetServer] = ()
    ) -> tuple[CensusRun, SourceListing]:
        """Continue the unfinished run over a source, or list the source and start a run.

        A registry is asked only for what was updated since it was listed the last time. ``fleet`` is what the source
        of this name has.
        """
        name, now = name_source(source), wall_clock()
        listing = SourceListing(servers=(), is_complete=False)
        with self.database.transaction() as transaction:
            run = next(
                (run for run in store.list_runs(transaction) if run.source == name and not run.finished_at), None
            )
            since = store.read_updated_since(transaction, name)
        if run is None:
            pace = SharedPace(self.database, access.per_second)
            reading = SourceAccess(
                pace=pace,
                user_agent=access.user_agent,
                allow_private=access.allow_private,
                allow_plain_http=access.allow_plain_http,
            )
            listing = list_source(source, reading, since, now, fleet)
            with self.database.transaction(exclusive="census-runs") as transaction:
                store.put_listing(transaction, name, listing, now)
                run = store.add_run(transaction, name, refresh=refresh, now=now)
        self.resume(run)
        return run, listing

    def resume(self, run: CensusRun) -> None:
        """Add the jobs of a run that are missing, because a process was killed before it added them."""
        with self.database.transaction() as transaction:
            servers = store.list_unfinished(transaction, run)
        self.queue.add(run.run, servers)
        self._finish_runs()

    def work(
        self,
        project: Project,
        access: CensusAccess,
        examination: ExaminationOptions,
        options: WorkerOptions,
        on_result: Callable[[Job, ServerObservation], None] | None = None,
    ) -> None:
        """Do jobs until none is left, or until SIGINT or SIGTERM. A job that was begun is then finished."""
        with _open_context(project, access, self.database) as context:
            worker = _Worker(self.database, context, examination, on_result, partial(self._open_cache, context, access))
            with ThreadPoolExecutor(options.jobs + 1, thread_name_prefix="census") as executor:
                asyncio.run(_work_until_stopped(partial(self.queue.work, worker.handle, options, executor)))
        repeat_while_unavailable(self._finish_runs)

    def _open_cache(self, context: FetchContext, access: CensusAccess, run: CensusRun) -> RunCache:
        """Open what this machine requested in a run. Its name has the time, because a database can be made again."""
        name = f"{self._location} {run.run} {run.started_at}"
        return RunCache(context.store.root, name, SharedPace(self.database, access.per_second), access.user_agent)

    def _finish_runs(self) -> None:
        with self.database.transaction(exclusive="census-runs") as transaction:
            for run in store.list_runs(transaction):
                if not run.is_finished and not store.list_unfinished(transaction, run):
                    store.finish_run(transaction, run.run, wall_clock())

    def close(self) -> None:
        """Close every connection."""
        self.database.close()


class _Worker:
    """Does the jobs of one process, several at once."""

    def __init__(
        self,
        database: Database,
        context: FetchContext,
        options: ExaminationOptions,
        on_result: Callable[[Job, ServerObservation], None] | None,
        open_cache: Callable[[CensusRun], RunCache],
    ) -> None:
        self._database = database
        self._open_cache = open_cache
        self._runs: dict[int, ExaminationOptions] = {}
        self._context = context
        self._options = options
        self._on_result = on_result
        self._lock = threading.Lock()

    def handle(self, job: Job) -> JobResult:
        """Examine the server of a job. Never raises: a failure of Pinwarden itself is a result, too."""
        try:
            observation = repeat_while_unavailable(partial(self._examine, job))
        except PinwardenError as err:
            observation = ServerObservation(state="failed", checked_at=wall_clock(), code=err.code, message=err.message)
        except Exception as err:  # noqa: BLE001 - no server may stop a worker
            message = f"{type(err).__name__}: {err}"
            observation = ServerObservation(state="failed", checked_at=wall_clock(), code="INTERNAL", message=message)
        is_last = observation.retry_seconds is None or job.attempts + 1 >= MAX_ATTEMPTS
        if is_last and self._on_result is not None:
            with self._lock:
                self._on_result(job, observation)
        return JobResult(write=partial(_write, job, observation), retry_seconds=observation.retry_seconds)

    def _examine(self, job: Job) -> ServerObservation:
        if job.attempts >= MAX_ATTEMPTS:
            message = f"{MAX_ATTEMPTS} workers were lost while they examined it"
            return ServerObservation(
                state="failed", checked_at=wall_clock(), code="PROBE_FAILED", reason="worker_lost", message=message
            )
        with self._database.transaction() as transaction:
            known = store.read_server(transaction, job.server)
            if known is None or store.has_result(transaction, job.run, job.server):
                return ServerObservation(
                    state="failed",
                    checked_at=wall_clock(),
                    code="SERVER_NOT_FOUND",
                    message="its source no longer has it",
                )
        server, memory = known
        return examine_server(
            server,
            memory,
            partial(self._read_surface, memory.surface),
            self._context,
            self._read_options(job.run),
            wall_clock(),
        )

    def _read_surface(self, digest: str) -> Surface | None:
        """Return the last surface of a server. Waits for a database that restarts: the server did not fail."""

        def read() -> Surface | None:
            with self._database.transaction() as transaction:
                return store.read_surface(transaction, digest)

        return repeat_while_unavailable(read) if digest else None

    def _read_options(self, number: int) -> ExaminationOptions:
        """Return the options for the servers of a run, and open what this machine requested in it."""
        with self._lock:
            if number not in self._runs:
                with self._database.transaction() as transaction:
                    run = store.find_run(transaction, number)
                refresh = run.refresh or self._options.refresh
                self._runs[number] = replace(self._options, refresh=refresh, cache=self._open_cache(run))
            return self._runs[number]


def _write(job: Job, observation: ServerObservation, transaction: Transaction) -> None:
    store.write_observation(transaction, job.run, job.server, observation, attempts=job.attempts + 1)


async def _work_until_stopped(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Work until there is nothing left, or until a signal asks the process to stop."""
    task = asyncio.create_task(work())
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on this platform or thread
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def _open_context(project: Project, access: CensusAccess, database: Database) -> Iterator[FetchContext]:
    """Open the connections and the store that all jobs of a worker share."""
    # A started server may expand no variable of the worker; the registries come from its settings.
    kept = {name: project.variables[name] for name in _KEPT_VARIABLES if name in project.variables}
    rules = FetchRules(
        allow_private=access.allow_private,
        allow_plain_http=access.allow_plain_http,
        limits=FetchLimits(file_bytes=_FILE_BYTES),
    )
    fetcher = Fetcher(rules, os.environ, pace=SharedPace(database, access.per_second), user_agent=access.user_agent)
    try:
        yield FetchContext(
            project=replace(project, variables=kept),
            sources=PackageSources.from_project(project),
            fetcher=fetcher,
            store=Store(Path(locate_store(project))),
        )
    finally:
        fetcher.close()
