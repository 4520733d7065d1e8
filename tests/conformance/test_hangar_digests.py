"""MCP Hangar's tool digests, old and current form, as the published packages computed them."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden import PinwardenError, tool_digest
from tests.conformance.vectors import cases, load, vectors_dir

PROFILES = {"hangar-1.2": "mcp-hangar-1.2.0", "hangar": "mcp-hangar-2.34.4"}
CODES = {"TOOL_INVALID", "JSON_CANONICALIZATION_ERROR", "JSON_PARSE_ERROR"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("case", cases(load("hangar/digest-edge.json")))
def test_digest_of_an_odd_tool_equals_that_of_hangar(case: dict[str, Any], profile: str) -> None:
    expected, text = case["expect"][PROFILES[profile]], case["tool_json"].encode()
    if "error" in expected:
        with pytest.raises(PinwardenError) as caught:
            tool_digest(text, profile)
        assert caught.value.code in CODES
    else:
        assert tool_digest(text, profile).hex == expected["sha256"]


def real_tools() -> list[Any]:
    """The tools of a server, also those that it lists only for a client with more capabilities."""
    rows = []
    for server, expected in load("hangar/digest-real.json").items():
        tools: dict[str, Any] = {}
        folder = vectors_dir() / "real-servers"
        for path in sorted(folder.iterdir(), reverse=True):
            if path.stem == server or path.stem.startswith(f"{server}+"):
                tools.update({tool["name"]: tool for tool in load(f"real-servers/{path.name}")["tools"]})
        rows += [{"id": f"{server} {row['name']}", "tool": tools[row["name"]], **row} for row in expected]
    return cases(rows)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("case", real_tools())
def test_digest_of_a_real_tool_equals_that_of_hangar(case: dict[str, Any], profile: str) -> None:
    assert tool_digest(case["tool"], profile).hex == case["expect"][PROFILES[profile]]["sha256"]
