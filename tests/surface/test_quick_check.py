"""The texts in ``tests/assets/texts``: attacks are suspected, honest descriptions are not, and misses are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.surface.drift.compare import blocked_by_default, compare
from pinwarden.surface.scan.cues import Words, find_cues, may_have_cues
from pinwarden.surface.scan.scan import MESSAGES, scan
from pinwarden.surface.sentences import walk_strings
from pinwarden.surface.surface import surface_from_listing

Case = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "assets" / "texts"


def texts(name: str) -> list[Case]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


ATTACKS, HONEST = texts("attacks"), texts("honest")


def suspicions(case: Case) -> set[str]:
    """The codes of ours that the scan warns of."""
    findings = scan(surface_from_listing(case["surface"]))
    return {finding.code for finding in findings if finding.severity == "warning" and finding.code in MESSAGES}


def named(cases: list[Case], member: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in cases if member in case]


@pytest.mark.parametrize("case", named(ATTACKS, "surface"))
def test_attack_in_any_place_and_disguise_is_suspected(case: Case) -> None:
    assert suspicions(case) != set()


@pytest.mark.parametrize("case", named(HONEST, "surface"))
def test_legitimate_text_is_not_suspected(case: Case) -> None:
    assert suspicions(case) == set()


@pytest.mark.parametrize("case", named(ATTACKS, "before"))
def test_quiet_change_of_meaning_needs_review(case: Case) -> None:
    assert blocked_by_default(compare(surface_from_listing(case["before"]), surface_from_listing(case["after"])))


@pytest.mark.parametrize("case", named(HONEST, "before"))
def test_legitimate_change_does_not_look_like_an_attack(case: Case) -> None:
    changes = compare(surface_from_listing(case["before"]), surface_from_listing(case["after"]))
    assert changes
    assert [change for change in changes if change.severity == CRITICAL] == []


def test_quick_check_detects_every_cue_of_every_text() -> None:
    strings = {text for case in ATTACKS + HONEST for _, text in walk_strings(case.get("surface", case.get("after")))}
    unseen = [
        text
        for text in strings
        if find_cues(text) and not may_have_cues(text.replace('"', "'"), Words(text.replace('"', "'")))
    ]
    assert unseen == []
