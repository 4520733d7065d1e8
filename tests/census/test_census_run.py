"""A census of 200 synthetic servers, 5% of them hostile, with workers that are killed and a database that restarts.

`make soak` does it with 2,000.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.census.world import WORKER_OPTIONS, HttpServers, http_servers, start_worker, stop_workers, write_config
from tests.support.needs import needs
from tests.support.postgres import Cluster, postgres
from tests.support.waiting import poll

SERVERS, MANY = 200, 2000
_EXPECTED = {
    "crash": {("PROBE_FAILED", "ended")},
    "hang": {("PROBE_FAILED", "timeout")},
    "flood": {("PROBE_LIMIT", "unsolicited messages")},
    "huge": {("PROBE_LIMIT", "bytes in one message"), ("PROBE_LIMIT", "bytes in all")},
    "lying": {("PROBE_FAILED", "protocol")},
}
"""How a hostile server of each kind is recorded."""


@pytest.fixture(scope="module")
def servers() -> Iterator[HttpServers]:
    with http_servers() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of its own, because it is restarted."""
    with postgres() as started:
        yield started


def census(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", "census", *words, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in report, report
    return report


def count(database: str, sql: str) -> int:
    return int(rows(database, sql)[0][0])


def rows(database: str, sql: str) -> Sequence[Any]:
    if not database.startswith("postgresql:"):
        with sqlite3.connect(database, timeout=60) as connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def check_results(database: str, hostile: dict[str, str], *, servers: int = SERVERS) -> None:
    """Every server has exactly one result, and the hostile ones are recorded by kind."""
    found = rows(database, "SELECT server, state, code, reason FROM census_results WHERE run = 1")
    names = Counter(server.partition("#")[2] for server, *_ in found)
    assert len(names) == servers
    assert set(names.values()) == {1}
    failed = {server.partition("#")[2]: (code, reason) for server, state, code, reason in found if state == "failed"}
    assert {name: failed[name] in _EXPECTED[kind] for name, kind in hostile.items()} == dict.fromkeys(hostile, True), (
        failed
    )
    assert failed.keys() == hostile.keys(), failed


def test_commands_that_start_or_check_servers_do_not_load_the_census() -> None:
    program = (
        "import sys; from pinwarden.cli.commands import load_command; "
        "[load_command(name) for name in ('run', 'ci', 'gateway', 'scan', 'prove')]; "
        "print([name for name in sys.modules if name.startswith(('pinwarden.census', 'procrastinate'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@needs("bwrap", install="apt-get install bubblewrap")
@pytest.mark.parametrize(
    ("kind", "many"),
    [
        ("postgresql", SERVERS),
        ("sqlite", SERVERS),
        pytest.param("postgresql", MANY, marks=pytest.mark.soak),
        pytest.param("sqlite", MANY, marks=pytest.mark.soak),
    ],
)
def test_every_server_has_one_result_although_workers_are_killed(
    kind: str, many: int, cluster: Cluster, servers: HttpServers, tmp_path: Path
) -> None:
    config = tmp_path / "mcp.json"
    hostile = write_config(config, many, servers)
    database = cluster.new_database() if kind == "postgresql" else str(tmp_path / "census.sqlite")
    queued = census("run", str(config), "--queue-only", "--database", database)
    assert (queued["done"], queued["servers"]) == (0, many)
    patience = 120 * many // SERVERS
    workers = [start_worker(database, "--jobs", "4") for _ in range(4)]
    try:
        poll(lambda: count(database, "SELECT COUNT(*) FROM census_results") >= many // 2, patience)
        for worker in workers[:2]:
            os.kill(worker.pid, signal.SIGKILL)
        poll(lambda: count(database, "SELECT COUNT(*) FROM census_results") >= 2 * many // 3, patience)
        if kind == "postgresql":
            cluster.stop()
            cluster.start()
        assert [worker.wait(2 * patience) for worker in workers[2:]] == [0, 0]
    finally:
        stop_workers(workers)
    check_results(database, hostile, servers=many)
    status = census("status", "--database", database)
    assert status["states"] == {"observed": many - len(hostile), "failed": len(hostile)}
    assert status["finished_at"] is not None

    asked = Counter(servers.requests)
    again = census("run", str(config), "--database", database, *WORKER_OPTIONS)
    assert again["states"] == {"unchanged": many}
    assert servers.requests == asked
    spent = [count(database, f"SELECT SUM(milliseconds) FROM census_results WHERE run = {run}") for run in (1, 2)]
    assert spent[1] <= spent[0] / 20
