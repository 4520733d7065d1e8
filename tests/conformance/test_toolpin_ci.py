"""``ci`` against ToolPin's recorded outcomes, offline from the registry cache, with the clock of the recordings.

Where ToolPin is wrong we give the right answer; each such case is a row of docs/reference/toolpin-differences.md.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pinwarden.flows.gating import Gate, check
from pinwarden.flows.project import Policies, Project
from pinwarden.flows.report import Report
from tests.conformance.vectors import REPOSITORY, vectors_dir

NOW = "2026-07-20T12:00:00.000Z"
TOOLPIN = vectors_dir() / "toolpin"

RIGHT_ANSWERS = {
    "newer_release": True,  # a newer release is news, not drift: the locked version is still what it was
    "status_deleted": False,  # ToolPin does not look at the status that the registry gives a version
}


def world(tmp_path: Path, lock: Path, cache: Path | None = None) -> Project:
    shutil.copytree(TOOLPIN / "dot-toolpin", tmp_path / ".toolpin")
    if cache is not None:
        shutil.copy(cache, tmp_path / ".toolpin" / "registry-cache.json")
    shutil.copy(lock, tmp_path / "mcp-lock.json")
    return Project(root=tmp_path, lock=tmp_path / "mcp-lock.json", home=tmp_path / "home")


def run(project: Project, expect_digest: str | None = None) -> Report:
    gate = Gate(now=NOW, registries=project.registries(offline=True), expect_digest=expect_digest)
    return check(project, Policies(), gate)


def recorded(path: Path) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(path.read_bytes())
    return outcome


LOCKS = sorted(path for path in (TOOLPIN / "locks").glob("*.mcp-lock.json"))
JUDGED = [path for path in LOCKS if (TOOLPIN / "ci" / path.name.replace(".mcp-lock.json", ".json")).exists()]


@pytest.mark.parametrize("lock", JUDGED, ids=[path.name for path in JUDGED])
def test_a_lock_of_toolpin_gets_its_verdict(tmp_path: Path, lock: Path) -> None:
    expected = recorded(TOOLPIN / "ci" / lock.name.replace(".mcp-lock.json", ".json"))
    report = run(world(tmp_path, lock))
    assert (report.exit_code == 0) is expected["ok"]
    assert report.facts["checkedEntries"] == expected["checkedEntries"]


DRIFT = sorted((TOOLPIN / "drift").glob("*.ci.json"))


@pytest.mark.parametrize("outcome", DRIFT, ids=[path.name.split(".")[0] for path in DRIFT])
def test_a_changed_registry_gets_the_right_verdict(tmp_path: Path, outcome: Path) -> None:
    case = outcome.name.split(".")[0]
    cache = TOOLPIN / "drift" / f"{case}.registry-cache.json"
    report = run(world(tmp_path, TOOLPIN / "locks" / "whole.mcp-lock.json", cache))
    expected = recorded(outcome)
    assert (report.exit_code == 0) is RIGHT_ANSWERS.get(case, expected["ok"])
    if case not in RIGHT_ANSWERS and not expected["ok"]:
        ours = {row.name for row in report.rows if row.level in ("critical", "review")}
        assert ours == {failure["entryName"] for failure in expected["failures"]}


def test_the_digest_that_was_stated_out_of_band_decides(tmp_path: Path) -> None:
    lock = TOOLPIN / "locks" / "whole.mcp-lock.json"
    digest = recorded(TOOLPIN / "locks" / "whole.digest.json")["digest"]
    project = world(tmp_path, lock)
    assert run(project, digest).exit_code == 0
    refused = run(project, "sha256-" + "A" * 43 + "=")
    assert (refused.exit_code, [row.code for row in refused.rows]) == (1, ["digest_mismatch"])


FORGED = sorted((TOOLPIN / "defects").glob("*.mcp-lock.json"))


@pytest.mark.parametrize("lock", FORGED, ids=[path.name for path in FORGED])
def test_what_toolpin_lets_pass_by_mistake_is_refused(tmp_path: Path, lock: Path) -> None:
    assert recorded(lock.with_name(lock.name.replace(".mcp-lock.json", ".ci.json")))["ok"] is True
    assert run(world(tmp_path, lock)).exit_code == 1


def test_every_other_answer_than_toolpins_is_told_in_the_documentation() -> None:
    page = (REPOSITORY / "docs" / "reference" / "toolpin-differences.md").read_text(encoding="utf-8")
    for case in RIGHT_ANSWERS:
        assert f"`{case}`" in page
