"""The queue of a census: one job for each server of a run. On SQLite it is implemented here, without a server.

A job is finished in the transaction that writes its result, so a server has exactly one result in a run, whatever is
killed. A worker that stops responding loses its jobs to others after a while; if it comes back, its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from pinwarden.census import store
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.database import ConflictError, Database, Transaction

MAX_ATTEMPTS = 3
"""How often a job is tried at most, if its failures look temporary."""
LOST_SECONDS = 30.0
"""If a worker sends no heartbeat for this long, another worker takes over its jobs."""
_RECONNECT_SECONDS = 120.0  # how long a worker waits for a database that restarts
_PAUSE_SECONDS = 0.25


ResultT = TypeVar("ResultT")


class Job(Record):
    """One server of one run."""

    run: int
    server: str
    attempts: int
    """How often it was tried before."""


class JobResult(Record):
    """What to write when the job is done, or when to try it again."""

    write: Callable[[Transaction], None]
    retry_seconds: float | None = None


JobHandler = Callable[[Job], JobResult]
"""Does one job on a thread. It never raises."""


class WorkerOptions(Record):
    """How one worker works."""

    jobs: int = 4
    """How many servers it examines at once."""
    lost_seconds: float = LOST_SECONDS
    stays: bool = False
    """Whether it waits for later runs when it is idle."""
    run: int | None = None
    """If given, it stops when this run has no jobs left."""


class JobQueue(ABC):
    """Jobs of all runs, for any number of workers."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""

    @abstractmethod
    def count(self, run: int | None) -> int:
        """Count the jobs that are not done, of one run or of all."""

    @abstractmethod
    async def work(self, handle: JobHandler, options: WorkerOptions, executor: Executor) -> None:
        """Do jobs until there are none left, or until cancelled."""


def finish_job(transaction: Transaction, job: Job, result: JobResult) -> None:
    """Write the result of a job, unless the server has one in this run."""
    if not store.has_result(transaction, job.run, job.server):
        result.write(transaction)


class SqliteQueue(JobQueue):
    """A queue in the census's own SQLite file, for workers on one machine."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"

    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""
        with self.database.transaction(exclusive="census-jobs") as transaction:
            transaction.run_many(
                "INSERT INTO census_jobs (run, server, attempts, due, worker) VALUES (?, ?, 0, 0, '') "
                "ON CONFLICT DO NOTHING",
                [(run, server) for server in servers],
            )

    def count(self, run: int | None) -> int:
        """Count the jobs that are not done, of one run or of all."""
        if run is None:
            row = self.database.row("SELECT COUNT(*) FROM census_jobs")
        else:
            row = self.database.row("SELECT COUNT(*) FROM census_jobs WHERE run = ?", (run,))
        return 0 if row is None else int(row[0])

    async def work(self, handle: JobHandler, options: WorkerOptions, executor: Executor) -> None:
        """Do jobs until there are none left, or until cancelled.

        The column ``due`` of a job is when it may be tried; of one that is being done, when another worker takes it.
        """
        loop = asyncio.get_running_loop()
        heartbeat = asyncio.create_task(self._renew(options))
        tasks = [asyncio.create_task(self._work_alone(handle, options, executor)) for _ in range(options.jobs)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (heartbeat, *tasks):
                task.cancel()
            await asyncio.gather(heartbeat, *tasks, return_exceptions=True)
            with contextlib.suppress(PinwardenError):
                await loop.run_in_executor(None, self._release)

    async def _work_alone(self, handle: JobHandler, options: WorkerOptions, executor: Executor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            job = await loop.run_in_executor(executor, self._claim, options.lost_seconds)
            if job is not None:
                await loop.run_in_executor(executor, self._do, job, handle)
            elif not options.stays and not await loop.run_in_executor(executor, self.count, options.run):
                return
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _renew(self, options: WorkerOptions) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(options.lost_seconds / 3)
            await loop.run_in_executor(None, self._extend, options.lost_seconds)

    def _extend(self, lost_seconds: float) -> None:
        with self.database.transaction(exclusive="census-jobs") as transaction:
            transaction.run(
                "UPDATE census_jobs SET due = ? WHERE worker = ?", (_now() + round(lost_seconds * 1000), self._name)
            )

    def _claim(self, lost_seconds: float) -> Job | None:
        """Take the next job that is due. If it was taken from a lost worker, that counts as an attempt."""
        now = _now()
        with self.database.transaction(exclusive="census-jobs") as transaction:
            row = transaction.row(
                "SELECT run, server, attempts, worker FROM census_jobs WHERE due <= ? ORDER BY run, due LIMIT 1",
                (now,),
            )
            if row is None:
                return None
            run, server, attempts, worker = row
            job = Job(run=run, server=server, attempts=attempts + bool(worker))
            transaction.run(
                "UPDATE census_jobs SET worker = ?, due = ?, attempts = ? WHERE run = ? AND server = ?",
                (self._name, now + round(lost_seconds * 1000), job.attempts, run, server),
            )
        return job

    def _do(self, job: Job, handle: JobHandler) -> None:
        result = handle(job)
        repeat_while_unavailable(partial(self._finish, job, result))

    def _finish(self, job: Job, result: JobResult) -> None:
        key = (job.run, job.server)
        with contextlib.suppress(ConflictError), self.database.transaction(exclusive="census-jobs") as transaction:
            if result.retry_seconds is not None and job.attempts + 1 < MAX_ATTEMPTS:
                due = _now() + round(result.retry_seconds * 1000 * 2**job.attempts)
                transaction.run(
                    "UPDATE census_jobs SET attempts = attempts + 1, due = ?, worker = '' WHERE run = ? AND server = ?",
                    (due, *key),
                )
                return
            finish_job(transaction, job, result)
            transaction.run("DELETE FROM census_jobs WHERE run = ? AND server = ?", key)

    def _release(self) -> None:
        """Give unfinished jobs back, so that another worker need not wait."""
        with self.database.transaction(exclusive="census-jobs") as transaction:
            transaction.run("UPDATE census_jobs SET worker = '', due = 0 WHERE worker = ?", (self._name,))


def repeat_while_unavailable(action: Callable[[], ResultT], seconds: float = _RECONNECT_SECONDS) -> ResultT:
    """Call a function again while the database is unavailable, for example while it restarts."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except PinwardenError as err:
            if err.code != "DATABASE_UNAVAILABLE" or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def _now() -> int:
    return round(time.time() * 1000)
