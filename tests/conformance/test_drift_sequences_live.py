"""The drift cases that are sequences: a scripted server plays them over real stdio and HTTP, and the probe asks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.adapters.probe.probe import ProbeOptions, probe
from pinwarden.documents.surface import KINDS, Surface, from_listing
from pinwarden.documents.target import HttpTarget
from pinwarden.rules.drift.surface import blocked_by_default, compare
from tests.adapters.targets import scripted
from tests.conformance.vectors import cases, vectors_dir
from tests.servers.scripted_http import http_server

OPTIONS = ProbeOptions(allow_execute=True, allow_private=True, timeout=60)
Rounds = list[list[dict[str, Any]]]


def sequences() -> list[Any]:
    lines = (vectors_dir() / "attacks/own/drift-cases.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return cases([row for row in rows if "sequence" in row])


def tool_sequences() -> list[Any]:
    """Those about tools for which the case says whether they are stopped."""
    return [
        each
        for each in sequences()
        if any(step.get("call") == "tools/list" for step in each.values[0]["sequence"])
        and each.values[0]["expect"]["must_block_by_default"] is not None
    ]


MEMBERS = {kind.method: kind.member for kind in KINDS}


def rounds_of(case: dict[str, Any]) -> tuple[str, Rounds]:
    """What is listed, and the answers page by page; a call without a cursor begins a new round."""
    method = next(step["call"] for step in case["sequence"] if step.get("call") in MEMBERS)
    rounds: Rounds = []
    for step in case["sequence"]:
        if step.get("call") == method:
            if step.get("cursor") is None:
                rounds.append([])
            rounds[-1].append(step["result"])
    return method, rounds


def script_of(method: str, pages: list[dict[str, Any]]) -> dict[str, Any]:
    member = MEMBERS[method]
    offered: dict[str, Any] = {method.partition("/")[0]: {}}
    script: dict[str, Any] = {
        "server": {"serverInfo": {"name": "acme-notes", "version": "1.4.0"}, "capabilities": offered},
        "lists": {member: [page[member] for page in pages]},
        "cursors": [page["nextCursor"] for page in pages if "nextCursor" in page],
    }
    if len(pages) == 1 and set(pages[0]) - {member, "nextCursor"}:  # hints go onto the wire as they are
        answer = json.dumps({"jsonrpc": "2.0", "id": "@@", "result": pages[0]}).replace('"@@"', "{id}")
        script["raw"] = {method: answer}
    return script


def seen(script: dict[str, Any], wire: str) -> Surface:
    if wire == "stdio":
        return probe(scripted(script), OPTIONS)
    with http_server(script, wire) as world:
        return probe(HttpTarget(url=world.url), OPTIONS)


@pytest.mark.parametrize("wire", ["stdio", "json", "events"])
@pytest.mark.parametrize("case", sequences())
def test_a_live_server_that_plays_the_sequence_is_judged_as_the_case_says(case: dict[str, Any], wire: str) -> None:
    (method, rounds), expect = rounds_of(case), case["expect"]
    later = [seen(script_of(method, pages), wire) for pages in (rounds[1:] or rounds)]
    if len(rounds) == 1:
        # The approved list was written when the server still answered in one page.
        before = from_listing({MEMBERS[method]: rounds[0][0][MEMBERS[method]]})
    else:
        before = seen(script_of(method, rounds[0]), wire)
    changes = [change for after in later for change in compare(before, after)]
    assert {(change.entity, change.name, change.field) for change in changes} == set(map(tuple, expect["changed"]))
    assert expect["must_report"] in (None, bool(changes))
    assert expect["must_block_by_default"] in (None, blocked_by_default(changes))
