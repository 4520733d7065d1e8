"""``pinwarden ci`` compared with ``toolpin ci`` on the same lock."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Goal, Row, table
from pinwarden.lock import lockfile
from pinwarden.lock.entry import Entry, build_entry_key, with_integrity
from pinwarden.lock.install_plan import build_install_plan
from pinwarden.lock.lockfile import put_entries
from pinwarden.lock.server_entry import parse_server_entry

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLPIN = REPOSITORY / "tests" / "npm" / "node_modules" / ".bin" / "toolpin"
NOW = "2026-07-20T12:00:00.000Z"


def write_project(folder: Path, count: int) -> None:
    """Write a lock of ``count`` npm servers, and the registry cache that ToolPin checks it against."""
    template = json.loads((REPOSITORY / "tests/vectors/toolpin/servers/npm.json").read_bytes())
    entries, locked_entries = [], []
    for number in range(count):
        row = json.loads(json.dumps(template).replace("npm-notes", f"npm-notes-{number}"))
        entries.append(row)
        plan = build_install_plan(parse_server_entry(row), "claude", now=NOW)
        locked_entries.append(with_integrity(Entry(key=build_entry_key(plan["name"], "claude"), document=plan)))
    (folder / ".toolpin").mkdir()
    (folder / ".toolpin" / "registry-cache.json").write_text(json.dumps({"generatedAt": NOW, "entries": entries}))
    (folder / "mcp-lock.json").write_bytes(lockfile.to_bytes(put_entries(None, locked_entries, NOW, plain_v2=True)))


def run_times(command: list[str], folder: Path, rounds: int) -> list[float]:
    times = []
    environment = {**os.environ, "HOME": str(folder)}
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return times


def report() -> str:
    if not TOOLPIN.exists():
        return "pinwarden ci against toolpin ci: ToolPin is not installed; run tools/npm-packages.sh"
    ours = [str(Path(sys.executable).parent / "pinwarden"), "ci", "--format", "json"]
    theirs = [str(TOOLPIN), "ci", "--no-policy", "--json"]
    parts = []
    for count, rounds, at_most in ((1, 9, 1 / 5), (100, 5, 1), (1000, 1, 1 / 100)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_project(folder, count)
            run_times(ours, folder, 1)
            pairs = [
                (run_times(theirs, folder, 1)[0], statistics.median(run_times(ours, folder, 3))) for _ in range(rounds)
            ]
        rows = [
            Row(
                name="toolpin ci",
                microseconds=statistics.median(theirs_time for theirs_time, _ in pairs) * 1e6,
                ratio=1,
            ),
            Row(
                name="pinwarden ci",
                microseconds=statistics.median(ours_time for _, ours_time in pairs) * 1e6,
                ratio=statistics.median(ours_time / theirs_time for theirs_time, ours_time in pairs),
            ),
        ]
        goals = [Goal(name="pinwarden ci", against="toolpin ci", at_most=at_most)] if at_most < 1 else []
        parts.append(table(f"Checking a lock of {count} entries", rows, 1, goals))
    return "\n\n".join([*parts, growth(ours)])


def growth(ours: list[str]) -> str:
    rows = []
    first = 0.0
    for count in (1_000, 10_000):
        with tempfile.TemporaryDirectory() as name:
            write_project(Path(name), count)
            per_entry = min(run_times(ours, Path(name), 3)) / count
        first = first or per_entry
        rows.append(Row(name=f"{count:,} entries", microseconds=per_entry * 1e6, ratio=per_entry / first))
    goals = [Goal(name="10,000 entries", against="1,000 entries", at_most=1.5)]
    return table("pinwarden ci: cost of one entry as a lock grows (flat is linear)", rows, 1, goals)
