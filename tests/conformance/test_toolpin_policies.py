"""ToolPin's policies: which are read, their digests, and what they say about each server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.policy import RECOMMENDED_TOOLPIN_POLICY, ToolPinPolicy, parse_toolpin_policy
from pinwarden.lock.policy_rules import evaluate_toolpin_policy
from tests.cli.run import pinwarden
from tests.conformance.toolpin_world import clock, entry, entry_named, files, folder
from tests.conformance.vectors import load

POLICIES = [path for path in files("policies/*.json") if path.name.count(".") == 1]
READABLE = [path for path in POLICIES if path.with_suffix(".digest.json").read_bytes().strip()]


def policy(path: Path) -> ToolPinPolicy:
    return parse_toolpin_policy(path.read_bytes())


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_policy_has_the_same_digest_or_is_refused_as_well(path: Path) -> None:
    stated = path.with_suffix(".digest.json").read_bytes()
    if stated.strip():
        assert policy(path).digest.sri == json.loads(stated)["digest"]
        return
    with pytest.raises(PinwardenError) as caught:
        policy(path)
    assert caught.value.code == "POLICY_INVALID"


@pytest.mark.parametrize("path", [path for path in POLICIES if path not in READABLE], ids=lambda path: path.stem)
def test_a_gate_does_not_pass_under_a_policy_that_cannot_be_read(tmp_path: Path, path: Path) -> None:
    assert path.with_suffix(".ci.json").read_bytes() == b""  # ToolPin fails as well, and has no report then
    (tmp_path / ".toolpin").mkdir()
    shutil.copy(path, tmp_path / ".toolpin" / "policy.json")
    shutil.copy(folder() / "locks" / "whole.mcp-lock.json", tmp_path / "mcp-lock.json")
    outcome = pinwarden("ci", "--format", "json", cwd=tmp_path, env={"HOME": str(tmp_path / "home")})
    assert (outcome.code, json.loads(outcome.out)["error"]["code"]) == (3, "POLICY_INVALID")


@pytest.mark.parametrize("path", files("policies/*.check.*.json"), ids=lambda path: path.stem)
def test_a_check_reports_the_same(path: Path) -> None:
    name, _, identifier = path.stem.split(".", 2)
    expected = json.loads(path.read_bytes())
    client = expected["reports"][0]["key"].rpartition(":")[2]
    plan = build_install_plan(entry(identifier), client, now=clock())
    report = evaluate_toolpin_policy(policy(folder() / "policies" / f"{name}.json"), plan, now=clock())
    result = {"ok": report.ok, "reports": [report.to_json()]}
    assert result == expected
    assert json.dumps(result) == json.dumps(expected)


@pytest.mark.parametrize("path", READABLE, ids=lambda path: path.stem)
def test_a_whole_lock_fails_for_the_same_entries_and_reasons(path: Path) -> None:
    expected = json.loads(path.with_suffix(".ci.json").read_bytes())
    result = {}
    for locked in load("toolpin/locks/whole.mcp-lock.json")["servers"].values():
        about = entry_named(locked["name"], locked["resolved"]["source"])
        how = PlanOptions(scope=locked["scope"])
        plan = build_install_plan(about, locked["client"], now=clock(), options=how)
        report = evaluate_toolpin_policy(policy(path), plan, now=clock())
        if not report.ok:
            reasons = "; ".join(f"{issue.code}: {issue.message}" for issue in report.issues)
            result[locked["name"], locked["client"]] = reasons
    assert result == {(row["entryName"], row["client"]): row["condition"] for row in expected["failures"]}


def test_the_recommended_policy_is_the_one_that_toolpin_writes() -> None:
    assert dict(RECOMMENDED_TOOLPIN_POLICY) == load("toolpin/policies/recommended.json")
