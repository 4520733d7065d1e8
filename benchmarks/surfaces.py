"""Surfaces: diff and scan compared with parsing, growth with the number of tools, probing many servers at once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.core import real_tools
from benchmarks.measure import Goal, Row, compare, table
from pinwarden.surface.drift import compare as drift
from pinwarden.surface.probe.probe import ProbeOptions, probe, probe_all
from pinwarden.surface.scan.scan import scan
from pinwarden.surface.surface import Surface, surface_from_listing
from pinwarden.system.target import StdioTarget

SLOW_SERVER = Path(__file__).parent / "waiting_server.py"


def listing(count: int, *, changed_every: int = 0) -> dict[str, Any]:
    """Build a listing of ``count`` real tools under new names. Every ``changed_every``-th has another description."""
    real = real_tools()
    tools = []
    for index in range(count):
        tool = dict(real[index % len(real)])
        tool["name"] = f"{tool['name']}_{index}"
        if changed_every and index % changed_every == 0:
            tool["description"] = f"{tool.get('description', '')} Results are sorted by date."
        tools.append(tool)
    return {"serverInfo": {"name": "bench", "version": "1"}, "tools": tools}


def diff_and_scan(before: Surface, after: Surface) -> None:
    drift.compare(before, after)
    scan(after)


def diff_and_scan_report() -> str:
    text = json.dumps(listing(1000, changed_every=20))
    before, after = surface_from_listing(listing(1000)), surface_from_listing(json.loads(text))
    rows = compare(
        {
            "json.loads of the listing": lambda: json.loads(text),
            "diff": lambda: drift.compare(before, after),
            "scan": lambda: scan(after),
            "diff + scan": lambda: diff_and_scan(before, after),
            "read + digest + diff + scan": lambda: diff_and_scan(before, surface_from_listing(json.loads(text))),
        },
        baseline="json.loads of the listing",
        rounds=9,
    )
    goals = [Goal(name="diff + scan", against="json.loads of the listing", at_most=10)]
    return table("Diff and scan of a surface of 1,000 tools, 50 of them changed (per tool)", rows, 1000, goals)


def growth_report() -> str:
    rows = []
    first = 0.0
    for count in (1_000, 10_000, 100_000):
        before, after = surface_from_listing(listing(count)), surface_from_listing(listing(count, changed_every=20))
        times = []
        for _ in range(3):
            start = time.perf_counter()
            diff_and_scan(before, after)
            times.append(time.perf_counter() - start)
        per_tool = min(times) / count
        first = first or per_tool
        rows.append(Row(name=f"{count:,} tools", microseconds=per_tool * 1e6, ratio=per_tool / first))
    goals = [Goal(name="100,000 tools", against="1,000 tools", at_most=2)]
    return table("Diff + scan: cost of one tool as a surface grows (flat is linear)", rows, 1, goals)


def probing_report() -> str:
    """Compare probing twenty servers at once with probing one. Each server takes a second to start."""
    targets = [StdioTarget(command=(sys.executable, str(SLOW_SERVER))) for _ in range(20)]
    options = ProbeOptions(allow_execute=True, timeout=60)
    rows = compare(
        {
            "one server": lambda: probe(targets[0], options),
            "20 servers at once": lambda: _probe_all_servers(targets, options),
        },
        baseline="one server",
        rounds=3,
    )
    goals = [Goal(name="20 servers at once", against="one server", at_most=3)]
    return table("Probing stdio servers", rows, 1, goals)


def _probe_all_servers(targets: list[StdioTarget], options: ProbeOptions) -> None:
    outcomes = probe_all(targets, options)
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Surface)]
    if failed:
        raise failed[0]
