"""How well the scan and the diff separate attacks from honest definitions, with peers in the same run.

``python -m benchmarks.judgement`` measures the committed set in ``benchmarks/data/judgement``. With ``--data FOLDER``
it measures any folder with files of the same shape; ``--misses`` also prints which cases were judged wrongly. Each file
has one JSON object per line:

- ``attacks*.jsonl``: poisoned definitions (``surface``) with their ``family``, ``source`` and ``language``
- ``honest*.jsonl``: honest text that resembles an attack (``surface``)
- ``servers*.jsonl``: published servers (``surface``)
- ``upgrades*.jsonl``: two releases of a published server (``before``, ``after``)
- ``edits*.jsonl``: small malicious edits of published servers (``before``, ``after``); ``aware`` if the author of the
  edit knew the rules. An edit may have ``server`` (the id of a published server) and ``changed`` (tools) instead.

``part`` says which part of the split by source a case belongs to. Rules and weights were built on ``train``, and
variants were compared on ``development``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.judgement_peers import Listing, available_peers
from pinwarden.surface.drift import summary
from pinwarden.surface.drift.changes import CRITICAL, INFO, Change, blocked_by_default
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.scan.scan import scan
from pinwarden.surface.surface import surface_from_listing

DATA = Path(__file__).parent / "data" / "judgement"
OURS = "Pinwarden"
MIN_ATTACKS, MIN_EDITS_CRITICAL, MIN_AWARE_CRITICAL = 0.75, 0.75, 0.90
MAX_HONEST_TOOLS, MAX_UPGRADES_CRITICAL = 0.005, 0.03
MAX_MEAN_DECISIONS, MAX_DECISIONS = 3, 15

Case = dict[str, Any]


@dataclass
class Measurement:
    """The lines of the report, and which cases were judged wrongly."""

    lines: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def add(self, label: str, *values: str) -> None:
        self.lines.append(f"  {label:44}" + "".join(f"{value:>16}" for value in values))

    def goal(self, label: str, met: bool) -> None:
        self.lines.append(f"  goal: {label}: {'met' if met else 'NOT MET'}")


def report() -> str:
    return "\n".join(measure(DATA).lines)


def measure(folder: Path) -> Measurement:
    result = Measurement([f"Judgement of {folder.name}"])
    for kind, section in SECTIONS.items():
        cases = list(load_cases(folder, kind))
        if cases:
            result.lines.append("")
            section(cases, result)
    return result


def load_cases(folder: Path, kind: str) -> Iterator[Case]:
    for path in sorted(folder.glob(f"{kind}*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            yield from (_expand(json.loads(line)) for line in lines)


def _expand(case: Case) -> Case:
    """Add both surfaces to an edit that only has the changed tools and the id of a published server."""
    if "changed" not in case:
        return case
    before = _read_published_surfaces()[case["server"]]
    changed = {tool["name"]: tool for tool in case["changed"]}
    tools = [changed.pop(tool["name"], tool) for tool in before["tools"]]
    return {**case, "before": before, "after": {**before, "tools": [*tools, *changed.values()]}}


@cache
def _read_published_surfaces() -> dict[str, Listing]:
    return {case["id"]: case["surface"] for case in load_cases(DATA, "servers")}


def group_cases(cases: Sequence[Case], member: str) -> dict[str, list[int]]:
    """The indexes of the cases by the value of a member; empty if all have the same value."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(str(case.get(member, "")), []).append(index)
    return dict(sorted(groups.items())) if len(groups) > 1 else {}


# The scan


def suspected_by_pinwarden(
    listings: Sequence[Listing], neighbours: Sequence[dict[str, Listing]] = ()
) -> list[set[str]]:
    """The names of the items with a warning."""
    results = []
    for index, listing in enumerate(listings):
        others = neighbours[index] if neighbours else {}
        nearby = [(name, surface_from_listing(other)) for name, other in others.items()]
        findings = scan(surface_from_listing(listing), nearby)
        results.append({finding.name for finding in findings if finding.severity == "warning"})
    return results


