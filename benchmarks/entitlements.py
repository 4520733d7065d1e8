"""Accuracy of the entitlement analysis on published servers, and its speed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Goal, compare, table
from pinwarden.contract.entitlements.analysis import analyse, find_handlers
from pinwarden.contract.entitlements.values import Entitlements, Handler, Source
from tests.support.published import FIRST, TRUTH, IndexUnreachableError, Score, sources, wheels
from tests.support.published_npm import FIRST_NPM, NPM_TRUTH, analyse_package, packages

MIN_ACCURACY = 0.95
MAX_RATIO = 4.0
ROUNDS = 7


def report() -> str:
    with TemporaryDirectory() as folder:
        try:
            wheel_files = wheels(TRUTH, Path(folder))
        except IndexUnreachableError as err:
            return f"Entitlements of published servers: the package index is unreachable: NOT MET\n{err}"
        servers = {name: sources(wheel) for name, wheel in wheel_files.items()}
    handlers = {name: find_handlers(modules) for name, modules in servers.items()}
    return "\n\n".join([_agreement(servers, handlers), _javascript_agreement(), _speed(servers, handlers)])


def _agreement(servers: Mapping[str, dict[str, Source]], handlers: Mapping[str, tuple[Handler, ...]]) -> str:
    found = {name: analyse(servers[name], handlers[name]).handlers for name in TRUTH}
    return _compare("published servers", TRUTH, {FIRST["set"]: FIRST}, found)


def _javascript_agreement() -> str:
    with TemporaryDirectory() as folder:
        try:
            folders = packages(NPM_TRUTH, Path(folder))
        except IndexUnreachableError as err:
            return f"Entitlements of published npm servers: the registry is unreachable: NOT MET\n{err}"
        found = {name: analyse_package(folders[name], truth["handlers"]).handlers for name, truth in NPM_TRUTH.items()}
    return _compare("published npm servers", NPM_TRUTH, FIRST_NPM, found)


def _compare(
    what: str, truths: Mapping[str, Any], first: Mapping[str, Any], found: Mapping[str, Mapping[str, Entitlements]]
) -> str:
    scores = {truth["set"]: Score() for truth in truths.values()}
    counts = dict.fromkeys(scores, 0)
    for name, truth in truths.items():
        for handler, expected in truth["handlers"].items():
            result = found[name].get(handler)
            label = f"{name} {handler}" + (" (reported as unknown)" if result is not None and result.unknown else "")
            kinds = () if result is None else result.kinds
            scores[truth["set"]].add(label, expected["entitlements"], kinds)
            counts[truth["set"]] += 1
    lines = [f"Entitlements of {sum(counts.values())} handlers of {len(truths)} {what}"]
    for part, score in scores.items():
        met = "met" if min(score.precision, score.recall) >= MIN_ACCURACY else "NOT MET"
        lines.append(
            f"  goal: {part} ({counts[part]} handlers): precision {score.precision:.3f}, recall {score.recall:.3f}"
            f" (at least {MIN_ACCURACY} each): {met}"
        )
        if part in first:
            measured = f"precision {first[part]['precision']:.3f}, recall {first[part]['recall']:.3f}"
            lines.append(f"    first measurement: {measured}. {first[part]['since']}")
        lines += [f"    {difference}" for difference in score.differences]
    return "\n".join(lines)


class _Recording(Mapping[str, Source]):
    """The modules of a server, which record the ones that were requested."""

    def __init__(self, modules: Mapping[str, Source]) -> None:
        self.modules = modules
        self.requested: dict[str, Source] = {}

    def __getitem__(self, name: str) -> Source:
        self.requested[name] = self.modules[name]
        return self.modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


def _speed(servers: Mapping[str, dict[str, Source]], handlers: Mapping[str, tuple[Handler, ...]]) -> str:
    texts = []
    for name, modules in servers.items():
        recording = _Recording(modules)
        analyse(recording, handlers[name])
        texts += [source.text for source in recording.requested.values()]  # only modules that the analysis reads

    def parse() -> None:
        for text in texts:
            ast.parse(text)

    def scan() -> None:
        for name, modules in servers.items():
            analyse(modules, handlers[name])

    rows = compare({"ast.parse": parse, "entitlements": scan}, baseline="ast.parse", rounds=ROUNDS)
    count = sum(len(names) for names in handlers.values())
    title = f"Analysing {len(texts)} modules with {count} handlers (microseconds per module)"
    return table(title, rows, len(texts), [Goal(name="entitlements", against="ast.parse", at_most=MAX_RATIO)])
