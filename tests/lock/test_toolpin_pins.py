"""ToolPin's hashes of live tools: what each tells, and where none of them can tell anything."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.lock.entry import Entry
from pinwarden.lock.toolpin_pins import PIN_FINDINGS, compare_tool_hashes
from pinwarden.surface.interop import compute_toolpin_hashes

NAMES = ("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash")
SEARCH: dict[str, Any] = {"name": "search", "description": "Search.", "inputSchema": {"type": "object"}}
WRITE: dict[str, Any] = {"name": "write", "description": "", "inputSchema": {"type": "object"}}
TOOLS = [SEARCH, WRITE]
FAR = [{"name": "さがす"}, {"name": "поиск"}, {"name": "ürün"}]


def manifest(tools: list[Any], *names: str) -> dict[str, Any]:
    """A capability manifest with those of the hashes, or with all three."""
    hashes = compute_toolpin_hashes(tools).to_json()
    pins: dict[str, Any] = {
        name: {"algorithm": "sha256", "value": hashes[name], "toolCount": len(tools)} for name in names or NAMES
    }
    if "toolSurfaceHash" in pins:
        pins["toolSurfaceHash"]["coverage"] = ["name", "description", "inputSchema"]
    return pins


def entry_with(pins: dict[str, Any]) -> Entry:
    return Entry(key="notes", document={"capabilityManifest": pins})


def codes(pins: dict[str, Any], tools: list[Any]) -> list[str]:
    return [finding.code for finding in compare_tool_hashes(pins, tools)]


@pytest.mark.parametrize("names", [(), *((name,) for name in NAMES)])
def test_the_same_tools_in_any_order_are_the_same(names: tuple[str, ...]) -> None:
    assert codes(manifest(TOOLS, *names), TOOLS[::-1]) == []


@pytest.mark.parametrize(
    ("tools", "code"),
    [
        ([SEARCH], "tools_changed"),
        ([], "tools_changed"),
        ([*TOOLS, {"name": "more"}], "tools_changed"),
        ([{**SEARCH, "name": "find"}, WRITE], "tool_texts_changed"),
        ([{**SEARCH, "description": "Send."}, WRITE], "tool_texts_changed"),
        ([{**SEARCH, "inputSchema": {}}, WRITE], "tool_schemas_changed"),
        ([SEARCH, {name: value for name, value in WRITE.items() if name != "description"}], "tools_changed"),
    ],
    ids=["fewer", "none", "more", "renamed", "description", "schema", "empty description gone"],
)
def test_the_older_hashes_narrow_down_what_changed(tools: list[Any], code: str) -> None:
    assert codes(manifest(TOOLS), tools) == [code]


def test_without_the_older_hashes_only_a_change_is_reported() -> None:
    assert codes(manifest(TOOLS, "toolSurfaceHash"), [{**SEARCH, "inputSchema": {}}, WRITE]) == ["tools_changed"]


def test_each_older_hash_detects_only_what_it_covers() -> None:
    changed = [{**SEARCH, "inputSchema": {}}, WRITE]
    assert codes(manifest(TOOLS, "toolDescriptionHash"), changed) == []
    assert codes(manifest(TOOLS, "toolManifestHash"), changed) == ["tools_changed"]


def test_an_unknown_locale_order_is_undecided_without_the_newer_hash() -> None:
    assert compute_toolpin_hashes(FAR).locale_dependent
    changed = [{**FAR[0], "description": "x"}, *FAR[1:]]
    (finding,) = compare_tool_hashes(manifest(FAR, "toolManifestHash"), changed)
    assert (finding.code, finding.is_conclusive) == ("tool_order_unknown", False)
    assert codes(manifest(FAR, "toolManifestHash"), FAR[1:]) == ["tools_changed"]
    assert codes(manifest(FAR), changed) == ["tools_changed"]


@pytest.mark.parametrize("coverage", [[], ["name"], ["name", "description"], ["name", "name", "description"]])
def test_a_hash_with_reduced_coverage_is_refused_even_if_it_matches(coverage: list[str]) -> None:
    pins = manifest(TOOLS)
    pins["toolSurfaceHash"]["coverage"] = coverage
    assert codes(pins, TOOLS) == ["tool_coverage_reduced"]


def test_a_manifest_without_hashes_has_no_pins() -> None:
    assert not entry_with({"version": 1}).has_tool_hashes
    assert all(entry_with(manifest(TOOLS, name)).has_tool_hashes for name in NAMES)


def test_every_finding_has_a_sentence() -> None:
    assert {"tools_changed", "tool_texts_changed", "tool_schemas_changed", "tool_coverage_reduced"} <= set(PIN_FINDINGS)