def _judge(cases: Sequence[Case]) -> dict[str, list[set[str]]]:
    """The names of suspected items per case, for Pinwarden and each peer."""
    listings = [case["surface"] for case in cases]
    neighbours = [case.get("neighbours", {}) for case in cases]
    judged = {OURS: suspected_by_pinwarden(listings, neighbours)}
    return judged | {name: list(map(peer, listings)) for name, peer in available_peers().items()}


def _share(count: int, total: int) -> str:
    return f"{count}/{total} {count / total:4.0%}" if total else "-"


def _attacks(cases: Sequence[Case], result: Measurement) -> None:
    judged = _judge(cases)
    result.add("poisoned definitions with a warning", *judged)

    def add_row(label: str, indexes: Sequence[int]) -> None:
        result.add(label, *(_share(sum(bool(names[i]) for i in indexes), len(indexes)) for names in judged.values()))

    every = range(len(cases))
    add_row("all", every)
    for member in ("part", "family", "source", "language", "carrier"):
        for value, indexes in group_cases(cases, member).items():
            add_row(f"  {member}: {value}"[:43], indexes)
    found = sum(map(bool, judged[OURS]))
    result.goal(f"at least {MIN_ATTACKS:.0%} of all", found >= MIN_ATTACKS * len(cases))
    result.misses += [f"missed attack: {cases[i]['id']}" for i in every if not judged[OURS][i]]


def _honest(cases: Sequence[Case], result: Measurement) -> None:
    judged = _judge(cases)
    result.add("honest text with a warning", *judged)
    result.add("resembles an attack", *(_share(sum(map(bool, names)), len(cases)) for names in judged.values()))
    result.misses += [f"false alarm: {cases[i]['id']}" for i, names in enumerate(judged[OURS]) if names]


def _servers(cases: Sequence[Case], result: Measurement) -> None:
    judged = _judge(cases)
    tools = [{tool["name"] for tool in case["surface"].get("tools", [])} for case in cases]
    result.add(f"{len(cases)} published servers", *judged)

    def count(name: str, indexes: Iterable[int]) -> int:
        return sum(len(judged[name][i] & tools[i]) for i in indexes)

    def add_row(label: str, indexes: Sequence[int]) -> None:
        total = sum(len(tools[i]) for i in indexes)
        numbers = [count(name, indexes) for name in judged]
        result.add(label, *(f"{number}/{total} {number / total:.2%}" for number in numbers))

    every = range(len(cases))
    add_row("honest tools with a warning", every)
    for value, indexes in group_cases(cases, "part").items():
        add_row(f"  part: {value}", indexes)
    result.add("servers with a warning", *(_share(sum(map(bool, names)), len(cases)) for names in judged.values()))
    limit = MAX_HONEST_TOOLS * sum(map(len, tools))
    result.goal(f"at most {MAX_HONEST_TOOLS:.1%} of honest tools", count(OURS, every) <= limit)
    for case, names in zip(cases, judged[OURS], strict=True):
        result.misses += [f"false alarm: {case['id']}: {name}" for name in sorted(names)]


# The diff


def compare_cases(case: Case) -> tuple[Change, ...]:
    before, after = surface_from_listing(case["before"]), surface_from_listing(case["after"])
    if "neighbours" in inspect.signature(compare).parameters:
        nearby = [(name, surface_from_listing(other)) for name, other in case.get("neighbours", {}).items()]
        options: dict[str, Any] = {"neighbours": nearby}
        return compare(before, after, **options)
    return compare(before, after)


def count_decisions(changes: Sequence[Change]) -> int:
    """How many decisions a person takes about these changes."""
    group: Callable[[Sequence[Change]], Sequence[object]] | None = getattr(summary, "group_decisions", None)
    return count_items(changes) if group is None else len(group(changes))


