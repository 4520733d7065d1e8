"""The queue of a census on PostgreSQL: procrastinate, for workers on any number of machines.

procrastinate fetches jobs, retries them, wakes workers with NOTIFY, and notices lost workers by their heartbeats. Only
the end of a job differs: its result and its status are written in one transaction (`_JobManager.finish_job`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import procrastinate
from procrastinate import exceptions, jobs, retry
from procrastinate.manager import JobManager
from procrastinate.psycopg_connector import PsycopgConnector

from pinwarden.census.job_queue import (
    MAX_ATTEMPTS,
    Job,
    JobHandler,
    JobQueue,
    JobResult,
    WorkerOptions,
    finish_job,
    repeat_while_unavailable,
)
from pinwarden.system.database import ConflictError, Database

TASK = "pinwarden.census"
"""The name of the task, and of the queue."""
_BATCH = 500  # jobs in one statement
_PAUSE_SECONDS = 0.5
_UNFINISHED = "SELECT queueing_lock FROM procrastinate_jobs WHERE queue_name = ? AND status IN ('todo', 'doing')"


class PostgresQueue(JobQueue):
    """A queue in the tables of procrastinate, in the database of the census."""

    def __init__(self, database: Database, url: str) -> None:
        super().__init__(database)
        self._url = url
        self._has_tables = False
        for name in ("procrastinate", "psycopg.pool"):  # results are recorded, and a lost connection is opened again
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""
        asyncio.run(self._add(run, servers))

    async def _add(self, run: int, servers: Sequence[str]) -> None:
        await asyncio.to_thread(self._create_tables)
        known = {row[0] for row in await asyncio.to_thread(self.database.rows, _UNFINISHED, (TASK,))}
        names = [server for server in servers if _build_lock(run, server) not in known]
        async with procrastinate.App(connector=PsycopgConnector(conninfo=self._url)).open_async() as app:
            for start in range(0, len(names), _BATCH):
                batch = [_build_job(run, server) for server in names[start : start + _BATCH]]
                with contextlib.suppress(exceptions.AlreadyEnqueued):  # another process resumes the same run
                    await app.job_manager.batch_defer_jobs_async(jobs=batch)

    def count(self, run: int | None) -> int:
        """Count the jobs that are not done, of one run or of all."""
        self._create_tables()
        sql = "SELECT COUNT(*) FROM procrastinate_jobs WHERE queue_name = ? AND status IN ('todo', 'doing')"
        if run is None:
            row = self.database.row(sql, (TASK,))
        else:
            row = self.database.row(f"{sql} AND starts_with(queueing_lock, ?)", (TASK, _build_lock(run, "")))
        return 0 if row is None else int(row[0])

    async def work(self, handle: JobHandler, options: WorkerOptions, executor: Executor) -> None:
        """Do jobs until there are none left, or until cancelled. Reconnects when the database restarts."""
        await asyncio.to_thread(self._create_tables)
        while options.stays or await self._count_patiently(options.run):
            app = self._build_app(handle, executor)
            with contextlib.suppress(exceptions.ConnectorException):
                async with app.open_async():
                    await self._work_connected(app, options)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _work_connected(self, app: procrastinate.App, options: WorkerOptions) -> None:
        """Work until there are no jobs left, or until the connection to the database is lost."""
        worker = asyncio.create_task(
            app.run_worker_async(
                queues=[TASK],
                concurrency=options.jobs,
                install_signal_handlers=False,
                update_heartbeat_interval=options.lost_seconds / 3,
                stalled_worker_timeout=options.lost_seconds,
                fetch_job_polling_interval=max(1.0, options.lost_seconds / 6),
                delete_jobs="always",
            )
        )
        try:
            while not worker.done():
                await self._retry_lost_jobs(app, options)
                if not options.stays and not await self._count_patiently(options.run):
                    return
                await asyncio.wait([worker], timeout=_PAUSE_SECONDS)
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _retry_lost_jobs(self, app: procrastinate.App, options: WorkerOptions) -> None:
        for job in await app.job_manager.get_stalled_jobs(queue=TASK, seconds_since_heartbeat=options.lost_seconds):
            with contextlib.suppress(exceptions.ConnectorException):  # its worker, or another one, was faster
                await app.job_manager.retry_job(job)

    async def _count_patiently(self, run: int | None) -> int:
        """Count the jobs that are not done, and wait for a database that restarts."""
        return await asyncio.to_thread(repeat_while_unavailable, partial(self.count, run))

    def _build_app(self, handle: JobHandler, executor: Executor) -> procrastinate.App:
        app = procrastinate.App(connector=PsycopgConnector(conninfo=self._url))
        manager = _JobManager(app.connector, self.database, executor)
        app.job_manager = manager

        @app.task(name=TASK, queue=TASK, pass_context=True, retry=_RetryStrategy())
        async def examine(context: Any, run: int, server: str) -> None:
            job = Job(run=run, server=server, attempts=context.job.attempts)
            result = await asyncio.get_running_loop().run_in_executor(executor, handle, job)
            if result.retry_seconds is not None and job.attempts + 1 < MAX_ATTEMPTS:
                raise _RetryLater(result.retry_seconds * 2**job.attempts)
            manager.results[context.job.id] = (job, result)

        return app

    def _create_tables(self) -> None:
        """Create the tables of procrastinate, unless they exist."""
        if self._has_tables:
            return
        from procrastinate.schema import SchemaManager

        with self.database.transaction(exclusive="census-queue") as transaction:
            row = transaction.row("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")
            if row is None or not row[0]:
                transaction.run(SchemaManager.get_schema())
        self._has_tables = True


class _RetryLater(Exception):  # noqa: N818 - it asks for a retry, and is never reported
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _RetryStrategy(retry.BaseRetryStrategy):
    def get_retry_decision(self, *, exception: BaseException, job: jobs.Job) -> retry.RetryDecision | None:  # noqa: ARG002
        if isinstance(exception, _RetryLater):
            return retry.RetryDecision(retry_in={"seconds": max(1, round(exception.seconds))})
        return None


class _JobManager(JobManager):
    """Finishes a job in the transaction that writes its result."""

    def __init__(self, connector: Any, database: Database, executor: Executor) -> None:
        super().__init__(connector)
        self._database = database
        self._executor = executor
        self.results: dict[int, tuple[Job, JobResult]] = {}

    async def finish_job(self, job: jobs.Job, status: jobs.Status, delete_job: bool) -> None:
        """Write the result and the end of a job in one transaction, as soon as the database is there."""
        if job.id is None or status != jobs.Status.SUCCEEDED:
            await super().finish_job(job, status, delete_job)
            return
        done = partial(self._finish, job.id, *self.results.pop(job.id))
        await asyncio.get_running_loop().run_in_executor(self._executor, repeat_while_unavailable, done)

    def _finish(self, job_id: int, job: Job, result: JobResult) -> None:
        with contextlib.suppress(ConflictError), self._database.transaction() as transaction:
            finish_job(transaction, job, result)
            # Another worker may have finished the job: procrastinate's own function would raise then.
            transaction.run("DELETE FROM procrastinate_jobs WHERE id = ? AND status IN ('todo', 'doing')", (job_id,))


def _build_lock(run: int, server: str) -> str:
    """Return the lock that keeps a server from being queued twice in a run."""
    return f"{run}:{server}"


def _build_job(run: int, server: str) -> jobs.Job:
    return jobs.Job(
        id=None,
        queue=TASK,
        task_name=TASK,
        lock=None,
        queueing_lock=_build_lock(run, server),
        task_kwargs={"run": run, "server": server},
    )
