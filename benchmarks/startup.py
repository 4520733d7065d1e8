"""Start-up time of the installed console script, and of ``status`` with many servers, against an empty interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, compare, table
from tests.cli.many_servers import write_many_servers

SERVERS = (2, 10, 50, 200)
MAX_STATUS_RATIO = 42
"""0.5 s for 50 servers where an empty interpreter takes 12 ms."""


def command(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Callable[[], object]:
    return lambda: subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True, cwd=folder, env=environment)


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


def status_report() -> str:
    """``pinwarden status`` of several numbers of servers, each approved and verified, half of them in two clients."""
    script = str(Path(sys.executable).parent / "pinwarden")
    with TemporaryDirectory() as temporary:
        candidates = {"python -c pass": command(sys.executable, "-c", "pass")}
        for count in SERVERS:
            world = write_many_servers(Path(temporary) / str(count), count)
            environment = {"PATH": os.environ["PATH"], "HOME": str(world.home), "PINWARDEN_STATE": str(world.state)}
            candidates[_name(count)] = command(script, "status", folder=world.root, environment=environment)
        rows = compare(candidates, baseline="python -c pass", rounds=11)
    goals = [
        Goal(name=_name(50), against="python -c pass", at_most=MAX_STATUS_RATIO),
        Goal(name=_name(200), against=_name(50), at_most=5),
    ]
    return table("The state of many servers", rows, 1, goals)


def _name(count: int) -> str:
    return f"pinwarden status, {count} servers"