def count_items(changes: Sequence[Change]) -> int:
    return len({(change.entity, change.name) for change in changes if change.severity != INFO})


def _upgrades(cases: Sequence[Case], result: Measurement) -> None:
    judged = [compare_cases(case) for case in cases]
    critical = [any(change.severity == CRITICAL for change in changes) for changes in judged]
    decisions = [count_decisions(changes) for changes in judged]
    items = [count_items(changes) for changes in judged]
    result.add("honest upgrades", OURS)
    result.add("with a critical change", _share(sum(critical), len(cases)))
    for value, indexes in group_cases(cases, "part").items():
        result.add(f"  part: {value}", _share(sum(critical[i] for i in indexes), len(indexes)))
    for label, numbers in (("decisions", decisions), ("items to review", items)):
        middle = f"{statistics.mean(numbers):.1f} / {statistics.median(numbers):g} / {max(numbers)}"
        result.add(f"{label}: mean / median / worst", middle)
    result.goal(f"critical in at most {MAX_UPGRADES_CRITICAL:.0%}", sum(critical) <= MAX_UPGRADES_CRITICAL * len(cases))
    fits = statistics.mean(decisions) <= MAX_MEAN_DECISIONS and max(decisions) <= MAX_DECISIONS
    result.goal(f"decisions: mean at most {MAX_MEAN_DECISIONS}, worst {MAX_DECISIONS}", fits)
    for case, changes, number in zip(cases, judged, decisions, strict=True):
        if number > MAX_DECISIONS:
            result.misses.append(f"many decisions: {case['id']}: {number}")
        for change in changes:
            if change.severity == CRITICAL:
                result.misses.append(f"false critical: {case['id']}: {change.kind} {change.name} {change.path}")


def _edits(cases: Sequence[Case], result: Measurement) -> None:
    judged = [compare_cases(case) for case in cases]
    blocked = [blocked_by_default(changes) for changes in judged]
    critical = [any(change.severity == CRITICAL for change in changes) for changes in judged]
    every = range(len(cases))
    aware = [i for i in every if cases[i].get("aware")]
    result.add("malicious edits", "blocked", "critical")

    def add_row(label: str, indexes: Sequence[int]) -> None:
        rows = (blocked, critical)
        result.add(label, *(_share(sum(row[i] for i in indexes), len(indexes)) for row in rows))

    add_row("all", every)
    if aware:
        add_row("written with knowledge of the rules", aware)
    for member in ("part", "kind"):
        for value, indexes in group_cases(cases, member).items():
            add_row(f"  {member}: {value}", indexes)
    result.goal("all blocked", all(blocked))
    result.goal(f"at least {MIN_EDITS_CRITICAL:.0%} critical", sum(critical) >= MIN_EDITS_CRITICAL * len(cases))
    if aware:
        hits = sum(critical[i] for i in aware)
        result.goal(
            f"at least {MIN_AWARE_CRITICAL:.0%} of the aware ones critical", hits >= MIN_AWARE_CRITICAL * len(aware)
        )
    result.misses += [f"not critical: {cases[i]['id']}" for i in every if not critical[i]]


SECTIONS: dict[str, Callable[[Sequence[Case], Measurement], None]] = {
    "attacks": _attacks,
    "honest": _honest,
    "servers": _servers,
    "upgrades": _upgrades,
    "edits": _edits,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="judgement", description="Measure the scan and the diff on labelled data.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the data (default: the committed set)")
    parser.add_argument("--misses", action="store_true", help="also print which cases were judged wrongly")
    arguments = parser.parse_args()
    result = measure(arguments.data)
    print("\n".join([*result.lines, "", *result.misses] if arguments.misses else result.lines))
    return 1 if any("NOT MET" in line for line in result.lines) else 0


if __name__ == "__main__":
    sys.exit(main())
