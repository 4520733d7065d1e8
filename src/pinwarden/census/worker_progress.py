"""What a worker tells about its work: a log line for each server, metrics in a file, and its rate."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pinwarden.census.job_queue import Job
from pinwarden.census.observation import ServerObservation
from pinwarden.core.text import show_invisible
from pinwarden.system.files import write_atomically
from pinwarden.system.metrics import format_metric
from pinwarden.system.service_log import ServiceLog

_WRITE_SECONDS = 1.0


class WorkerProgress:
    """Counts the results of one worker. Thread-safe."""

    def __init__(self, log: ServiceLog, metrics: Path | None, count_jobs: Callable[[], int]) -> None:
        """``metrics`` is a file for Prometheus, which is replaced at most once a second."""
        self._log = log
        self._metrics = metrics
        self._count_jobs = count_jobs
        self._lock = threading.Lock()
        self._states: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._milliseconds = 0
        self._started = time.monotonic()
        self._written = -_WRITE_SECONDS
        self._last_result = 0.0

    def record(self, job: Job, observation: ServerObservation) -> None:
        """Log a result and count it."""
        is_failed = observation.state == "failed"
        why = show_invisible(f" {observation.code} {observation.reason}".rstrip())
        self._log.log(
            "warning" if is_failed else "info",
            f"run {job.run}: {job.server} {observation.state}{why} in {observation.milliseconds} ms",
            run=job.run,
            server=job.server,
            state=observation.state,
            attempts=job.attempts + 1,
            milliseconds=observation.milliseconds,
            **({"code": observation.code, "reason": observation.reason} if is_failed else {}),
        )
        with self._lock:
            self._states[observation.state] += 1
            self._milliseconds += observation.milliseconds
            self._last_result = time.time()
            if is_failed:
                self._failures[observation.code, observation.reason] += 1
            is_due = time.monotonic() - self._written >= _WRITE_SECONDS
            self._written = time.monotonic() if is_due else self._written
        if is_due:
            self.write_metrics()

    def format_rate(self, total: int) -> str:
        """Return the rate, the failures, and the time left for this number of jobs."""
        done = sum(self._states.values())
        rate = done / max(0.001, time.monotonic() - self._started)
        left = max(0, total - done) / rate if rate else 0.0
        return f", {rate:.1f}/s, {self._states['failed']} failed, {left:.0f}s left"

    @property
    def done(self) -> int:
        """The number of results so far."""
        return sum(self._states.values())

    def write_metrics(self) -> None:
        """Write the file with the metrics, if there is one."""
        if self._metrics is None:
            return
        waiting = self._count_jobs()
        with self._lock:
            states = [({"state": state}, count) for state, count in sorted(self._states.items())]
            failures = [
                ({"code": code, "reason": reason}, count) for (code, reason), count in sorted(self._failures.items())
            ]
            seconds, last = self._milliseconds / 1000, self._last_result
        lines = (
            *format_metric("census_results_total", "counter", "Servers that this worker examined, by state.", states),
            *format_metric("census_failures_total", "counter", "Servers that could not be observed.", failures),
            *format_metric(
                "census_examination_seconds_total", "counter", "Time spent on examinations.", [({}, seconds)]
            ),
            *format_metric("census_jobs", "gauge", "Jobs of all runs that are not done.", [({}, waiting)]),
            *format_metric(
                "census_last_result_timestamp_seconds", "gauge", "When this worker had its last result.", [({}, last)]
            ),
        )
        write_atomically(self._metrics, "".join(lines).encode())
