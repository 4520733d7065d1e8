"""Start-up time of the installed console script, compared with an empty interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Goal, compare, table


def command(*arguments: str) -> Callable[[], object]:
    return lambda: subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)


def report() -> str:
    script = str(Path(sys.executable).parent / "pinwarden")
    rows = compare(
        {
            "python -c pass": command(sys.executable, "-c", "pass"),
            "pinwarden --version": command(script, "--version"),
            "pinwarden --help": command(script, "--help"),
        },
        baseline="python -c pass",
        rounds=31,
    )
    goals = [Goal(name="pinwarden --version", against="python -c pass", at_most=1.6)]
    return table("Start of the installed command", rows, 1, goals)
