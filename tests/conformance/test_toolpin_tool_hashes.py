"""ToolPin's three hashes over tools, byte for byte as the original wrote them into vectors and locks."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.core.javascript import sort_by_locale
from pinwarden.surface.interop import compute_toolpin_hashes
from tests.conformance.vectors import cases, load, vectors_dir

NAMES = ("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash")


@pytest.mark.parametrize("case", cases(load("toolpin/micro/tool-hashes.json")))
def test_tool_hashes_equal_those_of_toolpin(case: dict[str, Any]) -> None:
    hashes = compute_toolpin_hashes(case["tools"]).to_json()
    assert hashes["toolSurfaceHash"] == case["toolSurfaceHash"]
    if hashes["localeDependent"]:
        # Only ICU orders such names, and the two older hashes say that they cannot be known without it.
        assert not all(tool["name"].isascii() for tool in case["tools"])
        return
    assert {name: hashes[name] for name in NAMES} == {name: case[name] for name in NAMES}
    assert [tool["name"] for tool in sort_by_locale(case["tools"], lambda tool: str(tool["name"]))[0]] == case[
        "localeOrder"
    ]


def pinned() -> list[Any]:
    """Every live pin of the tiny server: in each entry of each live lock, in its locked copy, and in the report."""
    rows: list[dict[str, Any]] = []
    for path in sorted((vectors_dir() / "toolpin/locks").glob("*live*.mcp-lock.json")):
        for key, entry in load(f"toolpin/locks/{path.name}")["servers"].items():
            rows.append({"id": f"{path.name} {key}", "manifest": entry["capabilityManifest"]})
            rows.append({"id": f"{path.name} {key} locked", "manifest": entry["locked"]["capabilityManifest"]})
    report = load("toolpin/verify/live-stdio.live.json")
    rows.append({"id": "verify/live-stdio.live.json", "manifest": report["capabilityManifest"]})
    return cases([row for row in rows if "toolSurfaceHash" in row["manifest"]])


@pytest.mark.parametrize("case", pinned())
def test_live_pins_are_the_hashes_of_the_tools_that_were_served(case: dict[str, Any]) -> None:
    tools = load("toolpin/tools-current.json")
    hashes = compute_toolpin_hashes(tools).to_json()
    for name in NAMES:
        pin = case["manifest"][name]
        assert (pin["algorithm"], pin["value"], pin["toolCount"]) == ("sha256", hashes[name], len(tools))


def test_there_are_live_pins_to_compare_with() -> None:
    assert len(pinned()) >= 3


@pytest.mark.parametrize("change", ["desc-changed", "schema-changed", "tool-removed", "reordered"])
def test_drift_is_seen_where_toolpin_saw_it(change: str) -> None:
    before = compute_toolpin_hashes(load("toolpin/tools-current.json"))
    after = compute_toolpin_hashes(load(f"toolpin/tools-{change}.json"))
    accepted: bool = load(f"toolpin/ci/live-stdio.live.{change}.json")["ok"]
    assert (after == before) is accepted
