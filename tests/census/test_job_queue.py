"""The queue of a census in both databases: lost workers, results that come late, and an end that was asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pinwarden.census.census import Census
from pinwarden.census.job_queue import Job, JobQueue, JobResult, WorkerOptions
from pinwarden.system.database import Transaction
from tests.support.postgres import Cluster

LOST = 0.0
"""A worker is lost as soon as another one looks."""
OPTIONS = WorkerOptions(jobs=2, run=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def census(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[Census]:
    made = Census(cluster.new_database() if request.param == "postgresql" else str(tmp_path / "census.sqlite"))
    made.queue.add(1, ["a", "b", "c"])
    yield made
    made.close()


def write(text: str, job: Job, transaction: Transaction) -> None:
    transaction.run("INSERT INTO census_hosts (host, due) VALUES (?, 0)", (f"{job.server} {text}",))


def results(census: Census) -> list[str]:
    return sorted(row[0] for row in census.database.rows("SELECT host FROM census_hosts"))


def take(queue: JobQueue) -> Job:
    job = queue._claim(60.0)
    assert job is not None
    return job


def finish(queue: JobQueue, job: Job, text: str = "done", **members: Any) -> None:
    stop = threading.Event()
    stop.set()  # the next job is not taken
    queue._finish(job, JobResult(write=partial(write, text, job), **members), OPTIONS, stop)


def work(queue: JobQueue, handle: Callable[[Job], JobResult]) -> None:
    with ThreadPoolExecutor(OPTIONS.jobs + 1) as executor:
        asyncio.run(queue.work(handle, OPTIONS, executor))


def test_each_job_is_done_once_and_can_be_added_again(census: Census) -> None:
    work(census.queue, lambda job: JobResult(write=partial(write, "done", job)))
    assert (results(census), census.queue.count(1)) == (["a done", "b done", "c done"], 0)
    census.queue.add(1, ["a"])
    census.queue.add(1, ["a"])
    assert (census.queue.count(1), census.queue.count(2), census.queue.count(None)) == (1, 0, 1)


def test_a_result_that_comes_late_is_dropped(census: Census) -> None:
    slow, fast = census.queue, census.queue
    for queue in (slow, fast):
        queue._register()
    job = take(slow)
    finish(fast, job, "fast")
    finish(slow, job, "slow")
    assert (results(census), census.queue.count(1)) == ([f"{job.server} fast"], 2)


def test_a_temporary_failure_is_put_back_and_the_last_one_is_written(census: Census) -> None:
    queue = census.queue
    queue._register()
    seen: dict[str, list[int]] = {}
    while queue.count(1):
        job = take(queue)
        seen.setdefault(job.server, []).append(job.attempts)
        finish(queue, job, "failed", retry_seconds=0.0)
    assert seen == {server: [0, 1, 2] for server in "abc"}
    assert results(census) == ["a failed", "b failed", "c failed"]


def test_the_jobs_of_a_lost_worker_are_taken_by_another_as_an_attempt(census: Census) -> None:
    lost, other = census.queue, census.queue
    lost._register()
    held = lost._claim(LOST)
    assert held is not None
    other._register()
    other._renew(LOST)
    taken = {job.server: job.attempts for job in (take(other), take(other), take(other))}
    assert taken == {**dict.fromkeys("abc", 0), held.server: 1}


def test_a_job_that_was_taken_while_the_database_was_lost_is_done_later(census: Census) -> None:
    queue = census.queue
    queue._register()
    orphan, held = queue._claim(LOST), queue._claim(LOST)
    assert orphan is not None
    assert held is not None
    queue._held.add(held.key)
    for _ in range(2):
        queue._renew(60.0)
    left = {job.server for job in (queue._claim(60.0), queue._claim(60.0), queue._claim(60.0)) if job is not None}
    assert left == {"a", "b", "c"} - {held.server}


def test_a_worker_that_is_stopped_finishes_what_it_began_and_gives_the_rest_back(census: Census) -> None:
    began, go_on = threading.Barrier(OPTIONS.jobs + 1), threading.Event()

    def handle(job: Job) -> JobResult:
        began.wait(60)
        go_on.wait(60)
        return JobResult(write=partial(write, "done", job))

    async def stop_early(executor: ThreadPoolExecutor) -> None:
        task = asyncio.create_task(census.queue.work(handle, OPTIONS, executor))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(OPTIONS.jobs + 1) as executor:
        asyncio.run(stop_early(executor))
    assert len(results(census)) == 2
    queue = census.queue
    queue._register()
    assert take(queue).attempts == 0
