"""The queue of a census: one job for each server of a run. Its form on SQLite is here, too.

A job is finished in the transaction that writes its result, so a server has exactly one result in a run, whatever is
killed. A worker that stops responding loses its jobs to others after a while; if it comes back, its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
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
_PAUSE_SECONDS = 0.25  # at most, between two questions of a worker that waits for jobs of others or for retries
_SHORTEST_PAUSE = 0.01
_IDLE_SECONDS = 1.0  # at most, between two questions of an idle worker that stays


ResultT = TypeVar("ResultT")


class Job(Record):
    """One server of one run."""

    run: int
    server: str
    attempts: int
    """How often it was tried before."""
    id: int = 0
    """Its number in the queue, if the queue has numbers."""

    @property
    def key(self) -> tuple[int, str]:
        """What no other job has."""
        return self.run, self.server


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
    """Jobs of all runs, for any number of workers. How a job is done is the same in every database."""

    _exclusive: str | None = None
    """The name of the transactions that change jobs, if they must not overlap."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._held: set[tuple[int, str]] = set()
        """Run and server of the jobs that this worker does now."""

    @abstractmethod
    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""

    @abstractmethod
    def count(self, run: int | None) -> int:
        """Count the jobs that are not done, of one run or of all."""

    async def work(self, handle: JobHandler, options: WorkerOptions, executor: Executor) -> None:
        """Do jobs until there are none left, or until cancelled. Jobs that were begun are finished first."""
        loop, stop = asyncio.get_running_loop(), threading.Event()
        await asyncio.to_thread(repeat_while_unavailable, self._register)
        heartbeat = asyncio.create_task(self._renew_regularly(options.lost_seconds))
        threads = [loop.run_in_executor(executor, self._work_alone, handle, options, stop) for _ in range(options.jobs)]
        try:
            await asyncio.wait(threads, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            stop.set()
            await asyncio.wait(threads)
            heartbeat.cancel()
            with contextlib.suppress(PinwardenError):
                await asyncio.to_thread(self._unregister)
        for thread in threads:
            thread.result()

    def _work_alone(self, handle: JobHandler, options: WorkerOptions, stop: threading.Event) -> None:
        """Do one job after the other, on a thread."""
        longest = _IDLE_SECONDS * options.jobs if options.stays else _PAUSE_SECONDS
        pause = _SHORTEST_PAUSE
        job: Job | None = None
        while not stop.is_set():
            job = job or repeat_while_unavailable(partial(self._claim, options.lost_seconds))
            if job is not None:
                pause = _SHORTEST_PAUSE
                self._held.add(job.key)
                result = handle(job)
                following = repeat_while_unavailable(partial(self._finish, job, result, options, stop))
                self._held.discard(job.key)
                job = following
            elif not options.stays and not repeat_while_unavailable(partial(self.count, options.run)):
                return
            else:
                stop.wait(pause)
                pause = min(2 * pause, longest)

    def _claim(self, lost_seconds: float) -> Job | None:
        """Take the next job that is due."""
        with self._begin() as transaction:
            return self._take(transaction, lost_seconds)

    def _finish(self, job: Job, result: JobResult, options: WorkerOptions, stop: threading.Event) -> Job | None:
        """Remove a job in the transaction that writes its result, which also takes the next job."""
        try:
            with self._begin() as transaction:
                if result.retry_seconds is not None and job.attempts + 1 < MAX_ATTEMPTS:
                    self._put_back(transaction, job, result.retry_seconds * 2**job.attempts)
                elif self._remove(transaction, job):  # else another worker finished it, and this result is dropped
                    result.write(transaction)
                return None if stop.is_set() else self._take(transaction, options.lost_seconds)
        except ConflictError:  # the job was added again while it was finished, or this worker was taken for lost
            with self._begin() as transaction:
                if self._remove(transaction, job) and not store.has_result(transaction, job.run, job.server):
                    result.write(transaction)
            return None

    def _begin(self) -> contextlib.AbstractContextManager[Transaction]:
        return self.database.transaction(exclusive=self._exclusive)

    async def _renew_regularly(self, lost_seconds: float) -> None:
        while True:
            await asyncio.sleep(lost_seconds / 3)
            with contextlib.suppress(PinwardenError, ConflictError):  # the database restarts; the next time may be soon
                await asyncio.to_thread(self._renew, lost_seconds)

    @abstractmethod
    def _register(self) -> None:
        """Begin to be a worker."""

    @abstractmethod
    def _take(self, transaction: Transaction, lost_seconds: float) -> Job | None:
        """Take the next job that is due. If it was taken from a lost worker, that counts as an attempt."""

    @abstractmethod
    def _put_back(self, transaction: Transaction, job: Job, seconds: float) -> None:
        """Let a job be tried again after a pause."""

    @abstractmethod
    def _remove(self, transaction: Transaction, job: Job) -> bool:
        """Remove a job. Returns whether it was there."""

    @abstractmethod
    def _renew(self, lost_seconds: float) -> None:
        """Give a sign of life, and make the jobs of lost workers available."""

    @abstractmethod
    def _unregister(self) -> None:
        """Stop being a worker, and give back jobs that are not finished."""


class SqliteQueue(JobQueue):
    """A queue in the census's own SQLite file, for workers on one machine.

    The column ``due`` of a job is when it may be tried; of one that is being done, when another worker takes it.
    """

    _exclusive = "census-jobs"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"

    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""
        with self._begin() as transaction:
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

    def _register(self) -> None:
        """Nothing to do: a worker is a name in its jobs."""

    def _take(self, transaction: Transaction, lost_seconds: float) -> Job | None:
        now = _now()
        row = transaction.row(
            "SELECT run, server, attempts, worker FROM census_jobs WHERE due <= ? ORDER BY run, due LIMIT 1", (now,)
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

    def _put_back(self, transaction: Transaction, job: Job, seconds: float) -> None:
        transaction.run(
            "UPDATE census_jobs SET attempts = attempts + 1, due = ?, worker = '' "
            "WHERE run = ? AND server = ? AND worker = ?",
            (_now() + round(seconds * 1000), job.run, job.server, self._name),
        )

    def _remove(self, transaction: Transaction, job: Job) -> bool:
        return bool(transaction.run("DELETE FROM census_jobs WHERE run = ? AND server = ?", (job.run, job.server)))

    def _renew(self, lost_seconds: float) -> None:
        with self._begin() as transaction:
            transaction.run_many(
                "UPDATE census_jobs SET due = ? WHERE run = ? AND server = ? AND worker = ?",
                [(_now() + round(lost_seconds * 1000), *key, self._name) for key in tuple(self._held)],
            )

    def _unregister(self) -> None:
        with self._begin() as transaction:
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
