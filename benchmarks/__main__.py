"""Run the benchmarks: ``python -m benchmarks [NAME…]`` runs all reports, or only the named ones.

``--page`` also writes their output into ``docs/figures.md``.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    artifacts,
    bundles,
    census,
    contracts,
    core,
    dashboard,
    detection,
    entitlements,
    gate,
    identities,
    judgement,
    registry,
    relaying,
    relaying_http,
    running,
    startup,
    surfaces,
    verifying,
)
from benchmarks.figures_page import render_figures

REPORTS: dict[str, Callable[[], str]] = {
    "digest": core.digest_report,
    "cid": core.cid_report,
    "parse": core.parse_report,
    "startup": startup.report,
    "status": startup.status_report,
    "judging": surfaces.diff_and_scan_report,
    "growth": surfaces.growth_report,
    "probing": surfaces.probing_report,
    "detection": detection.report,
    "judgement": judgement.report,
    "entitlements": entitlements.report,
    "gate": gate.report,
    "hashing": artifacts.hashing_report,
    "verifying": verifying.report,
    "bundles": bundles.verifying_report,
    "starting": running.starting_report,
    "fetching": running.fetching_report,
    "contracts": contracts.contracts_report,
    "checking": contracts.checking_report,
    "queueing": census.queue_report,
    "relaying-http": relaying_http.report,
    "identities": identities.report,
    "relaying": relaying.report,
    "appending": registry.appending_report,
    "publishing": registry.publishing_report,
    "searching": registry.searching_report,
    "reading": registry.reading_report,
    "dashboard": dashboard.report,
}


def main(names: list[str]) -> int:
    page = "--page" in names
    names = [name for name in names if name != "--page"]
    unknown = [name for name in names if name not in REPORTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(REPORTS)}", file=sys.stderr)
        return 2
    # An installed package has its bytecode, and commands of a fresh clone must not be measured without.
    compileall.compile_dir(Path(__file__).resolve().parents[1] / "src" / "pinwarden", quiet=2)
    reports: dict[str, str] = {}
    for name in names or REPORTS:
        reports[name] = REPORTS[name]()
        print(f"\n{reports[name]}", flush=True)
    missed = sum(report.count("NOT MET") for report in reports.values())
    if page:
        (Path(__file__).resolve().parents[1] / "docs" / "figures.md").write_text(render_figures(reports), "utf-8")
    if missed:
        print(f"\n{missed} goals were not met", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
