"""Accuracy of the entitlement analysis on published servers, and its speed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Goal, compare, table
from pinwarden.contract.entitlements.analysis import analyse, find_handlers
from pinwarden.contract.entitlements.values import Handler, Source
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
    kinds = {
        name: {tool: found.kinds for tool, found in analyse(servers[name], handlers[name]).handlers.items()}
        for name in TRUTH
    }
    return _compare("published servers", TRUTH, FIRST, kinds)


def _javascript_agreement() -> str:
    with TemporaryDirectory() as folder:
        try:
            folders = packages(NPM_TRUTH, Path(folder))
        except IndexUnreachableError as err:
            return f"Entitlements of published npm servers: the registry is unreachable: NOT MET\n{err}"
        kinds = {
            name: {
                tool: found.kinds for tool, found in analyse_package(folders[name], truth["handlers"]).handlers.items()
            }
            for name, truth in NPM_TRUTH.items()
        }
    return _compare("published npm servers", NPM_TRUTH, FIRST_NPM, kinds)


def _compare(
    what: str, truths: Mapping[str, Any], first: Mapping[str, Any], kinds: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> str:
    scores = {"development": Score(), "held out": Score()}
    counts = dict.fromkeys(scores, 0)
    for name, truth in truths.items():
        for handler, expected in truth["handlers"].items():
            scores[truth["set"]].add(f"{name} {handler}", expected["entitlements"], kinds[name].get(handler, ()))
            counts[truth["set"]] += 1
    lines = [f"Entitlements of {sum(counts.values())} handlers of {len(truths)} {what}"]
    for part, score in scores.items():
        met = "met" if min(score.precision, score.recall) >= MIN_ACCURACY else "NOT MET"
        lines.append(
            f"  goal: {part} ({counts[part]} handlers): precision {score.precision:.3f}, recall {score.recall:.3f}"
            f" (at least {MIN_ACCURACY} each): {met}"
        )
        if part == first["set"]:
            measured = f"precision {first['precision']:.3f}, recall {first['recall']:.3f}"
            lines.append(f"    first measurement: {measured}. {first['since']}")
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
