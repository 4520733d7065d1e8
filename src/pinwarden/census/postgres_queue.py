"""The queue of a census on PostgreSQL, for workers on any number of machines: the tables of procrastinate.

Jobs are fetched and kept alive by procrastinate's own statements, of the release that is installed. Its worker is not
used: it finishes a job apart from the job's result, and passes each job through an event loop, which costs four times
as much as the database does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from procrastinate.sql import queries

from pinwarden.census.job_queue import Job, JobQueue
from pinwarden.core.errors import PinwardenError
from pinwarden.system.database import ConflictError, Database, Transaction

TASK = "pinwarden.census"
"""The name of the task, and of the queue."""
_ADD = (
    "INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args) "
    "SELECT ?, ?, name.lock || name.server, json_build_object('run', name.run, 'server', name.server) "
    "FROM (SELECT ?::text AS lock, ?::bigint AS run, json_array_elements_text(?::json) AS server) name "
    "WHERE NOT EXISTS (SELECT 1 FROM procrastinate_jobs job WHERE job.queueing_lock = name.lock || name.server "
    "AND job.status = 'doing') ON CONFLICT DO NOTHING"
)
_LOST = (
    "SELECT id FROM procrastinate_jobs WHERE queue_name = ? AND status = 'doing' AND (worker_id IS NULL "
    "OR worker_id IN (SELECT id FROM procrastinate_workers "
    "WHERE last_heartbeat < NOW() - ? * INTERVAL '1 millisecond'))"
)

_MINE = "SELECT id, queueing_lock FROM procrastinate_jobs WHERE status = 'doing' AND worker_id = ?"


class PostgresQueue(JobQueue):
    """A queue in the tables of procrastinate, in the database of the census."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._has_tables = False
        self._worker = 0
        self._orphans: set[int] = set()
        """Jobs that this worker took without learning it, because the database was lost at this moment."""

    def add(self, run: int, servers: Sequence[str]) -> None:
        """Add a job for each server that has none in this run. Safe to repeat."""
        self._create_tables()
        if not servers:
            return
        with self.database.transaction() as transaction:
            transaction.run(_ADD, (TASK, TASK, _build_lock(run, ""), run, json.dumps(list(servers))))
            transaction.run("ANALYZE procrastinate_jobs")  # without statistics, every fetch would sort the whole queue

    def count(self, run: int | None) -> int:
        """Count the jobs that are not done, of one run or of all."""
        self._create_tables()
        sql = "SELECT COUNT(*) FROM procrastinate_jobs WHERE queue_name = ? AND status IN ('todo', 'doing')"
        if run is None:
            row = self.database.row(sql, (TASK,))
        else:
            row = self.database.row(f"{sql} AND starts_with(queueing_lock, ?)", (TASK, _build_lock(run, "")))
        return 0 if row is None else int(row[0])

    def _register(self) -> None:
        self._create_tables()
        row = self.database.row(queries["register_worker"])
        self._worker = 0 if row is None else row[0]

    def _claim(self, lost_seconds: float) -> Job | None:
        try:
            return super()._claim(lost_seconds)
        except ConflictError:  # this worker was taken for lost, and another program removed it
            self._register()
            return None

    def _take(self, transaction: Transaction, lost_seconds: float) -> Job | None:  # noqa: ARG002 - see `_renew`
        row = transaction.row(_FETCH, (TASK, self._worker))
        if row is None or row[0] is None:
            return None
        number, arguments, attempts = row
        return Job(run=arguments["run"], server=arguments["server"], attempts=attempts, id=number)

    def _put_back(self, transaction: Transaction, job: Job, seconds: float) -> None:
        transaction.run(
            "UPDATE procrastinate_jobs SET status = 'todo', attempts = attempts + 1, worker_id = NULL, "
            "scheduled_at = NOW() + ? * INTERVAL '1 millisecond' WHERE id = ? AND status = 'doing' AND worker_id = ?",
            (round(seconds * 1000), job.id, self._worker),
        )

    def _remove(self, transaction: Transaction, job: Job) -> bool:
        return bool(transaction.run("DELETE FROM procrastinate_jobs WHERE id = ?", (job.id,)))

    def _renew(self, lost_seconds: float) -> None:
        self.database.row(_HEARTBEAT, (self._worker,))
        mine = self.database.rows(_MINE, (self._worker,))
        orphans = {number for number, lock in mine if lock not in {_build_lock(*key) for key in self._held}}
        lost = [
            *(self._orphans & orphans),
            *(row[0] for row in self.database.rows(_LOST, (TASK, round(lost_seconds * 1000)))),
        ]
        self._orphans = orphans  # one that was taken just now may not be held yet, so it is looked at twice
        with self.database.transaction() as transaction:
            for number in lost:
                transaction.run(
                    "UPDATE procrastinate_jobs SET status = 'todo', attempts = attempts + 1, worker_id = NULL "
                    "WHERE id = ? AND status = 'doing'",
                    (number,),
                )

    def _unregister(self) -> None:
        with self.database.transaction() as transaction:
            transaction.run(
                "UPDATE procrastinate_jobs SET status = 'todo', worker_id = NULL WHERE status = 'doing' "
                "AND worker_id = ?",
                (self._worker,),
            )
            transaction.rows(_UNREGISTER, (self._worker,))

    def _create_tables(self) -> None:
        """Create the tables of procrastinate, unless they exist. Its history of jobs is off: results are the record."""
        if self._has_tables:
            return
        from procrastinate.schema import SchemaManager

        with self.database.transaction(exclusive="census-queue") as transaction:
            row = transaction.row("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")
            if row is None or not row[0]:
                transaction.run(SchemaManager.get_schema())
                for (name,) in transaction.rows(_EVENT_TRIGGERS):
                    transaction.run(f'ALTER TABLE procrastinate_jobs DISABLE TRIGGER "{name}"')
        self._has_tables = True


_EVENT_TRIGGERS = (
    "SELECT tgname FROM pg_trigger WHERE tgrelid = 'procrastinate_jobs'::regclass AND tgname LIKE '%_events_%'"
)


def _build_sql(name: str, *parameters: str) -> str:
    """Return a statement of procrastinate with our placeholders. Each parameter occurs once, in this order."""
    sql = queries[name].strip().rstrip(";")
    for parameter in parameters:
        sql = sql.replace(f"%({parameter})s", "?")
    if "%(" in sql:
        raise PinwardenError("DATABASE_UNAVAILABLE", "this release of procrastinate is not supported")
    return sql


_FETCH = _build_sql("fetch_job", "queues", "worker_id").replace("?", "ARRAY[?]", 1)
_FETCH = f"SELECT id, args, attempts FROM ({_FETCH}) job"  # noqa: S608
_HEARTBEAT = _build_sql("update_heartbeat", "worker_id")
_UNREGISTER = _build_sql("unregister_worker", "worker_id")


def _build_lock(run: int, server: str) -> str:
    """Return the lock that keeps a server from being queued twice in a run."""
    return f"{run}:{server}"
