"""ToolPin's advisory scan, finding by finding as version 0.5.4 gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pinwarden.lock.target_verification import scan_tools
from tests.conformance.vectors import cases, load, vectors_dir

SCANNED_SERVERS = sorted(path.stem for path in (vectors_dir() / "toolpin/scan").glob("*.json"))


def scanned(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    findings: list[dict[str, str]] = scan_tools(tools, now="")["findings"]
    return findings


@pytest.mark.parametrize("case", cases(load("toolpin/micro/scan-strings.json"), label="description"))
def test_description_gets_the_advisories_of_toolpin(case: dict[str, Any]) -> None:
    assert scanned([{"name": "t", "description": case["description"]}]) == case["findings"]


@pytest.mark.parametrize("case", cases(load("toolpin/micro/scan-toolsets.json")))
def test_tools_get_the_advisories_of_toolpin_in_its_order(case: dict[str, Any]) -> None:
    assert len(case["tools"]) == case["scan"]["scannedDescriptions"]
    assert scanned(case["tools"]) == case["scan"]["findings"]


@pytest.mark.parametrize("server", SCANNED_SERVERS)
def test_server_metadata_gets_the_advisories_of_toolpin(server: str) -> None:
    entry = load(f"toolpin/servers/{server}.json")["server"]
    expected = load(f"toolpin/scan/{server}.json")
    assert [{**row, "subject": f"server:{entry['name']}"} for row in scanned([entry])] == expected["findings"]


def test_live_tools_get_the_advisories_of_toolpin() -> None:
    manifest = load("toolpin/verify/live-stdio.live.json")["capabilityManifest"]
    tools = load("toolpin/tools-current.json")
    assert manifest["toolDescriptionScan"]["scannedDescriptions"] == len(tools)
    assert scanned(tools) == manifest["toolDescriptionScan"]["findings"]


@pytest.mark.parametrize("folder", ["micro", "scan", "verify", "servers"])
def test_there_are_vectors(folder: str) -> None:
    assert any((vectors_dir() / "toolpin" / folder).iterdir())
