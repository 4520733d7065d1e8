"""Every drift case of the vectors: what must be reported is, what must not is not, and each place has its exact name.

Cases that give a ``sequence`` of answers are judged here by what a complete listing says; that the listing is
complete is tested with servers that speak the protocol. Cases about client configuration and artifacts are not of
this layer: they come with the lock file and are counted here, so that none is lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.documents.surface import KINDS, SERVER_MEMBERS, from_listing
from pinwarden.rules.drift.surface import blocked_by_default, compare
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
LIST_MEMBERS = {kind.method: kind.member for kind in KINDS}
SURFACE_MEMBERS = {*SERVER_MEMBERS, *LIST_MEMBERS.values(), "initialize"}


def test_every_case_is_judged_here_or_counted_as_not_of_this_layer() -> None:
    assert CASES
    assert len(SURFACES) + len(SEQUENCES) + len(NOT_THIS_LAYER) == len(CASES)


@pytest.mark.parametrize("case", cases(NOT_THIS_LAYER))
def test_not_this_layer_configuration_and_artifacts_come_with_the_lock_file(case: Case) -> None:
    """Reason: a surface says nothing about how a server is started or what it was built from."""
    assert {entity for entity, _, _ in case["expect"]["changed"]} <= {"config", "artifact"}


@pytest.mark.parametrize("case", cases(SURFACES))
def test_a_pair_of_surfaces_is_reported_as_expected(case: Case) -> None:
    judge(case, case["before"], case["after"])


@pytest.mark.parametrize("case", cases(SEQUENCES))
def test_a_sequence_of_answers_is_reported_as_expected(case: Case) -> None:
    before, *later = told_in_turn(case["sequence"])
    judge(case, before, *later)


def judge(case: Case, before: Case, *later: Case) -> None:
    changes = [change for after in later for change in compare(from_listing(before), from_listing(after))]
    expect = case["expect"]
    expected = {tuple(place) for place in expect["changed"]}
    reported = {(change.entity, change.name, change.field) for change in changes}
    known = addresses(before, *later)
    by_address = {(entity, known.get((entity, name), name), field) for entity, name, field in reported}
    if changes or expect["must_report"] is not None:
        assert reported | by_address >= expected
    if OURS and all(SURFACE_MEMBERS & after.keys() for after in later):
        # An "after" without any list is a server that offers nothing: all else went too.
        assert reported == expected or (expect["must_report"] is None and not reported)
    if expect["must_report"] is not None:
        assert bool(changes) is expect["must_report"]
    if expect["must_block_by_default"] is not None:
        assert blocked_by_default(changes) is expect["must_block_by_default"]


def addresses(*listings: Case) -> dict[tuple[str, str], str]:
    """The address of each resource and template by entity and name: a collection may call it by either."""
    members = (("resource", "resources", "uri"), ("resourceTemplate", "resourceTemplates", "uriTemplate"))
    return {
        (entity, item["name"]): item[address]
        for listing in listings
        for entity, member, address in members
        for item in listing.get(member, ())
    }


def told_in_turn(sequence: list[Case]) -> list[Case]:
    """What was listed first, and everything that was listed later, pages put together.

    A server that was asked only once was locked from its first page, when it had no other.
    """
    rounds: dict[str, list[list[list[Any]]]] = {}
    facts: list[Case] = []
    for step in sequence:
        result = step.get("result")
        if not isinstance(result, dict):
            continue
        if step.get("call") in LIST_MEMBERS:
            member = LIST_MEMBERS[step["call"]]
            if step.get("cursor") is None:
                rounds.setdefault(member, []).append([])
            rounds[member][-1].append(result.get(member, []))
        elif SERVER_MEMBERS and step.get("call") in ("initialize", "server/discover"):
            facts.append({name: result[name] for name in SERVER_MEMBERS if name in result})
    turns = max([2, len(facts), *map(len, rounds.values())])
    told: list[Case] = [dict(facts[min(turn, len(facts) - 1)]) if facts else {} for turn in range(turns)]
    for member, listings in rounds.items():
        first = listings[0] if len(listings) > 1 else listings[0][:1]
        for turn, listing in enumerate(told):
            pages = first if turn == 0 else listings[min(turn, len(listings) - 1)]
            listing[member] = [item for page in pages for item in page]
    return told
