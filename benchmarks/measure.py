"""Measure and compare candidates in interleaved rounds.

The result is the median of the ratios within each round, which is robust against other load on the machine.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate: its median time and its ratio to the baseline."""

    name: str
    microseconds: float
    ratio: float


def compare(candidates: Mapping[str, Callable[[], object]], *, baseline: str, rounds: int) -> list[Row]:
    """Run every candidate once per round, in turn, and compare within each round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()  # warm up: imports, caches
    gc.freeze()  # so that garbage collection skips the objects of imported packages
    for round_number in range(rounds):
        names = list(candidates)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            gc.collect()
            start = time.perf_counter()
            candidates[name]()
            seconds[name].append(time.perf_counter() - start)
    return [
        Row(
            name=name,
            microseconds=statistics.median(times) * 1e6,
            ratio=statistics.median(
                time_taken / baseline_time for time_taken, baseline_time in zip(times, seconds[baseline], strict=True)
            ),
        )
        for name, times in seconds.items()
    ]


def shuffled(candidates: Sequence[_T], round_number: int) -> list[_T]:
    """Return a random order, so that deferred work of one candidate does not always slow down the same other one."""
    return random.Random(round_number).sample(candidates, len(candidates))


@contextmanager
def one_core() -> Iterator[None]:
    """Run all processes on one core and, if permitted, with a higher priority."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores, priority = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    os.sched_setaffinity(0, {max(cores)})
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, priority)
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The maximum ratio of one candidate's time to another's."""

    name: str
    against: str
    at_most: float

    def verdict(self, rows: list[Row]) -> str:
        """Return one line with the measured ratio, the limit, and whether the goal is met."""
        ratios = {row.name: row.ratio for row in rows}
        ratio = ratios[self.name] / ratios[self.against]
        measured, limit = f"{ratio:.2f}x", f"at most {self.at_most:g}x"
        if self.at_most <= 0.2:
            measured, limit = f"{1 / ratio:.1f}x faster", f"at least {1 / self.at_most:g}x"
        met = "met" if ratio <= self.at_most else "NOT MET"
        return f"goal: {self.name} against {self.against}: {measured} ({limit}): {met}"


def table(title: str, rows: list[Row], unit: int, goals: list[Goal]) -> str:
    """Return a table as text. ``unit`` is the number of items that one run handles."""
    width = max(len(row.name) for row in rows)
    lines = [title, f"  {'':{width}}  {'median us':>10}  {'ratio':>7}"]
    lines += [f"  {row.name:{width}}  {row.microseconds / unit:10.2f}  {row.ratio:7.3f}" for row in rows]
    lines += [f"  {goal.verdict(rows)}" for goal in goals]
    return "\n".join(lines)
