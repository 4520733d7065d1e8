"""The queue of a census on PostgreSQL, compared with a bare ``SELECT … FOR UPDATE SKIP LOCKED`` that does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import psycopg

from benchmarks.measure import Goal, compare, table
from pinwarden.census.census import CENSUS_SCHEMA
from pinwarden.census.job_queue import Job, JobQueue, JobResult, WorkerOptions
from pinwarden.census.postgres_queue import PostgresQueue
from pinwarden.system.database import Transaction, open_database
from tests.support.postgres import postgres

JOBS = 2_000
WORKERS = 4
MAX_RATIO = 3.0
_RUNS = count(1)


def queue_report() -> str:
    """Take a job, write its result and remove the job, with as many connections in both."""
    with postgres() as cluster:
        url = cluster.new_database()
        database = open_database(url, CENSUS_SCHEMA)
        database.rows("SELECT 1")  # creates the tables
        runs: dict[str, Callable[[], object]] = {
            "SKIP LOCKED": partial(_work_bare, url),
            "census": _working(PostgresQueue(database)),
        }
        _create_bare_table(url)
        rows = compare(runs, baseline="SKIP LOCKED", rounds=5)
        database.close()
    goal = Goal(name="census", against="SKIP LOCKED", at_most=MAX_RATIO)
    return table(f"Queue of a census: {JOBS} jobs, {WORKERS} at once", rows, JOBS, [goal])


def _create_bare_table(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare_jobs (id BIGSERIAL PRIMARY KEY, server TEXT NOT NULL)")


def _work_bare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        run = next(_RUNS)
        connection.cursor().executemany(
            "INSERT INTO bare_jobs (server) VALUES (%s)", [(f"{run}:{index}",) for index in range(JOBS)]
        )
    with ThreadPoolExecutor(WORKERS) as executor:
        for done in [executor.submit(_drain, url) for _ in range(WORKERS)]:
            done.result()


def _drain(url: str) -> None:
    with psycopg.connect(url) as connection:
        while True:
            with connection.transaction():
                row = connection.execute(
                    "SELECT id, server FROM bare_jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1"
                ).fetchone()
                if row is None:
                    return
                connection.execute("INSERT INTO census_hosts (host, due) VALUES (%s, 0)", (row[1],))
                connection.execute("DELETE FROM bare_jobs WHERE id = %s", (row[0],))


def _working(queue: JobQueue) -> Callable[[], None]:
    def write(job: Job, transaction: Transaction) -> None:
        transaction.run("INSERT INTO census_hosts (host, due) VALUES (?, 0)", (f"{job.run}:{job.server}",))

    def handle(job: Job) -> JobResult:
        return JobResult(write=partial(write, job))

    def run() -> None:
        number = 1_000_000 + next(_RUNS)
        queue.add(number, [str(index) for index in range(JOBS)])
        with ThreadPoolExecutor(WORKERS + 1) as executor:
            asyncio.run(queue.work(handle, WorkerOptions(jobs=WORKERS, run=number), executor))

    return run
