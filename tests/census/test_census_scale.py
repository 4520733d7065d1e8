"""2,000 synthetic servers with one, two and four workers: throughput, memory, storage, and the cost of a second run."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.census.test_census_run import census, check_results, count
from tests.census.world import HttpServers, http_servers, start_worker, stop_workers, write_config
from tests.support.needs import needs
from tests.support.postgres import Cluster, postgres
from tests.support.waiting import poll

SERVERS = int(os.environ.get("PINWARDEN_CENSUS_SERVERS", "2000"))
MAX_MEMORY = 512 * 1024 * 1024
"""Of one worker. An idle one has 80 MB, and the largest surface that a server may send has 32 MB."""
MAX_SECOND_RUN = 0.05
"""Time of the examinations in a second run, compared with the first."""

_SIZE = "SELECT SUM(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relname LIKE 'census_%' AND c.relkind = 'r'"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run with a number of workers."""

    workers: int
    seconds: float
    cpu_seconds: float
    peak_memory: int

    @property
    def rate(self) -> float:
        return SERVERS / self.seconds


@pytest.fixture(scope="module")
def servers() -> Iterator[HttpServers]:
    with http_servers() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as started:
        yield started


def measure(database: str, config: Path, workers: int) -> Measurement:
    census("run", str(config), "--queue-only", "--database", database)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    running = [start_worker(database, "--jobs", "4") for _ in range(workers)]
    peak = 0

    def is_done() -> bool:
        nonlocal peak
        peak = max(peak, *map(read_peak_memory, running))
        return all(worker.poll() is not None for worker in running)

    try:
        poll(is_done, 1500)
    finally:
        stop_workers(running)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measurement(
        workers=workers,
        seconds=time.monotonic() - started,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_memory=peak,
    )


def read_peak_memory(worker: object) -> int:
    """The largest resident memory of a worker so far, without the servers that it starts."""
    try:
        status = Path(f"/proc/{worker.pid}/status").read_text()  # type: ignore[attr-defined]
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) * 1024


@pytest.mark.soak
@needs("bwrap", install="apt-get install bubblewrap")
def test_two_thousand_servers_at_one_two_and_four_workers(
    cluster: Cluster, servers: HttpServers, tmp_path: Path
) -> None:
    config = tmp_path / "mcp.json"
    hostile = write_config(config, SERVERS, servers)
    measured = []
    for workers in (1, 2, 4):
        database = cluster.new_database()
        measured.append(measure(database, config, workers))
        check_results(database, hostile, servers=SERVERS)
        assert measured[-1].peak_memory <= MAX_MEMORY
    lines = ["workers  ratio  servers/s  CPU ms/server  peak MB/worker"]
    lines += [
        f"{row.workers:7} {row.rate / measured[0].rate:6.2f} {row.rate:10.1f} "
        f"{1000 * row.cpu_seconds / SERVERS:14.1f} {row.peak_memory / 2**20:15.0f}"
        for row in measured
    ]
    size = count(database, _SIZE)
    again = measure(database, config, 4)
    grown = count(database, _SIZE)
    spent = [count(database, f"SELECT SUM(milliseconds) FROM census_results WHERE run = {run}") for run in (1, 2)]
    lines += [
        f"storage: {size / SERVERS:.0f} bytes per server, {(grown - size) / SERVERS:.0f} per unchanged observation",
        f"second run: {again.seconds / measured[-1].seconds:.3f} of the time of the first, with the start of 4 workers",
        f"second run: {again.cpu_seconds / measured[-1].cpu_seconds:.3f} of the CPU time of the first",
        f"second run: {spent[1] / spent[0]:.4f} of the time of the examinations of the first",
    ]
    sys.stderr.write("\n".join(["", *lines, ""]))
    assert spent[1] <= MAX_SECOND_RUN * spent[0]
