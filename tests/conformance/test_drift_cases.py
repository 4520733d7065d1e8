"""Every drift case of the vectors: what must be reported is, what must not is not, and each place has its exact name.

Cases that give a ``sequence`` of answers are judged here by what a complete listing says; that the listing is
complete is tested with servers that speak the protocol. Cases about client configuration and artifacts are not of
this layer: they come with the lock file and are counted here, so that none is lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, Surface, surface_from_listing
from tests.conformance.sequences import play_of
from tests.conformance.vectors import REPOSITORY, cases, vectors_dir

Case = dict[str, Any]
CASES: list[Case] = [
    json.loads(line)
    for file in sorted((vectors_dir() / "attacks" / "own").glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
    if line.strip()
]
SURFACES = [case for case in CASES if "before" in case and "after" in case]
SEQUENCES = [case for case in CASES if "sequence" in case]
NOT_THIS_LAYER = [case for case in CASES if {"config_before", "artifact_before"} & case.keys()]
OURS = vectors_dir() == REPOSITORY / "tests" / "vectors"
"""Whether the cases are those of this repository, which name every single change."""
SURFACE_MEMBERS = {*SERVER_MEMBERS, *(kind.member for kind in ITEM_KINDS), "initialize"}


def test_every_case_is_judged_here_or_counted_as_not_of_this_layer() -> None:
    assert CASES
    assert len(SURFACES) + len(SEQUENCES) + len(NOT_THIS_LAYER) == len(CASES)


@pytest.mark.parametrize("case", cases(NOT_THIS_LAYER))
def test_not_this_layer_configuration_and_artifacts_come_with_the_lock_file(case: Case) -> None:
    """Reason: a surface says nothing about how a server is started or what it was built from."""
    assert {entity for entity, _, _ in case["expect"]["changed"]} <= {"config", "artifact"}


@pytest.mark.parametrize("case", cases(SURFACES))
def test_a_pair_of_surfaces_is_reported_as_expected(case: Case) -> None:
    # An "after" without any list is a server that offers nothing: all else went too.
    whole = bool(SURFACE_MEMBERS & case["after"].keys())
    judge(case, surface_from_listing(case["before"]), surface_from_listing(case["after"]), whole=whole)


@pytest.mark.parametrize("case", cases(SEQUENCES))
def test_a_sequence_of_answers_is_reported_as_expected(case: Case) -> None:
    before, *later = (state.surface for state in play_of(case).states)
    judge(case, before, *later)


def judge(case: Case, before: Surface, *later: Surface, whole: bool = True) -> None:
    changes = [change for after in later for change in compare(before, after)]
    expect = case["expect"]
    expected = {tuple(place) for place in expect["changed"]}
    reported = {(change.entity, change.name, change.field) for change in changes}
    known = other_names(before, *later)
    otherwise = {(entity, other, field) for entity, name, field in reported for other in known.get((entity, name), ())}
    if changes or expect["must_report"] is not None:
        assert reported | otherwise >= expected
    if OURS and whole:
        assert reported == expected or (expect["must_report"] is None and not reported)
    if expect["must_report"] is not None:
        assert bool(changes) is expect["must_report"]
    if expect["must_block_by_default"] is not None:
        assert blocked_by_default(changes) is expect["must_block_by_default"]


def other_names(*surfaces: Surface) -> dict[tuple[str, str], set[str]]:
    """A collection may call a resource or template by its name or its address, and a server by its name or by none."""
    names: dict[tuple[str, str], set[str]] = {}
    for surface in surfaces:
        info = (surface.server or {}).get("serverInfo")
        if isinstance(info, dict) and isinstance(info.get("name"), str):
            names.setdefault(("server", ""), set()).add(info["name"])
        for kind in ITEM_KINDS:
            for item in surface.items_of_kind(kind):
                names.setdefault((kind.entity, item.name), set()).add(item.key)
    return names
