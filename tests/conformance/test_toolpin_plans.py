"""Lockfile entries, member by member in ToolPin's order, and the integrity that follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinwarden import Digest, canonicalize
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.trust_tiers import compute_trust_report, with_evidence
from tests.conformance.toolpin_world import LIVE, clock, entry_named, files, verification

HASHED_MANIFEST = (
    ["version", "serverName", "serverVersion", "registrySource", "packageTypes", "transports", "remoteHosts", "secrets"]
)  # fmt: skip
TOOL_HASHES = ("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash")


def rows() -> list[Any]:
    problems = []
    for path in files("locks/*.mcp-lock.json"):
        lock = json.loads(path.read_bytes())
        keys = list(lock["servers"])
        problems += [
            pytest.param(path, key, number == len(keys) - 1, id=f"{path.name.split('.mcp-lock')[0]}-{key}")
            for number, key in enumerate(keys)
        ]
    return problems


def planned(path: Path, expected: dict[str, Any]) -> dict[str, Any]:
    kind = path.name.split(".")[1]
    about = entry_named(expected["name"], expected["resolved"]["source"])
    report = verification(about, kind, expected["trust"]) if kind in LIVE else None
    how = PlanOptions(scope=expected["scope"])
    return build_install_plan(about, expected["client"], now=clock(), verification=report, options=how)


@pytest.mark.parametrize(("path", "key", "last"), rows())
def test_the_plan_is_the_entry_that_toolpin_locks(path: Path, key: str, last: bool) -> None:
    expected = json.loads(path.read_bytes())["servers"][key]
    integrity = expected.pop("integrity")
    plan = planned(path, expected)
    assert plan == expected
    if last:  # the others have been read and written again, which changes the order inside trust
        assert json.dumps(plan) == json.dumps(expected)
    else:
        assert [name for name in expected if name != "trust"] == [name for name in plan if name != "trust"]
    assert entry_integrity(plan) == integrity


@pytest.mark.parametrize(("path", "key", "last"), rows())
def test_trust_that_was_read_again_has_toolpins_order(path: Path, key: str, last: bool) -> None:
    expected = json.loads(path.read_bytes())["servers"][key]
    kind = path.name.split(".")[1]
    if kind in LIVE:
        report = verification(
            entry_named(expected["name"], expected["resolved"]["source"]), kind, expected["trust"]
        ).trust
    else:
        report = compute_trust_report(entry_named(expected["name"], expected["resolved"]["source"]), now=clock())
    locked = with_evidence(report, expected["trust"]["evidence"][-1], now=clock())
    assert json.dumps(locked.to_json(reread=not last)) == json.dumps(expected["trust"])


def entry_integrity(plan: dict[str, Any]) -> str:
    """By section 4 of the reference."""
    payload = {
        **{name: member for name, member in plan.items() if name != "locked"},
        "capabilityManifest": hashed(plan["capabilityManifest"]),
        "locked": {**plan["locked"], "capabilityManifest": hashed(plan["locked"]["capabilityManifest"])},
    }
    return Digest.of_bytes(canonicalize(payload, "toolpin")).sri


def hashed(manifest: dict[str, Any]) -> dict[str, Any]:
    kept = {name: manifest[name] for name in HASHED_MANIFEST if name in manifest}
    for name in TOOL_HASHES:
        if name in manifest:
            kept[name] = {part: value for part, value in manifest[name].items() if part != "generatedAt"}
    return kept
